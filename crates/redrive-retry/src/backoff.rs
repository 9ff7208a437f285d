//! Backoff with a maximum delay and replayable jitter.
//!
//! Delays are computed in whole milliseconds with saturating arithmetic, and only with operations whose result IEEE 754
//! defines exactly, so equal policies give equal delays on every machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::jitter::Jitter;
use crate::ratio::Ratio;
use crate::timestamp::saturating_millis;

/// Delays of the schedule that Standard Webhooks recommends, in seconds: 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h.
const STANDARD_WEBHOOKS_SECONDS: [u64; 9] = [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400];

/// Shortest delay after an answer that the destination is overloaded, and the longest to which it grows at least.
const MIN_THROTTLED_DELAY: Duration = Duration::from_secs(10);
const MAX_THROTTLED_DELAY: Duration = Duration::from_secs(300);

/// Growth of the delays from attempt to attempt.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Growth {
    /// Base delay times a power of the multiplier.
    #[default]
    Exponential,
    /// The fixed delays that Standard Webhooks recommends; the last one repeats.
    StandardWebhooks,
}

impl Growth {
    fn is_exponential(&self) -> bool {
        *self == Growth::Exponential
    }
}

/// Base delay, multiplier, maximum delay and jitter. Part of a [`RetryPolicy`](crate::RetryPolicy).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "RecordedBackoff", from = "RecordedBackoff")]
pub struct Backoff {
    pub(crate) growth: Growth,
    /// Delay before the second attempt.
    pub(crate) base_delay: Duration,
    /// Factor between consecutive delays. At least 1. Fixed delays have none.
    pub(crate) multiplier: Ratio,
    /// Longest delay, without jitter.
    pub(crate) max_delay: Duration,
    /// Random part of the delay.
    pub(crate) jitter: Jitter,
}

impl Backoff {
    /// Slower delays for a destination that is overloaded and does not say for how long: at least 10 s, doubling up to 5 min or more.
    /// Fixed delays of 10 s and more stay as they are.
    #[must_use]
    pub fn throttled(&self) -> Self {
        Backoff {
            base_delay: self.base_delay.max(MIN_THROTTLED_DELAY),
            multiplier: self.multiplier.max(Ratio::from_millionths(2_000_000)),
            max_delay: self.max_delay.max(MAX_THROTTLED_DELAY),
            ..*self
        }
    }

    /// Whether delays grow by the multiplier. Otherwise they are the fixed ones of a preset.
    pub fn is_exponential(&self) -> bool {
        self.growth.is_exponential()
    }

    /// Delay before `attempt` without jitter: `min(base · multiplier^(attempt - 2), max)`; zero before the first.
    pub fn nominal(&self, attempt: u32) -> Duration {
        Duration::from_millis(self.nominal_millis(attempt))
    }

    /// Range of possible delays before `attempt`. `minimum` is a delay that the destination requested.
    pub fn range(&self, attempt: u32, minimum: Option<Duration>) -> DelayRange {
        let nominal = self.nominal_millis(attempt);
        let (mut min, mut max) =
            if attempt < 2 { (0, 0) } else { self.jitter.spread(nominal, saturating_millis(self.max_delay)) };
        if let Some(minimum) = minimum.map(saturating_millis)
            && minimum > min
        {
            // A requested minimum is never undercut: jitter applies above it only.
            min = minimum;
            max = max.max(minimum.saturating_add(self.jitter.width_above(minimum, nominal)));
        }
        DelayRange { min, max }
    }

    /// Delay before `attempt` for this identity. Deterministic, so a replay gives the same delay.
    pub fn delay(&self, attempt: u32, minimum: Option<Duration>, identity: Identity<'_>) -> Duration {
        Duration::from_millis(self.range(attempt, minimum).pick(identity.hash(attempt)))
    }

    fn nominal_millis(&self, attempt: u32) -> u64 {
        let Some(exponent) = attempt.checked_sub(2) else {
            return 0;
        };
        let max = saturating_millis(self.max_delay);
        if self.growth == Growth::StandardWebhooks {
            let last = STANDARD_WEBHOOKS_SECONDS.len() - 1;
            let index = usize::try_from(exponent).map_or(last, |index| index.min(last));
            // The base delay of the preset is its first delay; only that of a throttled policy is longer.
            let base = saturating_millis(self.base_delay);
            return (STANDARD_WEBHOOKS_SECONDS[index] * 1000).max(base).min(max);
        }
        // Rust's float-to-integer cast saturates, so an overflow to infinity lands on the cap.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let grown =
            (saturating_millis(self.base_delay) as f64 * power(self.multiplier.as_f64(), exponent)) as u64;
        grown.min(max)
    }
}

/// Backoff in decision records, as whole numbers: text such as "1m 30s" and "90s" would let a changed record pass verification.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedBackoff {
    #[serde(default, skip_serializing_if = "Growth::is_exponential")]
    growth: Growth,
    base_delay_ms: u64,
    multiplier_millionths: u32,
    max_delay_ms: u64,
    jitter: RecordedJitter,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RecordedJitter {
    None,
    Proportional { millionths: u32 },
    Additive { ms: u64 },
    Full,
    Equal,
}

impl From<Backoff> for RecordedBackoff {
    fn from(backoff: Backoff) -> Self {
        RecordedBackoff {
            growth: backoff.growth,
            base_delay_ms: saturating_millis(backoff.base_delay),
            multiplier_millionths: backoff.multiplier.millionths(),
            max_delay_ms: saturating_millis(backoff.max_delay),
            jitter: match backoff.jitter {
                Jitter::None => RecordedJitter::None,
                Jitter::Proportional(ratio) => {
                    RecordedJitter::Proportional { millionths: ratio.millionths() }
                }
                Jitter::Additive(amount) => RecordedJitter::Additive { ms: saturating_millis(amount) },
                Jitter::Full => RecordedJitter::Full,
                Jitter::Equal => RecordedJitter::Equal,
            },
        }
    }
}

impl From<RecordedBackoff> for Backoff {
    fn from(recorded: RecordedBackoff) -> Self {
        Backoff {
            growth: recorded.growth,
            base_delay: Duration::from_millis(recorded.base_delay_ms),
            multiplier: Ratio::from_millionths(recorded.multiplier_millionths),
            max_delay: Duration::from_millis(recorded.max_delay_ms),
            jitter: match recorded.jitter {
                RecordedJitter::None => Jitter::None,
                RecordedJitter::Proportional { millionths } => {
                    Jitter::Proportional(Ratio::from_millionths(millionths))
                }
                RecordedJitter::Additive { ms } => Jitter::Additive(Duration::from_millis(ms)),
                RecordedJitter::Full => Jitter::Full,
                RecordedJitter::Equal => Jitter::Equal,
            },
        }
    }
}

/// Computes `base^exponent` by repeated squaring; the precision of `f64::powi` depends on the platform.
pub(crate) fn power(base: f64, mut exponent: u32) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

/// Range of delays that jitter allows, both ends included.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DelayRange {
    min: u64,
    max: u64,
}

impl DelayRange {
    /// Shortest delay.
    pub fn min(self) -> Duration {
        Duration::from_millis(self.min)
    }

    /// Longest delay.
    pub fn max(self) -> Duration {
        Duration::from_millis(self.max)
    }

    /// Maps 64 random bits uniformly onto the range.
    fn pick(self, random: u64) -> u64 {
        let values = u128::from(self.max - self.min) + 1;
        // Multiply-and-shift: uniform to within one part in 2^64 / values.
        #[allow(clippy::cast_possible_truncation)] // (2^64 - 1) * values >> 64 is below values, which fits
        let offset = ((u128::from(random) * values) >> 64) as u64;
        self.min + offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::RetryPolicy;
    use proptest::prelude::*;

    fn backoff(base: u64, multiplier: f64, max: u64, jitter: Jitter) -> Backoff {
        let multiplier = Ratio::from_f64(multiplier).unwrap();
        Backoff {
            growth: Growth::Exponential,
            base_delay: Duration::from_millis(base),
            multiplier,
            max_delay: Duration::from_millis(max),
            jitter,
        }
    }

    fn range_ms(range: DelayRange) -> (u64, u64) {
        (range.min, range.max)
    }

    #[test]
    fn the_delays_of_the_bus_policy() {
        let delays: Vec<u64> = (1..=7).map(|n| RetryPolicy::bus().backoff().nominal_millis(n)).collect();
        assert_eq!(delays, [0, 1000, 2000, 4000, 8000, 16000, 30000]);
    }

    #[test]
    fn the_delays_of_the_webhook_policy_with_jitter() {
        let webhook = RetryPolicy::webhook();
        let delays: Vec<u64> = (2..=6).map(|n| webhook.backoff().nominal_millis(n)).collect();
        assert_eq!(delays, [1000, 2000, 4000, 8000, 16000]);
        assert_eq!(range_ms(webhook.backoff().range(2, None)), (900, 1100));
        // Both delays together: the second retry comes between 2.7 s and 3.3 s after the first failure.
        assert_eq!(range_ms(webhook.backoff().range(3, None)), (1800, 2200));
        assert_eq!(webhook.backoff().nominal(40), Duration::from_secs(3600), "capped at one hour");
    }

    #[test]
    fn the_standard_preset_has_the_delays_that_standard_webhooks_recommends() {
        let standard = RetryPolicy::standard();
        let seconds: Vec<u64> = (2..=10).map(|n| standard.backoff().nominal(n).as_secs()).collect();
        assert_eq!(seconds, [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]);
        assert_eq!(standard.max_attempts(), 10);
        assert_eq!(seconds.iter().sum::<u64>(), 75 * 3600 + 35 * 60 + 5, "a little more than three days");
        assert_eq!(range_ms(standard.backoff().range(3, None)), (270_000, 330_000));
        assert_eq!(standard.backoff().nominal(u32::MAX), Duration::from_secs(86_400), "the last one repeats");
    }

    #[test]
    fn the_patient_preset_lasts_almost_five_days() {
        let patient = RetryPolicy::patient();
        let minutes: Vec<u64> =
            (2..=patient.max_attempts()).map(|n| patient.backoff().nominal(n).as_secs() / 60).collect();
        assert_eq!(minutes[..11], [1, 2, 4, 8, 16, 32, 64, 128, 256, 480, 480]);
        // An endpoint that fails for five days is disabled.
        let hours = minutes.iter().sum::<u64>() / 60;
        assert!((108..120).contains(&hours), "{hours}");
    }

    #[test]
    fn throttled_delays_are_slower_and_never_shorter_than_those_of_the_policy() {
        let seconds = |policy: &RetryPolicy| -> Vec<u64> {
            (2..=8).map(|n| policy.backoff().throttled().nominal(n).as_secs()).collect()
        };
        assert_eq!(seconds(&RetryPolicy::webhook()), [10, 20, 40, 80, 160, 320, 640]);
        assert_eq!(seconds(&RetryPolicy::bus()), [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(seconds(&RetryPolicy::patient())[..3], [60, 120, 240]);
        assert_eq!(seconds(&RetryPolicy::standard())[..3], [10, 300, 1800]);
    }

    #[test]
    fn the_delays_of_the_call_policy_with_jitter() {
        let policy = RetryPolicy::call();
        let ranges: Vec<_> = (2..=5).map(|n| range_ms(policy.backoff().range(n, None))).collect();
        assert_eq!(ranges, [(900, 1100), (1800, 2200), (3600, 4400), (7200, 8800)]);
    }

    #[test]
    fn the_delays_of_the_scheduler_policy_with_jitter_above_the_cap() {
        let policy = RetryPolicy::scheduler();
        let ranges: Vec<_> = (2..=8).map(|n| range_ms(policy.backoff().range(n, None))).collect();
        let expected = [2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000].map(|ms| (ms, ms + 1000));
        assert_eq!(ranges, expected);
    }

    #[test]
    fn proportional_jitter_spreads_downward_at_the_cap() {
        let b = backoff(1000, 2.0, 30_000, Jitter::TEN_PERCENT);
        assert_eq!(range_ms(b.range(7, None)), (27_000, 30_000));
        assert_eq!(range_ms(b.range(6, None)), (14_400, 17_600));
    }

    #[test]
    fn proportional_jitter_is_its_share_of_the_delay() {
        let range = |factor| {
            range_ms(backoff(1000, 2.0, 30_000, Jitter::proportional(factor).unwrap()).range(3, None))
        };
        assert_eq!(range(0.2), (1600, 2400));
        assert_eq!(range(1.0), (0, 4000));
        assert_eq!(range(0.0), (2000, 2000));
    }

    #[test]
    fn full_and_equal_jitter() {
        assert_eq!(range_ms(backoff(1000, 2.0, 30_000, Jitter::Full).range(3, None)), (0, 2000));
        assert_eq!(range_ms(backoff(1000, 2.0, 30_000, Jitter::Equal).range(3, None)), (1000, 2000));
        assert_eq!(range_ms(backoff(1000, 2.0, 30_000, Jitter::None).range(3, None)), (2000, 2000));
    }

    #[test]
    fn a_requested_minimum_is_never_undercut_and_jitter_goes_upward() {
        let b = |jitter| backoff(1000, 2.0, 30_000, jitter);
        let asked = |s| Some(Duration::from_secs(s));
        assert_eq!(
            range_ms(b(Jitter::TEN_PERCENT).range(2, asked(60))),
            (60_000, 66_000),
            "beyond the cap, too"
        );
        assert_eq!(range_ms(b(Jitter::TEN_PERCENT).range(2, asked(1))), (1000, 1100));
        assert_eq!(range_ms(b(Jitter::None).range(2, asked(60))), (60_000, 60_000));
        assert_eq!(range_ms(b(Jitter::Full).range(2, asked(60))), (60_000, 61_000));
        assert_eq!(range_ms(b(Jitter::Equal).range(3, asked(60))), (60_000, 61_000));
        assert_eq!(
            range_ms(b(Jitter::Additive(Duration::from_secs(1))).range(2, asked(60))),
            (60_000, 61_000)
        );
        assert_eq!(range_ms(b(Jitter::TEN_PERCENT).range(2, Some(Duration::from_millis(1)))), (900, 1100));
        assert_eq!(
            range_ms(b(Jitter::None).range(2, Some(Duration::MAX))),
            (u64::MAX, u64::MAX),
            "saturates"
        );
    }

    #[test]
    fn attempt_four_billion_does_not_overflow() {
        for attempt in [4_000_000_000, u32::MAX] {
            assert_eq!(backoff(1000, 2.0, 30_000, Jitter::None).nominal_millis(attempt), 30_000);
            assert_eq!(backoff(1000, 1.0, 30_000, Jitter::None).nominal_millis(attempt), 1000);
            assert_eq!(
                backoff(0, 1000.0, 30_000, Jitter::None).nominal_millis(attempt),
                0,
                "0 · ∞ is 0 here"
            );
        }
    }

    fn any_backoff() -> impl Strategy<Value = Backoff> {
        let jitter = prop_oneof![
            Just(Jitter::None),
            (0.0f64..=1.0).prop_map(|factor| Jitter::proportional(factor).unwrap()),
            (0u64..100_000).prop_map(|ms| Jitter::Additive(Duration::from_millis(ms))),
            Just(Jitter::Full),
            Just(Jitter::Equal),
        ];
        (0u64..10_000_000, 1.0f64..1000.0, 0u64..100_000_000, jitter)
            .prop_map(|(base, multiplier, extra, jitter)| backoff(base, multiplier, base + extra, jitter))
    }

    proptest! {
        #[test]
        fn every_delay_lies_in_its_range_and_the_range_obeys_the_cap(
            b in any_backoff(), attempt in any::<u32>(), seed in any::<u64>(), asked in proptest::option::of(any::<u32>()),
        ) {
            let minimum = asked.map(|ms| Duration::from_millis(u64::from(ms)));
            let range = b.range(attempt, minimum);
            let delay = b.delay(attempt, minimum, Identity::new(seed, "event", "subscription"));
            prop_assert!(range.min() <= delay && delay <= range.max());
            prop_assert!(minimum.is_none_or(|minimum| delay >= minimum));
            let cap = match b.jitter { Jitter::Additive(amount) => b.max_delay + amount, _ => b.max_delay };
            prop_assert!(minimum.is_some() || delay <= cap);
        }

        #[test]
        fn without_jitter_delays_never_shrink(b in any_backoff(), attempt in 1u32..10_000) {
            prop_assert!(b.nominal(attempt) <= b.nominal(attempt + 1));
        }

        #[test]
        fn jitter_is_uniformly_distributed(seed in any::<u64>(), jitter in prop_oneof![
            Just(Jitter::TEN_PERCENT), Just(Jitter::Full), Just(Jitter::Equal), Just(Jitter::Additive(Duration::from_secs(1))),
        ]) {
            let b = backoff(1000, 2.0, 30_000, jitter);
            // At the cap as well, where clamping would accumulate on one value.
            for attempt in [2, 3, 12] {
                let range = b.range(attempt, None);
                let mut tenths = [0u32; 10];
                for event in 0..2000 {
                    let delay = b.delay(attempt, None, Identity::new(seed, &event.to_string(), "s"));
                    let position = (delay - range.min()).as_millis() * 10 / ((range.max() - range.min()).as_millis() + 1);
                    tenths[usize::try_from(position).unwrap()] += 1;
                }
                // 200 expected in each tenth, standard deviation 13.4: six of those either way.
                prop_assert!(tenths.iter().all(|n| (120..=280).contains(n)), "{jitter} {attempt} {tenths:?}");
            }
        }
    }
}
