//! Retry policies: number of attempts, delays, timeouts and error rules.
//!
//! [`RetryPolicy`] is the one policy type of guarded calls, event bus, webhooks and scheduler. Its fields are private and every
//! constructor validates, so every policy value is valid.

mod builder;
mod document;
mod overrides;
mod presets;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::builder::RetryPolicyBuilder;
pub use self::overrides::RetryOverride;
pub use self::presets::Preset;
pub use crate::backoff::{Backoff, DelayRange};
use crate::duration::{DurationError, format_duration};
use crate::identity::Identity;
pub use crate::jitter::Jitter;
pub use crate::ratio::{Ratio, RatioError};
pub use crate::rules::{ErrorRule, RuleError, Rules};

/// Number of attempts, delays between them, time limits and error rules of a retried operation.
///
/// ```
/// use redrive_retry::RetryPolicy;
/// use std::time::Duration;
///
/// let policy = RetryPolicy::builder().max_retries(5).base_delay(Duration::from_millis(500)).build()?;
/// assert_eq!(policy.max_attempts(), 6);
/// assert_eq!(policy.backoff().nominal(2), Duration::from_millis(500));
///
/// // From configuration, with the field names of any of the specifications:
/// let parsed: RetryPolicy = serde_json::from_str(r#"{"maxRetries": 5, "baseDelayMs": 500}"#)?;
/// assert_eq!(parsed, policy);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "document::PolicyDocument", into = "document::PolicyDocument")]
pub struct RetryPolicy {
    max_attempts: u32,
    backoff: Backoff,
    /// Time limit of one attempt.
    attempt_timeout: Option<Duration>,
    /// Time limit of all attempts and delays together.
    deadline: Option<Duration>,
    rules: Rules,
}

impl RetryPolicy {
    /// Largest number of attempts. Retrying once per second, this lasts eleven days.
    pub const MAX_ATTEMPTS: u32 = 1_000_000;
    /// Longest delay, timeout or deadline: a leap year.
    pub const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);
    /// Largest multiplier.
    pub const MAX_MULTIPLIER: f64 = 1000.0;

    /// Creates a builder with the settings of the bus preset.
    pub fn builder() -> RetryPolicyBuilder {
        RetryPolicyBuilder::new(Self::bus())
    }

    /// Creates a builder with the settings of this policy.
    pub fn to_builder(&self) -> RetryPolicyBuilder {
        RetryPolicyBuilder::new(self.clone())
    }

    /// Largest number of attempts, the first one included. At least 1.
    #[inline]
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Largest number of attempts after the first one.
    pub fn max_retries(&self) -> u32 {
        self.max_attempts - 1
    }

    /// Delays between the attempts.
    pub fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// This policy with slower delays, for a destination that is overloaded: see [`Backoff::throttled`].
    #[must_use]
    pub fn throttled(&self) -> Self {
        RetryPolicy { backoff: self.backoff.throttled(), ..self.clone() }
    }

    /// Delay before the second attempt, without jitter.
    pub fn base_delay(&self) -> Duration {
        self.backoff.base_delay
    }

    /// Longest delay, without jitter.
    pub fn max_delay(&self) -> Duration {
        self.backoff.max_delay
    }

    /// Factor between consecutive delays.
    pub fn multiplier(&self) -> f64 {
        self.backoff.multiplier.as_f64()
    }

    /// Random part of the delays.
    pub fn jitter(&self) -> Jitter {
        self.backoff.jitter
    }

    /// Time limit of one attempt.
    pub fn attempt_timeout(&self) -> Option<Duration> {
        self.attempt_timeout
    }

    /// Time limit of all attempts and delays together.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Rules that classify errors as retryable or permanent.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Iterates over the delays before the second, third … last attempt of an operation.
    ///
    /// ```
    /// # use redrive_retry::RetryPolicy;
    /// # use redrive_retry::decision::Identity;
    /// let delays: Vec<_> = RetryPolicy::bus().delays(Identity::new(7, "order-1", "shipping")).collect();
    /// assert_eq!(delays.len(), 3);
    /// ```
    pub fn delays<'a>(&self, identity: Identity<'a>) -> impl Iterator<Item = Duration> + use<'a> {
        let backoff = self.backoff;
        (2..=self.max_attempts).map(move |attempt| backoff.delay(attempt, None, identity))
    }

    fn validate(self) -> Result<Self, PolicyError> {
        let Backoff { base_delay, multiplier, max_delay, jitter, .. } = self.backoff;
        if self.max_attempts == 0 {
            return Err(PolicyError::NoAttempts);
        }
        if self.max_attempts > Self::MAX_ATTEMPTS {
            return Err(PolicyError::TooManyAttempts { attempts: self.max_attempts.into() });
        }
        checked_multiplier(multiplier.as_f64())?;
        let added = match jitter {
            Jitter::Proportional(ratio) => Jitter::proportional(ratio.as_f64()).map(|_| None)?,
            Jitter::Additive(amount) => Some(amount),
            Jitter::None | Jitter::Full | Jitter::Equal => None,
        };
        let lengths = [
            ("jitter", added),
            ("base_delay", Some(base_delay)),
            ("max_delay", Some(max_delay)),
            ("attempt_timeout", self.attempt_timeout),
            ("deadline", self.deadline),
        ];
        for (field, value) in lengths {
            if let Some(value) = value.filter(|value| *value > Self::MAX_DURATION) {
                return Err(PolicyError::TooLong { field, value });
            }
            if let Some(value) = value.filter(|value| value.subsec_nanos() % 1_000_000 != 0) {
                return Err(PolicyError::NotWholeMillis { field, value });
            }
        }
        for (field, value) in [("attempt_timeout", self.attempt_timeout), ("deadline", self.deadline)] {
            if value == Some(Duration::ZERO) {
                return Err(PolicyError::NoTime { field });
            }
        }
        if max_delay < base_delay {
            return Err(PolicyError::CapBelowBase { base: base_delay, cap: max_delay });
        }
        Ok(self)
    }
}

fn checked_multiplier(multiplier: f64) -> Result<Ratio, PolicyError> {
    match Ratio::from_f64(multiplier) {
        Some(ratio) if ratio >= Ratio::ONE && multiplier <= RetryPolicy::MAX_MULTIPLIER => Ok(ratio),
        _ => Err(PolicyError::Multiplier { multiplier }),
    }
}

/// Invalid settings of a policy. Each message says what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The number of attempts is 0.
    #[error("max_attempts is 0, so no attempt would be made: set it to 1 for no retries")]
    NoAttempts,
    /// The number of attempts is too large.
    #[error(
        "{attempts} attempts are more than {max}: lower max_attempts or max_retries, and raise the delays",
        max = RetryPolicy::MAX_ATTEMPTS
    )]
    TooManyAttempts {
        /// The requested value.
        attempts: u64,
    },
    /// The multiplier is below 1, NaN or too large.
    #[error(
        "a multiplier of {multiplier} does not work: set it from 1 (constant delay) to {max}; 2 doubles each delay",
        max = RetryPolicy::MAX_MULTIPLIER
    )]
    Multiplier {
        /// The requested value.
        multiplier: f64,
    },
    /// The longest delay is shorter than the first one.
    #[error(
        "max_delay {} is below base_delay {}: raise max_delay or lower base_delay",
        format_duration(*cap), format_duration(*base)
    )]
    CapBelowBase {
        /// The first delay.
        base: Duration,
        /// The longest delay.
        cap: Duration,
    },
    /// A duration is longer than a year.
    #[error("{field} of {} is longer than a year: shorten it", format_duration(*value))]
    TooLong {
        /// Name of the field.
        field: &'static str,
        /// The field's value.
        value: Duration,
    },
    /// A duration is not a whole number of milliseconds.
    #[error("{field} of {value:?} is not a whole number of milliseconds: round it")]
    NotWholeMillis {
        /// Name of the field.
        field: &'static str,
        /// The field's value.
        value: Duration,
    },
    /// A number is negative or has a fraction.
    #[error("{field} is {value}: write a whole number from 0 up")]
    NotACount {
        /// Name of the field.
        field: &'static str,
        /// The field's value.
        value: f64,
    },
    /// A timeout or deadline is 0.
    #[error(
        "{field} is 0, so no attempt could ever succeed: leave it out for no limit, or give it some time"
    )]
    NoTime {
        /// Name of the field.
        field: &'static str,
    },
    /// A duration is negative or not finite.
    #[error("{field} is {value:?} seconds: write a number of seconds from 0 up, or text such as \"250ms\"")]
    NotATime {
        /// Name of the field.
        field: &'static str,
        /// The field's value.
        value: f64,
    },
    /// A jitter factor is outside 0..=1.
    #[error("a jitter factor of {factor} does not work: set it from 0 to 1 (0.1 or \"10%\" is ±10 %)")]
    JitterFactor {
        /// The requested value.
        factor: f64,
    },
    /// A jitter text cannot be parsed.
    #[error("{text:?} is not a jitter: write one of none, 10%, 0..1s, full, equal")]
    JitterText {
        /// The text.
        text: String,
    },
    /// A duration text cannot be parsed.
    #[error("{field}: {source}")]
    Duration {
        /// Name of the field.
        field: &'static str,
        /// The parse error.
        source: DurationError,
    },
    /// Two fields set one setting.
    #[error("{first} and {second} set the same thing: keep one of them")]
    SetTwice {
        /// Name of the first field.
        first: &'static str,
        /// Name of the second field.
        second: &'static str,
    },
    /// The field is not allowed in an override.
    #[error(
        "{field} belongs to a whole policy, not to an override: set it on the policy or on the subscription"
    )]
    NotOverridable {
        /// Name of the field.
        field: &'static str,
    },
    /// The preset does not exist.
    #[error(
        "there is no preset {name:?}: use bus, webhook, standard, patient, scheduler, call, or a category such as API_REQUEST"
    )]
    UnknownPreset {
        /// The requested value.
        name: String,
    },
    /// The preset does not exist for webhooks.
    #[error("there is no preset {name:?}: use standard (three days) or patient (almost five days)")]
    UnknownWebhookPreset {
        /// The requested value.
        name: String,
    },
    /// An error rule cannot be parsed.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn an_invalid_policy_gets_an_error_that_says_what_to_change() {
        let b = RetryPolicy::builder;
        let year_and_more = RetryPolicy::MAX_DURATION + secs(1);
        let cases: Vec<(RetryPolicyBuilder, &str)> = vec![
            (b().max_attempts(0), "set it to 1"),
            (b().max_attempts(1_000_001), "lower max_attempts"),
            (b().max_retries(u32::MAX), "lower max_attempts"),
            (b().multiplier(0.99), "from 1 (constant delay) to 1000"),
            (b().multiplier(f64::NAN), "from 1"),
            (b().multiplier(f64::INFINITY), "from 1"),
            (b().multiplier(1000.1), "from 1"),
            (b().max_delay(secs(1)).base_delay(secs(2)), "raise max_delay or lower base_delay"),
            (b().max_delay(year_and_more), "max_delay of"),
            (b().max_delay(Duration::MAX), "longer than a year"),
            (b().attempt_timeout(Duration::ZERO), "attempt_timeout is 0"),
            (
                b().attempt_timeout(Duration::from_micros(300)),
                "attempt_timeout of 300µs is not a whole number",
            ),
            (b().deadline(Duration::ZERO), "deadline is 0"),
            (b().deadline(year_and_more), "deadline of"),
            (b().jitter(Jitter::Additive(year_and_more)), "jitter of"),
        ];
        for (builder, hint) in cases {
            let error = builder.clone().build().expect_err(&format!("{builder:?}")).to_string();
            assert!(error.contains(hint), "{error} lacks {hint}");
        }
        assert!(Jitter::proportional(1.5).unwrap_err().to_string().contains("from 0 to 1"));
        assert!(Jitter::proportional(f64::NAN).is_err());
    }

    #[test]
    fn max_retries_counts_the_attempts_after_the_first() {
        let policy = RetryPolicy::builder().max_retries(0).build().unwrap();
        assert_eq!((policy.max_attempts(), policy.max_retries()), (1, 0));
    }

    #[test]
    fn the_limits_are_inclusive() {
        let policy = RetryPolicy::builder()
            .max_attempts(RetryPolicy::MAX_ATTEMPTS)
            .multiplier(RetryPolicy::MAX_MULTIPLIER)
            .max_delay(RetryPolicy::MAX_DURATION)
            .base_delay(RetryPolicy::MAX_DURATION)
            .deadline(RetryPolicy::MAX_DURATION)
            .build();
        assert!(policy.is_ok(), "{policy:?}");
    }
}
