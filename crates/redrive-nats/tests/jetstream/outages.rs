//! Killed and unreachable servers, and lost answers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redrive_nats::{NatsError, NatsStore};
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyStore, KeyState, OwnerToken,
};
use redrive_retry::manager::OnConflict;
use redrive_retry::{Category, RetryErrorReason, RetryManager};
use redrive_servers::Nats;
use tokio::task::JoinSet;

use crate::proxy::Proxy;
use crate::scene::{KEEP, LEASE, Scene, key, server};

const PRINT: fn() -> Fingerprint = Fingerprint::default;

/// The error of a store whose server is unreachable.
fn why<T: std::fmt::Debug>(result: Result<T, IdempotencyError>) -> NatsError {
    match result {
        Err(IdempotencyError::Unavailable(why)) => *why.downcast().expect("an error of this crate"),
        other => panic!("{other:?}"),
    }
}

/// Repeats the claim until the client has reconnected.
async fn begin_when_back(store: &NatsStore, name: &str, owner: OwnerToken) -> Begin {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match store.begin(&key(name), PRINT(), owner, LEASE).await {
            Ok(begun) => return begun,
            Err(IdempotencyError::Unavailable(_)) if Instant::now() < until => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_a_killed_server() {
    let nats = Nats::start().unwrap_or_else(|missing| panic!("{missing}"));
    let mut scene = Scene::on(nats.url());
    scene.options.timeout = Duration::from_secs(2);
    let store = scene.open().await;
    let (running, owner) = (key("running"), OwnerToken::new());
    store.begin(&running, PRINT(), owner, Duration::from_secs(600)).await.unwrap();
    for number in 0..50 {
        let (key, owner) = (key(&format!("done/{number}")), OwnerToken::new());
        store.begin(&key, PRINT(), owner, LEASE).await.unwrap();
        store.complete(&key, owner, &number.to_string(), None, KEEP).await.unwrap();
    }

    nats.crash();
    let began = Instant::now();
    // Once the client has noticed, requests fail at once.
    while !matches!(why(store.get(&running).await), NatsError::Disconnected) {
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    assert!(
        why(store.begin(&key("new"), PRINT(), owner, LEASE).await).to_string().contains("retry the request")
    );
    nats.resume().unwrap();

    assert_eq!(begin_when_back(&store, "new", OwnerToken::new()).await, Begin::Acquired);
    for number in 0..50 {
        let answered =
            store.begin(&key(&format!("done/{number}")), PRINT(), OwnerToken::new(), LEASE).await.unwrap();
        assert_eq!(answered, Begin::Completed { result: number.to_string() });
    }
    let other = store.begin(&running, PRINT(), OwnerToken::new(), LEASE).await.unwrap();
    assert!(matches!(other, Begin::InProgress { .. }), "{other:?}");
    store.complete(&running, owner, "1", None, KEEP).await.expect("its owner still holds it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timed_out_claim_that_took_effect_is_recognised() {
    let proxy = Proxy::before(&server()).await;
    let mut scene = Scene::on(proxy.url.clone());
    scene.options.timeout = Duration::from_millis(500);
    let store = scene.open().await;
    let owner = OwnerToken::new();

    // The answer to the write is lost; its effect is read back.
    proxy.lose(1);
    assert_eq!(store.begin(&key("once"), PRINT(), owner, LEASE).await.unwrap(), Begin::Acquired);
    assert_eq!(proxy.left(), 0);
    let other = store.begin(&key("once"), PRINT(), OwnerToken::new(), LEASE).await.unwrap();
    assert!(matches!(other, Begin::InProgress { .. }), "{other:?}");

    // The effect cannot be read back either: the same owner repeats the claim.
    proxy.lose(2);
    let unknown = why(store.begin(&key("twice"), PRINT(), owner, LEASE).await);
    assert!(matches!(unknown, NatsError::NoAnswer), "{unknown}");
    assert_eq!(proxy.left(), 0);
    let other = store.begin(&key("twice"), PRINT(), OwnerToken::new(), LEASE).await.unwrap();
    assert!(matches!(other, Begin::InProgress { .. }), "the claim took effect: {other:?}");
    assert_eq!(store.begin(&key("twice"), PRINT(), owner, LEASE).await.unwrap(), Begin::Acquired);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_with_a_lost_answer_is_stored_once() {
    let proxy = Proxy::before(&server()).await;
    let mut scene = Scene::on(proxy.url.clone());
    scene.options.timeout = Duration::from_millis(500);
    let (store, direct) =
        (scene.open().await, NatsStore::connect(&server(), scene.options.clone()).await.unwrap());
    for (name, lost) in [("found by itself", 1), ("found when asked again", 2)] {
        let (key, owner) = (key(name), OwnerToken::new());
        store.begin(&key, PRINT(), owner, LEASE).await.unwrap();
        let record = direct.get(&key).await.unwrap().unwrap();
        assert!(matches!(record.state, KeyState::InProgress { .. }));
        // The first read must be answered, so only later answers are lost.
        let completing = store.complete(&key, owner, "1", None, KEEP);
        let stored = async {
            proxy.lose_after_one(lost);
            completing.await
        };
        match stored.await {
            Ok(()) => assert_eq!(lost, 1),
            Err(error) => {
                assert!(matches!(why::<()>(Err(error)), NatsError::NoAnswer));
                store
                    .complete(&key, owner, "1", None, KEEP)
                    .await
                    .expect("completing again with an equal result");
            }
        }
        let another = store.complete(&key, owner, "2", None, KEEP).await;
        assert!(matches!(another, Err(IdempotencyError::LeaseLost { .. })), "{another:?}");
        let answered = direct.begin(&key, PRINT(), OwnerToken::new(), LEASE).await.unwrap();
        assert_eq!(answered, Begin::Completed { result: "1".into() });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_or_clear_with_a_lost_answer_frees_the_key() {
    let proxy = Proxy::before(&server()).await;
    let mut scene = Scene::on(proxy.url.clone());
    scene.options.timeout = Duration::from_millis(500);
    let store = scene.open().await;
    let (released, cleared, owner) = (key("released"), key("cleared"), OwnerToken::new());
    for key in [&released, &cleared] {
        store.begin(key, PRINT(), owner, LEASE).await.unwrap();
    }
    proxy.lose_after_one(1);
    store.release(&released, owner, None, KEEP).await.unwrap();
    proxy.lose_after_one(1);
    assert!(store.clear(&cleared).await.unwrap());
    for key in [&released, &cleared] {
        assert_eq!(store.get(key).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_bucket_is_reported() {
    let scene = Scene::new();
    let store = scene.open().await;
    scene.jetstream().await.delete_stream(format!("KV_{}", scene.options.bucket)).await.unwrap();
    let gone = why(store.begin(&key("charge"), PRINT(), OwnerToken::new(), LEASE).await);
    assert!(matches!(gone, NatsError::Refused(_)), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_is_reported_with_a_remedy() {
    let refused =
        NatsStore::connect("nats://127.0.0.1:1", Scene::on(String::new()).options).await.unwrap_err();
    assert!(refused.to_string().contains("check the address"), "{refused}");
}

/// Three kills under load: a side effect runs once, unless a caller got the error that its result was not recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_runs_twice_silently_across_server_kills() {
    const KEYS: usize = 60;
    let nats = Nats::start().unwrap_or_else(|missing| panic!("{missing}"));
    let mut scene = Scene::on(nats.url());
    scene.options.timeout = Duration::from_secs(1);
    let counters = || Arc::new([const { AtomicU32::new(0) }; KEYS]);
    let (runs, answered, done) = (counters(), counters(), Arc::new(AtomicU32::new(0)));
    let mut callers = JoinSet::new();
    for caller in 0..4 {
        let manager = RetryManager::builder().idempotency_store(Arc::new(scene.open().await)).build();
        let (runs, answered, done) = (Arc::clone(&runs), Arc::clone(&answered), Arc::clone(&done));
        callers.spawn(async move {
            let mut results = Vec::new();
            for number in 0..KEYS {
                // In different orders, so that the workers meet.
                let number = if caller % 2 == 0 { number } else { KEYS - 1 - number };
                results.push((number, call(&manager, number, &runs[number], &answered[number]).await));
                done.fetch_add(1, Ordering::SeqCst);
            }
            results
        });
    }
    for kill in 1..=3 {
        while done.load(Ordering::SeqCst) < kill * 50 {
            tokio::task::yield_now().await;
        }
        tokio::task::block_in_place(|| {
            nats.crash();
            nats.resume().unwrap();
        });
    }
    let results = callers.join_all().await;
    for (number, run) in runs.iter().enumerate() {
        let (ran, said) = (run.load(Ordering::SeqCst), answered[number].load(Ordering::SeqCst));
        assert!((1..=1 + said).contains(&ran), "key {number} ran {ran} times, {said} errors were returned");
        let values: HashSet<_> =
            results.iter().flatten().filter(|(key, _)| *key == number).map(|(_, value)| value).collect();
        assert_eq!(values.len(), 1, "every caller got the same result of key {number}: {values:?}");
    }
}

/// Repeats the call until there is a result.
async fn call(manager: &RetryManager, number: usize, runs: &AtomicU32, answered: &AtomicU32) -> u32 {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let called = manager
            .execute(&Category::ApiRequest, "charge card")
            .idempotent(key(&format!("charge/{number}")))
            .lease(Duration::from_secs(3))
            .on_conflict(OnConflict::Wait(Duration::from_secs(10)))
            .run(|_attempt| async { Ok::<u32, std::io::Error>(runs.fetch_add(1, Ordering::SeqCst)) })
            .await;
        let error = match called {
            Ok(value) => return value,
            Err(error) => error,
        };
        if matches!(error.reason(), RetryErrorReason::ResultNotRecorded { .. }) {
            answered.fetch_add(1, Ordering::SeqCst);
        }
        assert!(Instant::now() < until, "{error}");
    }
}
