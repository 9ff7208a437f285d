//! Regressions found by a review.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::fmt;
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::handler::blocking;
use redrive::retry::audit::{AuditError, AuditEvent, AuditSink, RetryLogEntry};
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, ClassifyError, RetryOverride, RetryPolicy};
use redrive::{Event, EventBus};

use crate::test_store::{StoredBus, TestStore};

fn nothing(_: Event) -> std::future::Ready<Result<(), BoxError>> {
    std::future::ready(Ok(()))
}

#[tokio::test]
async fn pausing_and_resuming_at_once_resumes() {
    let bus = StoredBus::new().await;
    bus.subscribe("x", nothing).register().unwrap();
    bus.start().await.unwrap();
    bus.publish("x", &1).await.unwrap();
    for _ in 0..3 {
        bus.dispatcher().pause();
        bus.dispatcher().resume();
        bus.publish("x", &2).await.unwrap();
    }
    bus.assert_done("x", 4).await;
}

#[tokio::test]
async fn events_published_while_paused_are_handled_after_resume() {
    let bus = StoredBus::new().await;
    bus.subscribe("x", nothing).register().unwrap();
    bus.start().await.unwrap();
    bus.advance(Duration::from_millis(1)).await;
    bus.dispatcher().pause();
    let id = bus.bus().publish("x", &1).enqueue().await.unwrap();
    bus.advance(Duration::from_secs(600)).await;
    assert_eq!(bus.store().event(id).await.unwrap().status, EventStatus::Pending);
    bus.dispatcher().resume();
    bus.drain().await;
    bus.assert_done("x", 1).await;
}

/// Locks the store during publishes, and shuts the bus down meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_charges_no_attempt_before_the_handler_starts() {
    let store_under_test = TestStore::new();
    let once = RetryPolicy::builder().max_attempts(1).build().unwrap();
    let bus = store_under_test.open(EventBus::builder().policy(once.clone())).await;
    bus.subscribe("x", nothing).name("x").register().unwrap();
    bus.start().await.unwrap();
    bus.publish("x", &0).await.unwrap();
    let other = store_under_test.hold().await;
    let publishers: Vec<_> = (0..20)
        .map(|n| {
            let bus = bus.clone();
            tokio::spawn(async move { bus.publish("x", &n).enqueue().await })
        })
        .collect();
    tokio::task::yield_now().await;
    let shutdown = tokio::spawn(async move { bus.shutdown().await });
    tokio::task::yield_now().await;
    other.let_go().await;
    let mut stored = Vec::new();
    for publisher in publishers {
        stored.extend(publisher.await.unwrap().ok());
    }
    shutdown.await.unwrap().unwrap();
    let bus = store_under_test.open(EventBus::builder().policy(once)).await;
    bus.subscribe("x", nothing).name("x").register().unwrap();
    assert_eq!(bus.start().await.unwrap(), 0, "nothing was cut off");
    for id in stored {
        let event = bus.store().event(id).await.unwrap();
        assert_eq!((event.retry_count, event.errors.len()), (0, 0), "{event:?}");
        assert_ne!(event.status, EventStatus::Dlq);
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn concurrent_shutdowns_complete_together() {
    let bus = StoredBus::new().await;
    let clock = bus.time().clock();
    bus.subscribe("x", move |_: Event| {
        let clock = clock.clone();
        async move {
            clock.sleep(Duration::from_secs(3)).await;
            Ok::<_, BoxError>(())
        }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    bus.run(async { bus.time().clock().sleep(Duration::from_millis(1)).await }).await; // dispatching has started
    bus.bus().publish("x", &1).enqueue().await.unwrap();
    let began = bus.time().now();
    let (one, two) = bus.run(async { tokio::join!(bus.shutdown(), bus.shutdown()) }).await;
    one.and(two).unwrap();
    let took = bus.time().now().since(began);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

struct Panics;

impl AuditSink for Panics {
    fn record(&self, _: &AuditEvent) -> Result<(), AuditError> {
        Ok(())
    }

    fn log(&self, _: &RetryLogEntry) -> Result<(), AuditError> {
        panic!("no room in the log")
    }
}

#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("it cannot be said")
    }
}

impl std::error::Error for Unspeakable {}

#[tokio::test]
async fn a_panic_outside_of_the_handler_is_a_failed_attempt() {
    let policy = RetryPolicy::builder().max_attempts(2).build().unwrap();
    let bus = StoredBus::with(|builder| builder.policy(policy.clone()).audit(Panics)).await;
    bus.subscribe("x", |_: Event| async { Err::<(), _>("no") }).register().unwrap();
    bus.start().await.unwrap();
    bus.publish("x", &1).await.unwrap();
    assert_eq!(bus.dead().await[0].errors, ["panicked: no room in the log", "panicked: no room in the log"]);

    let bus = StoredBus::with(|builder| builder.policy(policy)).await;
    bus.subscribe("x", |_: Event| async { Err::<(), _>(Unspeakable) }).register().unwrap();
    bus.start().await.unwrap();
    bus.publish("x", &1).await.unwrap();
    assert_eq!(bus.dead().await[0].errors.len(), 2);
}

#[tokio::test]
async fn a_redrive_keeps_the_deliveries_of_an_absent_subscription() {
    let store_under_test = TestStore::new();
    let opens = BreakerConfig::builder().min_samples(1).open_for(Duration::from_secs(600)).build().unwrap();
    let bus = store_under_test.open(EventBus::builder()).await;
    bus.subscribe("*", |event: Event| async move {
        if event.event_type().as_str() == "first" { Err("down") } else { Ok(()) }
    })
    .name("b")
    .breaker(opens)
    .retry(RetryOverride::new().max_retries(0))
    .register()
    .unwrap();
    bus.subscribe("x", |_: Event| async { Err::<(), _>("never".permanent()) }).name("a").register().unwrap();
    bus.start().await.unwrap();
    bus.publish("first", &1).await.unwrap(); // opens the circuit of b
    let id = bus.publish("x", &1).await.unwrap(); // parked for b, dead by a
    assert_eq!(bus.store().event(id).await.unwrap().deliveries.len(), 1);
    bus.shutdown().await.unwrap();

    let bus = store_under_test.open(EventBus::builder()).await;
    bus.subscribe("x", nothing).name("a").register().unwrap();
    bus.start().await.unwrap();
    bus.dlq().retry(id).await.unwrap();
    while bus.store().event(id).await.unwrap().status == EventStatus::Pending {
        tokio::task::yield_now().await;
    }
    bus.shutdown().await.unwrap();

    let bus = store_under_test.open(EventBus::builder()).await;
    let event = bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.deliveries.len()), (EventStatus::Processing, 1), "b is still owed it");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn virtual_time_does_not_advance_while_a_handler_blocks() {
    let bus = StoredBus::new().await;
    // Real time, which must not count for the handler's timeout.
    bus.subscribe(
        "x",
        blocking(|_: Event| -> Result<(), BoxError> {
            std::thread::sleep(Duration::from_millis(30));
            Ok(())
        }),
    )
    .register()
    .unwrap();
    bus.start().await.unwrap();
    bus.publish("x", &1).await.unwrap();
    bus.assert_done("x", 1).await;
}
