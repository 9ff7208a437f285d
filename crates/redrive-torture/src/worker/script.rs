//! Scripts that end by themselves, for faults that count system calls.

use std::time::Duration;

use super::DRAIN_TIMEOUT;
use crate::plan::Plan;
use crate::publisher::{Order, Publisher};

/// Every outcome of an event in sequence, so that the store's calls are the same every time.
pub(super) async fn sequence(publisher: &mut Publisher) {
    let work = |plan, n| Order::new("t.work.alone", plan, n);
    publisher.publish_and_wait(work(Plan::Succeed, 1)).await;
    publisher.publish_and_wait(Order { has_metadata: true, ..work(Plan::Fail(1), 2) }).await;
    publisher.publish_and_wait(work(Plan::Panic(1), 3)).await;
    publisher.publish_and_wait(work(Plan::Permanent, 4)).await;
    publisher.publish_and_wait(work(Plan::Never, 5)).await;
    publisher.publish_and_wait(Order::new("t.unwanted", Plan::Succeed, 6)).await;
    let later = Order { delay: Some(Duration::from_millis(5)), ..work(Plan::Succeed, 7) };
    let is_stored = publisher.publish(later).await;
    publisher.rest(DRAIN_TIMEOUT).await;
    if is_stored {
        publisher.publish_again(later.id, later.event_type).await;
    }
    let batch = [("t.work.alone", Plan::Succeed, 8), ("t.work.audited", Plan::Succeed, 9)];
    publisher.publish_batch(&batch).await;
    publisher.rest(DRAIN_TIMEOUT).await;
    // The first two failures open the circuit: the next deliveries are parked.
    for n in 10..13 {
        publisher.publish(Order::new("t.fragile.audited", Plan::Fail(2), n)).await;
    }
    publisher.rest(DRAIN_TIMEOUT).await;
    let dead = publisher.dead(10).await;
    for (number, dead) in dead.iter().enumerate() {
        publisher.redrive(dead, number == 0).await;
    }
    publisher.rest(DRAIN_TIMEOUT).await;
    let dead = publisher.dead(10).await;
    if let [last, ..] = dead.as_slice() {
        publisher.purge(last, &dead, 10).await;
    }
}

/// Concurrent publishers that cause checkpoints beside the writer.
const CROWD: u64 = 200;
/// Publishes of each: together enough pages of the log for a checkpoint.
const EACH: u64 = 2;
const BALLAST: usize = 6000;

/// Many concurrent publishers with little work each.
pub(super) async fn crowd(publisher: impl Fn() -> Publisher) {
    let publishers: Vec<_> = (0..CROWD)
        .map(|number| {
            let mut publisher = publisher();
            tokio::spawn(async move {
                for n in 0..EACH {
                    let order = Order::new("t.unwanted", Plan::Succeed, number * EACH + n);
                    publisher.publish(Order { ballast: BALLAST, ..order }).await;
                }
            })
        })
        .collect();
    for publisher in publishers {
        let _ = publisher.await; // a failed publisher has acknowledged nothing that is missing
    }
    publisher().rest(DRAIN_TIMEOUT).await;
}

/// Events of a single publisher.
const ALONE: u64 = 12;
/// Delay of all events until they are published: otherwise the writer would work.
const NOT_YET: Duration = Duration::from_millis(400);

/// Publishes in sequence, and nothing else.
pub(super) async fn alone(publisher: &mut Publisher) {
    for n in 0..ALONE {
        let order = Order::new("t.unwanted", Plan::Succeed, n);
        publisher.publish(Order { delay: Some(NOT_YET), has_metadata: n % 2 == 0, ..order }).await;
    }
    publisher.rest(DRAIN_TIMEOUT).await;
}

/// Events that make the writer checkpoint, and some more.
const BULK: u64 = 36;
/// Payload bytes of about thirty pages: a log of a thousand pages is checkpointed.
const HEAVY: usize = 130_000;

/// Publishes large events in sequence.
pub(super) async fn bulk(publisher: &mut Publisher) {
    for n in 0..BULK {
        let order = Order::new("t.unwanted", Plan::Succeed, n);
        publisher.publish(Order { ballast: HEAVY, ..order }).await;
    }
    publisher.rest(DRAIN_TIMEOUT).await;
}
