//! Limits of one subscription: what finds no room waits on disk, in its order, and holds nobody else up.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::{
    BoxError, ClassifyError, Clock, Event, EventBus, EventId, EventStatus, Failure, Limits, Replayed,
    Timestamp, Tracking, VirtualTime,
};
use tokio::sync::Semaphore;

use crate::place::Place;

fn builder() -> redrive::EventBusBuilder {
    EventBus::builder().tracking(Tracking::PerSubscription)
}

/// So long at most, by the real clock, whatever the machine is doing beside it.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn publish(bus: &EventBus, count: u32) -> Vec<EventId> {
    let numbers: Vec<u32> = (0..count).collect();
    bus.publish_batch(numbers.iter().map(|n| ("order.paid", n))).await.unwrap()
}

/// Counts who is at it at once, and holds everybody until it is told to let so many go.
#[derive(Clone)]
struct Dam {
    at_once: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
    order: Arc<Mutex<Vec<EventId>>>,
    gate: Arc<Semaphore>,
}

impl Dam {
    fn new(open: usize) -> Self {
        Dam {
            at_once: Arc::default(),
            most_at_once: Arc::default(),
            order: Arc::default(),
            gate: Arc::new(Semaphore::new(open)),
        }
    }

    fn handled(&self) -> usize {
        self.order.lock().unwrap().len()
    }

    fn subscribe<'a>(&self, bus: &'a EventBus, name: &str) -> redrive::Subscribe<'a> {
        let dam = self.clone();
        bus.subscribe("order.*", move |event: Event| {
            let dam = dam.clone();
            async move {
                let at_once = dam.at_once.fetch_add(1, Ordering::SeqCst) + 1;
                dam.most_at_once.fetch_max(at_once, Ordering::SeqCst);
                dam.gate.acquire().await.unwrap().forget();
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
async fn one_that_stands_still_does_not_delay_the_others() {
    let place = Place::new();
    // Far fewer places than are owed to the one that stands still.
    let bus = place.open(builder().in_flight(32)).await;
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

    stuck.gate.add_permits(1 << 20);
    until("nothing is left behind", async || stuck.handled() == 500).await;
    assert_eq!(stuck.most_at_once.load(Ordering::SeqCst), 2, "never more than its limit");
    until("all are done", async || bus.store().depth().await.unwrap().is_idle()).await;
    assert_eq!(bus.store().event(ids[0]).await.unwrap().status, EventStatus::Done);
    assert!(bus.metrics().await.unwrap().held > 0);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_is_handled_after_a_restart() {
    let place = Place::new();
    let limits = Limits { concurrency: 1, per_second: None };
    let stuck = Dam::new(0);
    let bus = place.open(builder().shutdown_timeout(Duration::from_millis(50))).await;
    stuck.subscribe(&bus, "hook").limits(limits).register().unwrap();
    bus.start().await.unwrap();
    let ids = publish(&bus, 50).await;
    until("one runs and one waits", async || bus.dispatcher().in_flight() == 2).await;
    bus.shutdown().await.unwrap();
    drop(bus);

    let bus = place.open(builder()).await;
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
async fn a_failure_that_says_when_to_come_again_closes_the_subscription() {
    let (time, place) = (VirtualTime::new(), Place::new());
    let bus = place.open_at(&time, builder()).await;
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
        // Not this event alone: everything for this subscription waits.
        let rest = futures_join((1..5).map(|n| bus.publish("order.paid", &n))).await;
        assert!(rest.iter().all(Result::is_ok));
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
    publishes: impl Iterator<Item = redrive::Publish>,
) -> Vec<Result<EventId, redrive::BusError>> {
    let mut all = tokio::task::JoinSet::new();
    for publish in publishes {
        all.spawn(publish.into_future());
    }
    all.join_all().await
}

#[tokio::test]
async fn so_many_begin_in_a_second() {
    let (time, place) = (VirtualTime::new(), Place::new());
    let bus = place.open_at(&time, builder()).await;
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
async fn what_a_handler_tells_is_kept_with_the_attempt() {
    let (time, place) = (VirtualTime::new(), Place::new());
    let bus = place.open_at(&time, builder()).await;
    bus.subscribe("order.*", |event: Event| async move {
        event.tell(&serde_json::json!({"status": if event.attempt() == 1 { 503 } else { 200 }}));
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
    let (time, place) = (VirtualTime::new(), Place::new());
    let bus = place.open_at(&time, builder()).await;
    let heard: Arc<Mutex<BTreeMap<&'static str, u32>>> = Arc::default();
    let subscribe = |who: &'static str, patterns: &'static str| {
        let heard = Arc::clone(&heard);
        bus.subscribe(patterns, move |_: Event| {
            *heard.lock().unwrap().entry(who).or_default() += 1;
            async { Ok::<_, BoxError>(()) }
        })
        .name("hook")
    };
    let id = subscribe("before", "order.*").register().unwrap();
    bus.start().await.unwrap();
    let first = time.drive(async { bus.publish("order.paid", &1).await }).await.unwrap();
    assert_eq!(subscribe("after", "invoice.* order.paid").replace().unwrap(), id, "it is the same one");
    assert!(subscribe("second", "order.*").register().is_err(), "the name is taken");
    bus.announce(bus.subscriptions()[0].name()).await.unwrap();
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

    // One that is about to go gets what it is owed, and nothing more.
    subscribe("going", "ignored").addressed_only().replace().unwrap();
    time.drive(async { bus.publish("order.paid", &3).await }).await.unwrap();
    assert!(!heard.lock().unwrap().contains_key("going"));
    bus.store().replay(first, name, time.now()).await.unwrap();
    time.drive(until("it is handled again", async || heard.lock().unwrap().contains_key("going"))).await;
    bus.shutdown().await.unwrap();
}
