//! The public API of the event bus, on virtual time.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::dlq::{DeadLetter, DlqFilter, DlqPage, RetryAll};
use redrive::events::EventStatus;
use redrive::handler::blocking;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, ClassifyError, Clock, Jitter, RetryOverride, RetryPolicy, VirtualTime};
use redrive::store::StoreError;
use redrive::subscription::SubscriptionName;
use redrive::{
    BusError, Event, EventBus, EventBusBuilder, EventId, EventPayload, Snooze, Tracking, Unmatched,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::test_store::TestStore;

const DRY_RUN: RetryAll = RetryAll { per_second: None, dry_run: true };

struct World {
    time: VirtualTime,
    bus: EventBus,
    store_under_test: TestStore,
    log: Arc<Mutex<Vec<(String, u64)>>>,
}

fn exact() -> RetryPolicy {
    RetryPolicy::builder().jitter(Jitter::None).build().unwrap()
}

impl World {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Self {
        let time = VirtualTime::new();
        let store_under_test = TestStore::new();
        let bus = store_under_test.open_at(&time, change(EventBus::builder().policy(exact()))).await;
        World { time, bus, store_under_test, log: Arc::default() }
    }

    /// Simulates a restart: opens another bus on the same store.
    async fn reopened(self) -> Self {
        let World { time, bus, store_under_test, log } = self;
        drop(bus);
        let bus = store_under_test.open_at(&time, EventBus::builder().policy(exact())).await;
        World { time, bus, store_under_test, log }
    }

    /// Subscribes a handler that records its calls and fails the first `failures` times.
    fn flaky(&self, pattern: &str, name: &str, failures: u32) -> String {
        self.subscribe(pattern, name, failures).register().unwrap().id().to_owned()
    }

    fn subscribe(&self, pattern: &str, name: &str, failures: u32) -> redrive::subscription::Subscribe<'_> {
        let (log, clock, began) = (Arc::clone(&self.log), self.time.clock(), self.time.now());
        let (calls, label) = (Arc::new(AtomicU32::new(0)), name.to_owned());
        self.bus
            .subscribe(pattern, move |_event: Event| {
                let moment = u64::try_from(clock.now().since(began).as_millis()).unwrap();
                log.lock().unwrap().push((label.clone(), moment));
                let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
                async move { if call <= failures { Err(format!("failure {call}")) } else { Ok(()) } }
            })
            .name(name)
    }

    fn log(&self) -> Vec<(String, u64)> {
        self.log.lock().unwrap().clone()
    }

    async fn publish(&self, event_type: &str) -> EventId {
        self.time.drive(async { self.bus.publish(event_type, &json!({"n": 1})).await }).await.unwrap()
    }

    /// The only dead letter of an event.
    async fn dead(&self, id: EventId) -> DeadLetter {
        let mut entries = self.bus.dlq().get(id).await.unwrap();
        assert_eq!(entries.len(), 1);
        entries.remove(0)
    }

    async fn status(&self, id: EventId) -> EventStatus {
        self.bus.store().event(id).await.unwrap().status
    }
}

fn entries(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect()
}

#[tokio::test]
async fn a_published_event_is_handled_by_all_matching_subscriptions_in_order() {
    let world = World::new().await;
    world.flaky("order.*", "first", 0);
    world.flaky("user.*", "other", 0);
    world.flaky("*", "second", 0);
    world.bus.start().await.unwrap();
    let id = world.publish("order.created").await;
    assert_eq!(world.log(), entries(&[("first", 0), ("second", 0)]));
    assert_eq!(world.status(id).await, EventStatus::Done);
    world.bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_failing_event_is_retried_as_a_whole_after_the_specified_delays() {
    let world = World::new().await;
    world.flaky("*", "healthy", 0);
    world.flaky("*", "flaky", 3);
    world.bus.start().await.unwrap();
    let id = world.publish("order.created").await;
    let times = [0, 1000, 3000, 7000];
    let expected: Vec<_> = times.iter().flat_map(|at| [("healthy", *at), ("flaky", *at)]).collect();
    assert_eq!(world.log(), entries(&expected));
    let event = world.bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.retry_count), (EventStatus::Done, 3));
    assert_eq!(event.errors, ["failure 1", "failure 2", "failure 3"]);
    let metrics = world.bus.metrics().await.unwrap().by_type["order.created"];
    assert_eq!((metrics.retries, metrics.done_after_retry), (3, 1));
    assert_eq!(metrics.success_after_retry_rate(), Some(1.0));
}

/// Snoozes more often than there are attempts, and between two failures.
#[tokio::test]
async fn a_snoozed_handler_runs_again_without_charging_an_attempt() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let world = World::with(|builder| builder.tracking(tracking)).await;
        let (calls, attempts) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (said, seen) = (Arc::clone(&calls), Arc::clone(&attempts));
        world
            .bus
            .subscribe("*", move |event: Event| {
                let call = said.fetch_add(1, Ordering::SeqCst) + 1;
                seen.lock().unwrap().push(event.attempt());
                async move {
                    match call {
                        7 => Err(BoxError::from("a failure")),
                        12 => Ok(()),
                        _ => Err(Snooze::new(Duration::from_secs(60)).into()),
                    }
                }
            })
            .name("busy")
            .register()
            .unwrap();
        world.flaky("*", "other", 0);
        world.bus.start().await.unwrap();
        let began = world.time.now();
        let id = world.publish("order.created").await;
        let event = world.bus.store().event(id).await.unwrap();
        assert_eq!(event.status, EventStatus::Done);
        assert_eq!(*attempts.lock().unwrap(), [1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        assert_eq!(event.attempts.len(), 1, "what failed, and nothing else: {:?}", event.attempts);
        assert_eq!(world.time.now().since(began), Duration::from_secs(10 * 60 + 1));
        assert_eq!(world.log(), entries(&[("other", 0)]), "the others do not wait for it");
        world.bus.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_failing_event_is_dead_lettered_with_every_error() {
    let world = World::new().await;
    world.flaky("*", "broken", u32::MAX);
    world.bus.start().await.unwrap();
    let id = world.publish("order.created").await;
    assert_eq!(world.log().len(), 4, "three retries");
    let dead = world.dead(id).await;
    assert_eq!(dead.errors, ["failure 1", "failure 2", "failure 3", "failure 4"]);
    assert_eq!((dead.payload.get(), dead.reason.as_str()), (r#"{"n":1}"#, "attempts_exhausted"));
    assert_eq!(dead.dlq_at, world.time.now());
    let delays: Vec<_> = dead.attempts.iter().map(|attempt| (attempt.attempt, attempt.delay_ms)).collect();
    assert_eq!(delays, [(1, 1000), (2, 2000), (3, 4000), (4, 0)]);
    assert!(dead.attempts.iter().all(|attempt| attempt.subscription == "broken" && attempt.record.is_some()));
    assert_eq!(world.bus.metrics().await.unwrap().by_type["order.created"].dlq_rate(), Some(1.0));
}

#[tokio::test]
async fn a_permanent_failure_is_dead_lettered_at_once() {
    let world = World::new().await;
    world.bus.subscribe("*", |_: Event| async { Err("no such customer".permanent()) }).register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.publish("order.created").await;
    let dead = world.dead(id).await;
    assert_eq!((dead.retry_count, dead.reason.as_str()), (1, "permanent"));
}

#[tokio::test]
async fn a_handler_that_hangs_is_dropped_after_its_timeout_and_retried() {
    let world = World::new().await;
    let dropped = Arc::new(AtomicU32::new(0));
    struct Guard(Arc<AtomicU32>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let counter = Arc::clone(&dropped);
    world
        .bus
        .subscribe("*", move |_: Event| {
            let guard = Guard(Arc::clone(&counter));
            async move {
                let _guard = guard;
                std::future::pending::<Result<(), BoxError>>().await
            }
        })
        .timeout(Duration::from_secs(2))
        .retry(RetryOverride::new().max_retries(1))
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let id = world.publish("x").await;
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
    let dead = world.dead(id).await;
    assert_eq!(dead.errors, ["no result within 2s", "no result within 2s"]);
}

#[tokio::test]
async fn the_default_timeout_is_thirty_seconds() {
    let world = World::new().await;
    world
        .bus
        .subscribe("*", |_: Event| std::future::pending::<Result<(), BoxError>>())
        .retry(RetryOverride::new().max_retries(0))
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let began = world.time.now();
    world.publish("x").await;
    assert_eq!(world.time.now().since(began), Duration::from_secs(30));
}

#[tokio::test]
async fn a_panic_is_a_failure_with_its_message() {
    let world = World::new().await;
    world
        .bus
        .subscribe("*", |event: Event| async move {
            assert!(event.attempt() > 1, "odd order {}", 7);
            Ok::<_, BoxError>(())
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let id = world.publish("x").await;
    let event = world.bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.errors), (EventStatus::Done, vec!["panicked: odd order 7".to_owned()]));
}

#[tokio::test]
async fn the_most_permissive_override_applies_to_the_event() {
    let world = World::new().await;
    world
        .subscribe("*", "a", 0)
        .retry(RetryOverride::new().max_retries(1).base_delay_ms(500))
        .register()
        .unwrap();
    world
        .subscribe("*", "b", 9)
        .retry(RetryOverride::new().max_retries(2).base_delay_ms(800))
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    world.publish("x").await;
    let b: Vec<_> = world.log().into_iter().filter(|(name, _)| name == "b").map(|(_, at)| at).collect();
    assert_eq!(b, [0, 500, 1500], "two retries, base 500 ms");
}

#[tokio::test]
async fn a_publisher_can_override_the_policy_of_its_event() {
    let world = World::new().await;
    world.flaky("*", "broken", 9);
    world.bus.start().await.unwrap();
    let publish = world.bus.publish("x", &1).retry(RetryOverride::new().max_retries(0));
    let id = world.time.drive(async { publish.await }).await.unwrap();
    assert_eq!((world.log().len(), world.status(id).await), (1, EventStatus::Dlq));
}

fn breaker(samples: u32) -> BreakerConfig {
    BreakerConfig::builder().min_samples(samples).build().unwrap()
}

#[tokio::test]
async fn an_open_circuit_parks_only_its_own_deliveries() {
    let world = World::new().await;
    let once = RetryOverride::new().max_retries(0);
    world.subscribe("a.*", "broken", 2).retry(once).breaker(breaker(2)).register().unwrap();
    world.bus.start().await.unwrap();
    world.publish("a.1").await;
    world.publish("a.2").await;
    world.flaky("a.*", "healthy", 0);
    // The circuit is open: the third event is done for the healthy subscription and parked for the other.
    let id = world.bus.publish("a.3", &3).enqueue().await.unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    let event = world.bus.store().event(id).await.unwrap();
    assert_eq!(event.status, EventStatus::Processing);
    assert_eq!(event.deliveries.len(), 1);
    assert_eq!((event.deliveries[0].subscription.as_str(), event.deliveries[0].retry_count), ("broken", 0));
    assert_eq!(world.log().last().unwrap().0, "healthy");
    world.time.drive(world.time.clock().sleep(Duration::from_secs(30))).await;
    assert_eq!(world.status(id).await, EventStatus::Done, "delivered when the circuit let a probe through");
    assert_eq!(world.log().iter().filter(|(name, _)| name == "broken").count(), 3);
    assert_eq!(
        world.log().iter().filter(|(name, _)| name == "healthy").count(),
        1,
        "and only to the one it was owed"
    );
}

#[tokio::test]
async fn a_parked_delivery_survives_a_restart() {
    let world = World::new().await;
    let once = RetryOverride::new().max_retries(0);
    world.subscribe("*", "broken", 1).retry(once.clone()).breaker(breaker(1)).register().unwrap();
    world.bus.start().await.unwrap();
    world.publish("a").await;
    let id = world.bus.publish("b", &2).enqueue().await.unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    assert_eq!(world.bus.store().event(id).await.unwrap().deliveries.len(), 1);
    world.bus.shutdown().await.unwrap();
    let world = world.reopened().await;
    world.bus.start().await.unwrap();
    // Its subscription is not registered yet: the event waits, visible and counted.
    world.time.drive(world.time.clock().sleep(Duration::from_secs(40))).await;
    assert!(world.bus.metrics().await.unwrap().orphaned > 0);
    assert_eq!(world.status(id).await, EventStatus::Processing);
    world.subscribe("*", "broken", 0).retry(once).register().unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(20))).await;
    assert_eq!(world.status(id).await, EventStatus::Done);
}

#[tokio::test]
async fn per_subscription_tracking_retries_each_subscription_separately() {
    let world = World::with(|builder| builder.tracking(Tracking::PerSubscription)).await;
    world.flaky("*", "healthy", 0);
    world.flaky("*", "flaky", 2);
    world.subscribe("*", "broken", 99).retry(RetryOverride::new().max_retries(1)).register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.publish("order.created").await;
    let count = |name: &str| world.log().iter().filter(|(n, _)| n == name).count();
    assert_eq!((count("healthy"), count("flaky"), count("broken")), (1, 3, 2));
    let event = world.bus.store().event(id).await.unwrap();
    let states: Vec<_> = event.deliveries.iter().map(|d| (d.subscription.as_str(), d.status)).collect();
    assert_eq!(
        states,
        [("healthy", EventStatus::Done), ("flaky", EventStatus::Done), ("broken", EventStatus::Dlq)]
    );
    let mut exported = Vec::new();
    assert_eq!(world.bus.dlq().export(DlqFilter::default(), &mut exported).await.unwrap(), 1);
    let line: serde_json::Value = serde_json::from_slice(&exported).unwrap();
    assert!(
        line["attempts"].as_array().is_some_and(|attempts| attempts.len() >= 2),
        "with every attempt: {line}"
    );
    let dead = world.dead(id).await;
    assert_eq!(dead.subscription.unwrap().as_str(), "broken");
    assert_eq!(dead.errors.len(), 2);
    // Only dead deliveries are redriven.
    world.bus.dlq().retry(id).await.unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(5))).await;
    assert_eq!((count("healthy"), count("flaky"), count("broken")), (1, 3, 4));
}

#[tokio::test]
async fn a_retry_by_filter_calls_only_matching_subscriptions() {
    let world = World::with(|builder| builder.tracking(Tracking::PerSubscription)).await;
    let once = RetryOverride::new().max_retries(0);
    world.subscribe("*", "billing", 1).retry(once.clone()).register().unwrap();
    world.subscribe("*", "mail", 2).retry(once).register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.publish("order.created").await;
    let count = |name: &str| world.log().iter().filter(|(n, _)| n == name).count();
    assert_eq!((count("billing"), count("mail"), world.bus.dlq().get(id).await.unwrap().len()), (1, 1, 2));
    let of_the_ledger =
        DlqFilter { subscription: Some(SubscriptionName::new("billing").unwrap()), ..DlqFilter::default() };
    let report = world.bus.dlq().retry_all(of_the_ledger.clone(), RetryAll::default()).await.unwrap();
    assert_eq!((report.matched, report.retried), (1, 1));
    world.time.drive(world.time.clock().sleep(Duration::from_secs(5))).await;
    assert_eq!((count("billing"), count("mail")), (2, 1));
    assert_eq!(world.dead(id).await.subscription.unwrap().as_str(), "mail");
    assert_eq!(world.bus.dlq().retry_all(of_the_ledger, DRY_RUN).await.unwrap().matched, 0);
    let report = world.bus.dlq().retry_all(DlqFilter::default(), RetryAll::default()).await.unwrap();
    assert_eq!((report.matched, report.retried), (1, 1));
    world.time.drive(world.time.clock().sleep(Duration::from_secs(5))).await;
    assert_eq!((count("billing"), count("mail")), (2, 2));
}

#[tokio::test]
async fn a_redriven_event_starts_with_a_fresh_attempt_count() {
    let world = World::new().await;
    world.flaky("*", "flaky", 4);
    world.bus.start().await.unwrap();
    let id = world.publish("x").await;
    assert_eq!(world.status(id).await, EventStatus::Dlq);
    world.bus.shutdown().await.unwrap();
    // Without a bus that would claim it at once.
    let dlq = world.store_under_test.dlq().await;
    dlq.retry(id).await.unwrap();
    assert!(matches!(dlq.retry(id).await, Err(BusError::Store(StoreError::NotDead { .. }))));
    let bus = world.store_under_test.open_at(&world.time, EventBus::builder().policy(exact())).await;
    let event = bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.retry_count, event.errors.len()), (EventStatus::Pending, 0, 0));
    assert_eq!(event.attempts.len(), 4, "its history stays");
    bus.subscribe("*", |_: Event| async { Ok::<_, BoxError>(()) }).register().unwrap();
    // The inspector's clock is the real one, and virtual time may be behind it.
    world.time.advance(Clock::system().now().since(world.time.now()) + Duration::from_secs(1));
    bus.start().await.unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    assert_eq!(bus.store().event(id).await.unwrap().status, EventStatus::Done);
}

/// Snoozes once, so that the event is done but for this delivery, then fails for good.
async fn dead_in_a_parked_delivery(world: &World) -> EventId {
    let calls = AtomicU32::new(0);
    let handler = move |_: Event| {
        let is_first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            let snooze = || Snooze::new(Duration::from_secs(60));
            Err::<(), BoxError>(if is_first { snooze().into() } else { "no".permanent().into() })
        }
    };
    world.bus.subscribe("*", handler).name("parked").register().unwrap();
    world.flaky("*", "healthy", 0);
    world.bus.start().await.unwrap();
    let id = world.bus.publish("order.created", &1).enqueue().await.unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(61))).await;
    assert_eq!(world.dead(id).await.subscription.unwrap().as_str(), "parked");
    id
}

#[tokio::test]
async fn a_redriven_event_that_died_in_a_parked_delivery_is_pending() {
    let world = World::new().await;
    let id = dead_in_a_parked_delivery(&world).await;
    let event = world.bus.store().event(id).await.unwrap();
    assert_eq!(
        (event.status, event.retry_count, event.errors.as_slice()),
        (EventStatus::Dlq, 1, &["no".to_owned()][..])
    );
    world.bus.shutdown().await.unwrap();
    // Without a bus that would claim it at once.
    world.store_under_test.dlq().await.retry(id).await.unwrap();
    let bus = world.store_under_test.open_at(&world.time, EventBus::builder()).await;
    let event = bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.retry_count, event.errors.len()), (EventStatus::Pending, 0, 0));
}

#[tokio::test]
async fn an_event_counts_the_failed_attempts_of_all_its_deliveries() {
    let world = World::with(|builder| builder.tracking(Tracking::PerSubscription)).await;
    world.flaky("*", "healthy", 0);
    world.flaky("*", "flaky", 2);
    world.subscribe("*", "broken", 99).retry(RetryOverride::new().max_retries(3)).register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.publish("order.created").await;
    let event = world.bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.retry_count, event.errors.len()), (EventStatus::Dlq, 6, 6));
    assert_eq!(event.attempts.len(), 6, "as many as attempts are recorded");
}

#[tokio::test]
async fn a_handler_sees_status_retry_count_and_previous_errors() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let world = World::with(|builder| builder.tracking(tracking)).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let handler = move |event: Event| {
            assert_eq!(event.status(), EventStatus::Processing);
            log.lock().unwrap().push((event.retry_count(), event.previous_errors().to_vec()));
            async move { if event.attempt() < 3 { Err(format!("failure {}", event.attempt())) } else { Ok(()) } }
        };
        world.bus.subscribe("*", handler).register().unwrap();
        world.bus.start().await.unwrap();
        world.publish("order.created").await;
        let (one, two) = ("failure 1".to_owned(), "failure 2".to_owned());
        assert_eq!(*seen.lock().unwrap(), [(0, vec![]), (1, vec![one.clone()]), (2, vec![one, two])]);
    }
}

#[tokio::test]
async fn an_edited_event_is_redriven_with_its_new_payload() {
    let world = World::new().await;
    world
        .bus
        .subscribe("*", |event: Event| async move {
            let n: i64 = event.json()?;
            if n > 0 { Ok::<_, BoxError>(()) } else { Err("must be positive".permanent().into()) }
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let id = world.time.drive(async { world.bus.publish("x", &-1).await }).await.unwrap();
    world.bus.dlq().retry_edited(id, &1).await.unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    let event = world.bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.payload.get()), (EventStatus::Done, "1"));
}

#[tokio::test]
async fn the_dead_letter_queue_lists_newest_first_pages_groups_retries_and_purges() {
    let world = World::new().await;
    let once = RetryOverride::new().max_retries(0);
    world
        .bus
        .subscribe("*", |event: Event| async move {
            Err::<(), _>(format!("order {} not found in {}", event.payload(), event.event_type()))
        })
        .retry(once)
        .breaker(breaker(10_000))
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let mut ids = Vec::new();
    for n in 0..250 {
        world.time.advance(Duration::from_millis(1));
        let event_type = if n % 5 == 0 { "b" } else { "a" };
        let publish = world.bus.publish(event_type, &n);
        ids.push(world.time.drive(async { publish.await }).await.unwrap());
    }
    let dlq = world.bus.dlq();
    let list = |page| dlq.list(DlqFilter::default(), page);
    let first = list(DlqPage::default()).await.unwrap();
    assert_eq!(first.len(), 100, "the default limit");
    let newest: Vec<_> = ids.iter().rev().take(100).copied().collect();
    assert_eq!(first.iter().map(|dead| dead.id).collect::<Vec<_>>(), newest);
    let by_offset = list(DlqPage { offset: 100, ..DlqPage::default() }).await.unwrap();
    let by_cursor = list(DlqPage { after: Some(first[99].cursor), ..DlqPage::default() }).await.unwrap();
    assert_eq!(by_offset[0].id, by_cursor[0].id);
    assert_eq!(by_cursor[0].id, ids[149]);
    let groups = dlq.groups(DlqFilter::default()).await.unwrap();
    assert_eq!(groups.iter().map(|group| group.count).collect::<Vec<_>>(), [200, 50]);
    let of_b = DlqFilter { event_type: Some(redrive::EventType::new("b").unwrap()), ..DlqFilter::default() };
    let dry = dlq.retry_all(of_b.clone(), DRY_RUN).await.unwrap();
    assert_eq!((dry.matched, dry.retried), (50, 0));
    let text = DlqFilter { text: Some("order 249 ".into()), ..DlqFilter::default() };
    assert_eq!(dlq.list(text, DlqPage::default()).await.unwrap().len(), 1);
    let mut exported = Vec::new();
    assert_eq!(dlq.export(of_b.clone(), &mut exported).await.unwrap(), 50);
    assert_eq!(String::from_utf8(exported).unwrap().lines().count(), 50);
    let done = dlq.retry_all(of_b, RetryAll { per_second: Some(10), dry_run: false }).await.unwrap();
    assert_eq!(done.retried, 50);
    // Inclusive: an event of exactly this age is purged, too.
    let cutoff = world.bus.store().event(ids[51]).await.unwrap().created_at;
    let before =
        dlq.list(DlqFilter::default(), DlqPage { limit: 1000, ..DlqPage::default() }).await.unwrap().len();
    let purged = dlq.purge_until(cutoff).await.unwrap();
    assert_eq!(purged, (0..=51).filter(|n| n % 5 != 0).count() as u64);
    let left = dlq.list(DlqFilter::default(), DlqPage { limit: 1000, ..DlqPage::default() }).await.unwrap();
    assert_eq!(left.len() as u64, before as u64 - purged);
    assert!(left.iter().all(|dead| dead.created_at > cutoff));
}

#[tokio::test]
async fn a_delayed_event_waits_for_its_due_time() {
    let world = World::new().await;
    world.flaky("*", "h", 0);
    world.bus.start().await.unwrap();
    let publish = world.bus.publish("x", &1).delay(Duration::from_secs(3600));
    world.time.drive(async { publish.await }).await.unwrap();
    assert_eq!(world.log(), entries(&[("h", 3_600_000)]));
}

#[tokio::test]
async fn publishing_an_id_twice_stores_one_event() {
    let world = World::new().await;
    world.flaky("*", "h", 0);
    world.bus.start().await.unwrap();
    let id = EventId::new();
    for _ in 0..3 {
        let publish = world.bus.publish("x", &1).id(id);
        assert_eq!(world.time.drive(async { publish.await }).await.unwrap(), id);
    }
    assert_eq!((world.log().len(), world.bus.metrics().await.unwrap().duplicates), (1, 2));
}

#[tokio::test]
async fn the_id_of_another_event_is_refused() {
    let world = World::new().await;
    world.bus.start().await.unwrap();
    let id = EventId::new();
    world.time.drive(async { world.bus.publish("x", &1).id(id).await }).await.unwrap();
    for (event_type, payload) in [("x", 2), ("y", 1)] {
        let publish = || world.bus.publish(event_type, &payload).id(id);
        let awaited = world.time.drive(async { publish().await }).await;
        for error in [awaited.unwrap_err(), publish().enqueue().await.unwrap_err()] {
            assert!(
                matches!(error, BusError::Store(StoreError::IdTaken { id: taken }) if taken == id),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn a_batch_is_atomic() {
    let world = World::new().await;
    world.flaky("*", "h", 0);
    world.bus.start().await.unwrap();
    let ids = world.bus.publish_batch([("a", &1), ("b", &2), ("c", &3)]).await.unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    for id in ids {
        assert_eq!(world.status(id).await, EventStatus::Done);
    }
    let big = "x".repeat(2 << 20);
    let error = world.bus.publish_batch([("a", &"small"), ("b", &big.as_str())]).await.unwrap_err();
    assert!(matches!(error, BusError::Store(StoreError::PayloadTooLarge { .. })), "{error}");
    assert_eq!(world.bus.store().stats().await.unwrap().done, 3);
}

#[derive(Debug, Serialize, Deserialize)]
struct OrderCreated {
    order: u64,
}

impl EventPayload for OrderCreated {
    const TYPE: &'static str = "order.created";
}

#[tokio::test]
async fn typed_payloads_are_decoded_and_others_are_dead_lettered() {
    let world = World::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let orders = Arc::clone(&seen);
    world
        .bus
        .subscribe_typed(move |order: OrderCreated, _event| {
            orders.lock().unwrap().push(order.order);
            async { Ok::<_, BoxError>(()) }
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let publish = world.bus.publish_typed(&OrderCreated { order: 7 });
    world.time.drive(async { publish.await }).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [7]);
    let wrong = world.bus.publish("order.created", &json!({"order": "seven"}));
    let id = world.time.drive(async { wrong.await }).await.unwrap();
    let dead = world.dead(id).await;
    assert_eq!((dead.errors.len(), dead.reason.as_str()), (1, "permanent"));
    assert!(
        dead.errors[0].contains("cannot be read as") && dead.errors[0].contains("OrderCreated"),
        "{:?}",
        dead.errors
    );
}

#[tokio::test]
async fn an_unmatched_event_is_done_or_dead_lettered_by_option() {
    let world = World::new().await;
    world.bus.start().await.unwrap();
    let id = world.publish("x").await;
    assert_eq!(
        (world.status(id).await, world.bus.metrics().await.unwrap().unmatched),
        (EventStatus::Done, 1)
    );
    let world = World::with(|builder| builder.unmatched(Unmatched::DeadLetter)).await;
    world.bus.start().await.unwrap();
    let id = world.publish("x").await;
    assert_eq!(world.dead(id).await.errors, ["no subscription matches x"]);
}

#[tokio::test]
async fn an_unsubscribed_handler_is_not_called() {
    let world = World::new().await;
    let id = world.flaky("*", "h", 0);
    world.bus.start().await.unwrap();
    world.publish("a").await;
    assert!(world.bus.unsubscribe(&id).await.unwrap());
    assert!(!world.bus.unsubscribe(&id).await.unwrap());
    world.publish("b").await;
    assert_eq!(world.log().len(), 1);
    assert!(world.bus.store().subscriptions().await.unwrap().is_empty());
}

#[tokio::test]
async fn subscriptions_are_on_record_with_stable_names_and_ids() {
    let world = World::new().await;
    let named = world.flaky("order.*", "shipping", 0);
    world.bus.subscribe("order.*", |_: Event| async { Ok::<_, BoxError>(()) }).register().unwrap();
    assert!(matches!(world.subscribe("x", "shipping", 0).register(), Err(BusError::NameTaken { .. })));
    world.bus.start().await.unwrap();
    let rows = world.bus.store().subscriptions().await.unwrap();
    let names: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.event_type.as_str())).collect();
    assert_eq!(names, [("shipping", "order.*"), ("order.*#1", "order.*")]);
    world.bus.shutdown().await.unwrap();
    let world = world.reopened().await;
    assert_eq!(world.flaky("order.*", "shipping", 0), named, "the same id as before");
}

#[tokio::test]
async fn after_a_shutdown_publish_and_subscribe_are_refused_and_a_second_shutdown_is_harmless() {
    let world = World::new().await;
    world.bus.start().await.unwrap();
    world.bus.shutdown().await.unwrap();
    world.bus.shutdown().await.unwrap();
    assert!(matches!(world.bus.publish("x", &1).await, Err(BusError::Shutdown(_))));
    assert!(matches!(world.bus.publish("x", &1).enqueue().await, Err(BusError::Shutdown(_))));
    assert!(matches!(world.subscribe("x", "n", 0).register(), Err(BusError::Shutdown(_))));
    assert!(matches!(world.bus.start().await, Ok(0) | Err(BusError::Shutdown(_))));
}

#[tokio::test]
async fn a_shutdown_waits_for_running_handlers() {
    let world = World::new().await;
    let clock = world.time.clock();
    let (begun, ended) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let (begins, counter) = (Arc::clone(&begun), Arc::clone(&ended));
    world
        .bus
        .subscribe("*", move |_: Event| {
            let (clock, counter) = (clock.clone(), Arc::clone(&counter));
            begins.add_permits(1);
            async move {
                clock.sleep(Duration::from_secs(10)).await;
                counter.fetch_add(1, Ordering::SeqCst);
                Ok::<_, BoxError>(())
            }
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    for n in 0..5 {
        world.bus.publish("x", &n).enqueue().await.unwrap();
    }
    // Deliveries in flight do not count.
    let _all = begun.acquire_many(5).await.unwrap();
    world.time.drive(world.bus.shutdown()).await.unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn a_shutdown_times_out_and_the_next_start_resumes() {
    let world = World::with(|builder| builder.shutdown_timeout(Duration::from_secs(3))).await;
    world.bus.subscribe("*", |_: Event| std::future::pending::<Result<(), BoxError>>()).register().unwrap();
    world.bus.start().await.unwrap();
    let bus = world.bus.clone();
    let waiting = tokio::spawn(async move { bus.publish("x", &1).await });
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    let began = world.time.now();
    world.time.drive(world.bus.shutdown()).await.unwrap();
    assert_eq!(world.time.now().since(began), Duration::from_secs(3));
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, BusError::NotFinished { .. }), "{error}");
    let world = world.reopened().await;
    world.flaky("*", "h", 0);
    assert_eq!(world.bus.start().await.unwrap(), 1, "taken back");
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    assert_eq!(world.log().len(), 1);
}

#[tokio::test]
async fn a_blocking_handler_runs_and_its_panic_is_caught() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(EventBus::builder()).await;
    let once = RetryOverride::new().max_retries(0);
    bus.subscribe("good", blocking(|_: Event| Ok::<_, BoxError>(()))).register().unwrap();
    bus.subscribe("bad", blocking(|_: Event| -> Result<(), BoxError> { panic!("blocked") }))
        .retry(once)
        .register()
        .unwrap();
    bus.start().await.unwrap();
    bus.publish("good", &1).await.unwrap();
    let id = bus.publish("bad", &1).await.unwrap();
    assert_eq!(bus.dlq().get(id).await.unwrap()[0].errors, ["panicked: blocked"]);
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn more_events_than_fit_in_flight_wait_on_disk_and_are_all_handled() {
    let world = World::with(|builder| builder.in_flight(4)).await;
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (r, m, clock) = (Arc::clone(&running), Arc::clone(&most), world.time.clock());
    world
        .bus
        .subscribe("*", move |_: Event| {
            let (r, m, clock) = (Arc::clone(&r), Arc::clone(&m), clock.clone());
            async move {
                m.fetch_max(r.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                clock.sleep(Duration::from_millis(10)).await;
                r.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, BoxError>(())
            }
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    for n in 0..100 {
        world.bus.publish("x", &n).enqueue().await.unwrap();
    }
    let bus = world.bus.clone();
    let all_done = async {
        while bus.metrics().await.unwrap().done < 100 {
            world.time.clock().sleep(Duration::from_millis(50)).await;
        }
    };
    world.time.drive(all_done).await;
    assert_eq!(most.load(Ordering::SeqCst), 4);
    assert_eq!(world.bus.store().stats().await.unwrap().done, 100);
}

#[tokio::test]
async fn publishing_before_the_start_stores_or_fails() {
    let world = World::new().await;
    world.flaky("*", "h", 0);
    assert!(matches!(world.bus.publish("x", &1).await, Err(BusError::NotStarted)));
    let id = world.bus.publish("x", &1).enqueue().await.unwrap();
    assert_eq!(world.status(id).await, EventStatus::Pending);
    world.bus.start().await.unwrap();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    assert_eq!(world.status(id).await, EventStatus::Done);
}

#[tokio::test]
async fn the_handler_gets_the_context_of_its_attempt() {
    let world = World::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&seen);
    world
        .bus
        .subscribe("*", move |event: Event| {
            list.lock().unwrap().push((
                event.attempt(),
                event.max_attempts(),
                event.idempotency_key(),
                event.metadata()["tenant"].clone(),
            ));
            async move { if event.attempt() < 2 { Err("again") } else { Ok(()) } }
        })
        .name("h")
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let publish = world.bus.publish("x", &1).metadata("tenant", "t-1");
    let id = world.time.drive(async { publish.await }).await.unwrap();
    let key = format!("{id}/h");
    assert_eq!(*seen.lock().unwrap(), [(1, 4, key.clone(), "t-1".to_owned()), (2, 4, key, "t-1".to_owned())]);
}

#[tokio::test]
async fn invalid_input_gets_a_typed_error_and_stores_nothing() {
    let world = World::new().await;
    world.bus.start().await.unwrap();
    let publish = |event_type: &str| world.bus.publish(event_type, &1).enqueue();
    for bad in ["", "has space", "star.*"] {
        assert!(matches!(publish(bad).await, Err(BusError::Model(_))), "{bad:?}");
    }
    let nan = world.bus.publish("x", &f64::NAN).enqueue().await.unwrap_err();
    assert!(matches!(nan, BusError::InvalidPayload(_)), "{nan}");
    let big = world.bus.publish("x", &"x".repeat(2 << 20)).enqueue().await.unwrap_err();
    assert!(matches!(big, BusError::Store(StoreError::PayloadTooLarge { .. })), "{big}");
    let facts = world.bus.publish("x", &1).metadata("m", "x".repeat(65 << 10)).enqueue().await.unwrap_err();
    assert!(matches!(facts, BusError::Store(StoreError::MetadataTooLarge { .. })), "{facts}");
    let many = world.bus.publish_batch((0..10_001).map(|_| ("x", &1))).await.unwrap_err();
    assert!(matches!(many, BusError::Store(StoreError::BatchTooLarge { events: 10_001, .. })), "{many}");
    let no_handler = |_: Event| async { Ok::<_, BoxError>(()) };
    assert!(matches!(world.bus.subscribe(" ", no_handler).register(), Err(BusError::Pattern(_))));
    let bad_retry = RetryOverride::new().backoff_multiplier(f64::NAN);
    assert!(matches!(
        world.bus.subscribe("a", no_handler).retry(bad_retry).register(),
        Err(BusError::Policy(_))
    ));
    let stats = world.bus.store().stats().await.unwrap();
    assert_eq!((stats.pending, stats.processing, stats.done), (0, 0, 0));
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<redrive_retry::audit::RetryLogEntry>>>);

impl redrive_retry::audit::AuditSink for Log {
    fn record(&self, _: &redrive_retry::audit::AuditEvent) -> Result<(), redrive_retry::audit::AuditError> {
        Ok(())
    }

    fn log(
        &self,
        entry: &redrive_retry::audit::RetryLogEntry,
    ) -> Result<(), redrive_retry::audit::AuditError> {
        self.0.lock().unwrap().push(entry.clone());
        Ok(())
    }
}

#[tokio::test]
async fn every_failed_attempt_emits_a_retry_log_entry() {
    let log = Log::default();
    let world = World::with(|builder| builder.audit(log.clone())).await;
    let subscription = world.flaky("*", "broken", u32::MAX);
    world.bus.start().await.unwrap();
    let id = world.publish("order.created").await;
    let entries = log.0.lock().unwrap();
    let seen: Vec<_> =
        entries.iter().map(|entry| (entry.attempt, entry.delay_ms, entry.error.as_str())).collect();
    assert_eq!(
        seen,
        [(1, 1000, "failure 1"), (2, 2000, "failure 2"), (3, 4000, "failure 3"), (4, 0, "failure 4")]
    );
    for entry in entries.iter() {
        assert_eq!((entry.event_id.clone(), entry.event_type.as_str()), (id.to_string(), "order.created"));
        assert_eq!((&entry.subscription_id, entry.max_attempts), (&subscription, 4));
    }
}

#[tokio::test]
async fn handlers_run_sequentially_and_stop_at_a_failure() {
    let world = World::new().await;
    let clock = world.time.clock();
    world
        .bus
        .subscribe("*", move |_: Event| {
            let clock = clock.clone();
            async move {
                clock.sleep(Duration::from_secs(1)).await;
                Ok::<_, BoxError>(())
            }
        })
        .name("slow")
        .register()
        .unwrap();
    world.flaky("*", "second", 1);
    world.flaky("*", "third", 0);
    world.bus.start().await.unwrap();
    world.publish("x").await;
    assert_eq!(world.log(), entries(&[("second", 1000), ("second", 3000), ("third", 3000)]));
}

#[tokio::test]
async fn a_restart_closes_every_circuit() {
    let world = World::new().await;
    let once = RetryOverride::new().max_retries(0);
    world.subscribe("*", "s", 1).retry(once.clone()).breaker(breaker(1)).register().unwrap();
    world.bus.start().await.unwrap();
    world.publish("a").await;
    world.bus.shutdown().await.unwrap();
    let world = world.reopened().await;
    world.subscribe("*", "s", 0).retry(once).breaker(breaker(1)).register().unwrap();
    world.bus.start().await.unwrap();
    let began = world.time.now();
    let id = world.publish("b").await;
    assert_eq!((world.status(id).await, world.time.now()), (EventStatus::Done, began), "at once");
}

#[tokio::test]
async fn publish_refuses_an_invalid_retry_override() {
    let world = World::new().await;
    world.bus.start().await.unwrap();
    let publish = world.bus.publish("x", &1).retry(RetryOverride::new().base_delay_ms(900).max_delay_ms(500));
    let error = publish.enqueue().await.unwrap_err();
    assert!(matches!(error, BusError::Policy(_)), "{error}");
}

#[tokio::test]
async fn policy_time_limits_count_from_the_first_attempt() {
    let policy = RetryPolicy::builder()
        .max_attempts(10)
        .base_delay(Duration::from_secs(20))
        .jitter(Jitter::None)
        .attempt_timeout(Duration::from_secs(5))
        .deadline(Duration::from_secs(60))
        .build()
        .unwrap();
    let world = World::with(|builder| builder.policy(policy)).await;
    world.bus.subscribe("x", |_: Event| std::future::pending::<Result<(), BoxError>>()).register().unwrap();
    world.bus.start().await.unwrap();
    let publish = world.bus.publish("x", &1).delay(Duration::from_secs(3600));
    let id = world.time.drive(async { publish.await }).await.unwrap();
    let dead = world.dead(id).await;
    assert_eq!(
        dead.errors,
        ["no result within 5s", "no result within 5s"],
        "0 s and 25 s; the third would be too late"
    );
    assert_eq!(dead.reason, "deadline_exceeded");
}

#[tokio::test]
async fn a_dropped_bus_releases_its_store() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(EventBus::builder()).await;
    let has_begun = Arc::new(tokio::sync::Notify::new());
    let signal = Arc::clone(&has_begun);
    bus.subscribe("x", move |_: Event| {
        signal.notify_one();
        std::future::pending::<Result<(), BoxError>>()
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    bus.publish("x", &1).enqueue().await.unwrap();
    has_begun.notified().await;
    drop(bus);
    store_under_test.is_free().await;
    let again = store_under_test.open(EventBus::builder()).await;
    assert_eq!(again.start().await.unwrap(), 1, "what was being handled goes on");
    again.shutdown().await.unwrap();
}
