//! What has happened since the bus was opened, readable without any exporter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redrive_store::EventType;

/// A snapshot of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Events stored.
    pub published: u64,
    /// Events that were there already.
    pub duplicates: u64,
    /// Attempts made, whatever their outcome.
    pub attempts: u64,
    /// Events finished.
    pub done: u64,
    /// Events given up.
    pub dead: u64,
    /// Events that no subscription matched.
    pub unmatched: u64,
    /// Deliveries put off because a circuit was open.
    pub parked: u64,
    /// Deliveries that wait for a subscription which is not there.
    pub orphaned: u64,
    /// By event type.
    pub by_type: BTreeMap<String, TypeMetrics>,
}

/// Counters of one event type.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TypeMetrics {
    /// Attempts after the first.
    pub retries: u64,
    /// Finished at the first attempt.
    pub done_at_once: u64,
    /// Finished after at least one retry.
    pub done_after_retry: u64,
    /// Given up.
    pub dead: u64,
    /// Given up after at least one retry.
    pub dead_after_retry: u64,
}

impl TypeMetrics {
    /// Of the events that were retried and are over, the share that succeeded.
    pub fn success_after_retry_rate(&self) -> Option<f64> {
        ratio(self.done_after_retry, self.done_after_retry + self.dead_after_retry)
    }

    /// Of the events that are over, the share that was given up.
    pub fn dlq_rate(&self) -> Option<f64> {
        ratio(self.dead, self.dead + self.done_at_once + self.done_after_retry)
    }
}

#[allow(clippy::cast_precision_loss)] // a rate, not a count
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The counters themselves.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) published: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) attempts: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) unmatched: AtomicU64,
    pub(crate) parked: AtomicU64,
    pub(crate) orphaned: AtomicU64,
    // Held for one addition.
    by_type: Mutex<BTreeMap<EventType, TypeMetrics>>,
}

impl Counters {
    pub(crate) fn of_type(&self, event_type: &EventType, count: impl FnOnce(&mut TypeMetrics)) {
        let mut by_type = self.by_type.lock().unwrap_or_else(PoisonError::into_inner);
        match by_type.get_mut(event_type) {
            Some(metrics) => count(metrics),
            None => count(by_type.entry(event_type.clone()).or_default()),
        }
    }

    pub(crate) fn snapshot(&self) -> Metrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let by_type = self.by_type.lock().unwrap_or_else(PoisonError::into_inner);
        Metrics {
            published: read(&self.published),
            duplicates: read(&self.duplicates),
            attempts: read(&self.attempts),
            done: read(&self.done),
            dead: read(&self.dead),
            unmatched: read(&self.unmatched),
            parked: read(&self.parked),
            orphaned: read(&self.orphaned),
            by_type: by_type.iter().map(|(name, metrics)| (name.to_string(), *metrics)).collect(),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
