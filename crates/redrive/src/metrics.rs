//! What has happened since the bus was opened, readable without any exporter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redrive_retry::BreakerSnapshot;
use redrive_store::{Depth, EventType, Finished};

use crate::histogram::{Histogram, Recorder};

/// What has happened since the bus was opened, and how things stand now.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Events stored.
    pub published: u64,
    /// Events that were there already.
    pub duplicates: u64,
    /// Calls of handlers, whatever their outcome.
    pub attempts: u64,
    /// Events finished.
    pub done: u64,
    /// Events given up.
    pub dead: u64,
    /// Events that no subscription matched.
    pub unmatched: u64,
    /// Deliveries put off because a circuit was open.
    pub parked: u64,
    /// Retries put off because a budget was spent, counted each time they asked.
    pub held_back: u64,
    /// Put off to the disk because their subscription had no room for them.
    pub held: u64,
    /// Deliveries that wait for a subscription which is not there, counted each time they were looked at.
    pub orphaned: u64,
    /// What was running when a process before this one ended.
    pub recovered: u64,
    /// By event type. The first thousand types have an entry of their own, the rest shares one named `(other)`.
    pub by_type: BTreeMap<String, TypeMetrics>,
    /// From stored to the start of the first handler.
    pub dispatch_latency: Histogram,
    /// How long handlers took.
    pub handler_duration: Histogram,
    /// Units of work in flight now.
    pub in_flight: usize,
    /// How much waits now, and how large the file and its log are.
    pub depth: Depth,
    /// What each subscription has done. One that gets nothing new any more is not here.
    pub subscriptions: BTreeMap<String, SubscriptionMetrics>,
    /// The circuit of each subscription.
    pub breakers: BTreeMap<String, BreakerSnapshot>,
    /// How many retries the budget of each subscription that has one has saved up.
    pub budgets: BTreeMap<String, u32>,
}

/// What one subscription has done since the bus was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SubscriptionMetrics {
    /// Attempts that succeeded.
    pub done: u64,
    /// Attempts that failed and are made again.
    pub retried: u64,
    /// Attempts that failed and were the last.
    pub dead: u64,
    /// Put off because its circuit was open.
    pub parked: u64,
    /// Put off to the disk because it had no room for them.
    pub held: u64,
    /// How long its handler took.
    pub duration: Histogram,
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

/// Types come from outside, so their number is bounded.
const MOST_TYPES: usize = 1000;

/// The counters themselves.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    published: AtomicU64,
    duplicates: AtomicU64,
    attempts: AtomicU64,
    done: AtomicU64,
    dead: AtomicU64,
    unmatched: AtomicU64,
    parked: AtomicU64,
    held_back: AtomicU64,
    held: AtomicU64,
    orphaned: AtomicU64,
    recovered: AtomicU64,
    dispatch_latency: Recorder,
    handler_duration: Recorder,
    // Held for one addition.
    by_type: Mutex<BTreeMap<EventType, TypeMetrics>>,
}

impl Counters {
    pub(crate) fn published(&self, new: u64, duplicates: u64) {
        add(&self.published, new);
        add(&self.duplicates, duplicates);
    }

    pub(crate) fn recovered(&self, count: usize) {
        add(&self.recovered, count as u64);
    }

    pub(crate) fn unmatched(&self) {
        add(&self.unmatched, 1);
    }

    pub(crate) fn parked(&self) {
        add(&self.parked, 1);
    }

    pub(crate) fn held(&self, count: usize) {
        add(&self.held, count as u64);
    }

    pub(crate) fn held_back(&self) {
        add(&self.held_back, 1);
    }

    pub(crate) fn orphaned(&self) {
        add(&self.orphaned, 1);
    }

    pub(crate) fn retried(&self, event_type: &EventType) {
        self.of_type(event_type, |metrics| metrics.retries += 1);
    }

    pub(crate) fn dispatched(&self, latency: Duration) {
        self.dispatch_latency.record(latency);
    }

    pub(crate) fn handled(&self, took: Duration) {
        add(&self.attempts, 1);
        self.handler_duration.record(took);
    }

    pub(crate) fn finished(&self, event_type: &EventType, finished: Finished) {
        match finished {
            Finished::NotYet => {}
            Finished::Done { retried } => {
                add(&self.done, 1);
                self.of_type(event_type, |metrics| match retried {
                    false => metrics.done_at_once += 1,
                    true => metrics.done_after_retry += 1,
                });
            }
            Finished::Dead { retried } => {
                add(&self.dead, 1);
                self.of_type(event_type, |metrics| {
                    metrics.dead += 1;
                    metrics.dead_after_retry += u64::from(retried);
                });
            }
        }
    }

    fn of_type(&self, event_type: &EventType, count: impl FnOnce(&mut TypeMetrics)) {
        let mut by_type = self.by_type.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(metrics) = by_type.get_mut(event_type) {
            return count(metrics);
        }
        let name = if by_type.len() < MOST_TYPES {
            event_type.clone()
        } else {
            EventType::new("(other)").expect("a valid type")
        };
        count(by_type.entry(name).or_default());
    }

    /// What is known without asking anybody; the rest is for the caller to fill in.
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
            held_back: read(&self.held_back),
            held: read(&self.held),
            orphaned: read(&self.orphaned),
            recovered: read(&self.recovered),
            by_type: by_type.iter().map(|(name, metrics)| (name.to_string(), *metrics)).collect(),
            dispatch_latency: self.dispatch_latency.snapshot(),
            handler_duration: self.handler_duration.snapshot(),
            ..Metrics::default()
        }
    }
}

/// The counters of one subscription. They go on when it is replaced.
#[derive(Debug, Default)]
pub(crate) struct SubscriptionCounters {
    done: AtomicU64,
    retried: AtomicU64,
    dead: AtomicU64,
    parked: AtomicU64,
    held: AtomicU64,
    duration: Recorder,
}

impl SubscriptionCounters {
    pub(crate) fn done(&self) {
        add(&self.done, 1);
    }

    pub(crate) fn failed(&self, is_dead: bool) {
        add(if is_dead { &self.dead } else { &self.retried }, 1);
    }

    pub(crate) fn parked(&self) {
        add(&self.parked, 1);
    }

    pub(crate) fn held(&self, count: usize) {
        add(&self.held, count as u64);
    }

    pub(crate) fn handled(&self, took: Duration) {
        self.duration.record(took);
    }

    pub(crate) fn snapshot(&self) -> SubscriptionMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SubscriptionMetrics {
            done: read(&self.done),
            retried: read(&self.retried),
            dead: read(&self.dead),
            parked: read(&self.parked),
            held: read(&self.held),
            duration: self.duration.snapshot(),
        }
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
