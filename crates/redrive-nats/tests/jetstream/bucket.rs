//! Contents, limits and settings of the bucket.

use std::time::Duration;

use redrive_nats::{NatsError, NatsOptions, NatsStore};
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyStore, KeyState, OwnerToken,
};

use crate::scene::{KEEP, LEASE, Scene, key};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_key_and_text_is_stored_and_an_abandoned_key_is_free() {
    let scene = Scene::new();
    let store = scene.open().await;
    let print = Fingerprint::of(&"payload").unwrap();
    let longest = "é".repeat(127);
    for name in ["charge/é", "a.b.*.>", " ", "..", "$KV.x", longest.as_str()] {
        let (key, owner) = (key(name), OwnerToken::new());
        assert_eq!(store.get(&key).await.unwrap(), None, "{name}");
        store.begin(&key, print, owner, LEASE).await.unwrap();
        store.release(&key, owner, Some("a \0 in it"), KEEP).await.unwrap();
        let record = store.get(&key).await.unwrap().unwrap();
        assert_eq!(record.fingerprint, print);
        assert!(matches!(record.state, KeyState::Failed { error, .. } if error == "a \0 in it"));
    }
    let (key, owner) = (key("charge/é"), OwnerToken::new());
    store.begin(&key, print, owner, Duration::MAX).await.unwrap();
    let changed = store.changed(&key);
    store.abandon(&key, owner);
    changed.await;
    assert_eq!(store.begin(&key, print, OwnerToken::new(), LEASE).await.unwrap(), Begin::Acquired);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_cleared_and_reaped_keys_leave_no_entry() {
    let scene = Scene::new();
    let store = scene.open().await;
    let keys = [key("released"), key("cleared"), key("reaped")];
    let owner = OwnerToken::new();
    for key in &keys {
        store.begin(key, Fingerprint::default(), owner, LEASE).await.unwrap();
    }
    store.release(&keys[0], owner, None, KEEP).await.unwrap();
    store.clear(&keys[1]).await.unwrap();
    store.complete(&keys[2], owner, "1", None, Duration::ZERO).await.unwrap();
    assert_eq!(store.reap(100).await.unwrap(), 1);
    let left: Vec<_> = scene.entries().await.into_iter().filter(|name| !name.ends_with(".clock")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_too_large_is_refused_with_its_size() {
    let scene = Scene::new();
    let store = scene.open().await;
    let (key, owner) = (key("charge"), OwnerToken::new());
    store.begin(&key, Fingerprint::default(), owner, LEASE).await.unwrap();
    let large = format!("\"{}\"", "x".repeat(2 << 20));
    let refused = store.complete(&key, owner, &large, None, KEEP).await.unwrap_err();
    let text = refused.to_string();
    assert!(
        matches!(refused, IdempotencyError::TooLarge { bytes, limit, .. } if bytes > 2 << 20 && limit < 1 << 20)
    );
    assert!(text.contains("store a reference"), "{text}");
    store.complete(&key, owner, "1", None, KEEP).await.expect("it still holds the key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_bucket_must_match_the_options() {
    let scene = Scene::new();
    scene.open().await;
    let other = |change: fn(&mut NatsOptions)| {
        let (url, mut options) = (scene.url.clone(), scene.options.clone());
        change(&mut options);
        async move { NatsStore::connect(&url, options).await.unwrap_err().to_string() }
    };
    let memory = other(|options| options.storage = redrive_nats::Storage::Memory).await;
    assert!(memory.contains("storage File, not Memory"), "{memory}");
    let replicas = other(|options| options.replicas = 3).await;
    assert!(replicas.contains("1 replicas, not 3"), "{replicas}");
    let age = other(|options| options.max_age = Some(KEEP)).await;
    assert!(age.contains("a maximum age of 0ns, not 3600s"), "{age}");
    let name = other(|options| options.bucket = "not a name".into()).await;
    assert!(name.contains("not a name"), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_server_is_refused_for_replicated_buckets() {
    let mut scene = Scene::new();
    let is_new = scene.jetstream().await.client().is_server_compatible(2, 9, 21);
    scene.options.replicas = 3;
    let refused = NatsStore::connect(&scene.url, scene.options.clone()).await;
    match refused {
        // A single server has no replicas.
        Err(NatsError::Bucket { .. }) if is_new => {}
        Err(error @ NatsError::OldServer { .. }) => {
            assert!(error.to_string().contains("use 2.9.21 or newer"));
        }
        other => panic!("{other:?}"),
    }
    scene.options.replicas = 1;
    scene.open().await; // the bucket was not created before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_retention_are_limited_by_the_maximum_age() {
    let mut scene = Scene::new();
    scene.options.max_age = Some(Duration::from_secs(60));
    let store = scene.open().await;
    let (key, owner) = (key("charge"), OwnerToken::new());
    let begun = store.begin(&key, Fingerprint::default(), owner, Duration::from_secs(60)).await;
    let Err(IdempotencyError::Unavailable(why)) = begun else { panic!("{begun:?}") };
    assert!(matches!(why.downcast_ref(), Some(NatsError::LeaseTooLong { lease: 60_000, .. })), "{why}");
    store.begin(&key, Fingerprint::default(), owner, LEASE).await.unwrap();
    store.complete(&key, owner, "1", None, KEEP).await.unwrap();
    let record = store.get(&key).await.unwrap().unwrap();
    let KeyState::Completed { expires_at, .. } = record.state else { panic!("{record:?}") };
    assert_eq!(expires_at.since(record.updated_at), Duration::from_secs(60));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_other_programs_are_reported_and_kept() {
    let scene = Scene::new();
    let store = scene.open().await;
    let subject = format!("$KV.{}.key.charge", scene.options.bucket);
    let jetstream = scene.jetstream().await;
    jetstream.publish(subject.clone(), "hello".into()).await.unwrap().await.unwrap();
    let begun = store.begin(&key("charge"), Fingerprint::default(), OwnerToken::new(), LEASE).await;
    let text = begun.unwrap_err().to_string();
    assert!(text.contains("key.charge cannot be read"), "{text}");
    assert_eq!(store.reap(100).await.unwrap(), 0);
    let message = scene.stream().await.get_last_raw_message_by_subject(&subject).await.unwrap();
    assert_eq!(message.payload, "hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_times_are_the_servers() {
    let scene = Scene::new();
    let store = scene.open().await;
    let (key, owner) = (key("charge"), OwnerToken::new());
    store.begin(&key, Fingerprint::default(), owner, LEASE).await.unwrap();
    let taken = store.get(&key).await.unwrap().unwrap();
    store.extend(&key, owner, LEASE).await.unwrap();
    let renewed = store.get(&key).await.unwrap().unwrap();
    assert_eq!(renewed.created_at, taken.created_at, "time of the first claim");
    let subject = format!("$KV.{}.key.charge", scene.options.bucket);
    let message = scene.stream().await.get_last_raw_message_by_subject(&subject).await.unwrap();
    let stamp = redrive_retry::Timestamp::from(std::time::SystemTime::from(message.time));
    assert_eq!(renewed.updated_at, stamp);
    assert!(
        matches!(renewed.state, KeyState::InProgress { lease_until, .. } if lease_until == stamp + LEASE)
    );
}
