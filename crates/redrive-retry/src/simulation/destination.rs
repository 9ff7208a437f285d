//! The destination of a simulation: down for a while, then as fast as its capacity and no faster.

/// What an attempt meets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The outage.
    Down,
    /// A destination at its capacity.
    Rejected,
    /// A destination that takes it.
    Accepted,
}

/// A token is one attempt. Counted in thousandths, so that a capacity per second is a whole number per millisecond.
const TOKEN: u64 = 1000;
/// The bucket holds what comes in this many milliseconds: short enough that a herd gains nothing by coming at once.
const BURST_MS: u64 = 100;
/// It holds at least two, so that an even stream at the full capacity loses nothing to times being whole milliseconds.
const SMALLEST_BURST: u64 = 2 * TOKEN;

/// A token bucket behind an outage.
#[derive(Debug)]
pub(super) struct Destination {
    /// The first millisecond in which it is back.
    up_at: u64,
    /// Thousandths of a token that come in per millisecond: the capacity per second.
    refill: u64,
    /// What the bucket holds.
    burst: u64,
    /// What is in the bucket.
    tokens: u64,
    /// When it was last filled up.
    filled_at: u64,
}

impl Destination {
    pub(super) fn new(outage_ms: u64, capacity_per_second: u64) -> Self {
        let burst = capacity_per_second.saturating_mul(BURST_MS).max(SMALLEST_BURST);
        Destination {
            up_at: outage_ms,
            refill: capacity_per_second,
            burst,
            tokens: burst,
            filled_at: outage_ms,
        }
    }

    /// An attempt at this time, which must not be before that of the last one.
    pub(super) fn attempt(&mut self, at: u64) -> Answer {
        if at < self.up_at {
            return Answer::Down;
        }
        let come_in = (at - self.filled_at).saturating_mul(self.refill);
        self.tokens = self.tokens.saturating_add(come_in).min(self.burst);
        self.filled_at = at;
        match self.tokens.checked_sub(TOKEN) {
            Some(left) => {
                self.tokens = left;
                Answer::Accepted
            }
            None => Answer::Rejected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(destination: &mut Destination, attempts: impl IntoIterator<Item = u64>) -> usize {
        let accepts = |at| destination.attempt(at) == Answer::Accepted;
        attempts.into_iter().map(accepts).filter(|accepted| *accepted).count()
    }

    #[test]
    fn during_the_outage_nothing_is_accepted_and_nothing_is_used_up() {
        let mut destination = Destination::new(1000, 100);
        for at in [0, 500, 999] {
            assert_eq!(destination.attempt(at), Answer::Down);
        }
        assert_eq!(destination.attempt(1000), Answer::Accepted);
    }

    #[test]
    fn a_herd_gets_a_tenth_of_a_second_worth_and_the_rest_is_rejected() {
        let mut destination = Destination::new(0, 100);
        assert_eq!(accepted(&mut destination, [0; 1000]), 10);
        assert_eq!(destination.attempt(0), Answer::Rejected);
        assert_eq!(destination.attempt(9), Answer::Rejected);
        assert_eq!(destination.attempt(10), Answer::Accepted, "one comes in every 10 ms");
    }

    #[test]
    fn an_even_stream_at_the_capacity_is_accepted_whole() {
        for capacity in [1, 7, 100, 333, 1000] {
            let mut destination = Destination::new(0, capacity);
            let stream = (0..10 * capacity).map(|n| (n * 1000).div_ceil(capacity));
            assert_eq!(accepted(&mut destination, stream) as u64, 10 * capacity, "{capacity}");
        }
    }

    #[test]
    fn a_flood_gets_the_capacity_and_not_more() {
        let mut destination = Destination::new(0, 50);
        let flood = (0..10_000).flat_map(|ms| [ms; 5]);
        assert_eq!(accepted(&mut destination, flood), 10 * 50 + 5 - 1, "ten seconds and the burst");
    }

    #[test]
    fn absurd_capacities_saturate() {
        let mut destination = Destination::new(0, u64::MAX);
        assert_eq!(accepted(&mut destination, [0, 1, u64::MAX]), 3);
    }
}
