//! Pull consumers: events wait on disk until pulled, and are leased and fenced.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeSet;
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::pull::{LeaseError, Leased, PullQueue, PullRequest};
use redrive::retry::{RetryOverride, RetryPolicy};
use redrive::{EventBus, EventId, Tracking};

use crate::test_store::TestStore;

const LEASE: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(60);

fn builder() -> redrive::EventBusBuilder {
    let policy = RetryOverride::new().base_delay_ms(10).max_delay_ms(20).apply_to(&RetryPolicy::bus());
    EventBus::builder().tracking(Tracking::PerSubscription).policy(policy.unwrap())
}

async fn open(store_under_test: &TestStore) -> (EventBus, PullQueue) {
    let (bus, queue) = (store_under_test.open(builder()).await, PullQueue::new());
    bus.subscribe_queue("order.*", &queue).name("billing").register().unwrap();
    bus.start().await.unwrap();
    (bus, queue)
}

async fn pull(queue: &PullQueue, limit: usize) -> Vec<Leased> {
    queue.pull(PullRequest { limit, lease: LEASE, wait: WAIT }).await
}

fn is_lost<T>(result: Result<T, LeaseError>) -> bool {
    matches!(result, Err(LeaseError::Lost(_)))
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
    tokio::time::timeout(TIMEOUT, looking).await.expect("the event is settled")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_wait_on_disk_until_pulled_and_are_done_when_acked() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let ids = publish(&bus, 25).await;
    let idle = async {
        while bus.dispatcher().in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, idle).await.expect("without a pull, all events are on disk");
    let mut fetched = BTreeSet::new();
    while fetched.len() < ids.len() {
        let leased = pull(&queue, 10).await;
        assert!((1..=10).contains(&leased.len()), "{}", leased.len());
        for one in leased {
            assert!(fetched.insert(one.event.id()), "each of them once");
            queue.ack(one.token).await.unwrap();
            assert!(is_lost(queue.ack(one.token).await), "once is enough");
        }
    }
    for id in ids {
        assert_eq!(ended(&bus, id).await, EventStatus::Done);
    }
    assert!(
        queue.pull(PullRequest { limit: 10, lease: LEASE, wait: Duration::from_millis(50) }).await.is_empty()
    );
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_returns_when_the_event_is_settled() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    for id in publish(&bus, 20).await {
        let leased = pull(&queue, 1).await.remove(0);
        queue.ack(leased.token).await.unwrap();
        let status = bus.store().event(leased.event.id()).await.unwrap().status;
        assert_eq!(status, EventStatus::Done, "{id}");
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_event_is_given_out_again_without_a_charged_attempt() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let id = publish(&bus, 1).await.remove(0);
    let leased = pull(&queue, 1).await.remove(0);
    queue.release(leased.token).await.unwrap();
    assert!(is_lost(queue.ack(leased.token).await));
    let again = pull(&queue, 1).await.remove(0);
    assert_eq!((again.event.id(), again.event.attempt()), (id, 1));
    queue.ack(again.token).await.unwrap();
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_of_large_events_is_split_by_size() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let large = "x".repeat(1_000_000);
    bus.publish_batch((0..40).map(|_| ("order.paid", &large))).await.unwrap();
    let mut left = 40;
    while left > 0 {
        let leased = pull(&queue, 100).await;
        assert!((1..=17).contains(&leased.len()), "{} megabytes at once", leased.len());
        for one in leased {
            assert_eq!(one.event.attempt(), 1, "nothing is charged for what did not fit");
            queue.ack(one.token).await.unwrap();
            left -= 1;
        }
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_pull_gets_later_events() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let waiting = {
        let queue = queue.clone();
        tokio::spawn(async move { pull(&queue, 1).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let id = publish(&bus, 1).await.remove(0);
    let leased = waiting.await.unwrap();
    assert_eq!(leased[0].event.id(), id);
    queue.ack(leased[0].token).await.unwrap();
    assert_eq!(ended(&bus, id).await, EventStatus::Done);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nacked_events_are_redelivered_and_dead_lettered_after_the_last_attempt() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let id = publish(&bus, 1).await.remove(0);
    let began = std::time::Instant::now();
    for attempt in 1..=4 {
        let leased = pull(&queue, 5).await;
        assert_eq!((leased.len(), leased[0].event.attempt()), (1, attempt));
        let delay = (attempt == 1).then_some(Duration::from_millis(500));
        queue.nack(leased[0].token, delay, Some("no ink".into())).await.unwrap();
    }
    assert!(began.elapsed() >= Duration::from_millis(500), "not before the time that was asked for");
    assert_eq!(ended(&bus, id).await, EventStatus::Dlq);
    let dead = bus.dlq().get(id).await.unwrap();
    assert_eq!(dead[0].errors, ["no ink"; 4]);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nacks_do_not_block_other_consumers() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    publish(&bus, 40).await;
    let mut refused = 0;
    while refused < 20 {
        for leased in pull(&queue, 20 - refused).await {
            queue.nack(leased.token, Some(Duration::from_secs(3600)), Some("not now".into())).await.unwrap();
            refused += 1;
        }
    }
    let mut fetched = 0;
    while fetched < 20 {
        let leased = pull(&queue, 20).await;
        assert!(!leased.is_empty(), "the others are there: {fetched} so far");
        fetched += leased.len();
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_lease_is_fenced_and_the_event_redelivered() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let id = publish(&bus, 1).await.remove(0);
    let late =
        queue.pull(PullRequest { limit: 1, lease: Duration::from_millis(100), wait: WAIT }).await.remove(0);
    let next = pull(&queue, 1).await.remove(0);
    assert_eq!((next.event.id(), next.event.attempt()), (id, 2));
    assert!(is_lost(queue.ack(late.token).await), "it is somebody else's now");
    assert!(is_lost(queue.extend(late.token, LEASE).await));
    queue.ack(next.token).await.unwrap();
    assert_eq!(ended(&bus, id).await, EventStatus::Done);

    // An extended lease is kept.
    let id = publish(&bus, 1).await.remove(0);
    let slow =
        queue.pull(PullRequest { limit: 1, lease: Duration::from_millis(300), wait: WAIT }).await.remove(0);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        queue.extend(slow.token, Duration::from_millis(2000)).await.unwrap();
    }
    assert!(
        queue.pull(PullRequest { limit: 1, lease: LEASE, wait: Duration::from_millis(10) }).await.is_empty()
    );
    queue.ack(slow.token).await.unwrap();
    assert_eq!(ended(&bus, id).await, EventStatus::Done);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_pull_leases_nothing() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    for _ in 0..20 {
        let queue = queue.clone();
        let pulling = tokio::spawn(async move { pull(&queue, 3).await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        pulling.abort();
    }
    let ids = publish(&bus, 5).await;
    let mut fetched = Vec::new();
    while fetched.len() < 5 {
        let leased = pull(&queue, 5).await;
        assert!(!leased.is_empty());
        for one in leased {
            assert_eq!(one.event.attempt(), 1, "nothing is charged for who went away");
            fetched.push(one.event.id());
            queue.ack(one.token).await.unwrap();
        }
    }
    for id in ids {
        assert_eq!(ended(&bus, id).await, EventStatus::Done);
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_the_process_that_granted_it() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let ids = publish(&bus, 3).await;
    let mut leased = Vec::new();
    while leased.len() < 3 {
        leased.extend(pull(&queue, 3).await);
    }
    assert_eq!(bus.dispatcher().in_flight(), 0, "leased events occupy no slot");
    queue.close();
    assert!(pull(&queue, 2).await.is_empty(), "nothing more is given out");
    bus.shutdown().await.unwrap();
    assert!(matches!(queue.ack(leased[0].token).await, Err(LeaseError::Store(_))), "the bus is gone");

    let (bus, queue) = open(&store_under_test).await;
    queue.extend(leased[0].token, LEASE).await.unwrap();
    queue.ack(leased[0].token).await.unwrap();
    queue.nack(leased[1].token, None, Some("no paper".to_owned())).await.unwrap();
    assert_eq!(ended(&bus, leased[0].event.id()).await, EventStatus::Done);
    let again = pull(&queue, 5).await.remove(0);
    assert_eq!((again.event.id(), again.event.attempt()), (leased[1].event.id(), 2));
    assert_eq!(again.event.previous_errors(), ["no paper"]);
    queue.ack(again.token).await.unwrap();
    queue.ack(leased[2].token).await.unwrap();
    for id in ids {
        assert_eq!(ended(&bus, id).await, EventStatus::Done);
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_counts_as_a_timeout() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let id = publish(&bus, 1).await.remove(0);
    for attempt in 1..=4 {
        let lease = Duration::from_millis(200);
        let leased = queue.pull(PullRequest { limit: 1, lease, wait: WAIT }).await.remove(0);
        assert_eq!(leased.event.attempt(), attempt);
    }
    assert_eq!(ended(&bus, id).await, EventStatus::Dlq);
    let dead = bus.dlq().get(id).await.unwrap().remove(0);
    assert_eq!(dead.errors.len(), 4);
    let attempts = bus.store().event(id).await.unwrap().attempts;
    for attempt in attempts {
        assert!(attempt.error.contains("no result within"), "{}", attempt.error);
        assert!((200..5000).contains(&attempt.duration_ms), "{} ms", attempt.duration_ms);
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_ends_only_the_leases_of_its_own_subscriptions() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    let other = PullQueue::new();
    bus.subscribe_queue("invoice.*", &other).name("invoices").register().unwrap();
    publish(&bus, 1).await;
    let leased = pull(&queue, 1).await.remove(0);
    assert!(is_lost(other.ack(leased.token).await));
    assert!(is_lost(other.extend(leased.token, LEASE).await));
    assert!(is_lost(PullQueue::new().ack(leased.token).await), "it is not registered");
    queue.ack(leased.token).await.unwrap();
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_beside_handlers_gets_a_delivery_of_its_own() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(builder().tracking(Tracking::Event)).await;
    let queue = PullQueue::new();
    bus.subscribe("order.*", async |_| Ok::<_, &str>(())).name("mail").register().unwrap();
    bus.subscribe_queue("order.*", &queue).name("billing").register().unwrap();
    bus.start().await.unwrap();
    let id = publish(&bus, 1).await.remove(0);
    let leased = pull(&queue, 1).await.remove(0);
    assert_eq!(leased.event.id(), id);
    queue.nack(leased.token, None, None).await.unwrap();
    let again = pull(&queue, 1).await.remove(0);
    assert_eq!(again.event.attempt(), 2, "the delivery has attempts of its own");
    queue.ack(again.token).await.unwrap();
    assert_eq!(ended(&bus, id).await, EventStatus::Done);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn middleware_that_hides_errors_loses_no_event_of_a_queue() {
    let store_under_test = TestStore::new();
    let hides = |event: redrive::Event, next: redrive::middleware::Next| async move {
        let _ = next.run(event).await;
        Ok(())
    };
    let bus = store_under_test.open(builder().middleware(hides)).await;
    let queue = PullQueue::new();
    bus.subscribe_queue("order.*", &queue).name("billing").register().unwrap();
    bus.start().await.unwrap();
    let id = publish(&bus, 1).await.remove(0);
    let leased = pull(&queue, 1).await.remove(0);
    queue.nack(leased.token, None, None).await.unwrap();
    let again = pull(&queue, 1).await.remove(0);
    assert_eq!((again.event.id(), again.event.attempt()), (id, 2));
    queue.ack(again.token).await.unwrap();
    assert_eq!(ended(&bus, id).await, EventStatus::Done);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_does_not_wait_for_a_pull_consumer() {
    let store_under_test = TestStore::new();
    let (bus, queue) = open(&store_under_test).await;
    // Into the backlog, to a waiting consumer, and again after a failed attempt.
    let publishing = async { bus.publish("order.paid", &1).await.unwrap() };
    let id = tokio::time::timeout(TIMEOUT, publishing).await.expect("it waits in the backlog");
    let leased = pull(&queue, 1).await.remove(0);
    assert_eq!(leased.event.id(), id);
    let waiting = {
        let queue = queue.clone();
        tokio::spawn(async move { pull(&queue, 1).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let publishing = async { bus.publish("order.paid", &2).await.unwrap() };
    let second = tokio::time::timeout(TIMEOUT, publishing).await.expect("it is leased");
    let other = waiting.await.unwrap().remove(0);
    assert_eq!(other.event.id(), second);
    let left = other.event.deadline().since(other.event.now());
    assert!(left > LEASE / 2, "the deadline is the end of the lease: {left:?}");
    for one in [leased, other] {
        queue.ack(one.token).await.unwrap();
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn middleware_that_fails_an_attempt_does_not_stop_a_waiting_pull() {
    let store_under_test = TestStore::new();
    let fails_first = |event: redrive::Event, next: redrive::middleware::Next| async move {
        if event.attempt() == 1 {
            return Err(redrive::retry::Failure::new("not yet"));
        }
        next.run(event).await
    };
    let bus = store_under_test.open(builder().middleware(fails_first)).await;
    let queue = PullQueue::new();
    bus.subscribe_queue("order.*", &queue).name("billing").register().unwrap();
    bus.start().await.unwrap();
    let pulling = {
        let queue = queue.clone();
        tokio::spawn(async move { pull(&queue, 1).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let began = std::time::Instant::now();
    publish(&bus, 2).await;
    let leased = pulling.await.unwrap().remove(0);
    assert!(began.elapsed() < WAIT / 2, "the demand is still there after the failed attempt");
    assert_eq!(leased.event.attempt(), 2);
    queue.ack(leased.token).await.unwrap();
    bus.shutdown().await.unwrap();
}

/// Pulls that are cancelled right before the shutdown, and acks in flight, leave nothing in processing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_among_pulls_and_acks_charges_no_attempt() {
    let store_under_test = TestStore::new();
    for round in 0..10 {
        let (bus, queue) = (store_under_test.open(builder()).await, PullQueue::new());
        bus.subscribe_queue("order.*", &queue).name("billing").register().unwrap();
        assert_eq!(bus.start().await.unwrap(), 0, "round {round}: nothing was in processing");
        let mut pulling = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let queue = queue.clone();
            pulling.spawn(async move {
                loop {
                    for leased in pull(&queue, 3).await {
                        let _ = queue.ack(leased.token).await;
                    }
                }
            });
        }
        publish(&bus, 50).await;
        tokio::time::sleep(Duration::from_millis(round * 3)).await;
        pulling.abort_all();
        bus.shutdown().await.unwrap();
    }
    let (bus, queue) = open(&store_under_test).await;
    let request = PullRequest { limit: 100, lease: LEASE, wait: Duration::from_millis(500) };
    loop {
        let leased = queue.pull(request).await;
        if leased.is_empty() {
            break;
        }
        for one in leased {
            assert_eq!(one.event.attempt(), 1, "nothing was charged");
            queue.ack(one.token).await.unwrap();
        }
    }
    bus.shutdown().await.unwrap();
}
