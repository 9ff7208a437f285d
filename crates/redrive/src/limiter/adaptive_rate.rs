//! Rate of a subscription whose receiver is overloaded: additive increase, multiplicative decrease.
//!
//! A failure of the class `throttled` that names no wait halves the rate, and every success raises it a little. So the rate follows
//! the receiver's own limit, whatever it is. Once it has reached what was sent before the first reduction, or the configured limit, it
//! no longer bounds anything.

use std::time::Duration;

use redrive_retry::Timestamp;

/// Factor of a reduction.
const DECREASE: f64 = 0.5;

/// Increase of the rate by every success, in attempts per second: the rate grows by 5 % in a second.
const INCREASE: f64 = 0.05;

/// The lowest rate, in attempts per second.
const MIN_RATE: f64 = 0.1;

/// Minimum time between two reductions.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// Time over which started attempts are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Rate that follows the answers of a receiver.
#[derive(Clone, Debug)]
pub(super) struct AdaptiveRate {
    reduced: Option<Reduced>,
    /// Attempts started since `counted_from`, and the rate of the window before.
    started: u32,
    counted_from: Timestamp,
    before: f64,
}

#[derive(Copy, Clone, Debug)]
struct Reduced {
    /// Attempts per second.
    rate: f64,
    /// The rate at which the reduction ends.
    full: f64,
    at: Timestamp,
}

impl AdaptiveRate {
    pub(super) fn new(now: Timestamp) -> Self {
        AdaptiveRate { reduced: None, started: 0, counted_from: now, before: 0.0 }
    }

    /// The reduced rate in attempts per second; `None` while the receiver keeps up.
    pub(super) fn rate(&self) -> Option<f64> {
        self.reduced.map(|reduced| reduced.rate)
    }

    /// Counts an attempt that starts.
    pub(super) fn started(&mut self, now: Timestamp) {
        let passed = now.since(self.counted_from);
        if passed >= WINDOW || now < self.counted_from {
            self.before = f64::from(self.started) / passed.max(WINDOW).as_secs_f64();
            (self.started, self.counted_from) = (0, now);
        }
        self.started = self.started.saturating_add(1);
    }

    /// Halves the rate after a throttled attempt. One that began before the last reduction says nothing about the present rate. Returns
    /// whether the rate has changed.
    pub(super) fn throttled(&mut self, began: Timestamp, now: Timestamp, limit: Option<f64>) -> bool {
        let (rate, full) = match self.reduced {
            // After a clock step backwards the times say nothing.
            Some(Reduced { at, .. }) if at <= now && (began < at || now < at + MIN_INTERVAL) => return false,
            Some(reduced) => (reduced.rate, reduced.full),
            None => {
                let measured = self.before.max(f64::from(self.started));
                let rate = limit.map_or(measured, |limit| limit.min(measured));
                (rate, limit.unwrap_or(measured / DECREASE))
            }
        };
        self.reduced = Some(Reduced { rate: (rate * DECREASE).max(MIN_RATE), full, at: now });
        true
    }

    /// Raises the rate after a success.
    pub(super) fn succeeded(&mut self) {
        if let Some(reduced) = &mut self.reduced {
            reduced.rate += INCREASE;
        }
        self.reduced = self.reduced.filter(|reduced| reduced.rate < reduced.full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn at(millis: u64) -> Timestamp {
        START.plus_millis(millis)
    }

    /// A rate after 40 attempts within the first second.
    fn busy() -> AdaptiveRate {
        let mut rate = AdaptiveRate::new(START);
        (0..40).for_each(|n| rate.started(at(n * 20)));
        rate
    }

    #[test]
    fn a_throttled_attempt_halves_the_measured_rate_or_the_limit() {
        let mut rate = busy();
        assert_eq!(rate.rate(), None);
        assert!(rate.throttled(at(790), at(800), None));
        assert_eq!(rate.rate(), Some(20.0));
        let mut limited = busy();
        assert!(limited.throttled(at(790), at(800), Some(8.0)));
        assert_eq!(limited.rate(), Some(4.0));
    }

    #[test]
    fn attempts_that_began_before_a_reduction_reduce_nothing_further() {
        let mut rate = busy();
        assert!(rate.throttled(at(700), at(800), None));
        assert!(!rate.throttled(at(799), at(2000), None), "it began before");
        assert!(!rate.throttled(at(810), at(900), None), "too soon after the last one");
        assert!(rate.throttled(at(810), at(1000), None));
        assert_eq!(rate.rate(), Some(10.0));
        assert!(rate.throttled(at(500), at(510), None), "the clock was set back");
        for n in 0..50 {
            rate.throttled(at(2000 + n * 1000), at(2010 + n * 1000), None);
        }
        assert_eq!(rate.rate(), Some(MIN_RATE), "never stops");
    }

    #[test]
    fn successes_raise_the_rate_until_it_bounds_nothing() {
        let mut rate = busy();
        rate.throttled(at(790), at(800), None);
        for _ in 0..20 {
            rate.succeeded();
        }
        assert!((rate.rate().unwrap() - 21.0).abs() < 1e-6, "{rate:?}");
        for _ in 0..1200 {
            rate.succeeded();
        }
        assert_eq!(rate.rate(), None, "twice the measured rate");
        let mut limited = busy();
        limited.throttled(at(790), at(800), Some(8.0));
        for _ in 0..81 {
            limited.succeeded();
        }
        assert_eq!(limited.rate(), None, "the configured limit");
    }
}
