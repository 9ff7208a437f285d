//! Limits of one subscription: deliveries over the limit wait in the backlog, in order, and delay no other subscription.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::internal::SubscribeExt as _;
use redrive::retry::breaker::{BreakerConfig, BreakerSnapshot};
use redrive::retry::{BoxError, ClassifyError, Clock, Failure, RetryPolicy, Timestamp, VirtualTime};
use redrive::store::Replayed;
use redrive::{Event, EventBus, EventId, Limits, Tracking};
use tokio::sync::Semaphore;

use crate::test_store::TestStore;

fn builder() -> redrive::EventBusBuilder {
    EventBus::builder().tracking(Tracking::PerSubscription)
}

/// Real-time bound of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, looking).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn publish(bus: &EventBus, count: u32) -> Vec<EventId> {
    let numbers: Vec<u32> = (0..count).collect();
    bus.publish_batch(numbers.iter().map(|n| ("order.paid", n))).await.unwrap()
}

/// Counts concurrent handler calls and blocks them until the test releases a number of them.
#[derive(Clone)]
struct Dam {
    at_once: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
    order: Arc<Mutex<Vec<EventId>>>,
    permits: Arc<Semaphore>,
}

impl Dam {
    fn new(open: usize) -> Self {
        Dam {
            at_once: Arc::default(),
            most_at_once: Arc::default(),
            order: Arc::default(),
            permits: Arc::new(Semaphore::new(open)),
        }
    }

    fn handled(&self) -> usize {
        self.order.lock().unwrap().len()
    }

    fn subscribe<'a>(&self, bus: &'a EventBus, name: &str) -> redrive::subscription::Subscribe<'a> {
        let dam = self.clone();
        bus.subscribe("order.*", move |event: Event| {
            let dam = dam.clone();
            async move {
                let at_once = dam.at_once.fetch_add(1, Ordering::SeqCst) + 1;
                dam.most_at_once.fetch_max(at_once, Ordering::SeqCst);
                dam.permits.acquire().await.unwrap().forget();
                dam.order.lock().unwrap().push(event.id());
                dam.at_once.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, BoxError>(())
            }
        })
        .name(name)
        .timeout(Duration::from_secs(3600))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_subscription_does_not_delay_others() {
    let store_under_test = TestStore::new();
    // Far fewer in-flight slots than deliveries for the stalled subscription.
    let bus = store_under_test.open(builder().in_flight(32)).await;
    let (stuck, quick) = (Dam::new(0), Dam::new(1 << 20));
    stuck.subscribe(&bus, "stuck").limits(Limits { concurrency: 2, per_second: None }).register().unwrap();
    quick.subscribe(&bus, "quick").limits(Limits { concurrency: 8, per_second: None }).register().unwrap();
    bus.start().await.unwrap();
    let ids = publish(&bus, 500).await;
    until("the quick one has all of them", async || quick.handled() == 500).await;
    assert_eq!((stuck.handled(), stuck.at_once.load(Ordering::SeqCst)), (0, 2));
    until("two run and two wait in memory; the rest is on disk", async || bus.dispatcher().in_flight() <= 4)
        .await;
    assert!(quick.most_at_once.load(Ordering::SeqCst) <= 8);

    stuck.permits.add_permits(1 << 20);
    until("nothing is left behind", async || stuck.handled() == 500).await;
    assert_eq!(stuck.most_at_once.load(Ordering::SeqCst), 2, "never more than its limit");
    until("all are done", async || bus.store().depth().await.unwrap().is_idle()).await;
    assert_eq!(bus.store().event(ids[0]).await.unwrap().status, EventStatus::Done);
    assert!(bus.metrics().await.unwrap().backlogged > 0);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_charges_no_attempt_to_deliveries_that_have_not_started() {
    let store_under_test = TestStore::new();
    let limits = Limits { concurrency: 2, per_second: None };
    let dam = Dam::new(0);
    let bus = store_under_test.open(builder()).await;
    dam.subscribe(&bus, "hook").limits(limits).register().unwrap();
    bus.start().await.unwrap();
    let ids = publish(&bus, 6).await;
    until("two run and two wait in memory", async || {
        dam.at_once.load(Ordering::SeqCst) == 2 && bus.dispatcher().in_flight() == 4
    })
    .await;
    let shutting = tokio::spawn({
        let bus = bus.clone();
        async move { bus.shutdown().await }
    });
    until("who waited is on disk", async || bus.dispatcher().in_flight() == 2).await;
    dam.permits.add_permits(2);
    shutting.await.unwrap().unwrap();
    assert_eq!(dam.handled(), 2, "what had begun is finished, and nothing else begins");

    let bus = store_under_test.open(builder()).await;
    dam.permits.add_permits(4);
    dam.subscribe(&bus, "hook").limits(limits).register().unwrap();
    assert_eq!(bus.start().await.unwrap(), 0, "nothing was running");
    until("all are handled", async || bus.store().depth().await.unwrap().is_idle()).await;
    for id in ids {
        let delivery = bus.store().event(id).await.unwrap().deliveries.remove(0);
        assert_eq!((delivery.retry_count, delivery.errors.len()), (0, 0));
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backlog_continues_after_the_limits_are_removed() {
    let store_under_test = TestStore::new();
    let stuck = Dam::new(0);
    let bus = store_under_test.open(builder().shutdown_timeout(Duration::from_millis(50))).await;
    let limits = Limits { concurrency: 1, per_second: None };
    stuck.subscribe(&bus, "hook").limits(limits).register().unwrap();
    bus.start().await.unwrap();
    publish(&bus, 10).await;
    until("most of it is on disk", async || bus.dispatcher().in_flight() <= 2).await;
    bus.shutdown().await.unwrap();
    drop(bus);

    let bus = store_under_test.open(builder()).await;
    let free = Dam::new(1 << 20);
    free.subscribe(&bus, "hook").register().unwrap();
    bus.start().await.unwrap();
    until("all are handled", async || bus.store().depth().await.unwrap().is_idle()).await;
    assert_eq!(free.handled(), 10);
    bus.shutdown().await.unwrap();
}

/// A subscription without limits checks the backlog rarely, so a delivery that is deferred later must notify it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_waiting_for_a_limiter_moves_to_its_replacement_without_limits() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(builder()).await;
    let (old, new) = (Dam::new(0), Dam::new(1000));
    old.subscribe(&bus, "hook").limits(Limits { concurrency: 2, per_second: None }).register().unwrap();
    bus.start().await.unwrap();
    publish(&bus, 20).await;
    until("two are at it", async || old.at_once.load(Ordering::SeqCst) == 2).await;
    new.subscribe(&bus, "hook").replace().unwrap();
    until("the new one has the rest", async || new.handled() == 18).await;
    old.permits.add_permits(2);
    until("all is over", async || bus.store().depth().await.unwrap().is_idle()).await;
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_waiting_for_a_limiter_moves_to_its_replacement() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(builder()).await;
    let (old, new) = (Dam::new(0), Dam::new(1 << 20));
    let limits = Limits { concurrency: 1, per_second: None };
    old.subscribe(&bus, "hook").limits(limits).register().unwrap();
    bus.start().await.unwrap();
    publish(&bus, 3).await;
    until("one runs, one waits", async || {
        old.at_once.load(Ordering::SeqCst) == 1 && bus.dispatcher().in_flight() == 2
    })
    .await;
    new.subscribe(&bus, "hook").limits(limits).replace().unwrap();
    until("the others do not wait for it", async || new.handled() == 2).await;
    old.permits.add_permits(1);
    until("all are handled", async || bus.store().depth().await.unwrap().is_idle()).await;
    assert_eq!((old.handled(), new.handled()), (1, 2));
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backlog_is_handled_after_a_restart() {
    let store_under_test = TestStore::new();
    let limits = Limits { concurrency: 1, per_second: None };
    let stuck = Dam::new(0);
    let bus = store_under_test.open(builder().shutdown_timeout(Duration::from_millis(50))).await;
    stuck.subscribe(&bus, "hook").limits(limits).register().unwrap();
    bus.start().await.unwrap();
    let ids = publish(&bus, 50).await;
    until("one runs and one waits", async || bus.dispatcher().in_flight() == 2).await;
    bus.shutdown().await.unwrap();
    drop(bus);

    let bus = store_under_test.open(builder()).await;
    let open = Dam::new(1 << 20);
    open.subscribe(&bus, "hook").limits(limits).register().unwrap();
    bus.start().await.unwrap();
    until("all are handled", async || open.handled() == 50).await;
    let mut handled = open.order.lock().unwrap().clone();
    handled.sort_unstable();
    let mut published = ids;
    published.sort_unstable();
    assert_eq!(handled, published, "each of them once");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_retry_after_closes_the_limiter_of_the_subscription() {
    let (time, store_under_test) = (VirtualTime::new(), TestStore::new());
    let bus = store_under_test.open_at(&time, builder()).await;
    let calls: Arc<Mutex<Vec<(i64, u32)>>> = Arc::default();
    let (heard, clock): (_, Clock) = (Arc::clone(&calls), time.clock());
    bus.subscribe("order.*", move |event: Event| {
        let at = clock.now().as_millis();
        let mut calls = heard.lock().unwrap();
        let is_first = calls.is_empty();
        calls.push((at, event.json::<u32>().unwrap()));
        async move {
            if is_first {
                return Err::<(), Failure>("slow down".retry_after(Duration::from_secs(60)));
            }
            Ok(())
        }
    })
    .name("hook")
    .limits(Limits { concurrency: 1, per_second: None })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let start = time.now();
    time.drive(async {
        bus.publish("order.paid", &0).enqueue().await.unwrap();
        while calls.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        // All deliveries of this subscription wait, not this event alone.
        let rest = futures_join((1..5).map(|n| bus.publish("order.paid", &n))).await;
        assert!(rest.iter().all(Result::is_ok));
        while bus.metrics().await.unwrap().done < 5 {
            time.clock().sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    let throttled = start + Duration::from_secs(60);
    let calls = calls.lock().unwrap().clone();
    assert!(calls.len() >= 5, "{calls:?}");
    for (at, n) in &calls[1..] {
        assert!(Timestamp::from_millis(*at) >= throttled, "{n} was tried too early: {calls:?}");
    }
    bus.shutdown().await.unwrap();
}

async fn futures_join(
    publishes: impl Iterator<Item = redrive::publish::Publish>,
) -> Vec<Result<EventId, redrive::BusError>> {
    let mut all = tokio::task::JoinSet::new();
    for publish in publishes {
        all.spawn(publish.into_future());
    }
    all.join_all().await
}

#[tokio::test]
async fn the_rate_limit_bounds_attempts_per_second() {
    let (time, store_under_test) = (VirtualTime::new(), TestStore::new());
    let bus = store_under_test.open_at(&time, builder()).await;
    let begun: Arc<Mutex<Vec<i64>>> = Arc::default();
    let (noted, clock) = (Arc::clone(&begun), time.clock());
    bus.subscribe("order.*", move |_: Event| {
        noted.lock().unwrap().push(clock.now().as_millis());
        async { Ok::<_, BoxError>(()) }
    })
    .name("hook")
    .limits(Limits { concurrency: 100, per_second: Some(20.0) })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    time.drive(async {
        let all = futures_join((0..100).map(|n| bus.publish("order.paid", &n))).await;
        assert!(all.iter().all(Result::is_ok));
        while bus.metrics().await.unwrap().done < 100 {
            time.clock().sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let mut begun = begun.lock().unwrap().clone();
    begun.sort_unstable();
    assert_eq!(begun.len(), 100);
    let took = begun[99] - begun[0];
    assert!(
        (4_700..9_000).contains(&took),
        "a hundred at twenty a second take about five seconds: {took} ms"
    );
    let in_one_second = |start: &i64| begun.iter().filter(|at| (*start..*start + 1000).contains(*at)).count();
    let most = begun.iter().map(in_one_second).max().unwrap();
    assert!(most <= 26, "{most} began within one second");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_detail_of_a_handler_is_stored_with_the_attempt() {
    let (time, store_under_test) = (VirtualTime::new(), TestStore::new());
    let bus = store_under_test.open_at(&time, builder()).await;
    bus.subscribe("order.*", |event: Event| async move {
        event.record_detail(&serde_json::json!({"status": if event.attempt() == 1 { 503 } else { 200 }}));
        if event.attempt() == 1 { Err("503 Service Unavailable") } else { Ok(()) }
    })
    .name("hook")
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let id = time.drive(async { bus.publish("order.paid", &7).await }).await.unwrap();
    let attempts = bus.store().event(id).await.unwrap().attempts;
    let shown: Vec<_> = attempts
        .iter()
        .map(|attempt| (attempt.attempt, attempt.class.is_none(), attempt.detail.clone().unwrap().0))
        .collect();
    assert_eq!(
        shown,
        [(1, false, r#"{"status":503}"#.to_owned()), (2, true, r#"{"status":200}"#.to_owned())]
    );
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_subscription_is_replaced_without_a_gap_and_gets_a_replay() {
    let (time, store_under_test) = (VirtualTime::new(), TestStore::new());
    let bus = store_under_test.open_at(&time, builder()).await;
    let heard: Arc<Mutex<BTreeMap<&'static str, u32>>> = Arc::default();
    let subscribe = |who: &'static str, patterns: &'static str| {
        let heard = Arc::clone(&heard);
        bus.subscribe(patterns, move |_: Event| {
            *heard.lock().unwrap().entry(who).or_default() += 1;
            async { Ok::<_, BoxError>(()) }
        })
        .name("hook")
    };
    let handle = subscribe("before", "order.*").register().unwrap();
    bus.start().await.unwrap();
    let first = time.drive(async { bus.publish("order.paid", &1).await }).await.unwrap();
    assert_eq!(
        subscribe("after", "invoice.* order.paid").replace().unwrap().id(),
        handle.id(),
        "it is the same one"
    );
    assert!(subscribe("second", "order.*").register().is_err(), "the name is taken");
    handle.announce().await.unwrap();
    assert_eq!(bus.store().subscriptions().await.unwrap()[0].event_type, "invoice.* order.paid");
    for event_type in ["order.paid", "invoice.sent", "order.lost"] {
        time.drive(async { bus.publish(event_type, &2).await }).await.unwrap();
    }
    assert_eq!(*heard.lock().unwrap(), BTreeMap::from([("before", 1), ("after", 2)]));

    let name = bus.subscriptions()[0].name().clone();
    let again = bus.store().replay(first, name.clone(), time.now()).await.unwrap();
    assert_eq!(again, Replayed::Again);
    time.drive(until("it is handled again", async || {
        bus.store().event(first).await.unwrap().status == EventStatus::Done
    }))
    .await;
    assert_eq!(heard.lock().unwrap()["after"], 3);

    // A draining subscription gets its existing deliveries, and no new ones.
    subscribe("going", "ignored").drain_only().replace().unwrap();
    time.drive(async { bus.publish("order.paid", &3).await }).await.unwrap();
    assert!(!heard.lock().unwrap().contains_key("going"));
    bus.store().replay(first, name, time.now()).await.unwrap();
    time.drive(until("it is handled again", async || heard.lock().unwrap().contains_key("going"))).await;
    bus.shutdown().await.unwrap();
}

/// Opens when two calls have failed.
fn breaker(open_for: Duration) -> BreakerConfig {
    BreakerConfig::builder().min_samples(2).open_for(open_for).build().unwrap()
}

fn one_attempt() -> redrive::EventBusBuilder {
    builder().policy(RetryPolicy::builder().max_attempts(1).build().unwrap())
}

/// Opens the circuit with two failures and parks `count` further deliveries behind it.
async fn park(bus: &EventBus, open_for: Duration, count: u32) {
    bus.subscribe("order.*", |_: Event| async { Err::<(), _>("down") })
        .name("hook")
        .limits(Limits { concurrency: 4, per_second: None })
        .breaker(breaker(open_for))
        .register()
        .unwrap();
    bus.start().await.unwrap();
    for n in 0..2 {
        bus.publish("order.paid", &n).enqueue().await.unwrap();
    }
    let is_open = || matches!(bus.subscriptions()[0].breaker(), BreakerSnapshot::Open { .. });
    until("the circuit is open", async || is_open()).await;
    publish(bus, count).await;
    until("all are on disk", async || bus.metrics().await.unwrap().parked >= u64::from(count) + 2).await;
    until("nothing is in flight", async || bus.dispatcher().in_flight() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_parked_behind_a_circuit_move_to_the_replacing_subscription() {
    let store_under_test = TestStore::new();
    // Long enough that both fail before one of them is tried again.
    let policy = RetryPolicy::builder().max_attempts(2).base_delay(Duration::from_secs(1)).build().unwrap();
    let bus = store_under_test.open(builder().policy(policy)).await;
    park(&bus, Duration::from_secs(600), 50).await;
    // The replacement starts with a closed circuit: no delivery waits for the ten minutes.
    let open = Dam::new(1 << 20);
    open.subscribe(&bus, "hook").limits(Limits { concurrency: 4, per_second: None }).replace().unwrap();
    until("all of them are handled", async || open.handled() == 50 + 2).await;
    assert!(open.most_at_once.load(Ordering::SeqCst) <= 4, "at its own pace");
    until("nothing is left", async || bus.store().depth().await.unwrap().is_idle()).await;
    assert_eq!(bus.metrics().await.unwrap().dead, 0, "none of them was charged another attempt");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn one_probe_is_claimed_from_the_backlog_and_the_rest_follows() {
    let (time, store_under_test) = (VirtualTime::new(), TestStore::new());
    let bus = store_under_test.open_at(&time, one_attempt()).await;
    let calls: Arc<Mutex<Vec<i64>>> = Arc::default();
    let is_well = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (heard, well, clock) = (Arc::clone(&calls), Arc::clone(&is_well), time.clock());
    bus.subscribe("order.*", move |_: Event| {
        heard.lock().unwrap().push(clock.now().as_millis());
        let is_well = well.load(Ordering::SeqCst);
        async move { if is_well { Ok(()) } else { Err("down") } }
    })
    .name("hook")
    .limits(Limits { concurrency: 4, per_second: None })
    .breaker(breaker(Duration::from_secs(30)))
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let (start, waits) = (time.now(), || async { bus.metrics().await.unwrap() });
    for _ in 0..2 {
        time.drive(async { bus.publish("order.paid", &0).await }).await.unwrap();
    }
    publish(&bus, 20).await;
    until("all wait", async || waits().await.parked == 20 && bus.dispatcher().in_flight() == 0).await;
    assert_eq!(calls.lock().unwrap().len(), 2);

    // One probe fails; no other delivery is charged an attempt.
    time.advance(Duration::from_secs(30));
    until("one was tried", async || waits().await.dead == 3).await;
    until("it is over", async || bus.dispatcher().in_flight() == 0).await;
    time.advance(Duration::from_secs(29));
    until("nothing is in flight", async || bus.dispatcher().in_flight() == 0).await;
    assert_eq!(calls.lock().unwrap().len(), 3, "nobody else was asked");

    is_well.store(true, Ordering::SeqCst);
    let drained = until("all are handled", async || bus.store().depth().await.unwrap().is_idle());
    time.drive(drained).await;
    let calls = calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 2 + 20, "each of them once");
    assert!(
        calls[3..].iter().all(|at| Timestamp::from_millis(*at) >= start + Duration::from_secs(60)),
        "{calls:?}"
    );
    assert_eq!(waits().await.dead, 3);
    bus.shutdown().await.unwrap();
}

/// A handler with remote effect only calls another process and cannot crash this one: its deliveries are no suspects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_effect_does_not_run_in_isolation_after_two_crashes() {
    let limits = Limits { concurrency: 8, per_second: None };
    for (tracking, limits) in [
        (Tracking::Event, None),
        (Tracking::PerSubscription, None),
        (Tracking::PerSubscription, Some(limits)),
    ] {
        let store_under_test = TestStore::new();
        for life in 0..3 {
            let (bus, dam) =
                (store_under_test.open(EventBus::builder().tracking(tracking)).await, Dam::new(0));
            let mut subscribe = dam.subscribe(&bus, "far").remote_effect();
            if let Some(limits) = limits {
                subscribe = subscribe.limits(limits);
            }
            subscribe.register().unwrap();
            bus.start().await.unwrap();
            if life == 0 {
                publish(&bus, 3).await;
            }
            until("all of them at once", async || dam.at_once.load(Ordering::SeqCst) == 3).await;
            if life == 2 {
                dam.permits.add_permits(3);
                until("handled", async || dam.handled() == 3).await;
                bus.shutdown().await.unwrap();
            } else {
                drop(bus); // as a crash would
                store_under_test.is_free().await;
            }
        }
    }
}
