//! Idempotent calls: stored results, concurrent callers, leases and failing stores.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive_retry::audit::ChannelSink;
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyRecord, IdempotencyStore, KeyState,
    MemoryStore, OwnerToken, StoreFuture,
};
use redrive_retry::manager::{Execution, OnConflict};
use redrive_retry::{BoxError, Category, RetryErrorReason, RetryManager, RetryPolicy, VirtualTime};

struct World {
    time: VirtualTime,
    store: Arc<MemoryStore>,
    manager: RetryManager,
    runs: AtomicU32,
}

impl World {
    fn new() -> Self {
        let time = VirtualTime::new();
        let store = Arc::new(MemoryStore::new(time.clock()));
        let manager = RetryManager::builder().clock(time.clock()).idempotency_store(store.clone()).build();
        World { time, store, manager, runs: AtomicU32::new(0) }
    }

    fn call(&self) -> Execution<'_> {
        self.manager.execute(&Category::KvPut, "Store kill switch state")
    }

    async fn effect(&self) -> Result<u32, BoxError> {
        Ok(self.runs.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::new(text).unwrap()
}

#[tokio::test]
async fn the_second_call_gets_the_stored_result_without_running() {
    let world = World::new();
    for _ in 0..3 {
        let run = world.call().idempotent(key("k")).run(|_| world.effect());
        assert_eq!(world.time.drive(run).await.unwrap(), 1);
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_stored_result_lives_until_it_expires() {
    let day = Duration::from_secs(24 * 3600);
    let week = 7 * day;
    let always = Duration::from_secs(50 * 365 * 24 * 3600);
    let millisecond = Duration::from_millis(1);
    for (of_manager, of_call, lifetime) in [
        (None, None, day),
        (Some(week), None, week),
        (Some(week), Some(day), day),
        (None, Some(Duration::MAX), always),
    ] {
        let World { time, store, runs, .. } = World::new();
        let mut builder = RetryManager::builder().clock(time.clock()).idempotency_store(store);
        if let Some(keep) = of_manager {
            builder = builder.keep_results(keep);
        }
        let manager = builder.build();
        let call = || async {
            let mut call = manager.execute(&Category::KvPut, "put").idempotent(key("k"));
            if let Some(keep) = of_call {
                call = call.keep_result(keep);
            }
            call.run(|_| async { Ok::<_, BoxError>(runs.fetch_add(1, Ordering::SeqCst) + 1) }).await
        };
        assert_eq!(time.drive(call()).await.unwrap(), 1);
        time.advance(lifetime - millisecond);
        assert_eq!(time.drive(call()).await.unwrap(), 1, "kept for {lifetime:?}");
        if lifetime != always {
            time.advance(millisecond);
            assert_eq!(time.drive(call()).await.unwrap(), 2, "expired after {lifetime:?}");
        }
    }
}

#[tokio::test]
async fn a_unit_result_is_stored_as_a_result() {
    let world = World::new();
    for _ in 0..2 {
        let run = world.call().idempotent(key("k")).run(|_| async {
            world.runs.fetch_add(1, Ordering::SeqCst);
            Ok::<Option<u32>, BoxError>(None)
        });
        assert_eq!(world.time.drive(run).await.unwrap(), None);
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn hits_and_records_are_audited() {
    let time = VirtualTime::starting_at("2026-01-25T21:15:00Z".parse().unwrap());
    let (sink, mut events, _) = ChannelSink::new(10);
    let store = Arc::new(MemoryStore::new(time.clock()));
    let manager = RetryManager::builder().clock(time.clock()).idempotency_store(store).audit(sink).build();
    let key = IdempotencyKey::compute("Store kill switch state", Some("tenant-123"), Some("corr-456"), &())
        .unwrap();
    for _ in 0..2 {
        let call = manager
            .execute(&Category::KvPut, "Store kill switch state")
            .tenant("tenant-123")
            .correlation("corr-456")
            .trace("trace-789");
        time.drive(call.idempotent(key.clone()).run(|_| async { Ok::<_, BoxError>(1) })).await.unwrap();
    }
    for action in ["record", "hit"] {
        let event = serde_json::to_value(events.try_recv().unwrap()).unwrap();
        assert_eq!(
            event,
            serde_json::json!({
                "event_type": "idempotency", "retry_category": "RETRY_KV_PUT", "operation": "Store kill switch state",
                "idempotency_key": key.as_str(), "action": action, "tenant_id": "tenant-123",
                "correlation_id": "corr-456", "trace_id": "trace-789", "timestamp": "2026-01-25T21:15:00Z",
            })
        );
    }
    assert!(events.try_recv().is_err(), "no further event");
}

#[tokio::test]
async fn the_store_is_reachable_from_the_manager() {
    let world = World::new();
    let context = serde_json::json!({"by": "worker-7"});
    let run = world.call().context(&context).idempotent(key("k")).run(|_| world.effect());
    world.time.drive(run).await.unwrap();
    let store = world.manager.idempotency_store().unwrap();
    let record = store.get(&key("k")).await.unwrap().unwrap();
    let KeyState::Completed { metadata, .. } = record.state else { panic!("{record:?}") };
    assert_eq!(metadata, Some(context.to_string()), "the context is stored with the result");
    assert!(store.clear(&key("k")).await.unwrap());
    assert_eq!(world.time.drive(world.call().idempotent(key("k")).run(|_| world.effect())).await.unwrap(), 2);
}

#[tokio::test]
async fn a_call_without_a_key_never_uses_the_store() {
    let time = VirtualTime::new();
    let (store, manager) = unreliable(&time, 0);
    let run = manager.execute(&Category::KvPut, "op").run(|_| async { Ok::<_, BoxError>(7) });
    assert_eq!(time.drive(run).await.unwrap(), 7);
    assert_eq!(store.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_operation_receives_its_key() {
    let world = World::new();
    let run = world
        .call()
        .idempotent(key("pass-me-on"))
        .run(|attempt| async move { Ok::<_, BoxError>(attempt.idempotency_key().map(ToString::to_string)) });
    assert_eq!(world.time.drive(run).await.unwrap().as_deref(), Some("pass-me-on"));
}

#[tokio::test]
async fn a_concurrent_caller_is_refused_or_waits_as_configured() {
    let world = World::new();
    let clock = world.time.clock();
    let slow = world.call().idempotent(key("k")).run(|_| async {
        clock.sleep(Duration::from_secs(3)).await;
        world.effect().await
    });
    let refused = world.call().idempotent(key("k")).run(|_| world.effect());
    let waits = world
        .call()
        .idempotent(key("k"))
        .on_conflict(OnConflict::Wait(Duration::from_secs(10)))
        .run(|_| world.effect());
    let short_wait = world
        .call()
        .idempotent(key("k"))
        .on_conflict(OnConflict::Wait(Duration::from_secs(1)))
        .run(|_| world.effect());
    let all = async { tokio::join!(slow, refused, waits, short_wait) };
    let (slow, refused, waits, short_wait) = world.time.drive(all).await;
    assert_eq!((slow.unwrap(), waits.unwrap()), (1, 1));
    assert_eq!(refused.unwrap_err().reason(), &RetryErrorReason::InProgress);
    assert_eq!(short_wait.unwrap_err().reason(), &RetryErrorReason::InProgress);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_key_with_another_payload_is_refused() {
    let world = World::new();
    let run = |cents: u32| {
        let call = world.call().idempotent(key("k")).payload(&cents).unwrap();
        call.run(|_| world.effect())
    };
    world.time.drive(run(100)).await.unwrap();
    let before = world.store.get(&key("k")).await.unwrap();
    let error = world.time.drive(run(200)).await.unwrap_err();
    assert_eq!(error.reason(), &RetryErrorReason::OtherPayload);
    assert!(error.to_string().contains("use a new key for a new payload"), "{error}");
    assert_eq!(world.store.get(&key("k")).await.unwrap(), before);
    assert_eq!(world.time.drive(run(100)).await.unwrap(), 1);
}

#[tokio::test]
async fn a_failed_call_releases_the_key_and_the_error_stays_visible() {
    let world = World::new();
    let fail = world.call().idempotent(key("k")).run(|_| async { Err::<u32, BoxError>("disk full".into()) });
    world.time.drive(fail).await.unwrap_err();
    let record = world.store.get(&key("k")).await.unwrap().unwrap();
    assert!(matches!(&record.state, KeyState::Failed { error, .. } if error == "disk full"), "{record:?}");
    assert_eq!(world.time.drive(world.call().idempotent(key("k")).run(|_| world.effect())).await.unwrap(), 1);
}

#[tokio::test]
async fn a_long_operation_keeps_its_lease() {
    let world = World::new();
    let clock = world.time.clock();
    let untimed = RetryPolicy::call();
    let slow = world.call().policy(&untimed).idempotent(key("k")).lease(Duration::from_secs(3));
    let slow = slow.run(|_| async {
        clock.sleep(Duration::from_secs(60)).await;
        world.effect().await
    });
    let rival = async {
        clock.sleep(Duration::from_secs(30)).await;
        world.call().idempotent(key("k")).run(|_| world.effect()).await
    };
    let (slow, rival) = world.time.drive(async { tokio::join!(slow, rival) }).await;
    assert_eq!(slow.unwrap(), 1);
    assert_eq!(
        rival.unwrap_err().reason(),
        &RetryErrorReason::InProgress,
        "ten leases later it is still held"
    );
}

#[tokio::test]
async fn an_owner_that_lost_its_lease_is_cancelled() {
    let world = World::new();
    let clock = world.time.clock();
    let run = world.call().idempotent(key("k")).lease(Duration::from_secs(3)).run(|_| async {
        clock.sleep(Duration::from_secs(10)).await;
        world.effect().await
    });
    let thief = async {
        clock.sleep(Duration::from_secs(2)).await;
        world.store.clear(&key("k")).await.unwrap();
        world
            .store
            .begin(&key("k"), Fingerprint::default(), OwnerToken::new(), Duration::from_secs(60))
            .await
            .unwrap()
    };
    let (run, stolen) = world.time.drive(async { tokio::join!(run, thief) }).await;
    assert_eq!(stolen, Begin::Acquired);
    assert_eq!(run.unwrap_err().reason(), &RetryErrorReason::LeaseLost);
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn a_cancelled_call_releases_its_key_at_once() {
    let world = World::new();
    {
        let hang = world.call().idempotent(key("k")).run(|_| std::future::pending::<Result<u32, BoxError>>());
        let mut hang = std::pin::pin!(hang);
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(hang.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        assert!(world.store.get(&key("k")).await.unwrap().is_some());
    }
    assert_eq!(world.store.get(&key("k")).await.unwrap(), None);
}

#[tokio::test]
async fn a_waiting_caller_takes_over_when_the_owner_dies() {
    let world = World::new();
    // A crashed owner.
    world
        .store
        .begin(&key("k"), Fingerprint::default(), OwnerToken::new(), Duration::from_secs(30))
        .await
        .unwrap();
    let run = world
        .call()
        .idempotent(key("k"))
        .on_conflict(OnConflict::Wait(Duration::from_secs(60)))
        .run(|_| world.effect());
    let began = world.time.now();
    assert_eq!(world.time.drive(run).await.unwrap(), 1);
    assert_eq!(world.time.now().since(began), Duration::from_secs(30));
}

#[test]
fn a_blocking_call_is_idempotent() {
    let world = World::new();
    for _ in 0..2 {
        let value = world
            .call()
            .idempotent(key("k"))
            .run_blocking(|_| Ok::<u32, BoxError>(world.runs.fetch_add(1, Ordering::SeqCst) + 1));
        assert_eq!(value.unwrap(), 1);
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_key_without_a_store_is_an_error_that_says_what_to_do() {
    let manager = RetryManager::new();
    let error = manager
        .execute(&Category::KvPut, "op")
        .idempotent(key("k"))
        .run(|_| async { Ok::<_, BoxError>(1) })
        .await
        .unwrap_err();
    assert!(error.to_string().contains("RetryManager::builder().idempotency_store(..)"), "{error}");
}

#[tokio::test]
async fn a_stored_result_of_another_type_is_an_error_and_not_a_rerun() {
    let world = World::new();
    world.time.drive(world.call().idempotent(key("k")).run(|_| world.effect())).await.unwrap();
    let as_text = world.call().idempotent(key("k")).run(|_| async { Ok::<String, BoxError>("ran".into()) });
    assert_eq!(world.time.drive(as_text).await.unwrap_err().reason(), &RetryErrorReason::UnreadableResult);
}

/// A store whose `complete` fails.
#[derive(Debug)]
struct Unreliable {
    inner: MemoryStore,
    asked: AtomicU32,
    failures_left: AtomicU32,
    failure: fn(IdempotencyKey) -> IdempotencyError,
}

impl IdempotencyStore for Unreliable {
    fn begin<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, Begin> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.inner.begin(key, fingerprint, owner, lease)
    }
    fn extend<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, ()> {
        // Answers after a moment, like a store behind a network.
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.inner.extend(key, owner, lease).await
        })
    }
    fn complete<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        result: &'a str,
        metadata: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        if self.failures_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Box::pin(async { Err((self.failure)(key.clone())) });
        }
        self.inner.complete(key, owner, result, metadata, keep)
    }
    fn release<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        error: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        self.inner.release(key, owner, error, keep)
    }
    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>> {
        self.inner.get(key)
    }
    fn clear<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, bool> {
        self.inner.clear(key)
    }
    fn reap(&self, limit: usize) -> StoreFuture<'_, usize> {
        self.inner.reap(limit)
    }
    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        self.inner.abandon(key, owner);
    }
}

fn unreliable(time: &VirtualTime, failures: u32) -> (Arc<Unreliable>, RetryManager) {
    failing(time, failures, |_key| IdempotencyError::Unavailable("connection reset".into()))
}

fn failing(
    time: &VirtualTime,
    failures: u32,
    failure: fn(IdempotencyKey) -> IdempotencyError,
) -> (Arc<Unreliable>, RetryManager) {
    let store = Arc::new(Unreliable {
        inner: MemoryStore::new(time.clock()),
        asked: AtomicU32::new(0),
        failures_left: AtomicU32::new(failures),
        failure,
    });
    let manager = RetryManager::builder().clock(time.clock()).idempotency_store(store.clone()).build();
    (store, manager)
}

#[tokio::test]
async fn a_temporary_failure_of_the_store_is_retried() {
    let time = VirtualTime::new();
    let (store, manager) = unreliable(&time, 2);
    let run =
        manager.execute(&Category::KvPut, "op").idempotent(key("k")).run(|_| async { Ok::<_, BoxError>(7) });
    assert_eq!(time.drive(run).await.unwrap(), 7);
    assert!(matches!(store.get(&key("k")).await.unwrap().unwrap().state, KeyState::Completed { .. }));
}

#[tokio::test]
async fn the_lease_of_a_long_operation_is_renewed_while_its_result_is_recorded() {
    let time = VirtualTime::new();
    let (_store, manager) = unreliable(&time, 2);
    let clock = time.clock();
    let lease = Duration::from_millis(300);
    let run = manager.execute(&Category::KvPut, "op").idempotent(key("k")).lease(lease).run(|_| async {
        clock.sleep(lease * 10).await;
        Ok::<_, BoxError>(7)
    });
    assert_eq!(time.drive(run).await.unwrap(), 7);
}

#[tokio::test]
async fn an_unrecorded_result_is_reported_and_the_key_stays_claimed_for_its_lease() {
    let time = VirtualTime::new();
    let (store, manager) = unreliable(&time, u32::MAX);
    let run =
        manager.execute(&Category::KvPut, "op").idempotent(key("k")).run(|_| async { Ok::<_, BoxError>(7) });
    let error = time.drive(run).await.unwrap_err();
    assert_eq!(error.reason(), &RetryErrorReason::ResultNotRecorded { result: Some("7".into()) });
    assert!(error.to_string().contains("it succeeded"), "{error}");
    let record = store.get(&key("k")).await.unwrap().unwrap();
    assert!(
        matches!(record.state, KeyState::InProgress { .. }),
        "no caller runs it again before the lease ends"
    );
}

#[tokio::test]
async fn a_too_large_result_is_not_stored_again() {
    let time = VirtualTime::new();
    let (store, manager) =
        failing(&time, 100, |key| IdempotencyError::TooLarge { key, bytes: 2_000_000, limit: 1_000_000 });
    let run =
        manager.execute(&Category::KvPut, "op").idempotent(key("k")).run(|_| async { Ok::<_, BoxError>(7) });
    let error = time.drive(run).await.unwrap_err();
    assert_eq!(error.reason(), &RetryErrorReason::ResultNotRecorded { result: Some("7".into()) });
    assert_eq!(store.failures_left.load(Ordering::SeqCst), 99, "asked once");
}
