//! How long things took, in buckets of fixed width: cheap to count, readable without an exporter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in microseconds; the last bucket has none.
const BOUNDS: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// How long things took.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Histogram {
    /// How many were measured.
    pub count: u64,
    /// How long they took together, in microseconds.
    pub sum_us: u64,
    /// How many fell where, in ascending order.
    pub buckets: Vec<Bucket>,
}

/// How many took longer than the bucket before, and not longer than this one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Bucket {
    /// The upper bound in microseconds; `None` for the last one, which has none.
    pub up_to_us: Option<u64>,
    /// How many.
    pub count: u64,
}

impl Histogram {
    /// The mean, if anything was measured.
    pub fn mean(&self) -> Option<Duration> {
        self.sum_us.checked_div(self.count).map(Duration::from_micros)
    }

    /// An upper bound of what this share of them took: the bound of the bucket in which it falls. `None` if nothing was
    /// measured, or if it falls beyond the last bound.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // a share of a count
        let wanted = (self.count as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|bucket| {
            seen += bucket.count;
            seen >= wanted
        })?;
        bucket.up_to_us.map(Duration::from_micros)
    }
}

/// Where it is counted, by everybody at once.
#[derive(Debug, Default)]
pub struct Recorder {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Recorder {
    /// Something took so long.
    pub fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// What was counted up to now.
    pub fn snapshot(&self) -> Histogram {
        let bounds = BOUNDS.iter().copied().map(Some).chain([None]);
        let buckets: Vec<_> = bounds
            .zip(&self.counts)
            .map(|(up_to_us, count)| Bucket { up_to_us, count: count.load(Ordering::Relaxed) })
            .collect();
        Histogram {
            count: buckets.iter().map(|bucket| bucket.count).sum(),
            sum_us: self.sum_us.load(Ordering::Relaxed),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_falls_into_its_bucket() {
        let recorder = Recorder::default();
        for micros in [10, 50, 51, 900, 40_000_000] {
            recorder.record(Duration::from_micros(micros));
        }
        let histogram = recorder.snapshot();
        assert_eq!((histogram.count, histogram.sum_us), (5, 40_001_011));
        let filled: Vec<_> = histogram.buckets.iter().filter(|bucket| bucket.count > 0).collect();
        assert_eq!(
            filled.iter().map(|b| (b.up_to_us, b.count)).collect::<Vec<_>>(),
            [(Some(50), 2), (Some(100), 1), (Some(1_000), 1), (None, 1)]
        );
        assert_eq!(histogram.quantile(0.4), Some(Duration::from_micros(50)));
        assert_eq!(histogram.quantile(0.8), Some(Duration::from_micros(1_000)));
        assert_eq!(histogram.quantile(1.0), None, "beyond the last bound");
        assert_eq!(histogram.mean(), Some(Duration::from_micros(8_000_202)));
        assert_eq!((Histogram::default().mean(), Histogram::default().quantile(0.5)), (None, None));
    }
}
