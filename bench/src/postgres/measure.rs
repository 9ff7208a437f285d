//! Measurements and their samples.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use redrive::retry::BoxError;
use tokio::task::JoinSet;

use super::cost::Cost;

/// A part of the measurement.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Measure {
    /// One caller stores one event after the other
    One,
    /// 32 callers store one event after the other
    Callers,
    /// One caller per connection stores a hundred events with each call
    Hundreds,
    /// One caller per connection stores a thousand events with each call
    Thousands,
    /// Waiting events are handled
    Process,
    /// Events are published and handled concurrently; with dead rows and WAL bytes
    Cycle,
    /// 200 events a second, from before the publish to the handler
    Latency,
}

impl Measure {
    pub(super) const ALL: &[Measure] = &[
        Measure::One,
        Measure::Callers,
        Measure::Hundreds,
        Measure::Thousands,
        Measure::Process,
        Measure::Cycle,
        Measure::Latency,
    ];

    pub(super) fn key(self) -> &'static str {
        match self {
            Measure::One => "one",
            Measure::Callers => "callers_32",
            Measure::Hundreds => "batches_of_100",
            Measure::Thousands => "batches_of_1000",
            Measure::Process => "process",
            Measure::Cycle => "cycle",
            Measure::Latency => "latency",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Measure::One => "store one by one",
            Measure::Callers => "store, 32 callers",
            Measure::Hundreds => "store in batches of 100, one caller per connection",
            Measure::Thousands => "store in batches of 1,000, one caller per connection",
            Measure::Process => "handle waiting events",
            Measure::Cycle => "publish in batches of 100 and handle",
            Measure::Latency => "latency at 200/s, p50 and p99",
        }
    }

    /// Number of callers and batch size, where the measurement only stores.
    pub(super) fn stores(self, connections: usize) -> Option<Stores> {
        let (callers, batch) = match self {
            Measure::One => (1, 1),
            Measure::Callers => (32, 1),
            Measure::Hundreds => (connections, 100),
            Measure::Thousands => (connections, 1000),
            Measure::Process | Measure::Cycle | Measure::Latency => return None,
        };
        Some(Stores { callers, batch })
    }
}

#[derive(Copy, Clone, Debug)]
pub(super) struct Stores {
    pub(super) callers: usize,
    pub(super) batch: u32,
}

/// Size of a measurement.
#[derive(Copy, Clone, Debug)]
pub(super) struct Size {
    pub(super) events: u32,
    pub(super) time: Duration,
    /// Connections that Redrive writes with; the baseline has as many.
    pub(super) connections: usize,
}

/// Sample of one measurement.
#[derive(Copy, Clone, Debug)]
pub(super) enum Sample {
    /// Events a second.
    Rate(f64),
    /// Events per second, and the server cost.
    Costed(f64, Cost),
    /// In milliseconds.
    Latency { p50: f64, p99: f64 },
}

impl Sample {
    pub(super) fn rate(events: u32, took: Duration) -> Self {
        Sample::Rate(per_second(events, took))
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sample::Rate(rate) => write!(f, "{rate:.0}/s"),
            Sample::Costed(rate, cost) => write!(f, "{rate:.0}/s, {cost}"),
            Sample::Latency { p50, p99 } => write!(f, "{p50:.2} and {p99:.2} ms"),
        }
    }
}

pub(super) fn per_second(events: u32, took: Duration) -> f64 {
    f64::from(events) / took.as_secs_f64()
}

/// Work that callers share: a number of events in all, or a time.
#[derive(Clone)]
pub(super) struct Quota {
    taken: Arc<AtomicU32>,
    most: u32,
    until: Instant,
}

impl Quota {
    pub(super) fn of_events(most: u32) -> Self {
        // Far in the future; `Instant` has no maximum.
        Quota { taken: Arc::default(), most, until: Instant::now() + Duration::from_secs(24 * 3600) }
    }

    pub(super) fn of_time(time: Duration) -> Self {
        Quota { taken: Arc::default(), most: u32::MAX / 2, until: Instant::now() + time }
    }

    /// Takes up to this many more; 0 when it is over.
    pub(super) fn take(&self, batch: u32) -> u32 {
        if Instant::now() >= self.until {
            return 0;
        }
        let taken = self.taken.fetch_add(batch, Ordering::Relaxed);
        self.most.saturating_sub(taken).min(batch)
    }
}

/// Events that all callers have stored, after the last of them has ended.
pub(super) async fn all(mut callers: JoinSet<Result<u32, BoxError>>) -> Result<u32, BoxError> {
    let mut stored = 0;
    while let Some(caller) = callers.join_next().await {
        stored += caller??;
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_stop_at_the_number_of_rows() {
        let quota = Quota::of_events(250);
        assert_eq!([quota.take(100), quota.take(100), quota.take(100), quota.take(100)], [100, 100, 50, 0]);
        assert_eq!(Quota::of_time(Duration::ZERO).take(1), 0);
    }
}
