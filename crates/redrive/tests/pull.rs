//! Events that are fetched: leased, fenced, and on disk until somebody asks for them.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeSet;
use std::time::Duration;

use redrive::{EventBus, EventId, EventStatus, LeaseLost, PullQueue, RetryOverride, RetryPolicy, Tracking};

use crate::place::Place;

const LEASE: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(60);

fn builder() -> redrive::EventBusBuilder {
    let policy = RetryOverride::new().base_delay_ms(10).max_delay_ms(20).apply_to(&RetryPolicy::bus());
    EventBus::builder().tracking(Tracking::PerSubscription).policy(policy.unwrap())
}

async fn open(place: &Place) -> (EventBus, PullQueue) {
    let (bus, queue) = (place.open(builder()).await, PullQueue::new());
    bus.subscribe_queue("order.*", &queue).name("billing").register().unwrap();
    bus.start().await.unwrap();
    (bus, queue)
}

async fn publish(bus: &EventBus, count: u32) -> Vec<EventId> {
    let numbers: Vec<u32> = (0..count).collect();
    bus.publish_batch(numbers.iter().map(|n| ("order.paid", n))).await.unwrap()
}

async fn ended(bus: &EventBus, id: EventId) -> EventStatus {
    let looking = async {
        loop {
            let status = bus.store().event(id).await.unwrap().status;
            if matches!(status, EventStatus::Done | EventStatus::Dlq) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.expect("it comes to its end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_waits_on_disk_until_it_is_fetched_and_ends_when_it_is_acknowledged() {
    let place = Place::new();
    let (bus, queue) = open(&place).await;
    let ids = publish(&bus, 25).await;
    let idle = async {
        while bus.dispatcher().in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, idle).await.expect("nobody has asked: all of it is on disk");
    let mut fetched = BTreeSet::new();
    while fetched.len() < ids.len() {
        let leased = queue.pull(10, LEASE, WAIT).await;
        assert!((1..=10).contains(&leased.len()), "{}", leased.len());
        for one in leased {
            assert!(fetched.insert(one.event.id()), "each of them once");
            queue.ack(one.token).unwrap();
            assert_eq!(queue.ack(one.token), Err(LeaseLost), "once is enough");
        }
    }
    for id in ids {
        assert_eq!(ended(&bus, id).await, EventStatus::Done);
    }
    assert!(queue.pull(10, LEASE, Duration::from_millis(50)).await.is_empty());
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_many_large_ones_gets_them_in_parts() {
    let place = Place::new();
    let (bus, queue) = open(&place).await;
    let large = "x".repeat(1_000_000);
    bus.publish_batch((0..40).map(|_| ("order.paid", &large))).await.unwrap();
    let mut left = 40;
    while left > 0 {
        let leased = queue.pull(100, LEASE, WAIT).await;
        assert!((1..=17).contains(&leased.len()), "{} megabytes at once", leased.len());
        for one in leased {
            assert_eq!(one.event.attempt(), 1, "nothing is charged for what did not fit");
            queue.ack(one.token).unwrap();
            left -= 1;
        }
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_first_gets_what_comes_later() {
    let place = Place::new();
    let (bus, queue) = open(&place).await;
    let waiting = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.pull(1, LEASE, WAIT).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let id = publish(&bus, 1).await.remove(0);
    let leased = waiting.await.unwrap();
    assert_eq!(leased[0].event.id(), id);
    queue.ack(leased[0].token).unwrap();
    assert_eq!(ended(&bus, id).await, EventStatus::Done);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_comes_back_and_dies_when_its_attempts_are_used_up() {
    let place = Place::new();
    let (bus, queue) = open(&place).await;
    let id = publish(&bus, 1).await.remove(0);
    let began = std::time::Instant::now();
    for attempt in 1..=4 {
        let leased = queue.pull(5, LEASE, WAIT).await;
        assert_eq!((leased.len(), leased[0].event.attempt()), (1, attempt));
        let delay = (attempt == 1).then_some(Duration::from_millis(500));
        queue.nack(leased[0].token, delay, Some("no ink".into())).unwrap();
    }
    assert!(began.elapsed() >= Duration::from_millis(500), "not before the time that was asked for");
    assert_eq!(ended(&bus, id).await, EventStatus::Dlq);
    let dead = bus.dlq().get(id).await.unwrap();
    assert_eq!(dead[0].errors, ["no ink"; 4]);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_much_back_stops_nobody_else() {
    let place = Place::new();
    let (bus, queue) = open(&place).await;
    publish(&bus, 40).await;
    let mut refused = 0;
    while refused < 20 {
        for leased in queue.pull(20 - refused, LEASE, WAIT).await {
            queue.nack(leased.token, Some(Duration::from_secs(3600)), Some("not now".into())).unwrap();
            refused += 1;
        }
    }
    let mut fetched = 0;
    while fetched < 20 {
        let leased = queue.pull(20, LEASE, WAIT).await;
        assert!(!leased.is_empty(), "the others are there: {fetched} so far");
        fetched += leased.len();
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_gives_the_event_to_the_next_and_fences_the_first() {
    let place = Place::new();
    let (bus, queue) = open(&place).await;
    let id = publish(&bus, 1).await.remove(0);
    let late = queue.pull(1, Duration::from_millis(100), WAIT).await.remove(0);
    let next = queue.pull(1, LEASE, WAIT).await.remove(0);
    assert_eq!((next.event.id(), next.event.attempt()), (id, 2));
    assert_eq!(queue.ack(late.token), Err(LeaseLost), "it is somebody else's now");
    assert_eq!(queue.extend(late.token, LEASE), Err(LeaseLost));
    queue.ack(next.token).unwrap();
    assert_eq!(ended(&bus, id).await, EventStatus::Done);

    // One that is extended in time stays its holder's.
    let id = publish(&bus, 1).await.remove(0);
    let slow = queue.pull(1, Duration::from_millis(300), WAIT).await.remove(0);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        queue.extend(slow.token, Duration::from_millis(2000)).unwrap();
    }
    assert!(queue.pull(1, LEASE, Duration::from_millis(10)).await.is_empty());
    queue.ack(slow.token).unwrap();
    assert_eq!(ended(&bus, id).await, EventStatus::Done);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_away_while_it_waits_takes_nothing_along() {
    let place = Place::new();
    let (bus, queue) = open(&place).await;
    for _ in 0..20 {
        let queue = queue.clone();
        let pulling = tokio::spawn(async move { queue.pull(3, LEASE, WAIT).await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        pulling.abort();
    }
    let ids = publish(&bus, 5).await;
    let mut fetched = Vec::new();
    while fetched.len() < 5 {
        let leased = queue.pull(5, LEASE, WAIT).await;
        assert!(!leased.is_empty());
        for one in leased {
            assert_eq!(one.event.attempt(), 1, "nothing is charged for who went away");
            fetched.push(one.event.id());
            queue.ack(one.token).unwrap();
        }
    }
    for id in ids {
        assert_eq!(ended(&bus, id).await, EventStatus::Done);
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_leased_when_the_process_ends_is_there_for_the_next_one() {
    let place = Place::new();
    let (bus, queue) = open(&place).await;
    let ids = publish(&bus, 3).await;
    let leased = queue.pull(2, LEASE, WAIT).await;
    assert!(!leased.is_empty());
    queue.close();
    assert_eq!(queue.ack(leased[0].token), Err(LeaseLost));
    assert!(queue.pull(2, LEASE, WAIT).await.is_empty(), "nothing more is given out");
    bus.shutdown().await.unwrap();
    drop((bus, leased));

    let (bus, queue) = open(&place).await;
    let mut fetched = BTreeSet::new();
    while fetched.len() < 3 {
        for one in queue.pull(5, LEASE, WAIT).await {
            assert_eq!(one.event.attempt(), 1, "nothing was charged");
            fetched.insert(one.event.id());
            queue.ack(one.token).unwrap();
        }
    }
    assert_eq!(fetched, ids.into_iter().collect());
    bus.shutdown().await.unwrap();
}
