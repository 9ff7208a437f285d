//! What is counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive::{Depth, Histogram, Recorder};
use serde::Serialize;

use crate::task::ReviewReason;
use crate::transport::TransportState;

/// So many queues are counted by name; what comes after them is counted together, so that nobody can fill the memory with names.
pub const COUNTED_QUEUES: usize = 1000;

/// The name under which the others are counted.
pub const OTHER_QUEUES: &str = "other";

/// What has happened since the start, and how things stand.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Metrics {
    /// By the name of the original queue.
    pub queues: BTreeMap<String, QueueMetrics>,
    /// How many tasks wait or are under way; `None` if the store could not be asked. `retry_queue_depth`.
    pub depth: Option<Depth>,
    /// How long after its time a task was handed to the broker.
    pub drift: Histogram,
    /// How long the broker took to confirm.
    pub confirm: Histogram,
    /// How many deliveries came in.
    pub received: u64,
    /// Of these, how many were known already, and are one task.
    pub duplicates: u64,
    /// Of these, how many were failures that their sender had not counted.
    pub uncounted: u64,
    /// Deliveries that came again after their task was over, and went back once more in case they were another failure.
    pub copies: u64,
    /// How many could not be decoded.
    pub undecodable: u64,
    /// How often the broker has said that a queue does not exist.
    pub returned: u64,
    /// How often it was not known whether the broker has a message, and it was published again.
    pub unknown: u64,
    /// How often a task was put off, because the broker confirmed nothing of its queue.
    pub put_off: u64,
    /// How many were brought to review, by reason.
    pub reviewed: BTreeMap<&'static str, u64>,
    /// How often the store could not be written to, and a batch was tried again.
    pub store_failures: u64,
    /// How the connections stand.
    pub transport: TransportState,
}

/// What was counted for one queue.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueMetrics {
    /// `retries_scheduled_total`.
    pub scheduled: u64,
    /// `retries_executed_total{status="success"}`: in its queue again.
    pub succeeded: u64,
    /// `retries_executed_total{status="failed"}`: attempts to bring it there that failed.
    pub failed: u64,
    /// `retries_exhausted_total`: brought to review, because it was retried as often as it may be.
    pub exhausted: u64,
}

impl Metrics {
    /// How many tasks wait or are under way.
    pub fn queue_depth(&self) -> Option<u64> {
        self.depth.map(|depth| depth.open_deliveries)
    }
}

/// Where it is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    // A std mutex: held for a few instructions, never across an await.
    queues: Mutex<BTreeMap<String, QueueMetrics>>,
    reviewed: Mutex<BTreeMap<&'static str, u64>>,
    pub(crate) drift: Recorder,
    pub(crate) confirm: Recorder,
    pub(crate) received: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) uncounted: Counter,
    pub(crate) copies: Counter,
    pub(crate) undecodable: Counter,
    pub(crate) returned: Counter,
    pub(crate) unknown: Counter,
    pub(crate) put_off: Counter,
    pub(crate) store_failures: Counter,
}

impl Counters {
    /// Counts for a queue.
    pub(crate) fn queue(&self, name: &str, count: impl FnOnce(&mut QueueMetrics)) {
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.get_mut(name) {
            return count(queue);
        }
        let name = if queues.len() < COUNTED_QUEUES { name } else { OTHER_QUEUES };
        count(queues.entry(name.to_owned()).or_default());
    }

    /// Something was brought to review.
    pub(crate) fn reviewed(&self, reason: ReviewReason) {
        *lock(&self.reviewed).entry(reason.as_str()).or_default() += 1;
    }

    pub(crate) fn snapshot(&self, depth: Option<Depth>, transport: TransportState) -> Metrics {
        Metrics {
            queues: lock(&self.queues).clone(),
            depth,
            drift: self.drift.snapshot(),
            confirm: self.confirm.snapshot(),
            received: self.received.get(),
            duplicates: self.duplicates.get(),
            uncounted: self.uncounted.get(),
            copies: self.copies.get(),
            undecodable: self.undecodable.get(),
            returned: self.returned.get(),
            unknown: self.unknown.get(),
            put_off: self.put_off.get(),
            reviewed: lock(&self.reviewed).clone(),
            store_failures: self.store_failures.get(),
            transport,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change leaves it valid, so a poisoned lock is still good to use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_queues_cannot_fill_the_memory() {
        let counters = Counters::default();
        for n in 0..COUNTED_QUEUES + 50 {
            counters.queue(&format!("queue-{n}"), |queue| queue.scheduled += 1);
        }
        counters.queue("queue-3", |queue| queue.scheduled += 1);
        let metrics = counters.snapshot(None, TransportState::default());
        assert_eq!(metrics.queues.len(), COUNTED_QUEUES + 1);
        assert_eq!((metrics.queues[OTHER_QUEUES].scheduled, metrics.queues["queue-3"].scheduled), (50, 2));
    }
}
