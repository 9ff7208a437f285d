//! Sliding window of call outcomes: a ring of counters, and the events whose outcome a later one replaces.

use std::collections::HashMap;
use std::time::Duration;

use crate::ratio::Ratio;
use crate::timestamp::{Timestamp, saturating_millis};

/// Number of slices of the window; outcomes expire one slice at a time.
const SLICES: usize = 60;

/// Largest number of events whose outcome can be replaced. Every outcome of a further event counts, so memory is bounded.
const MAX_TRACKED_EVENTS: usize = 16_384;

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

/// Sliding window that counts succeeded and failed calls. Several calls for one event count once, with the latest outcome.
#[derive(Clone, Debug)]
pub struct CallWindow {
    slices: [CallCounts; SLICES],
    sum: CallCounts,
    slice_ms: u64,
    /// Number of the newest slice since the Unix epoch.
    newest: u64,
    /// Contribution of each event that may come again. An event that succeeds at once is not kept: it does not come again.
    events: HashMap<u128, Contribution>,
}

/// The outcome with which one event counts.
#[derive(Copy, Clone, Debug)]
struct Contribution {
    /// Number of the slice that it counts into.
    slice: u64,
    succeeded: bool,
}

impl CallWindow {
    /// Creates an empty window of this length.
    pub fn new(length: Duration) -> Self {
        Self::empty((saturating_millis(length) / SLICES as u64).max(1), 0)
    }

    fn empty(slice_ms: u64, newest: u64) -> Self {
        CallWindow {
            slices: [CallCounts::default(); SLICES],
            sum: CallCounts::default(),
            slice_ms,
            newest,
            events: HashMap::new(),
        }
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

    /// Counts a call for an event in place of its earlier call, and returns the sum over the window that ends now.
    pub fn record_event(&mut self, event: u128, succeeded: bool, now: Timestamp) -> CallCounts {
        self.advance(now);
        let earlier = self.events.remove(&event);
        if let Some(earlier) = earlier {
            self.take_back(earlier);
        }
        if !succeeded || earlier.is_some() {
            self.track(event, self.newest, succeeded);
        }
        self.record(succeeded, now)
    }

    /// Notes that an event whose call succeeded at `counted_at` comes again, so that its next call replaces that one.
    pub fn expect_again(&mut self, event: u128, counted_at: Timestamp, now: Timestamp) {
        self.advance(now);
        let slice = self.slice_of(counted_at).min(self.newest);
        if !self.has_counted(event) && self.newest - slice < SLICES as u64 {
            self.track(event, slice, true);
        }
    }

    /// Whether the window has the outcome of an earlier call for this event, and knows that it may come again.
    pub fn has_counted(&self, event: u128) -> bool {
        self.events.contains_key(&event)
    }

    fn track(&mut self, event: u128, slice: u64, succeeded: bool) {
        if self.events.len() < MAX_TRACKED_EVENTS {
            self.events.insert(event, Contribution { slice, succeeded });
        }
    }

    /// Number of the slice of an instant since the Unix epoch.
    fn slice_of(&self, at: Timestamp) -> u64 {
        u64::try_from(at.as_millis()).unwrap_or(0) / self.slice_ms
    }

    /// Removes an outcome from its slice and from the sum.
    fn take_back(&mut self, earlier: Contribution) {
        let one = CallCounts { succeeded: earlier.succeeded.into(), failed: (!earlier.succeeded).into() };
        let slice = &mut self.slices[slot(earlier.slice)];
        // A success that was counted after a step of the clock may lie in another slice, and stays there.
        if slice.minus(one).plus(one) == *slice {
            *slice = slice.minus(one);
            self.sum = self.sum.minus(one);
        }
    }

    /// Returns the sum over the window that ends now.
    pub fn counts(&mut self, now: Timestamp) -> CallCounts {
        self.advance(now);
        self.sum
    }

    /// Clears expired slices and returns the index of the current one.
    fn advance(&mut self, now: Timestamp) -> usize {
        let number = self.slice_of(now);
        if self.newest.abs_diff(number) >= SLICES as u64 {
            // A whole window has passed, or the clock was ahead by one and was set back.
            *self = Self::empty(self.slice_ms, number);
        }
        // After a small backward step of the clock, calls count into the newest slice.
        for expired in self.newest + 1..=number {
            self.sum = self.sum.minus(std::mem::take(&mut self.slices[slot(expired)]));
        }
        if number > self.newest {
            self.newest = number;
            self.events.retain(|_, one| number - one.slice < SLICES as u64);
        }
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

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn at(secs: u64) -> Timestamp {
        T0 + Duration::from_secs(secs)
    }

    fn counts(succeeded: u32, failed: u32) -> CallCounts {
        CallCounts { succeeded, failed }
    }

    proptest! {
        /// The window equals a list of the latest call of each event, to the precision of one slice.
        #[test]
        fn the_window_counts_the_latest_call_of_each_event(
            calls in proptest::collection::vec((0u128..20, any::<bool>(), 0u64..20_000), 1..300),
        ) {
            let mut window = CallWindow::new(Duration::from_secs(60));
            let mut latest: HashMap<u128, (u64, bool)> = HashMap::new();
            let (mut succeeded_for_good, mut now) = (Vec::new(), T0);
            for (event, succeeded, pause) in calls {
                now = now.plus_millis(pause);
                let slice = u64::try_from(now.as_millis()).unwrap() / 1000;
                // An event that succeeds at once does not come again: the next one of its number is another event.
                let number = event + 100 * succeeded_for_good.iter().filter(|done| **done == event).count() as u128;
                if succeeded && latest.get(&number).is_none_or(|(at, _)| slice - at >= 60) {
                    succeeded_for_good.push(event);
                }
                latest.insert(number, (slice, succeeded));
                let inside = || latest.values().filter(|(at, _)| slice - at < 60);
                let failed = u32::try_from(inside().filter(|(_, ok)| !ok).count()).unwrap();
                let total = u32::try_from(inside().count()).unwrap();
                prop_assert_eq!(window.record_event(number, succeeded, now), counts(total - failed, failed));
            }
        }
    }

    #[test]
    fn a_later_call_for_an_event_replaces_the_earlier_one() {
        let mut window = CallWindow::new(Duration::from_secs(60));
        for secs in 0..4 {
            assert_eq!(window.record_event(7, false, at(secs)), counts(0, 1));
        }
        assert_eq!(window.record_event(8, false, at(4)), counts(0, 2));
        assert_eq!(window.record_event(7, true, at(5)), counts(1, 1));
        assert_eq!(window.counts(at(64)), counts(1, 0), "each outcome expires with its own slice");
        assert_eq!(window.counts(at(65)), counts(0, 0));
        assert!(!window.has_counted(7) && !window.has_counted(8));
    }

    #[test]
    fn a_success_that_comes_again_counts_once() {
        let mut window = CallWindow::new(Duration::from_secs(60));
        for secs in 0..4 {
            assert_eq!(window.record_event(7, true, at(secs)), counts(1, 0));
            window.expect_again(7, at(secs), at(secs));
        }
        assert_eq!(window.record_event(7, false, at(4)), counts(0, 1));
    }

    #[test]
    fn a_success_noted_late_is_replaced_all_the_same() {
        let mut window = CallWindow::new(Duration::from_secs(60));
        window.record_event(7, true, at(0));
        window.expect_again(7, at(0), at(30));
        assert_eq!(window.record_event(7, false, at(31)), counts(0, 1));
        window.record_event(8, true, at(31));
        window.expect_again(8, at(31), at(95));
        assert_eq!(window.record_event(8, true, at(95)), counts(1, 0), "the first one is forgotten already");
    }

    #[test]
    fn the_number_of_tracked_events_is_bounded() {
        let mut window = CallWindow::new(Duration::from_secs(60));
        for event in 0..2 * MAX_TRACKED_EVENTS as u128 {
            window.record_event(event, false, T0);
        }
        assert_eq!(window.events.len(), MAX_TRACKED_EVENTS);
    }

    #[test]
    fn a_backward_clock_step_loses_no_call() {
        let mut window = CallWindow::new(Duration::from_secs(60));
        window.record(false, Timestamp::from_millis(1_000_000));
        assert_eq!(window.record(false, Timestamp::from_millis(990_000)).total(), 2);
    }
}
