//! Simulated destination: an outage, then a token bucket that limits accepted attempts.

/// Response of the destination to an attempt.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Failed: the outage.
    Down,
    /// Failed: the destination is at its capacity.
    Rejected,
    /// Succeeded.
    Accepted,
}

/// One attempt in bucket units. Thousandths, so that a capacity per second is a whole number per millisecond.
const TOKEN: u64 = 1000;
/// Burst size as a refill time: short enough that simultaneous attempts gain nothing.
const BURST_MS: u64 = 100;
/// Minimum burst of two attempts, so that an even stream at full capacity loses nothing to rounding to milliseconds.
const MIN_BURST: u64 = 2 * TOKEN;

/// A token bucket behind an outage.
#[derive(Debug)]
pub(super) struct Destination {
    /// End of the outage.
    up_at: u64,
    /// Refill in thousandths of a token per millisecond, which equals the capacity per second.
    refill: u64,
    /// Bucket size.
    burst: u64,
    /// Current level.
    tokens: u64,
    /// Time of the last refill.
    filled_at: u64,
}

impl Destination {
    pub(super) fn new(outage_ms: u64, capacity_per_second: u64) -> Self {
        let burst = capacity_per_second.saturating_mul(BURST_MS).max(MIN_BURST);
        Destination {
            up_at: outage_ms,
            refill: capacity_per_second,
            burst,
            tokens: burst,
            filled_at: outage_ms,
        }
    }

    /// Makes an attempt at this time. Times must not decrease.
    pub(super) fn attempt(&mut self, at: u64) -> Answer {
        if at < self.up_at {
            return Answer::Down;
        }
        let refilled = (at - self.filled_at).saturating_mul(self.refill);
        self.tokens = self.tokens.saturating_add(refilled).min(self.burst);
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
    fn the_outage_accepts_nothing_and_consumes_no_tokens() {
        let mut destination = Destination::new(1000, 100);
        for at in [0, 500, 999] {
            assert_eq!(destination.attempt(at), Answer::Down);
        }
        assert_eq!(destination.attempt(1000), Answer::Accepted);
    }

    #[test]
    fn simultaneous_attempts_are_accepted_up_to_the_burst() {
        let mut destination = Destination::new(0, 100);
        assert_eq!(accepted(&mut destination, [0; 1000]), 10);
        assert_eq!(destination.attempt(0), Answer::Rejected);
        assert_eq!(destination.attempt(9), Answer::Rejected);
        assert_eq!(destination.attempt(10), Answer::Accepted, "one token every 10 ms");
    }

    #[test]
    fn an_even_stream_at_capacity_is_accepted_entirely() {
        for capacity in [1, 7, 100, 333, 1000] {
            let mut destination = Destination::new(0, capacity);
            let stream = (0..10 * capacity).map(|n| (n * 1000).div_ceil(capacity));
            assert_eq!(accepted(&mut destination, stream) as u64, 10 * capacity, "{capacity}");
        }
    }

    #[test]
    fn accepted_attempts_never_exceed_the_capacity() {
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
