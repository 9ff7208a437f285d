//! [`RetryOverride`]: partial policies and their merge into the most permissive one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::document::PolicyDocument;
use super::{PolicyError, Preset, RetryPolicy, checked_multiplier};
use crate::backoff::Growth;
use crate::jitter::Jitter;
use crate::ratio::Ratio;
use crate::setters;

/// Partial retry policy; unset fields come from the policy that it is applied to.
///
/// ```
/// use redrive_retry::{RetryOverride, RetryPolicy};
/// let policy = RetryOverride::new().max_retries(5).base_delay_ms(500).apply_to(&RetryPolicy::bus())?;
/// assert_eq!(policy.max_retries(), 5);
/// assert_eq!(policy.max_delay(), RetryPolicy::bus().max_delay());
/// # Ok::<(), redrive_retry::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PolicyDocument", into = "PolicyDocument")]
#[must_use = "an override has no effect until it is applied to a policy"]
pub struct RetryOverride {
    /// Preset to start from, in place of attempts and delays of the policy that it is applied to.
    pub preset: Option<Preset>,
    /// Largest number of attempts, the first one included.
    pub max_attempts: Option<u32>,
    /// Delay before the second attempt.
    pub base_delay: Option<Duration>,
    /// Longest delay.
    pub max_delay: Option<Duration>,
    /// Factor between consecutive delays.
    pub multiplier: Option<f64>,
    /// Random part of the delays.
    pub jitter: Option<Jitter>,
}

impl RetryOverride {
    /// Creates an override without settings.
    pub const fn new() -> Self {
        RetryOverride {
            preset: None,
            max_attempts: None,
            base_delay: None,
            max_delay: None,
            multiplier: None,
            jitter: None,
        }
    }

    setters! {
        /// Starts from a preset.
        preset(preset: Preset) => preset = Some(preset);
        /// Sets the largest number of attempts, the first one included.
        max_attempts(attempts: u32) => max_attempts = Some(attempts);
        /// Sets the delay before the second attempt.
        base_delay(delay: Duration) => base_delay = Some(delay);
        /// Sets the longest delay.
        max_delay(delay: Duration) => max_delay = Some(delay);
        /// Sets the factor between consecutive delays.
        backoff_multiplier(multiplier: f64) => multiplier = Some(multiplier);
        /// Sets the random part of the delays.
        jitter(jitter: Jitter) => jitter = Some(jitter);
    }

    /// Sets the largest number of attempts after the first one.
    pub fn max_retries(self, retries: u32) -> Self {
        self.max_attempts(retries.saturating_add(1))
    }

    /// Sets the delay before the second attempt in milliseconds.
    pub fn base_delay_ms(self, millis: u64) -> Self {
        self.base_delay(Duration::from_millis(millis))
    }

    /// Sets the longest delay in milliseconds.
    pub fn max_delay_ms(self, millis: u64) -> Self {
        self.max_delay(Duration::from_millis(millis))
    }

    /// Returns `default` with the set fields replaced.
    pub fn apply_to(&self, default: &RetryPolicy) -> Result<RetryPolicy, PolicyError> {
        let policy = self.fill_from(default)?;
        // An override that sets both must be consistent; one that sets one of them is clamped against the default's other.
        let sets_both = self.base_delay.is_some() && self.max_delay.is_some();
        if sets_both { policy.validate() } else { clamped(policy).validate() }
    }

    /// Returns this override with unset fields taken from `other`. A preset replaces all of them, and a base delay or multiplier replaces
    /// a preset with fixed delays.
    pub fn or(self, other: RetryOverride) -> Self {
        if self.preset.is_some() {
            return self;
        }
        let is_exponential = self.base_delay.is_some() || self.multiplier.is_some();
        RetryOverride {
            preset: other.preset.filter(|preset| !(preset.is_fixed() && is_exponential)),
            max_attempts: self.max_attempts.or(other.max_attempts),
            base_delay: self.base_delay.or(other.base_delay),
            max_delay: self.max_delay.or(other.max_delay),
            multiplier: self.multiplier.or(other.multiplier),
            jitter: self.jitter.or(other.jitter),
        }
    }

    /// Merges the overrides of several subscriptions that match one event into the most permissive policy.
    ///
    /// For each field, over the overrides that set it: most attempts, shortest base delay, longest maximum delay, largest
    /// multiplier, and the first jitter. A field that no override sets comes from the default. The fixed delays of a preset, if one
    /// override has them, go before base delay and multiplier.
    pub fn merge<'a>(
        overrides: impl IntoIterator<Item = &'a RetryOverride>,
        default: &RetryPolicy,
    ) -> Result<RetryPolicy, PolicyError> {
        let (mut merged, mut is_fixed) = (RetryOverride::new(), false);
        for next in overrides {
            next.apply_to(default)?;
            is_fixed |= next.preset.is_some_and(Preset::is_fixed);
            let next = next.without_preset();
            merged.max_attempts = both(merged.max_attempts, next.max_attempts, u32::max);
            merged.base_delay = both(merged.base_delay, next.base_delay, Duration::min);
            merged.max_delay = both(merged.max_delay, next.max_delay, Duration::max);
            merged.multiplier = both(merged.multiplier, next.multiplier, f64::max);
            merged.jitter = merged.jitter.or(next.jitter);
        }
        let mut policy = merged.fill_from(default).map(clamped)?;
        if is_fixed {
            policy.backoff.growth = Growth::StandardWebhooks;
        }
        policy.validate()
    }

    /// Writes the settings of the preset out. Fixed delays are lost.
    fn without_preset(&self) -> RetryOverride {
        let Some(preset) = self.preset.map(Preset::policy) else { return self.clone() };
        RetryOverride {
            preset: None,
            max_attempts: self.max_attempts.or(Some(preset.max_attempts())),
            base_delay: self.base_delay.or(Some(preset.base_delay())),
            max_delay: self.max_delay.or(Some(preset.max_delay())),
            multiplier: self.multiplier.or(Some(preset.multiplier())),
            jitter: self.jitter.or(Some(preset.jitter())),
        }
    }

    pub(super) fn fill_from(&self, default: &RetryPolicy) -> Result<RetryPolicy, PolicyError> {
        let mut policy = default.clone();
        if let Some(preset) = self.preset {
            let given =
                [("base_delay", self.base_delay.is_some()), ("multiplier", self.multiplier.is_some())];
            if let Some((second, _)) = given.into_iter().find(|(_, given)| *given && preset.is_fixed()) {
                return Err(PolicyError::SetTwice { first: "preset", second });
            }
            let preset = preset.policy();
            (policy.max_attempts, policy.backoff) = (preset.max_attempts, preset.backoff);
        }
        if self.base_delay.is_some() || self.multiplier.is_some() {
            policy.backoff.growth = Growth::Exponential;
        }
        let backoff = &mut policy.backoff;
        policy.max_attempts = self.max_attempts.unwrap_or(policy.max_attempts);
        backoff.base_delay = self.base_delay.unwrap_or(backoff.base_delay);
        backoff.max_delay = self.max_delay.unwrap_or(backoff.max_delay);
        backoff.multiplier =
            self.multiplier.map_or(Ok::<Ratio, PolicyError>(backoff.multiplier), checked_multiplier)?;
        backoff.jitter = self.jitter.unwrap_or(backoff.jitter);
        Ok(policy)
    }
}

/// Lowers the base delay to the maximum delay, as the formula `min(base · multiplier^n, max)` does.
fn clamped(mut policy: RetryPolicy) -> RetryPolicy {
    policy.backoff.base_delay = policy.backoff.base_delay.min(policy.backoff.max_delay);
    policy
}

fn both<T: Copy>(left: Option<T>, right: Option<T>, choose: fn(T, T) -> T) -> Option<T> {
    match (left, right) {
        (Some(left), Some(right)) => Some(choose(left, right)),
        (left, right) => left.or(right),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(overrides: &[RetryOverride]) -> RetryPolicy {
        RetryOverride::merge(overrides, &RetryPolicy::bus()).unwrap()
    }

    #[test]
    fn a_partial_override_keeps_the_other_defaults() {
        let policy =
            RetryOverride::new().max_retries(5).base_delay_ms(500).apply_to(&RetryPolicy::bus()).unwrap();
        let expected =
            RetryPolicy::builder().max_retries(5).base_delay(Duration::from_millis(500)).build().unwrap();
        assert_eq!(policy, expected);
    }

    #[test]
    fn a_preset_replaces_attempts_and_delays_and_can_be_changed_further() {
        let webhook = RetryPolicy::webhook();
        let standard = RetryOverride::new().preset(Preset::Standard);
        assert_eq!(standard.apply_to(&webhook).unwrap(), RetryPolicy::standard());
        let longer = standard.clone().max_attempts(12).apply_to(&webhook).unwrap();
        assert_eq!((longer.max_attempts(), longer.backoff().nominal(3).as_secs()), (12, 300));
        let patient = RetryOverride::new().preset(Preset::Patient).base_delay_ms(5000);
        assert_eq!(patient.apply_to(&webhook).unwrap().backoff().nominal(3).as_secs(), 10);
        let both = standard.clone().base_delay_ms(500).apply_to(&webhook).unwrap_err().to_string();
        assert!(both.contains("preset and base_delay set the same thing"), "{both}");
        // A later change replaces the fixed delays.
        let changed =
            RetryOverride::new().base_delay_ms(500).or(standard.clone()).apply_to(&webhook).unwrap();
        assert_eq!((changed.max_attempts(), changed.backoff().nominal(3).as_millis()), (5, 1000));
        assert_eq!(standard.clone().or(RetryOverride::new().base_delay_ms(500)), standard);
        let under = RetryOverride::new().base_delay_ms(500).apply_to(&RetryPolicy::standard()).unwrap();
        assert_eq!(under.backoff().nominal(3).as_millis(), 1000, "over a server with fixed delays");
        for json in [r#"{"preset":"standard"}"#, r#"{"max_attempts":30,"preset":"patient"}"#] {
            let read: RetryOverride = serde_json::from_str(json).unwrap();
            let again: RetryOverride = serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
            assert_eq!((read.preset.is_some(), &again), (true, &read));
        }
        assert!(serde_json::from_str::<RetryOverride>(r#"{"preset":"bus"}"#).is_err());
    }

    #[test]
    fn fixed_delays_of_one_override_go_before_those_of_others() {
        let policy = merged(&[
            RetryOverride::new().max_retries(1).base_delay_ms(200),
            RetryOverride::new().preset(Preset::Standard),
        ]);
        assert_eq!((policy.max_attempts(), policy.backoff().nominal(3).as_secs()), (10, 300));
    }

    #[test]
    fn the_example_of_the_specification_reads_as_json() {
        let parsed: RetryOverride =
            serde_json::from_str(r#"{ "maxRetries": 5, "baseDelayMs": 500 }"#).unwrap();
        assert_eq!(parsed, RetryOverride::new().max_retries(5).base_delay_ms(500));
    }

    #[test]
    fn several_overrides_merge_into_the_most_permissive() {
        let policy = merged(&[
            RetryOverride::new()
                .max_retries(1)
                .base_delay_ms(2000)
                .max_delay_ms(5000)
                .backoff_multiplier(1.5),
            RetryOverride::new().max_retries(7).base_delay_ms(300).max_delay_ms(4000).backoff_multiplier(3.0),
        ]);
        assert_eq!(policy.max_retries(), 7, "max");
        assert_eq!(policy.base_delay(), Duration::from_millis(300), "min");
        assert_eq!(policy.max_delay(), Duration::from_millis(5000), "max");
        assert_eq!(policy.multiplier(), 3.0, "max");
    }

    #[test]
    fn overrides_merge_the_same_in_any_order() {
        let a = RetryOverride::new()
            .max_retries(1)
            .base_delay_ms(2000)
            .max_delay_ms(5000)
            .backoff_multiplier(1.5);
        let b =
            RetryOverride::new().max_retries(7).base_delay_ms(300).max_delay_ms(4000).backoff_multiplier(2.5);
        let c =
            RetryOverride::new().max_retries(4).base_delay_ms(900).max_delay_ms(3000).backoff_multiplier(3.0);
        for order in [[&a, &b, &c], [&a, &c, &b], [&b, &a, &c], [&b, &c, &a], [&c, &a, &b], [&c, &b, &a]] {
            let policy = RetryOverride::merge(order, &RetryPolicy::bus()).unwrap();
            let numbers =
                (policy.max_retries(), policy.base_delay().as_millis(), policy.max_delay().as_millis());
            assert_eq!((numbers, policy.multiplier()), ((7, 300, 5000), 3.0));
        }
    }

    #[test]
    fn unset_fields_come_from_the_given_policy() {
        let policy = RetryOverride::new().max_retries(9).apply_to(&RetryPolicy::webhook()).unwrap();
        assert_eq!(
            (policy.max_retries(), policy.max_delay().as_secs()),
            (9, 3600),
            "the webhook cap, not the bus's"
        );
        let merged =
            RetryOverride::merge([&RetryOverride::new().base_delay_ms(5)], &RetryPolicy::webhook()).unwrap();
        assert_eq!((merged.max_attempts(), merged.max_delay().as_secs()), (5, 3600));
    }

    #[test]
    fn without_overrides_the_default_holds() {
        assert_eq!(merged(&[]), RetryPolicy::bus());
        assert_eq!(merged(&[RetryOverride::new()]), RetryPolicy::bus());
    }

    #[test]
    fn an_override_below_the_default_wins() {
        let one = merged(&[RetryOverride::new().max_retries(1).max_delay_ms(2000)]);
        assert_eq!((one.max_retries(), one.max_delay()), (1, Duration::from_secs(2)));
        // The second override does not set the retries, so the first one's 1 stays.
        let two = merged(&[RetryOverride::new().max_retries(1), RetryOverride::new().base_delay_ms(5000)]);
        assert_eq!((two.max_retries(), two.base_delay()), (1, Duration::from_secs(5)));
    }

    #[test]
    fn a_merged_maximum_below_the_merged_base_caps_every_delay() {
        let policy =
            merged(&[RetryOverride::new().base_delay_ms(5000), RetryOverride::new().max_delay_ms(2000)]);
        assert_eq!(policy.backoff().nominal(2), Duration::from_secs(2));
        assert_eq!(policy.backoff().nominal(3), Duration::from_secs(2));
    }

    #[test]
    fn a_maximum_below_the_defaults_base_caps_every_delay() {
        let alone = RetryOverride::new().max_delay_ms(500).apply_to(&RetryPolicy::bus()).unwrap();
        assert_eq!(alone.backoff().nominal(2), Duration::from_millis(500));
        let policy =
            merged(&[RetryOverride::new().base_delay_ms(100), RetryOverride::new().max_delay_ms(500)]);
        assert_eq!((policy.base_delay().as_millis(), policy.max_delay().as_millis()), (100, 500));
        let both = RetryOverride::new().base_delay_ms(900).max_delay_ms(500);
        assert!(both.apply_to(&RetryPolicy::bus()).is_err(), "an override that sets both must be consistent");
    }

    #[test]
    fn an_invalid_override_is_refused_at_any_position() {
        let bad = RetryOverride::new().backoff_multiplier(f64::NAN);
        assert!(bad.apply_to(&RetryPolicy::bus()).is_err());
        assert!(RetryOverride::merge([&RetryOverride::new(), &bad], &RetryPolicy::bus()).is_err());
        assert!(RetryOverride::new().max_attempts(0).apply_to(&RetryPolicy::bus()).is_err());
    }
}
