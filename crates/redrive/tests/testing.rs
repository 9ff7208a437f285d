//! `TestBus`, for tests of handlers.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, RetryOverride};
use redrive::testing::TestBus;
use redrive::{Event, EventPayload, Tracking};
use tokio::sync::Notify;

use crate::test_store::StoredBus;

#[tokio::test]
async fn publish_waits_for_the_outcome_and_backoff_takes_no_real_time() {
    let bus = StoredBus::new().await;
    bus.subscribe("order.*", |event: Event| async move {
        if event.attempt() < 4 { Err("not yet") } else { Ok(()) }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let (real, before) = (std::time::Instant::now(), bus.time().now());
    bus.publish("order.created", &1).await.unwrap();
    assert!(bus.time().now().since(before) >= Duration::from_secs(6), "1 + 2 + 4 s, with jitter");
    assert!(real.elapsed() < Duration::from_secs(5));
    bus.assert_published("order.*", 1).await;
    bus.assert_done("order.created", 1).await;
    bus.assert_nothing_dead().await;
}

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderCreated {
    order: u64,
}

impl EventPayload for OrderCreated {
    const TYPE: &'static str = "order.created";
}

/// Every way to publish that waits for the end moves the virtual time on: none hangs on a backoff.
#[tokio::test]
async fn every_publishing_method_passes_the_backoff() {
    let bus = StoredBus::new().await;
    bus.subscribe("order.*", |event: Event| async move {
        if event.attempt() < 3 { Err("not yet") } else { Ok(()) }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let publishing = async {
        bus.publish_typed(&OrderCreated { order: 1 }).await.unwrap();
        bus.publish("order.created", &2).delay(Duration::from_secs(60)).await.unwrap();
        bus.bus().publish("order.created", &3).metadata("tenant", "a").await.unwrap();
        bus.run(bus.publish("order.created", &4)).await.unwrap();
        bus.publish_batch([("order.created", &5), ("order.created", &6)]).await.unwrap();
        let prepared = bus.publish("order.created", &7).into_event().unwrap();
        bus.append(vec![prepared]).await.unwrap();
        bus.drain().await;
    };
    tokio::time::timeout(Duration::from_secs(60), publishing).await.expect("no publish hangs");
    bus.assert_done("order.created", 7).await;
}

/// A handler that publishes and waits does not hang either.
#[tokio::test]
async fn a_handler_may_publish_and_wait() {
    let bus = StoredBus::new().await;
    let inner = bus.bus().clone();
    bus.subscribe("outer", move |_: Event| {
        let inner = inner.clone();
        async move { inner.publish("inner", &1).await.map(drop) }
    })
    .register()
    .unwrap();
    bus.subscribe("inner", |event: Event| async move {
        if event.attempt() < 2 { Err("not yet") } else { Ok(()) }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let publishing = bus.publish("outer", &1);
    tokio::time::timeout(Duration::from_secs(60), publishing).await.expect("no publish hangs").unwrap();
    bus.assert_done("*", 2).await;
}

#[tokio::test]
async fn drain_completes_retries_parked_and_delayed_events() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let bus = StoredBus::with(|builder| builder.tracking(tracking)).await;
        let opens =
            BreakerConfig::builder().min_samples(1).open_for(Duration::from_secs(60)).build().unwrap();
        bus.subscribe(
            "*",
            |event: Event| async move { if event.attempt() == 1 { Err("once") } else { Ok(()) } },
        )
        .breaker(opens)
        .register()
        .unwrap();
        bus.start().await.unwrap();
        for n in 0..3 {
            bus.bus().publish("a", &n).enqueue().await.unwrap();
        }
        bus.bus().publish("b", &1).delay(Duration::from_secs(3600)).enqueue().await.unwrap();
        let before = bus.time().now();
        bus.drain().await;
        bus.assert_done("a", 3).await;
        bus.assert_done("b", 1).await;
        assert!(bus.time().now().since(before) >= Duration::from_secs(3600));
    }
}

#[tokio::test]
async fn advance_runs_only_due_work() {
    let bus = StoredBus::new().await;
    bus.subscribe("*", |_: Event| async { Ok::<_, BoxError>(()) }).register().unwrap();
    bus.start().await.unwrap();
    for seconds in [10, 20] {
        let publish = bus.bus().publish("x", &seconds).delay(Duration::from_secs(seconds));
        publish.enqueue().await.unwrap();
    }
    bus.advance(Duration::from_secs(9)).await;
    bus.assert_done("x", 0).await;
    bus.advance(Duration::from_secs(1)).await;
    bus.assert_done("x", 1).await; // includes work due at this instant
    bus.advance(Duration::from_secs(10)).await;
    bus.assert_done("x", 2).await;
}

#[tokio::test]
async fn dead_letters_have_their_errors() {
    let bus = StoredBus::new().await;
    bus.subscribe("x", |_: Event| async { Err::<(), _>("no") })
        .retry(RetryOverride::new().max_retries(1))
        .register()
        .unwrap();
    bus.start().await.unwrap();
    let id = bus.publish("x", &1).await.unwrap();
    bus.assert_dead("x", 1).await;
    let dead = bus.dead().await;
    assert_eq!((dead[0].id, dead[0].errors.as_slice()), (id, ["no".to_owned(), "no".to_owned()].as_slice()));
    assert_eq!(bus.published("x").await[0].status, EventStatus::Dlq);
}

#[tokio::test]
#[should_panic(expected = "2 × \"order.*\" should be done; these are: none")]
async fn a_failed_assertion_shows_the_actual_state() {
    let bus = StoredBus::new().await;
    bus.bus().publish("order.created", &1).enqueue().await.unwrap();
    bus.assert_done("order.*", 2).await;
}

#[tokio::test]
#[should_panic(expected = "is its subscription paused or not registered?")]
async fn drain_stops_at_events_of_a_paused_subscription() {
    // In memory: a thousand polls on a server take minutes.
    let bus = TestBus::with(|builder| builder.tracking(Tracking::PerSubscription)).await.unwrap();
    let handle = bus.subscribe("x", |_: Event| async { Err::<(), _>("no") }).register().unwrap();
    bus.start().await.unwrap();
    bus.bus().publish("x", &1).enqueue().await.unwrap();
    handle.pause();
    bus.drain().await;
}

#[tokio::test]
async fn test_buses_are_isolated() {
    let (one, two) = (StoredBus::new().await, StoredBus::new().await);
    one.bus().publish("x", &1).enqueue().await.unwrap();
    one.assert_published("x", 1).await;
    two.assert_published("x", 0).await;
    assert!(!std::path::Path::new(":memory:").exists() && !std::path::Path::new(":memory:-owner").exists());
}

#[tokio::test]
async fn a_shutdown_on_virtual_time_ends_running_handlers() {
    for (handling, is_done) in [(60, true), (7200, false)] {
        let bus = TestBus::with(|builder| builder.shutdown_timeout(Duration::from_secs(600))).await.unwrap();
        let (clock, began) = (bus.time().clock(), Arc::new(Notify::new()));
        let started = Arc::clone(&began);
        let ended = Arc::new(AtomicBool::new(false));
        let handled = Arc::clone(&ended);
        let handler = move |_: Event| {
            let (clock, started, handled) = (clock.clone(), Arc::clone(&started), Arc::clone(&handled));
            async move {
                started.notify_one();
                clock.sleep(Duration::from_secs(handling)).await;
                handled.store(true, Ordering::Relaxed);
                Ok::<_, BoxError>(())
            }
        };
        bus.subscribe("x", handler).timeout(Duration::from_secs(86_400)).register().unwrap();
        bus.start().await.unwrap();
        bus.publish("x", &1).enqueue().await.unwrap();
        began.notified().await;
        let shutdown = tokio::time::timeout(Duration::from_secs(20), bus.shutdown());
        shutdown.await.expect("virtual time moves on").unwrap();
        assert_eq!(ended.load(Ordering::Relaxed), is_done, "a handler of {handling} s");
    }
}

#[tokio::test]
async fn concurrent_publishers_all_advance_virtual_time() {
    for order in [["slow", "fast"], ["fast", "slow"]] {
        let bus = TestBus::new().await.unwrap();
        let handler = |event: Event| async move {
            let fails = event.event_type().as_str() == "slow" && event.attempt() < 3;
            if fails { Err("not yet") } else { Ok(()) }
        };
        // Blocking handlers stop the virtual time, so every publisher waits for the last of them.
        bus.subscribe("*", handler).name("async").register().unwrap();
        bus.subscribe("*", redrive::handler::blocking(|_: Event| Ok::<_, &str>(())))
            .name("blocking")
            .register()
            .unwrap();
        bus.start().await.unwrap();
        let publishes = order.map(|event_type| tokio::spawn(bus.bus().publish(event_type, &1).into_future()));
        for publish in publishes {
            tokio::time::timeout(std::time::Duration::from_secs(20), publish)
                .await
                .expect("no publisher waits for ever")
                .unwrap()
                .unwrap();
        }
    }
}
