//! The bus for tests of one's own handlers.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::time::Duration;

use redrive::testing::TestBus;
use redrive::{BoxError, BreakerConfig, Event, EventStatus, RetryOverride, Tracking};

use crate::place::PlacedBus;

#[tokio::test]
async fn a_publish_runs_to_its_end_and_a_backoff_takes_no_time() {
    let bus = PlacedBus::new().await;
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

#[tokio::test]
async fn drain_brings_retries_parked_deliveries_and_schedules_to_their_end() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let bus = PlacedBus::with(|builder| builder.tracking(tracking)).await;
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
async fn advance_lets_happen_what_is_due_and_nothing_more() {
    let bus = PlacedBus::new().await;
    bus.subscribe("*", |_: Event| async { Ok::<_, BoxError>(()) }).register().unwrap();
    bus.start().await.unwrap();
    for seconds in [10, 20] {
        let publish = bus.bus().publish("x", &seconds).delay(Duration::from_secs(seconds));
        publish.enqueue().await.unwrap();
    }
    bus.advance(Duration::from_secs(9)).await;
    bus.assert_done("x", 0).await;
    bus.advance(Duration::from_secs(1)).await;
    bus.assert_done("x", 1).await; // also what is due at this very instant
    bus.advance(Duration::from_secs(10)).await;
    bus.assert_done("x", 2).await;
}

#[tokio::test]
async fn the_dead_are_there_with_their_errors() {
    let bus = PlacedBus::new().await;
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
async fn an_assertion_that_fails_says_what_is_there() {
    let bus = PlacedBus::new().await;
    bus.bus().publish("order.created", &1).enqueue().await.unwrap();
    bus.assert_done("order.*", 2).await;
}

#[tokio::test]
#[should_panic(expected = "is it owed to a subscription that is not there?")]
async fn drain_gives_up_on_what_nobody_will_ever_handle() {
    // In memory, wherever the others are: a thousand looks in vain are its subject, and a server needs minutes for them.
    let bus = TestBus::with(|builder| builder.tracking(Tracking::PerSubscription)).await.unwrap();
    let id = bus.subscribe("x", |_: Event| async { Err::<(), _>("no") }).register().unwrap();
    bus.start().await.unwrap();
    bus.bus().publish("x", &1).enqueue().await.unwrap();
    bus.unsubscribe(&id).await.unwrap();
    bus.drain().await;
}

#[tokio::test]
async fn two_of_them_share_nothing() {
    let (one, two) = (PlacedBus::new().await, PlacedBus::new().await);
    one.bus().publish("x", &1).enqueue().await.unwrap();
    one.assert_published("x", 1).await;
    two.assert_published("x", 0).await;
    assert!(!std::path::Path::new(":memory:").exists() && !std::path::Path::new(":memory:-owner").exists());
}
