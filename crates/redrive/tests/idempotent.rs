//! Idempotent handlers run once per event, on virtual time.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, RetryOverride, VirtualTime};
use redrive::{Event, EventBus, Tracking};

use crate::test_store::TestStore;

/// Calls in order: `name attempt`.
type Log = Arc<Mutex<Vec<String>>>;

/// Handler that records its calls and fails the first `failures` attempts.
fn subscribe<'a>(
    bus: &'a EventBus,
    log: &Log,
    name: &'static str,
    failures: u32,
) -> redrive::subscription::Subscribe<'a> {
    let log = Arc::clone(log);
    bus.subscribe("order.*", move |event: Event| {
        log.lock().unwrap().push(format!("{name} {}", event.attempt()));
        let result = if event.attempt() <= failures { Err("not yet") } else { Ok(()) };
        async move { result }
    })
    .name(name)
}

fn calls(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

#[tokio::test]
async fn a_succeeded_idempotent_handler_is_skipped_by_retries() {
    let (time, store_under_test, log) = (VirtualTime::new(), TestStore::new(), Log::default());
    let bus = store_under_test.open_at(&time, EventBus::builder()).await;
    subscribe(&bus, &log, "mail", 0).idempotent().register().unwrap();
    subscribe(&bus, &log, "index", 0).register().unwrap();
    subscribe(&bus, &log, "billing", 1).idempotent().register().unwrap();
    subscribe(&bus, &log, "flaky", 2).register().unwrap();
    assert!(bus.subscriptions()[0].is_idempotent() && !bus.subscriptions()[1].is_idempotent());
    bus.start().await.unwrap();
    let id = time.drive(async { bus.publish("order.paid", &7).await }).await.unwrap();
    assert_eq!(bus.store().event(id).await.unwrap().status, EventStatus::Done);
    let expected = [
        "mail 1",
        "index 1",
        "billing 1", // billing fails
        "index 2",
        "billing 2",
        "flaky 2", // flaky fails
        "index 3",
        "flaky 3",
    ];
    assert_eq!(calls(&log), expected);
    // Another event is another effect.
    time.drive(async { bus.publish("order.paid", &8).await }).await.unwrap();
    assert_eq!(calls(&log)[..3], expected[..3]);
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn idempotent_handlers_run_once_with_per_subscription_tracking() {
    let (time, store_under_test, log) = (VirtualTime::new(), TestStore::new(), Log::default());
    let bus = store_under_test.open_at(&time, EventBus::builder().tracking(Tracking::PerSubscription)).await;
    subscribe(&bus, &log, "mail", 0).idempotent().register().unwrap();
    subscribe(&bus, &log, "flaky", 2).idempotent().register().unwrap();
    bus.start().await.unwrap();
    time.drive(async { bus.publish("order.paid", &7).await }).await.unwrap();
    let mut sorted = calls(&log);
    sorted.sort_unstable();
    assert_eq!(sorted, ["flaky 1", "flaky 2", "flaky 3", "mail 1"]);
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_succeeded_idempotent_handler_is_skipped_after_a_restart() {
    let (time, store_under_test, log) = (VirtualTime::new(), TestStore::new(), Log::default());
    let bus = store_under_test.open_at(&time, EventBus::builder()).await;
    subscribe(&bus, &log, "mail", 0).idempotent().register().unwrap();
    subscribe(&bus, &log, "flaky", 1).register().unwrap();
    bus.start().await.unwrap();
    let id = bus.publish("order.paid", &7).enqueue().await.unwrap();
    time.drive(time.clock().sleep(Duration::from_millis(100))).await;
    bus.shutdown().await.unwrap();
    drop(bus);
    assert_eq!(calls(&log), ["mail 1", "flaky 1"]);

    let bus = store_under_test.open_at(&time, EventBus::builder()).await;
    subscribe(&bus, &log, "mail", 0).idempotent().register().unwrap();
    subscribe(&bus, &log, "flaky", 1).register().unwrap();
    bus.start().await.unwrap();
    time.drive(time.clock().sleep(Duration::from_secs(5))).await;
    assert_eq!(bus.store().event(id).await.unwrap().status, EventStatus::Done);
    assert_eq!(calls(&log), ["flaky 2"]);
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_succeeded_idempotent_handler_is_skipped_by_a_redrive_unless_edited() {
    let (time, store_under_test, log) = (VirtualTime::new(), TestStore::new(), Log::default());
    let bus = store_under_test.open_at(&time, EventBus::builder()).await;
    let once = RetryOverride::new().max_retries(0);
    let never = BreakerConfig::builder().min_samples(u32::MAX).build().unwrap();
    subscribe(&bus, &log, "mail", 0).idempotent().retry(once).register().unwrap();
    subscribe(&bus, &log, "broken", u32::MAX).breaker(never).register().unwrap();
    bus.start().await.unwrap();
    let id = time.drive(async { bus.publish("order.paid", &7).await }).await.unwrap();
    assert_eq!(calls(&log), ["mail 1", "broken 1"]);
    bus.dlq().retry(id).await.unwrap();
    time.drive(time.clock().sleep(Duration::from_secs(1))).await;
    assert_eq!(calls(&log), ["broken 1"], "its letter is sent");
    bus.dlq().retry_edited(id, &8).await.unwrap();
    time.drive(time.clock().sleep(Duration::from_secs(1))).await;
    assert_eq!(calls(&log), ["mail 1", "broken 1"], "another letter");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_panic_after_the_handlers_keeps_their_successes() {
    struct Unprintable;
    impl std::fmt::Debug for Unprintable {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Unprintable")
        }
    }
    impl std::fmt::Display for Unprintable {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("cannot be shown")
        }
    }
    impl std::error::Error for Unprintable {}

    let (time, store_under_test, log) = (VirtualTime::new(), TestStore::new(), Log::default());
    let bus = store_under_test.open_at(&time, EventBus::builder()).await;
    subscribe(&bus, &log, "mail", 0).idempotent().register().unwrap();
    let second = Arc::clone(&log);
    bus.subscribe("*", move |event: Event| {
        second.lock().unwrap().push(format!("second {}", event.attempt()));
        let result = if event.attempt() == 1 { Err(BoxError::from(Unprintable)) } else { Ok(()) };
        async move { result }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    time.drive(async { bus.publish("order.paid", &7).await }).await.unwrap();
    assert_eq!(calls(&log), ["mail 1", "second 1", "second 2"]);
    bus.shutdown().await.unwrap();
}
