//! Counters and metrics of the scheduler.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive::metrics::{Histogram, Recorder};
use redrive::store::Depth;
use serde::Serialize;

use crate::task::ReviewReason;
use crate::transport::TransportState;

/// Maximum number of queues counted by name. Further queues are counted as [`OTHER_QUEUES`], which bounds memory and label cardinality.
pub const MAX_QUEUE_LABELS: usize = 1000;

/// Label of all queues beyond [`MAX_QUEUE_LABELS`].
pub const OTHER_QUEUES: &str = "other";

/// Counters since the start, queue depth and connection state.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Metrics {
    /// Counters by original queue.
    pub queues: BTreeMap<String, QueueMetrics>,
    /// Waiting and in-flight tasks (`retry_queue_depth`); `None` if the store was not or could not be queried.
    pub depth: Option<Depth>,
    /// Time from due to publication.
    pub drift: Histogram,
    /// Time from publication to publisher confirm.
    pub confirm: Histogram,
    /// Deliveries received.
    pub received: u64,
    /// Deliveries whose task was already stored.
    pub duplicates: u64,
    /// Failures that their sender had not counted.
    pub uncounted: u64,
    /// Redeliveries after their task was republished, stored as copies in case they are another failure. Also failures
    /// whose first id is taken by an event of another program.
    pub copies: u64,
    /// Deliveries that could not be decoded.
    pub undecodable: u64,
    /// Fields in received protobuf messages that this release does not know, and ignored.
    pub unknown_fields: u64,
    /// Messages returned as unroutable.
    pub returned: u64,
    /// Publications with unknown outcome, which are repeated.
    pub unknown: u64,
    /// Tasks deferred because the broker confirms nothing of their queue.
    pub deferred: u64,
    /// Messages sent to review, by reason.
    pub reviewed: BTreeMap<&'static str, u64>,
    /// Failed attempts to write a batch to the store.
    pub store_failures: u64,
    /// State of the connections.
    pub transport: TransportState,
}

/// Counters of one queue.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueMetrics {
    /// `retries_scheduled_total`.
    pub scheduled: u64,
    /// `retries_executed_total{status="success"}`: confirmed publications.
    pub succeeded: u64,
    /// `retries_executed_total{status="failed"}`: failed attempts to publish.
    pub failed: u64,
    /// `retries_exhausted_total`: sent to review with all retries used.
    pub exhausted: u64,
}

impl Metrics {
    /// Waiting and in-flight tasks.
    pub fn queue_depth(&self) -> Option<u64> {
        self.depth.map(|depth| depth.open_deliveries)
    }
}

/// Counters that the components update.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Everything that is counted by addition. [`Counters::snapshot`] adds the other fields.
    // A std mutex: held for a few instructions, never across an await.
    counted: Mutex<Metrics>,
    pub(crate) drift: Recorder,
    pub(crate) confirm: Recorder,
}

impl Counters {
    /// Updates the counters.
    pub(crate) fn count(&self, count: impl FnOnce(&mut Metrics)) {
        count(&mut self.lock());
    }

    /// Updates the counters of a queue.
    pub(crate) fn queue(&self, name: &str, count: impl FnOnce(&mut QueueMetrics)) {
        let queues = &mut self.lock().queues;
        if let Some(queue) = queues.get_mut(name) {
            return count(queue);
        }
        let name = if queues.len() < MAX_QUEUE_LABELS { name } else { OTHER_QUEUES };
        count(queues.entry(name.to_owned()).or_default());
    }

    /// Counts a message sent to review.
    pub(crate) fn reviewed(&self, reason: ReviewReason) {
        *self.lock().reviewed.entry(reason.as_str()).or_default() += 1;
    }

    pub(crate) fn snapshot(&self, depth: Option<Depth>, transport: TransportState) -> Metrics {
        Metrics {
            depth,
            drift: self.drift.snapshot(),
            confirm: self.confirm.snapshot(),
            transport,
            ..self.lock().clone()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Metrics> {
        // Every change leaves the counters valid, so a poisoned lock is still usable.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_labels_are_bounded() {
        let counters = Counters::default();
        for n in 0..MAX_QUEUE_LABELS + 50 {
            counters.queue(&format!("queue-{n}"), |queue| queue.scheduled += 1);
        }
        counters.queue("queue-3", |queue| queue.scheduled += 1);
        let metrics = counters.snapshot(None, TransportState::default());
        assert_eq!(metrics.queues.len(), MAX_QUEUE_LABELS + 1);
        assert_eq!((metrics.queues[OTHER_QUEUES].scheduled, metrics.queues["queue-3"].scheduled), (50, 2));
    }
}
