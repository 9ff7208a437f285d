//! Peak rate: the largest number of attempts within any sliding second.

use crate::chart::scale::SECOND;

/// Sliding one-second window as a ring of one counter per millisecond: constant memory for any number of attempts.
#[derive(Debug)]
pub(super) struct PeakRate {
    /// Attempts in each of the last thousand milliseconds; millisecond `t` is at `t % 1000`.
    counts: Vec<u64>,
    /// Sum of `counts`.
    within: u64,
    /// Latest millisecond of the ring.
    now: u64,
    highest: u64,
}

impl PeakRate {
    pub(super) fn new() -> Self {
        PeakRate { counts: vec![0; 1000], within: 0, now: 0, highest: 0 }
    }

    /// Counts one attempt. Times must not decrease.
    pub(super) fn count(&mut self, at: u64) {
        if at - self.now >= SECOND {
            self.counts.fill(0);
            self.within = 0;
        } else {
            for passed in self.now + 1..=at {
                self.within -= std::mem::take(self.slot(passed));
            }
        }
        self.now = at;
        *self.slot(at) += 1;
        self.within += 1;
        self.highest = self.highest.max(self.within);
    }

    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    #[allow(clippy::cast_possible_truncation)] // below 1000
    fn slot(&mut self, at: u64) -> &mut u64 {
        &mut self.counts[(at % SECOND) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(times: &[u64]) -> u64 {
        let mut peak = PeakRate::new();
        times.iter().for_each(|at| peak.count(*at));
        peak.highest()
    }

    #[test]
    fn the_window_slides_by_milliseconds() {
        assert_eq!(peak(&[]), 0);
        assert_eq!(peak(&[0, 999]), 2);
        assert_eq!(peak(&[0, 1000]), 1);
        assert_eq!(peak(&[1, 999, 1000, 1001]), 3, "1 has left when 1001 comes");
        assert_eq!(peak(&[5, 5, 5, 90_000, 90_000]), 3);
    }

    proptest::proptest! {
        #[test]
        fn equals_the_maximum_over_all_windows(mut times in proptest::collection::vec(0u64..5000, 0..200)) {
            times.sort_unstable();
            let count = |end: u64| times.iter().filter(|at| **at <= end && **at + SECOND > end).count() as u64;
            let expected = times.iter().map(|end| count(*end)).max().unwrap_or(0);
            proptest::prop_assert_eq!(peak(&times), expected);
        }
    }
}
