//! Concurrent owners of one key.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::idempotency::conformance::race;
use redrive_retry::idempotency::{Begin, Fingerprint, IdempotencyStore, KeyState, OwnerToken};
use redrive_retry::{Category, RetryManager};
use tokio::task::JoinSet;

use crate::scene::{KEEP, LEASE, Scene, key};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_processes_claims_the_key_and_all_get_the_result() {
    let scene = Scene::new();
    let mut handles: Vec<Arc<dyn IdempotencyStore>> = Vec::new();
    for _ in 0..3 {
        handles.push(Arc::new(scene.open().await));
    }
    race(&handles).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reap_never_removes_a_key_that_was_just_claimed() {
    let scene = Scene::new();
    let (store, reaper) = (Arc::new(scene.open().await), scene.open().await);
    let keys: Vec<_> = (0..50).map(|number| key(&format!("charge/{number}"))).collect();
    for key in &keys {
        let owner = OwnerToken::new();
        store.begin(key, Fingerprint::default(), owner, LEASE).await.unwrap();
        store.complete(key, owner, "1", None, Duration::ZERO).await.unwrap();
    }
    let mut takers = JoinSet::new();
    for key in keys {
        let store = Arc::clone(&store);
        takers.spawn(async move {
            let owner = OwnerToken::new();
            let begun = store.begin(&key, Fingerprint::default(), owner, LEASE).await.unwrap();
            assert_eq!(begun, Begin::Acquired);
            tokio::task::yield_now().await;
            store.complete(&key, owner, "2", None, KEEP).await.unwrap();
        });
    }
    while reaper.reap(7).await.unwrap() > 0 {}
    takers.join_all().await;
    assert_eq!(reaper.reap(1000).await.unwrap(), 0);
    let kept = scene.entries().await;
    assert_eq!(kept.iter().filter(|subject| subject.contains(".key.")).count(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reap_handles_several_pages() {
    let scene = Scene::new();
    let store = Arc::new(scene.open().await);
    let mut writers = JoinSet::new();
    for writer in 0..13 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            for number in 0..100 {
                let (key, owner) = (key(&format!("charge/{number}/{writer}")), OwnerToken::new());
                store.begin(&key, Fingerprint::default(), owner, LEASE).await.unwrap();
                // Expired and live entries alternate.
                let keep = if number % 2 == 0 { Duration::ZERO } else { KEEP };
                store.complete(&key, owner, "1", None, keep).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    assert_eq!(store.reap(600).await.unwrap(), 600);
    assert_eq!(store.reap(600).await.unwrap(), 50);
    assert_eq!(store.reap(600).await.unwrap(), 0);
    let kept = scene.entries().await;
    assert_eq!(kept.iter().filter(|subject| subject.contains(".key.")).count(), 650);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_without_a_runtime_can_use_the_store() {
    let scene = Scene::new();
    let store = Arc::new(scene.open().await);
    let manager = RetryManager::builder().idempotency_store(store).build();
    let called = std::thread::spawn(move || {
        manager
            .execute(&Category::ApiRequest, "charge card")
            .idempotent(key("charge/blocking"))
            .run_blocking(|_attempt| Ok::<u32, std::io::Error>(7))
            .unwrap()
    });
    assert_eq!(tokio::task::spawn_blocking(move || called.join().unwrap()).await.unwrap(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_taken_over_before_its_end_on_the_servers_clock() {
    let scene = Scene::new();
    let (owner, heir) = (scene.open().await, scene.open().await);
    for round in 0..10 {
        let key = key(&format!("charge/{round}"));
        let lease = Duration::from_millis(20 + round * 7);
        owner.begin(&key, Fingerprint::default(), OwnerToken::new(), lease).await.unwrap();
        let held = owner.get(&key).await.unwrap().unwrap();
        let KeyState::InProgress { lease_until, .. } = held.state else { panic!("{held:?}") };
        while heir.begin(&key, Fingerprint::default(), OwnerToken::new(), LEASE).await.unwrap()
            != Begin::Acquired
        {}
        let taken = heir.get(&key).await.unwrap().unwrap();
        assert!(taken.updated_at >= lease_until, "{taken:?}, before {lease_until}");
        assert_eq!(taken.created_at, held.created_at, "time of the first claim");
    }
}
