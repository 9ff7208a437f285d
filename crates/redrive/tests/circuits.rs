//! Circuit breakers of subscriptions: what counts, what a publisher waits for, and what the retry log says.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::retry::breaker::{BreakerConfig, BreakerSnapshot};
use redrive::retry::{BoxError, Jitter, RetryOverride, RetryPolicy, VirtualTime};
use redrive::store::StoreError;
use redrive::{BusError, Event, EventBus, EventBusBuilder, EventId, Limits, Tracking};
use redrive_retry::audit::{AuditError, AuditEvent, AuditSink, RetryLogEntry};

use crate::test_store::TestStore;

const SECOND: Duration = Duration::from_secs(1);

struct World {
    time: VirtualTime,
    bus: EventBus,
    place: TestStore,
    log: Log,
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<RetryLogEntry>>>);

impl AuditSink for Log {
    fn record(&self, _: &AuditEvent) -> Result<(), AuditError> {
        Ok(())
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        self.0.lock().unwrap().push(entry.clone());
        Ok(())
    }
}

impl Log {
    fn entries(&self) -> Vec<RetryLogEntry> {
        self.0.lock().unwrap().clone()
    }
}

impl World {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Self {
        let (time, place, log) = (VirtualTime::new(), TestStore::new(), Log::default());
        let policy = RetryPolicy::builder().jitter(Jitter::None).build().unwrap();
        let builder = EventBus::builder().policy(policy).audit(log.clone());
        let bus = place.open_at(&time, change(builder)).await;
        World { time, bus, place, log }
    }

    async fn pass(&self, duration: Duration) {
        self.time.drive(self.time.clock().sleep(duration)).await;
    }

    async fn publish(&self, event_type: &str) -> EventId {
        self.time.drive(async { self.bus.publish(event_type, &1).await }).await.unwrap()
    }

    fn breaker(&self, name: &str) -> BreakerSnapshot {
        let subscriptions = self.bus.subscriptions();
        subscriptions.iter().find(|one| one.name().as_str() == name).unwrap().breaker()
    }
}

async fn fails(_: Event) -> Result<(), BoxError> {
    Err("no".into())
}

/// A circuit that opens at the first failure.
fn touchy() -> BreakerConfig {
    BreakerConfig::builder().min_samples(1).build().unwrap()
}

#[tokio::test]
async fn one_poison_event_does_not_open_the_circuit_and_four_do() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let world = World::with(|builder| builder.tracking(tracking)).await;
        world.bus.subscribe("*", fails).name("s").register().unwrap();
        world.bus.start().await.unwrap();
        for poison in 1..=4 {
            assert_eq!(world.breaker("s"), BreakerSnapshot::Closed, "before the event number {poison}");
            world.publish("x").await;
        }
        assert_ne!(world.breaker("s"), BreakerSnapshot::Closed, "four events");
    }
}

#[tokio::test]
async fn an_event_that_succeeds_at_its_retry_counts_as_a_success() {
    let world = World::new().await;
    let second_try = async |event: Event| if event.attempt() == 2 { Ok(()) } else { Err("not yet") };
    world.bus.subscribe("*", second_try).name("s").register().unwrap();
    world.bus.start().await.unwrap();
    for _ in 0..20 {
        world.publish("x").await;
        assert_eq!(world.breaker("s"), BreakerSnapshot::Closed);
    }
}

/// Three events succeed in `first` and fail in `second`, which repeats `first` with every attempt; then four fail in `first`.
#[tokio::test]
async fn a_handler_that_is_repeated_because_another_one_failed_counts_once() {
    let world = World::new().await;
    let of_type = |bad: &'static str| {
        move |event: Event| async move { if event.event_type().as_str() == bad { Err("no") } else { Ok(()) } }
    };
    let never = BreakerConfig::builder().min_samples(u32::MAX).build().unwrap();
    world.bus.subscribe("*", of_type("bad.first")).name("first").register().unwrap();
    world.bus.subscribe("*", of_type("bad.second")).name("second").breaker(never).register().unwrap();
    world.bus.start().await.unwrap();
    for _ in 0..3 {
        world.publish("bad.second").await;
    }
    let once = || RetryOverride::new().max_retries(0);
    for failed in 1..=4 {
        assert_eq!(world.breaker("first"), BreakerSnapshot::Closed, "before failure {failed}");
        let publish = world.bus.publish("bad.first", &1).retry(once());
        world.time.drive(async { publish.await }).await.unwrap();
    }
    assert_ne!(world.breaker("first"), BreakerSnapshot::Closed, "four of seven events failed");
}

#[tokio::test]
async fn a_publisher_waits_neither_for_parked_nor_for_backlogged_deliveries() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        for limits in [None, Some(Limits { concurrency: 4, per_second: None })] {
            let world = World::with(|builder| builder.tracking(tracking)).await;
            let healthy = Arc::new(AtomicU32::new(0));
            let counter = Arc::clone(&healthy);
            let mut broken = world.bus.subscribe("*", fails).name("broken").breaker(touchy());
            if let Some(limits) = limits {
                broken = broken.limits(limits);
            }
            broken.register().unwrap();
            world
                .bus
                .subscribe("*", move |_: Event| {
                    counter.fetch_add(1, Ordering::SeqCst);
                    works_soon()
                })
                .name("healthy")
                .register()
                .unwrap();
            world.bus.start().await.unwrap();
            let publish = world.bus.publish("opens", &1).retry(RetryOverride::new().max_retries(0));
            world.time.drive(async { publish.await }).await.unwrap();
            assert!(matches!(world.breaker("broken"), BreakerSnapshot::Open { .. }));
            let (before, began) = (healthy.load(Ordering::SeqCst), world.time.now());
            let mut publishers = tokio::task::JoinSet::new();
            for n in 0..10 {
                let bus = world.bus.clone();
                publishers.spawn(async move { bus.publish("x", &n).await.unwrap() });
            }
            let ids = world.time.drive(publishers.join_all()).await;
            let took = world.time.now().since(began);
            assert!(took < 5 * SECOND, "{tracking:?} {limits:?}: {took:?}");
            assert_eq!(healthy.load(Ordering::SeqCst), before + 10, "the healthy handler ran");
            for id in ids {
                assert_eq!(world.bus.store().event(id).await.unwrap().status, EventStatus::Processing);
            }
        }
    }
}

async fn works_soon() -> Result<(), BoxError> {
    tokio::task::yield_now().await;
    Ok(())
}

#[tokio::test]
async fn a_publisher_waits_for_a_backoff_beside_a_parked_delivery() {
    let world = World::with(|builder| builder.tracking(Tracking::PerSubscription)).await;
    world.bus.subscribe("*", fails).name("broken").breaker(touchy()).register().unwrap();
    world.bus.start().await.unwrap();
    let publish = world.bus.publish("opens", &1).retry(RetryOverride::new().max_retries(0));
    world.time.drive(async { publish.await }).await.unwrap();
    let second_try = async |event: Event| if event.attempt() == 2 { Ok(()) } else { Err("not yet") };
    world.bus.subscribe("*", second_try).name("flaky").register().unwrap();
    let began = world.time.now();
    let id = world.publish("x").await;
    assert_eq!(world.time.now().since(began), SECOND, "the backoff of the flaky one");
    let event = world.bus.store().event(id).await.unwrap();
    let of =
        |name: &str| event.deliveries.iter().find(|one| one.subscription.as_str() == name).unwrap().status;
    assert_eq!((of("flaky"), of("broken")), (EventStatus::Done, EventStatus::Pending));
}

#[tokio::test]
async fn the_circuit_of_one_subscription_id_is_not_that_of_its_successor() {
    let world = World::new().await;
    let first = world.bus.subscribe("*", fails).name("s").breaker(touchy()).register().unwrap();
    world.bus.start().await.unwrap();
    let publish = world.bus.publish("x", &1).retry(RetryOverride::new().max_retries(0));
    world.time.drive(async { publish.await }).await.unwrap();
    assert_ne!(world.breaker("s"), BreakerSnapshot::Closed);
    first.unsubscribe().await.unwrap();
    let second = world.bus.subscribe("*", fails).name("s").breaker(touchy()).register().unwrap();
    assert_ne!(first.id(), second.id());
    assert_eq!(world.breaker("s"), BreakerSnapshot::Closed, "the state is that of the other id");
}

#[tokio::test]
async fn a_failure_of_the_own_store_is_no_outcome_of_the_receiver() {
    let world = World::new().await;
    let is_full = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&is_full);
    world
        .bus
        .subscribe("*", move |_: Event| {
            let is_full = flag.load(Ordering::SeqCst);
            async move { if is_full { Err(BusError::from(StoreError::DiskFull)) } else { Ok(()) } }
        })
        .name("s")
        .breaker(touchy())
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let ids = [
        world.bus.publish("x", &1).enqueue().await.unwrap(),
        world.bus.publish("x", &2).enqueue().await.unwrap(),
    ];
    world.pass(SECOND / 2).await;
    assert_eq!(world.breaker("s"), BreakerSnapshot::Closed);
    is_full.store(false, Ordering::SeqCst);
    world.pass(SECOND).await;
    for id in ids {
        assert_eq!(
            world.bus.store().event(id).await.unwrap().status,
            EventStatus::Done,
            "at the first retry"
        );
    }
}

#[tokio::test]
async fn the_retry_log_has_the_wait_behind_the_circuit() {
    for limits in [None, Some(Limits { concurrency: 4, per_second: None })] {
        for tracking in [Tracking::Event, Tracking::PerSubscription] {
            let world = World::with(|builder| builder.tracking(tracking)).await;
            let mut subscribe = world.bus.subscribe("*", fails).name("s").breaker(touchy());
            if let Some(limits) = limits {
                subscribe = subscribe.limits(limits);
            }
            subscribe.register().unwrap();
            world.bus.start().await.unwrap();
            world.bus.publish("x", &1).enqueue().await.unwrap();
            world.pass(200 * SECOND).await;
            let delays: Vec<_> = world.log.entries().iter().map(|entry| entry.delay_ms).collect();
            assert_eq!(delays, [30_000, 30_000, 30_000, 0], "{tracking:?} {limits:?}");
        }
    }
}

#[tokio::test]
async fn the_retry_log_of_a_recovered_event_names_its_subscriptions_and_its_own_limit() {
    let world = World::with(|builder| builder.shutdown_timeout(Duration::ZERO)).await;
    let hangs = |_: Event| std::future::pending::<Result<(), BoxError>>();
    world.bus.subscribe("x", hangs).name("one").register().unwrap();
    world.bus.subscribe("*", hangs).name("two").register().unwrap();
    world.bus.start().await.unwrap();
    let publish = world.bus.publish("x", &1).retry(RetryOverride::new().max_retries(8));
    let id = publish.enqueue().await.unwrap();
    world.pass(SECOND).await;
    let World { time, bus, place, log } = world;
    time.drive(bus.shutdown()).await.unwrap();
    // Before its subscriptions are registered.
    let bus = place.open_at(&time, EventBus::builder().audit(log.clone())).await;
    assert_eq!(bus.start().await.unwrap(), 1);
    let mut ids: Vec<_> = bus.store().subscriptions().await.unwrap().into_iter().map(|row| row.id).collect();
    let entries = log.entries();
    let mut named: Vec<_> = entries.iter().map(|entry| entry.subscription_id.clone()).collect();
    ids.sort();
    named.sort();
    assert_eq!(named, ids, "each that may have been running");
    for entry in entries {
        assert_eq!((entry.event_id, entry.attempt, entry.max_attempts), (id.to_string(), 1, 9));
        assert_eq!(serde_json::to_value(entry.level).unwrap(), "warn");
    }
}
