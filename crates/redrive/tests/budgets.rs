//! Retry budgets, on virtual time.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::budget::{BudgetConfig, BudgetError};
use redrive::retry::{Jitter, RetryPolicy, Timestamp, VirtualTime};
use redrive::{BusError, Event, EventBus, EventBusBuilder, EventId, Tracking};

use crate::test_store::{StoredBus, TestStore};

const BOTH: [Tracking; 2] = [Tracking::Event, Tracking::PerSubscription];

/// Calls in order: subscription, event, attempt.
type Log = Arc<Mutex<Vec<(&'static str, EventId, u32, Timestamp)>>>;

fn exact(builder: EventBusBuilder) -> EventBusBuilder {
    builder.policy(RetryPolicy::builder().jitter(Jitter::None).build().unwrap())
}

/// Budget with `reserve` retries at the start and one per `secs` seconds; first attempts add none.
fn one_in(secs: f64, reserve: u32) -> BudgetConfig {
    BudgetConfig::new(0.0, reserve, 1.0 / secs).unwrap()
}

/// Handler that records its calls and fails the first `failures` attempts at an event.
fn subscribe<'a>(
    bus: &'a EventBus,
    log: &Log,
    name: &'static str,
    failures: u32,
) -> redrive::subscription::Subscribe<'a> {
    let log = Arc::clone(log);
    bus.subscribe("order.*", move |event: Event| {
        // By the clock of the bus: a handler may take 30 s.
        let now = Timestamp::from_millis(event.deadline().as_millis() - 30_000);
        log.lock().unwrap().push((name, event.id(), event.attempt(), now));
        let fails = event.attempt() <= failures;
        async move { if fails { Err("not yet") } else { Ok(()) } }
    })
    .name(name)
    .breaker(BreakerConfig::builder().min_samples(1000).build().unwrap())
}

fn retries(log: &Log) -> usize {
    log.lock().unwrap().iter().filter(|(_, _, attempt, _)| *attempt > 1).count()
}

fn calls(log: &Log, who: &str) -> Vec<u32> {
    log.lock().unwrap().iter().filter(|call| call.0 == who).map(|call| call.2).collect()
}

#[tokio::test]
async fn retries_over_the_budget_are_deferred_without_charging_an_attempt() {
    for tracking in BOTH {
        let (bus, log) = (StoredBus::with(|builder| exact(builder).tracking(tracking)).await, Log::default());
        subscribe(&bus, &log, "mail", 1).retry_budget(one_in(10.0, 2)).register().unwrap();
        bus.start().await.unwrap();
        let began = bus.time().now();
        let mut ids = Vec::new();
        for n in 0..6 {
            ids.push(bus.bus().publish("order.created", &n).enqueue().await.unwrap());
        }
        bus.advance(Duration::from_secs(8)).await;
        assert_eq!(retries(&log), 2, "what was saved up ({tracking:?})");
        let mut waiting = 0;
        for id in &ids {
            let event = bus.store().event(*id).await.unwrap();
            let errors = event.deliveries.first().map_or(event.errors, |delivery| delivery.errors.clone());
            assert_eq!(errors, ["not yet"]);
            waiting += u32::from(event.status == EventStatus::Processing);
        }
        assert_eq!(waiting, 4);
        let metrics = bus.metrics().await.unwrap();
        assert!(metrics.budget_deferred >= 4, "{}", metrics.budget_deferred);
        assert_eq!(metrics.budgets["mail"], 0);
        assert_eq!(metrics.by_type["order.created"].retries, 2, "who asks in vain has not tried");
        bus.drain().await;
        bus.assert_done("order.created", 6).await;
        bus.assert_nothing_dead().await;
        assert_eq!(retries(&log), 6, "each once, and none as more than the second attempt");
        assert!(log.lock().unwrap().iter().all(|call| call.2 <= 2));
        let took = bus.time().now().since(began);
        assert!(took >= Duration::from_secs(40), "one in ten seconds: {took:?}");
        assert!(took <= Duration::from_secs(90), "and not much slower: {took:?}");
        let mut moments: Vec<_> = log.lock().unwrap().iter().map(|call| call.3).collect();
        moments.retain(|at| at.since(began) > Duration::from_secs(8));
        let apart = moments.windows(2).all(|pair| pair[1].since(pair[0]) >= Duration::from_secs(5));
        assert!(apart, "not all at once: {moments:?}");
    }
}

#[tokio::test]
async fn deferred_retries_still_make_all_attempts() {
    for tracking in BOTH {
        let (bus, log) = (StoredBus::with(|builder| exact(builder).tracking(tracking)).await, Log::default());
        subscribe(&bus, &log, "mail", 99).retry_budget(one_in(60.0, 1)).register().unwrap();
        bus.start().await.unwrap();
        let began = bus.time().now();
        let id = bus.publish("order.created", &1).await.unwrap();
        assert!(bus.time().now().since(began) < Duration::from_secs(115), "no publisher waits for a budget");
        bus.drain().await;
        assert_eq!(calls(&log, "mail"), [1, 2, 3, 4]);
        assert!(bus.time().now().since(began) >= Duration::from_secs(115), "two of them had to wait");
        let dead = bus.bus().dlq().get(id).await.unwrap().remove(0);
        assert_eq!((dead.reason.as_str(), dead.errors.len()), ("attempts_exhausted", 4));
        let planned: Vec<_> = dead.attempts.iter().map(|attempt| attempt.delay_ms).collect();
        assert_eq!(planned, [1000, 2000, 4000, 0], "as the policy plans them");
        assert!(dead.attempts.iter().all(|attempt| attempt.record.is_some()));
    }
}

#[tokio::test]
async fn a_spent_budget_delays_only_its_own_subscription() {
    let (bus, log) = (StoredBus::with(exact).await, Log::default());
    subscribe(&bus, &log, "limited", 0).retry_budget(one_in(60.0, 1)).register().unwrap();
    subscribe(&bus, &log, "flaky", 2).register().unwrap();
    bus.start().await.unwrap();
    let id = bus.bus().publish("order.created", &1).enqueue().await.unwrap();
    bus.advance(Duration::from_secs(10)).await;
    assert_eq!(calls(&log, "flaky"), [1, 2, 3]);
    assert_eq!(calls(&log, "limited"), [1, 2], "the third attempt goes on without it");
    let event = bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.deliveries.len()), (EventStatus::Processing, 1));
    assert_eq!(event.deliveries[0].subscription.as_str(), "limited");
    bus.drain().await;
    assert_eq!(calls(&log, "limited"), [1, 2, 3], "it is still owed");
    assert_eq!(calls(&log, "flaky"), [1, 2, 3], "and nobody else is asked again");
    bus.assert_done("order.created", 1).await;
}

#[tokio::test]
async fn first_attempts_refill_the_budget() {
    let (bus, log) = (StoredBus::with(exact).await, Log::default());
    let budget = BudgetConfig::new(0.5, 1, 0.0001).unwrap();
    subscribe(&bus, &log, "mail", 1).retry_budget(budget).register().unwrap();
    bus.start().await.unwrap();
    for n in 0..3 {
        bus.bus().publish("order.created", &n).enqueue().await.unwrap();
    }
    bus.advance(Duration::from_secs(60)).await;
    assert_eq!(retries(&log), 1, "what was there; it was full, so nothing was added");
    for n in 3..5 {
        bus.bus().publish("order.created", &n).enqueue().await.unwrap();
    }
    bus.advance(Duration::from_secs(60)).await;
    assert_eq!(retries(&log), 2, "two have paid for one");
    assert_eq!(bus.store().depth().await.unwrap().open_deliveries, 3, "the others wait");
}

#[tokio::test]
async fn a_deferred_retry_gets_its_last_attempt_before_the_deadline() {
    for tracking in BOTH {
        let policy = RetryPolicy::builder().jitter(Jitter::None).deadline(Duration::from_secs(100));
        let policy = policy.build().unwrap();
        let with = |builder: EventBusBuilder| builder.policy(policy).tracking(tracking);
        let (bus, log) = (StoredBus::with(with).await, Log::default());
        subscribe(&bus, &log, "mail", 1).retry_budget(one_in(9999.0, 1)).register().unwrap();
        bus.start().await.unwrap();
        bus.publish("order.paid", &1).await.unwrap();
        let began = bus.time().now();
        let id = bus.publish("order.late", &1).await.unwrap();
        bus.drain().await;
        let dead = bus.bus().dlq().get(id).await.unwrap().remove(0);
        assert_eq!((dead.reason.as_str(), dead.errors), ("deadline_exceeded", vec!["not yet".to_owned()]));
        let took = bus.time().now().since(began).as_millis();
        assert!((99_990..=100_010).contains(&took), "{took}");
        bus.assert_done("order.paid", 1).await;
    }
}

#[tokio::test]
async fn a_call_refused_by_the_circuit_costs_no_budget() {
    let (bus, log) = (StoredBus::with(exact).await, Log::default());
    let opens = BreakerConfig::builder().min_samples(1).open_for(Duration::from_secs(300)).build().unwrap();
    subscribe(&bus, &log, "mail", 1).breaker(opens).retry_budget(one_in(9999.0, 3)).register().unwrap();
    bus.start().await.unwrap();
    bus.bus().publish("order.created", &1).enqueue().await.unwrap();
    bus.advance(Duration::from_secs(60)).await;
    assert_eq!((calls(&log, "mail"), bus.subscriptions()[0].retries_left()), (vec![1], Some(3)));
    bus.drain().await;
    assert_eq!((calls(&log, "mail"), bus.subscriptions()[0].retries_left()), (vec![1, 2], Some(2)));
}

#[tokio::test]
async fn deferred_retries_survive_a_restart() {
    let (time, store_under_test, log) = (VirtualTime::new(), TestStore::new(), Log::default());
    let mut ids = Vec::new();
    {
        let bus = store_under_test.open_at(&time, exact(EventBus::builder())).await;
        subscribe(&bus, &log, "mail", 1).retry_budget(one_in(9999.0, 1)).register().unwrap();
        bus.start().await.unwrap();
        for n in 0..4 {
            ids.push(bus.publish("order.created", &n).enqueue().await.unwrap());
        }
        time.drive(time.clock().sleep(Duration::from_secs(5))).await;
        assert_eq!(retries(&log), 1);
        bus.shutdown().await.unwrap();
    }
    let bus = store_under_test.open_at(&time, exact(EventBus::builder())).await;
    subscribe(&bus, &log, "mail", 1).retry_budget(one_in(9999.0, 2)).register().unwrap();
    assert_eq!(bus.start().await.unwrap(), 0, "nothing was running, nothing is charged");
    time.drive(time.clock().sleep(Duration::from_secs(60))).await;
    assert_eq!(retries(&log), 3, "with a new budget of its own");
    bus.shutdown().await.unwrap();
    drop(bus);
    let bus = store_under_test.open_at(&time, exact(EventBus::builder())).await;
    subscribe(&bus, &log, "mail", 1).register().unwrap();
    bus.start().await.unwrap();
    time.drive(time.clock().sleep(Duration::from_secs(60))).await;
    for id in ids {
        assert_eq!(bus.store().event(id).await.unwrap().status, EventStatus::Done, "or without any");
    }
    assert!(log.lock().unwrap().iter().all(|call| call.2 <= 2), "no attempt was used up by waiting");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn crash_suspects_run_exclusively_without_budget() {
    let store_under_test = TestStore::new();
    let mut ids = Vec::new();
    for life in 0..2 {
        let bus = store_under_test.open(exact(EventBus::builder())).await;
        let (running, begun) = (Arc::new(tokio::sync::Semaphore::new(0)), 2);
        let signal = Arc::clone(&running);
        let hangs = move |_: Event| {
            signal.add_permits(1);
            std::future::pending::<Result<(), &str>>()
        };
        bus.subscribe("order.*", hangs).name("mail").register().unwrap();
        bus.start().await.unwrap();
        for n in 0..2 {
            if life == 0 {
                ids.push(bus.publish("order.created", &n).enqueue().await.unwrap());
            }
        }
        running.acquire_many(begun).await.unwrap().forget();
        drop(bus);
        store_under_test.is_free().await;
    }
    let (bus, log) = (store_under_test.open(exact(EventBus::builder())).await, Log::default());
    subscribe(&bus, &log, "mail", 0).retry_budget(one_in(9999.0, 1)).register().unwrap();
    assert_eq!(bus.start().await.unwrap(), 2);
    bus.publish("other", &1).await.unwrap(); // handled after the crash suspects
    assert_eq!(calls(&log, "mail"), [3, 3]);
    assert_eq!(bus.subscriptions()[0].retries_left(), Some(1));
    for id in ids {
        assert_eq!(bus.store().event(id).await.unwrap().status, EventStatus::Done);
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_budget_without_refill_is_refused() {
    let bus = StoredBus::new().await;
    let never = BudgetConfig::new(0.1, 5, 0.0).unwrap();
    let refused = bus.bus().subscribe("*", |_: Event| async { Ok::<_, &str>(()) }).retry_budget(never);
    let refused = refused.register();
    assert!(matches!(refused, Err(BusError::Budget(BudgetError::NoRefill))), "{refused:?}");
}

#[tokio::test]
async fn a_shared_budget_on_a_file_is_the_budget_of_its_process() {
    let (time, folder, log) = (VirtualTime::new(), tempfile::tempdir().unwrap(), Log::default());
    let bus = exact(EventBus::builder()).clock(time.clock()).open(folder.path().join("events.db"));
    let bus = bus.await.unwrap();
    subscribe(&bus, &log, "mail", 1).shared_budget().register().unwrap();
    assert_eq!(bus.subscriptions()[0].retries_left(), Some(100), "the default, full from the beginning");
    bus.start().await.unwrap();
    time.drive(async { bus.publish("order.created", &1).await }).await.unwrap();
    assert_eq!((retries(&log), bus.subscriptions()[0].retries_left()), (1, Some(99)));
    bus.shutdown().await.unwrap();
}
