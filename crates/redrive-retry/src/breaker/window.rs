//! How many calls succeeded and failed lately: a ring of counters, constant in memory and in time.

use std::time::Duration;

use crate::ratio::Ratio;
use crate::timestamp::{Timestamp, saturating_millis};

/// The window in this many slices; what is older than the window is forgotten a slice at a time.
const SLICES: usize = 60;

/// How many calls succeeded and failed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that succeeded.
    pub succeeded: u32,
    /// Calls that failed.
    pub failed: u32,
}

impl Counts {
    pub(super) fn total(self) -> u32 {
        self.succeeded.saturating_add(self.failed)
    }

    pub(super) fn plus(self, other: Counts) -> Counts {
        Counts {
            succeeded: self.succeeded.saturating_add(other.succeeded),
            failed: self.failed.saturating_add(other.failed),
        }
    }

    pub(super) fn minus(self, other: Counts) -> Counts {
        Counts {
            succeeded: self.succeeded.saturating_sub(other.succeeded),
            failed: self.failed.saturating_sub(other.failed),
        }
    }

    /// Strictly more than `ratio` of all calls failed.
    pub(super) fn failure_share_exceeds(self, ratio: Ratio) -> bool {
        u64::from(self.failed) * 1_000_000 > u64::from(self.total()) * u64::from(ratio.millionths())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    slices: [Counts; SLICES],
    sum: Counts,
    slice_ms: u64,
    /// The number of the newest slice, counted from the epoch.
    newest: u64,
}

impl Window {
    pub(super) fn new(length: Duration) -> Self {
        let slice_ms = (saturating_millis(length) / SLICES as u64).max(1);
        Window { slices: [Counts::default(); SLICES], sum: Counts::default(), slice_ms, newest: 0 }
    }

    /// Counts one call and returns the sum over the window that ends now.
    pub(super) fn record(&mut self, succeeded: bool, now: Timestamp) -> Counts {
        let slice = self.advance(now);
        for counts in [&mut self.slices[slice], &mut self.sum] {
            let count = if succeeded { &mut counts.succeeded } else { &mut counts.failed };
            *count = count.saturating_add(1);
        }
        self.sum
    }

    /// The sum over the window that ends now.
    pub(super) fn counts(&mut self, now: Timestamp) -> Counts {
        self.advance(now);
        self.sum
    }

    /// Forgets what has fallen out of the window; returns the slice of this instant.
    fn advance(&mut self, now: Timestamp) -> usize {
        let number = u64::try_from(now.as_millis()).unwrap_or(0) / self.slice_ms;
        if self.newest.saturating_sub(number) >= SLICES as u64 {
            // The clock was ahead by more than a window and is right again: begin anew.
            *self = Window {
                slices: [Counts::default(); SLICES],
                sum: Counts::default(),
                newest: number,
                ..*self
            };
        }
        // A clock that steps back a little counts into the newest slice: nothing is lost, nothing is counted twice.
        let stale = number.saturating_sub(self.newest).min(SLICES as u64);
        for step in 1..=stale {
            let slice = slot(self.newest + step);
            let gone = std::mem::take(&mut self.slices[slice]);
            self.sum.succeeded = self.sum.succeeded.saturating_sub(gone.succeeded);
            self.sum.failed = self.sum.failed.saturating_sub(gone.failed);
        }
        if stale == SLICES as u64 {
            // More than a whole window has passed: every slice was just emptied, whatever its number was.
            self.sum = Counts::default();
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
        /// The ring agrees with the plain list it stands for, to the precision of one slice.
        #[test]
        fn the_ring_counts_what_a_list_would(
            calls in proptest::collection::vec((any::<bool>(), 0u64..20_000), 1..300),
            start in 0i64..4_000_000_000_000,
        ) {
            let mut window = Window::new(Duration::from_secs(60));
            let mut list: Vec<(u64, bool)> = Vec::new();
            let mut now = Timestamp::from_millis(start);
            for (succeeded, pause) in calls {
                now = now.plus_millis(pause);
                let slice = u64::try_from(now.as_millis()).unwrap() / 1000;
                list.push((slice, succeeded));
                list.retain(|(number, _)| slice - number < 60);
                let failed = u32::try_from(list.iter().filter(|(_, ok)| !ok).count()).unwrap();
                let total = u32::try_from(list.len()).unwrap();
                prop_assert_eq!(window.record(succeeded, now), Counts { succeeded: total - failed, failed });
            }
        }
    }

    #[test]
    fn a_clock_that_steps_back_loses_nothing() {
        let mut window = Window::new(Duration::from_secs(60));
        window.record(false, Timestamp::from_millis(1_000_000));
        assert_eq!(window.record(false, Timestamp::from_millis(990_000)).total(), 2);
    }
}
