//! Counters of a bus, readable as a struct without an exporter.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redrive_retry::breaker::BreakerSnapshot;
use redrive_store::{Depth, EventType, Finished};

pub use crate::histogram::{Bucket, Histogram, Recorder};
use crate::lock::lock;

/// Counters since the bus was opened, and its state now.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Events stored.
    pub published: u64,
    /// Events that were stored before, with the same id.
    pub duplicates: u64,
    /// Handler calls of any outcome.
    pub attempts: u64,
    /// Events that all subscriptions handled.
    pub done: u64,
    /// Events that became dead letters.
    pub dead: u64,
    /// Events that no subscription matched.
    pub unmatched: u64,
    /// Deliveries parked because a circuit was open, or snoozed by their handler.
    pub parked: u64,
    /// Retries deferred because a retry budget was spent, counted each time they asked.
    pub budget_deferred: u64,
    /// Deliveries deferred to the backlog because their subscription was at its limits or paused.
    pub backlogged: u64,
    /// Events and deliveries that wait for a subscription on record which no process has registered, counted at each check.
    pub orphaned: u64,
    /// Deliveries that were running when an earlier process ended.
    pub recovered: u64,
    /// Counters by event type. The first thousand types have their own entry, all further types share `(other)`.
    pub by_type: BTreeMap<String, TypeMetrics>,
    /// Time from storing an event to the start of its first handler.
    pub dispatch_latency: Histogram,
    /// Duration of handler calls.
    pub handler_duration: Histogram,
    /// Deliveries in flight now.
    pub in_flight: usize,
    /// Waiting work now, and the size of the file and its log.
    pub depth: Depth,
    /// Counters by subscription, without those that only drain old deliveries.
    pub subscriptions: BTreeMap<String, SubscriptionMetrics>,
    /// The circuit breaker of each subscription.
    pub breakers: BTreeMap<String, BreakerSnapshot>,
    /// The retries that each subscription's budget can pay for now; only subscriptions with a budget.
    pub budgets: BTreeMap<String, u32>,
    /// The attempts per second to which an overloaded receiver has reduced a subscription; only reduced ones.
    pub reduced_rates: BTreeMap<String, f64>,
}

/// Counters of one subscription since the bus was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SubscriptionMetrics {
    /// Attempts that succeeded.
    pub done: u64,
    /// Attempts that failed and are retried.
    pub retried: u64,
    /// Attempts that failed and were the last.
    pub dead: u64,
    /// Deliveries parked because the circuit was open, or snoozed by the handler.
    pub parked: u64,
    /// Deliveries deferred to the backlog at its limits or while paused.
    pub backlogged: u64,
    /// Duration of its handler calls.
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
    /// Dead letters.
    pub dead: u64,
    /// Dead letters after at least one retry.
    pub dead_after_retry: u64,
}

impl TypeMetrics {
    /// The share of retried and finished events that succeeded.
    pub fn success_after_retry_rate(&self) -> Option<f64> {
        ratio(self.done_after_retry, self.done_after_retry + self.dead_after_retry)
    }

    /// The share of finished events that became dead letters.
    pub fn dlq_rate(&self) -> Option<f64> {
        ratio(self.dead, self.dead + self.done_at_once + self.done_after_retry)
    }
}

#[allow(clippy::cast_precision_loss)] // a rate, not a count
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The bound of separately counted event types, which come from publishers.
const MAX_TYPES: usize = 1000;

/// Defines a struct of atomic counters, a method that adds to each, and `read`, which copies them to a snapshot with equal names.
macro_rules! counters {
    ($(#[$attribute:meta])* $name:ident => $snapshot:ident: $($counter:ident),*; $($other:ident: $kind:ty),*) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        pub(crate) struct $name {
            $($counter: AtomicU64,)*
            $($other: $kind,)*
        }

        impl $name {
            $(pub(crate) fn $counter(&self, count: usize) {
                self.$counter.fetch_add(count as u64, Ordering::Relaxed);
            })*

            fn read(&self) -> $snapshot {
                $snapshot { $($counter: self.$counter.load(Ordering::Relaxed),)* ..$snapshot::default() }
            }
        }
    };
}

counters! {
    /// Counters of the bus. The counts by type are locked for one addition.
    Counters => Metrics:
    published, duplicates, attempts, done, dead, unmatched, parked, budget_deferred, backlogged, orphaned, recovered;
    dispatch_latency: Recorder, handler_duration: Recorder, by_type: Mutex<BTreeMap<EventType, TypeMetrics>>
}

impl Counters {
    pub(crate) fn retried(&self, event_type: &EventType) {
        self.of_type(event_type, |metrics| metrics.retries += 1);
    }

    pub(crate) fn dispatched(&self, latency: Duration) {
        self.dispatch_latency.record(latency);
    }

    pub(crate) fn handled(&self, took: Duration) {
        self.attempts(1);
        self.handler_duration.record(took);
    }

    pub(crate) fn finished(&self, event_type: &EventType, finished: Finished) {
        match finished {
            Finished::NotYet | Finished::Fenced => {}
            Finished::Done { retried } => {
                self.done(1);
                self.of_type(event_type, |metrics| match retried {
                    false => metrics.done_at_once += 1,
                    true => metrics.done_after_retry += 1,
                });
            }
            Finished::Dead { retried } => {
                self.dead(1);
                self.of_type(event_type, |metrics| {
                    metrics.dead += 1;
                    metrics.dead_after_retry += u64::from(retried);
                });
            }
        }
    }

    fn of_type(&self, event_type: &EventType, count: impl FnOnce(&mut TypeMetrics)) {
        let mut by_type = lock(&self.by_type);
        if let Some(metrics) = by_type.get_mut(event_type) {
            return count(metrics);
        }
        let name = if by_type.len() < MAX_TYPES {
            event_type.clone()
        } else {
            EventType::new("(other)").expect("a valid type")
        };
        count(by_type.entry(name).or_default());
    }

    /// The counters; the caller adds the state of store and subscriptions.
    pub(crate) fn snapshot(&self) -> Metrics {
        let by_type = lock(&self.by_type);
        Metrics {
            by_type: by_type.iter().map(|(name, metrics)| (name.to_string(), *metrics)).collect(),
            dispatch_latency: self.dispatch_latency.snapshot(),
            handler_duration: self.handler_duration.snapshot(),
            ..self.read()
        }
    }
}

counters! {
    /// Counters of one subscription. A replacement continues them.
    SubscriptionCounters => SubscriptionMetrics: done, retried, dead, parked, backlogged;
    duration: Recorder
}

impl SubscriptionCounters {
    pub(crate) fn failed(&self, is_dead: bool) {
        if is_dead { self.dead(1) } else { self.retried(1) }
    }

    pub(crate) fn handled(&self, took: Duration) {
        self.duration.record(took);
    }

    pub(crate) fn snapshot(&self) -> SubscriptionMetrics {
        SubscriptionMetrics { duration: self.duration.snapshot(), ..self.read() }
    }
}
