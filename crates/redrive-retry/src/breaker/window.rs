//! Sliding window of call outcomes: a ring of counters, constant in memory and time.

use std::time::Duration;

use crate::ratio::Ratio;
use crate::timestamp::{Timestamp, saturating_millis};

/// Number of slices of the window; outcomes expire one slice at a time.
const SLICES: usize = 60;

/// Numbers of succeeded and failed calls.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Calls that succeeded.
    pub succeeded: u32,
    /// Calls that failed.
    pub failed: u32,
}

impl CallCounts {
    /// All calls.
    pub fn total(self) -> u32 {
        self.succeeded.saturating_add(self.failed)
    }

    /// Sum of two counts.
    pub fn plus(self, other: CallCounts) -> CallCounts {
        CallCounts {
            succeeded: self.succeeded.saturating_add(other.succeeded),
            failed: self.failed.saturating_add(other.failed),
        }
    }

    /// Difference of two counts, at least 0.
    pub fn minus(self, other: CallCounts) -> CallCounts {
        CallCounts {
            succeeded: self.succeeded.saturating_sub(other.succeeded),
            failed: self.failed.saturating_sub(other.failed),
        }
    }

    /// Whether strictly more than `ratio` of all calls failed.
    pub fn failure_share_exceeds(self, ratio: Ratio) -> bool {
        u64::from(self.failed) * 1_000_000 > u64::from(self.total()) * u64::from(ratio.millionths())
    }
}

/// Sliding window that counts succeeded and failed calls.
#[derive(Clone, Debug)]
pub struct CallWindow {
    slices: [CallCounts; SLICES],
    sum: CallCounts,
    slice_ms: u64,
    /// Number of the newest slice since the Unix epoch.
    newest: u64,
}

impl CallWindow {
    /// Creates an empty window of this length.
    pub fn new(length: Duration) -> Self {
        Self::empty((saturating_millis(length) / SLICES as u64).max(1), 0)
    }

    fn empty(slice_ms: u64, newest: u64) -> Self {
        CallWindow { slices: [CallCounts::default(); SLICES], sum: CallCounts::default(), slice_ms, newest }
    }

    /// Counts one call and returns the sum over the window that ends now.
    pub fn record(&mut self, succeeded: bool, now: Timestamp) -> CallCounts {
        let slice = self.advance(now);
        for counts in [&mut self.slices[slice], &mut self.sum] {
            let count = if succeeded { &mut counts.succeeded } else { &mut counts.failed };
            *count = count.saturating_add(1);
        }
        self.sum
    }

    /// Returns the sum over the window that ends now.
    pub fn counts(&mut self, now: Timestamp) -> CallCounts {
        self.advance(now);
        self.sum
    }

    /// Clears expired slices and returns the index of the current one.
    fn advance(&mut self, now: Timestamp) -> usize {
        let number = u64::try_from(now.as_millis()).unwrap_or(0) / self.slice_ms;
        if self.newest.abs_diff(number) >= SLICES as u64 {
            // A whole window has passed, or the clock was ahead by one and was set back.
            *self = Self::empty(self.slice_ms, number);
        }
        // After a small backward step of the clock, calls count into the newest slice.
        for expired in self.newest + 1..=number {
            self.sum = self.sum.minus(std::mem::take(&mut self.slices[slot(expired)]));
        }
        self.newest = self.newest.max(number);
        slot(self.newest)
    }
}

fn slot(number: u64) -> usize {
    #[allow(clippy::cast_possible_truncation)] // below SLICES
    let slot = (number % SLICES as u64) as usize;
    slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The ring equals a plain list of calls, to the precision of one slice.
        #[test]
        fn the_ring_counts_like_a_list(
            calls in proptest::collection::vec((any::<bool>(), 0u64..20_000), 1..300),
            start in 0i64..4_000_000_000_000,
        ) {
            let mut window = CallWindow::new(Duration::from_secs(60));
            let mut list: Vec<(u64, bool)> = Vec::new();
            let mut now = Timestamp::from_millis(start);
            for (succeeded, pause) in calls {
                now = now.plus_millis(pause);
                let slice = u64::try_from(now.as_millis()).unwrap() / 1000;
                list.push((slice, succeeded));
                list.retain(|(number, _)| slice - number < 60);
                let failed = u32::try_from(list.iter().filter(|(_, ok)| !ok).count()).unwrap();
                let total = u32::try_from(list.len()).unwrap();
                prop_assert_eq!(window.record(succeeded, now), CallCounts { succeeded: total - failed, failed });
            }
        }
    }

    #[test]
    fn a_backward_clock_step_loses_no_call() {
        let mut window = CallWindow::new(Duration::from_secs(60));
        window.record(false, Timestamp::from_millis(1_000_000));
        assert_eq!(window.record(false, Timestamp::from_millis(990_000)).total(), 2);
    }
}
