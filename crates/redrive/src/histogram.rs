//! Latency histograms with fixed buckets: cheap to count, readable without an exporter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in microseconds; the last bucket has none.
const BOUNDS: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// A snapshot of measured durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Histogram {
    /// The number of measurements.
    pub count: u64,
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
    /// The buckets, in ascending order.
    pub buckets: Vec<Bucket>,
}

/// The count of durations above the bound of the bucket before, up to this bound.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Bucket {
    /// The upper bound in microseconds; `None` for the last bucket.
    pub up_to_us: Option<u64>,
    /// The number of durations.
    pub count: u64,
}

impl Histogram {
    /// The mean; `None` without a measurement.
    pub fn mean(&self) -> Option<Duration> {
        self.sum_us.checked_div(self.count).map(Duration::from_micros)
    }

    /// An upper bound of this quantile: the bound of the bucket in which it falls. `None` without a measurement, or beyond the last bound.
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

/// Counts durations, from many threads at once.
#[derive(Debug, Default)]
pub struct Recorder {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Recorder {
    /// Counts one duration.
    pub fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// The counts up to now.
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
    fn durations_fall_into_their_bucket() {
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
