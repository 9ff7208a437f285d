//! Time series of a simulation: counts attempts in a bounded number of buckets.
//!
//! The length of a simulation is known only at its end. Attempts are therefore counted in fine cells whose width grows with
//! time; at the end the cells are merged into buckets of a readable width (250 ms, 5 s, 1 h).

use serde::Serialize;

use super::destination::Answer;
use crate::chart::scale::{DAY, HOUR, MINUTE, SECOND};

/// Maximum number of buckets of a series: enough for a smooth picture, few enough to read as JSON.
const MAX_BUCKETS: u64 = 240;
/// Maximum number of cells. Fifty per bucket leave room to choose a readable width.
const MAX_CELLS: u64 = 12_000;

/// Cell widths in milliseconds. Each divides the next, so cells merge exactly.
#[rustfmt::skip]
const CELL_WIDTHS: [u64; 18] = [
    1, 5, 10, 50, 100, 500, SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE,
    30 * MINUTE, HOUR, 6 * HOUR, 12 * HOUR, DAY,
];
/// Bucket widths in milliseconds.
#[rustfmt::skip]
const BUCKET_WIDTHS: [u64; 27] = [
    1, 2, 5, 10, 20, 50, 100, 200, 250, 500, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND,
    MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
    DAY,
];

/// Counts over time; bucket `n` begins at `n · bucket_ms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Series {
    /// Width of a bucket in milliseconds.
    pub(crate) bucket_ms: u64,
    /// Attempts.
    pub(crate) attempts: Vec<u64>,
    /// Attempts that succeeded.
    pub(crate) delivered: Vec<u64>,
    /// Attempts that failed because the destination was at its capacity.
    pub(crate) rejected: Vec<u64>,
}

#[derive(Copy, Clone, Debug, Default)]
struct Cell {
    attempts: u64,
    delivered: u64,
    rejected: u64,
}

impl Cell {
    fn add(&mut self, other: Cell) {
        self.attempts += other.attempts;
        self.delivered += other.delivered;
        self.rejected += other.rejected;
    }
}

/// Counts attempts in cells.
#[derive(Debug)]
pub(super) struct Recorder {
    width: u64,
    cells: Vec<Cell>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Recorder { width: 1, cells: Vec::new() }
    }

    pub(super) fn record(&mut self, at: u64, answer: Answer) {
        while at / self.width >= MAX_CELLS {
            self.widen();
        }
        let cell = self.cell_at(at);
        cell.attempts += 1;
        cell.delivered += u64::from(answer == Answer::Accepted);
        cell.rejected += u64::from(answer == Answer::Rejected);
    }

    #[allow(clippy::cast_possible_truncation)] // below MAX_CELLS
    fn cell_at(&mut self, at: u64) -> &mut Cell {
        let index = (at / self.width) as usize;
        if index >= self.cells.len() {
            self.cells.resize(index + 1, Cell::default());
        }
        &mut self.cells[index]
    }

    fn widen(&mut self) {
        let width = next_width(&CELL_WIDTHS, self.width);
        self.cells = merged(&self.cells, width / self.width);
        self.width = width;
    }

    /// Number of buckets of this width.
    pub(super) fn buckets(&self, bucket_ms: u64) -> usize {
        self.cells.len().div_ceil(cells_per(bucket_ms, self.width))
    }

    /// Merges the cells into buckets of this width, a multiple of the cells' width, padded with empty ones up to `at_least`.
    pub(super) fn into_series(self, bucket_ms: u64, at_least: usize) -> Series {
        let mut buckets = merged(&self.cells, bucket_ms / self.width);
        if buckets.len() < at_least {
            buckets.resize(at_least, Cell::default());
        }
        Series {
            bucket_ms,
            attempts: buckets.iter().map(|bucket| bucket.attempts).collect(),
            delivered: buckets.iter().map(|bucket| bucket.delivered).collect(),
            rejected: buckets.iter().map(|bucket| bucket.rejected).collect(),
        }
    }
}

/// Narrowest readable width that fits every recorder into [`MAX_BUCKETS`].
pub(super) fn bucket_width(recorders: &[&Recorder]) -> u64 {
    let fits = |width: u64| {
        recorders.iter().all(|recorder| {
            width.is_multiple_of(recorder.width) && recorder.buckets(width) as u64 <= MAX_BUCKETS
        })
    };
    let mut width = 1;
    while !fits(width) {
        width = next_width(&BUCKET_WIDTHS, width);
    }
    width
}

/// Next larger width; beyond the last, five times as much, so that widths still divide each other.
fn next_width(widths: &[u64], width: u64) -> u64 {
    let wider = widths.iter().copied().find(|candidate| *candidate > width);
    wider.unwrap_or_else(|| width.saturating_mul(5))
}

fn cells_per(width: u64, cell: u64) -> usize {
    usize::try_from(width / cell).unwrap_or(usize::MAX)
}

fn merged(cells: &[Cell], each: u64) -> Vec<Cell> {
    let each = usize::try_from(each).unwrap_or(usize::MAX);
    let sum = |cells: &[Cell]| {
        let mut sum = Cell::default();
        cells.iter().for_each(|cell| sum.add(*cell));
        sum
    };
    cells.chunks(each).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_widths_divide_each_other_and_buckets_are_readable() {
        for pair in CELL_WIDTHS.windows(2) {
            assert!(pair[1].is_multiple_of(pair[0]), "{pair:?}");
        }
        assert!(BUCKET_WIDTHS.is_sorted());
    }

    proptest::proptest! {
        #[test]
        fn every_attempt_is_counted_in_its_bucket_for_any_length(
            mut times in proptest::collection::vec(0u64..1000, 1..200), scale in 0u32..14, other in 0u64..1_000_000,
        ) {
            times.sort_unstable();
            let times: Vec<u64> = times.iter().map(|at| at * 10u64.pow(scale)).collect();
            let mut recorder = Recorder::new();
            times.iter().for_each(|at| recorder.record(*at, Answer::Accepted));
            let mut second = Recorder::new();
            second.record(other, Answer::Down);
            let width = bucket_width(&[&recorder, &second]);
            let last = times[times.len() - 1].max(other);
            // At most five times the necessary width: a picture keeps its detail.
            proptest::prop_assert!(width == 1 || width <= 5 * last.div_ceil(MAX_BUCKETS) + 5, "{width} for {last}");
            let series = recorder.into_series(width, 0);
            proptest::prop_assert!(series.attempts.len() as u64 <= MAX_BUCKETS);
            for (index, count) in series.attempts.iter().enumerate() {
                let expected = times.iter().filter(|at| **at / width == index as u64).count() as u64;
                proptest::prop_assert_eq!(*count, expected);
            }
            proptest::prop_assert_eq!(&series.attempts, &series.delivered);
        }
    }
}
