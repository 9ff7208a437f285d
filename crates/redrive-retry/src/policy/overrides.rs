//! Partial policies, and the merge of several into the most permissive one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::document::PolicyDocument;
use super::{PolicyError, RetryPolicy, checked_multiplier};
use crate::jitter::Jitter;
use crate::ratio::Ratio;

/// Some fields of a policy; the others come from the default it is applied to.
///
/// ```
/// use redrive_retry::{RetryOverride, RetryPolicy};
/// let policy = RetryOverride::new().max_retries(5).base_delay_ms(500).apply_to(&RetryPolicy::bus())?;
/// assert_eq!(policy.max_retries(), 5);
/// assert_eq!(policy.max_delay(), RetryPolicy::bus().max_delay());
/// # Ok::<(), redrive_retry::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PolicyDocument", into = "PolicyDocument")]
pub struct RetryOverride {
    /// Attempts in all, the first one included.
    pub max_attempts: Option<u32>,
    /// The wait before the second attempt.
    pub base_delay: Option<Duration>,
    /// The longest wait.
    pub max_delay: Option<Duration>,
    /// What each further wait is multiplied by.
    pub multiplier: Option<f64>,
    /// How waits are spread.
    pub jitter: Option<Jitter>,
}

impl RetryOverride {
    /// Overrides nothing.
    pub const fn new() -> Self {
        RetryOverride {
            max_attempts: None,
            base_delay: None,
            max_delay: None,
            multiplier: None,
            jitter: None,
        }
    }

    /// Attempts in all, the first one included.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Attempts after the first one.
    #[must_use]
    pub fn max_retries(self, retries: u32) -> Self {
        self.max_attempts(retries.saturating_add(1))
    }

    /// The wait before the second attempt.
    #[must_use]
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.base_delay = Some(delay);
        self
    }

    /// The wait before the second attempt, in milliseconds.
    #[must_use]
    pub fn base_delay_ms(self, millis: u64) -> Self {
        self.base_delay(Duration::from_millis(millis))
    }

    /// The longest nominal wait.
    #[must_use]
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = Some(delay);
        self
    }

    /// The longest nominal wait, in milliseconds.
    #[must_use]
    pub fn max_delay_ms(self, millis: u64) -> Self {
        self.max_delay(Duration::from_millis(millis))
    }

    /// What each further wait is multiplied by.
    #[must_use]
    pub fn backoff_multiplier(mut self, multiplier: f64) -> Self {
        self.multiplier = Some(multiplier);
        self
    }

    /// How waits are spread.
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = Some(jitter);
        self
    }

    /// The default with these fields replaced.
    pub fn apply_to(&self, default: &RetryPolicy) -> Result<RetryPolicy, PolicyError> {
        let policy = self.spread_over(default)?;
        // Who sets both contradicts itself; who sets one gets what the formula gives with the default's other.
        let contradiction = self.base_delay.is_some() && self.max_delay.is_some();
        if contradiction { policy.validate() } else { clamped(policy).validate() }
    }

    /// This one, and where it says nothing, that one.
    #[must_use]
    pub fn or(self, other: RetryOverride) -> Self {
        RetryOverride {
            max_attempts: self.max_attempts.or(other.max_attempts),
            base_delay: self.base_delay.or(other.base_delay),
            max_delay: self.max_delay.or(other.max_delay),
            multiplier: self.multiplier.or(other.multiplier),
            jitter: self.jitter.or(other.jitter),
        }
    }

    /// The most permissive policy of several subscriptions that match one event.
    ///
    /// Field by field over the overrides that set it, beginning with the first: most retries, shortest base, longest
    /// cap, largest multiplier. A field that none sets comes from the default; a default never beats an override.
    /// For jitter there is no "more permissive", so the first override that sets it decides.
    pub fn merge<'a>(
        overrides: impl IntoIterator<Item = &'a RetryOverride>,
        default: &RetryPolicy,
    ) -> Result<RetryPolicy, PolicyError> {
        let mut merged = RetryOverride::new();
        for next in overrides {
            next.apply_to(default)?;
            merged.max_attempts = both(merged.max_attempts, next.max_attempts, u32::max);
            merged.base_delay = both(merged.base_delay, next.base_delay, Duration::min);
            merged.max_delay = both(merged.max_delay, next.max_delay, Duration::max);
            merged.multiplier = both(merged.multiplier, next.multiplier, f64::max);
            merged.jitter = merged.jitter.or(next.jitter);
        }
        merged.spread_over(default).map(clamped)?.validate()
    }

    pub(super) fn spread_over(&self, default: &RetryPolicy) -> Result<RetryPolicy, PolicyError> {
        let mut policy = default.clone();
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

/// A cap below the base yields the cap from the first wait on: so says the formula `min(base · multiplier^n, max)`.
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
    fn an_override_is_laid_over_the_policy_it_is_given() {
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
    fn a_default_never_beats_an_intentionally_lower_override() {
        let one = merged(&[RetryOverride::new().max_retries(1).max_delay_ms(2000)]);
        assert_eq!((one.max_retries(), one.max_delay()), (1, Duration::from_secs(2)));
        // The second override says nothing of retries, so the first one's 1 stands.
        let two = merged(&[RetryOverride::new().max_retries(1), RetryOverride::new().base_delay_ms(5000)]);
        assert_eq!((two.max_retries(), two.base_delay()), (1, Duration::from_secs(5)));
    }

    #[test]
    fn a_merged_cap_below_the_merged_base_acts_as_the_formula_does() {
        let policy =
            merged(&[RetryOverride::new().base_delay_ms(5000), RetryOverride::new().max_delay_ms(2000)]);
        assert_eq!(policy.backoff().nominal(2), Duration::from_secs(2));
        assert_eq!(policy.backoff().nominal(3), Duration::from_secs(2));
    }

    #[test]
    fn a_cap_below_the_defaults_base_acts_as_the_formula_does() {
        let alone = RetryOverride::new().max_delay_ms(500).apply_to(&RetryPolicy::bus()).unwrap();
        assert_eq!(alone.backoff().nominal(2), Duration::from_millis(500));
        let policy =
            merged(&[RetryOverride::new().base_delay_ms(100), RetryOverride::new().max_delay_ms(500)]);
        assert_eq!((policy.base_delay().as_millis(), policy.max_delay().as_millis()), (100, 500));
        let both = RetryOverride::new().base_delay_ms(900).max_delay_ms(500);
        assert!(both.apply_to(&RetryPolicy::bus()).is_err(), "who sets both contradicts itself");
    }

    #[test]
    fn an_invalid_override_is_refused_wherever_it_stands() {
        let bad = RetryOverride::new().backoff_multiplier(f64::NAN);
        assert!(bad.apply_to(&RetryPolicy::bus()).is_err());
        assert!(RetryOverride::merge([&RetryOverride::new(), &bad], &RetryPolicy::bus()).is_err());
        assert!(RetryOverride::new().max_attempts(0).apply_to(&RetryPolicy::bus()).is_err());
    }
}
