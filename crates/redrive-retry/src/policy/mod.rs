//! What may be retried, how often, how far apart, and for how long in all.
//!
//! One type for all four specifications. Its fields are private and every way to make one validates, so a policy
//! that exists is a policy that works.

mod builder;
mod document;
mod overrides;
mod presets;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::builder::RetryPolicyBuilder;
pub use self::overrides::RetryOverride;
use crate::backoff::Backoff;
use crate::human_duration::{DurationError, format_duration};
use crate::identity::Identity;
use crate::jitter::Jitter;
use crate::ratio::Ratio;
use crate::rules::{RuleError, Rules};

/// How often and how far apart something fallible is tried.
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
/// let same: RetryPolicy = serde_json::from_str(r#"{"maxRetries": 5, "baseDelayMs": 500}"#)?;
/// assert_eq!(same, policy);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "document::PolicyDocument", into = "document::PolicyDocument")]
pub struct RetryPolicy {
    max_attempts: u32,
    backoff: Backoff,
    /// One attempt may take this long; the rest of the deadline if that is shorter.
    attempt_timeout: Option<Duration>,
    /// All attempts and waits together may take this long.
    deadline: Option<Duration>,
    rules: Rules,
}

impl RetryPolicy {
    /// The most attempts a policy may ask for. Retrying once a second, this lasts eleven days.
    pub const MAX_ATTEMPTS: u32 = 1_000_000;
    /// The longest delay, timeout or deadline: a leap year.
    pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
    /// The fastest growth.
    pub const MAX_MULTIPLIER: f64 = 1000.0;

    /// A builder that begins with the bus preset: what you do not set stays as specified there.
    pub fn builder() -> RetryPolicyBuilder {
        RetryPolicyBuilder::new(Self::bus())
    }

    /// A builder that begins with this policy.
    pub fn to_builder(&self) -> RetryPolicyBuilder {
        RetryPolicyBuilder::new(self.clone())
    }

    /// Attempts in all, the first one included. At least 1.
    #[inline]
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Attempts after the first one.
    pub fn max_retries(&self) -> u32 {
        self.max_attempts - 1
    }

    /// The delays.
    pub fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// The wait before the second attempt.
    pub fn base_delay(&self) -> Duration {
        self.backoff.base_delay
    }

    /// The longest nominal wait.
    pub fn max_delay(&self) -> Duration {
        self.backoff.max_delay
    }

    /// The growth of the waits.
    pub fn multiplier(&self) -> f64 {
        self.backoff.multiplier.as_f64()
    }

    /// How waits are spread.
    pub fn jitter(&self) -> Jitter {
        self.backoff.jitter
    }

    /// How long one attempt may take.
    pub fn attempt_timeout(&self) -> Option<Duration> {
        self.attempt_timeout
    }

    /// How long everything together may take.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Whether an attempt needs a timer.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.attempt_timeout.is_some() | self.deadline.is_some() // one branch, not two
    }

    /// Which errors are retried, beyond what the errors say themselves.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The waits before the second, third … last attempt of a piece of work.
    ///
    /// ```
    /// # use redrive_retry::{Identity, RetryPolicy};
    /// let waits: Vec<_> = RetryPolicy::bus().delays(Identity::new(7, "order-1", "shipping")).collect();
    /// assert_eq!(waits.len(), 3);
    /// ```
    pub fn delays<'a>(&self, identity: Identity<'a>) -> impl Iterator<Item = Duration> + use<'a> {
        let backoff = self.backoff;
        (2..=self.max_attempts).map(move |attempt| backoff.delay(attempt, None, identity))
    }

    fn validate(self) -> Result<Self, PolicyError> {
        let Backoff { base_delay, multiplier, max_delay, jitter } = self.backoff;
        if self.max_attempts == 0 {
            return Err(PolicyError::NoAttempts);
        }
        if self.max_attempts > Self::MAX_ATTEMPTS {
            return Err(PolicyError::TooManyAttempts { attempts: self.max_attempts.into() });
        }
        checked_multiplier(multiplier.as_f64())?;
        jitter.validate(Self::LONGEST)?;
        let lengths = [
            ("base_delay", Some(base_delay)),
            ("max_delay", Some(max_delay)),
            ("attempt_timeout", self.attempt_timeout),
            ("deadline", self.deadline),
            ("jitter", if let Jitter::Additive(amount) = jitter { Some(amount) } else { None }),
        ];
        for (field, value) in lengths {
            if let Some(value) = value.filter(|value| *value > Self::LONGEST) {
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

/// The multiplier as it is kept, or why it cannot be.
fn checked_multiplier(multiplier: f64) -> Result<Ratio, PolicyError> {
    match Ratio::from_f64(multiplier) {
        Some(ratio) if ratio >= Ratio::ONE && multiplier <= RetryPolicy::MAX_MULTIPLIER => Ok(ratio),
        _ => Err(PolicyError::Multiplier { multiplier }),
    }
}

/// Why a policy cannot be. Each message says what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Zero attempts.
    #[error("max_attempts is 0, so nothing would ever be tried: set it to 1 for no retries")]
    NoAttempts,
    /// More attempts than anybody can want.
    #[error(
        "{attempts} attempts are more than {max}: lower max_attempts or max_retries, and raise the delays",
        max = RetryPolicy::MAX_ATTEMPTS
    )]
    TooManyAttempts {
        /// What was asked for.
        attempts: u64,
    },
    /// Below one, NaN or absurd.
    #[error(
        "a multiplier of {multiplier} does not work: set it from 1 (constant delay) to {max}; 2 doubles each wait",
        max = RetryPolicy::MAX_MULTIPLIER
    )]
    Multiplier {
        /// What was asked for.
        multiplier: f64,
    },
    /// The cap is shorter than the first wait.
    #[error(
        "max_delay {} is below base_delay {}: raise max_delay or lower base_delay",
        format_duration(*cap), format_duration(*base)
    )]
    CapBelowBase {
        /// The first wait.
        base: Duration,
        /// The cap.
        cap: Duration,
    },
    /// Longer than a year.
    #[error("{field} of {} is longer than a year: shorten it", format_duration(*value))]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: Duration,
    },
    /// Finer than anything that is kept.
    #[error("{field} of {value:?} is not a whole number of milliseconds: round it")]
    NotWholeMillis {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: Duration,
    },
    /// Not a whole number from 0 up.
    #[error("{field} is {value}: write a whole number from 0 up")]
    NotACount {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A timeout or deadline of zero.
    #[error(
        "{field} is 0, so no attempt could ever succeed: leave it out for no limit, or give it some time"
    )]
    NoTime {
        /// Which field.
        field: &'static str,
    },
    /// A negative or non-finite length of time.
    #[error("{field} is {value:?} seconds: write a number of seconds from 0 up, or text such as \"250ms\"")]
    NotATime {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A jitter factor outside 0..=1.
    #[error("a jitter factor of {factor} does not work: set it from 0 to 1 (0.1 or \"10%\" is ±10 %)")]
    JitterFactor {
        /// What was asked for.
        factor: f64,
    },
    /// A jitter that cannot be read.
    #[error("{text:?} is not a jitter: write one of none, 10%, 0..1s, full, equal")]
    JitterText {
        /// What was written.
        text: String,
    },
    /// A duration that cannot be read.
    #[error("{field}: {source}")]
    Duration {
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        source: DurationError,
    },
    /// The same thing said twice under different names.
    #[error("{first} and {second} say the same thing: keep one of them")]
    SaidTwice {
        /// One name.
        first: &'static str,
        /// The other name.
        second: &'static str,
    },
    /// A field that only a whole policy has.
    #[error(
        "{field} belongs to a whole policy, not to an override: set it on the policy or on the subscription"
    )]
    NotOverridable {
        /// Which field.
        field: &'static str,
    },
    /// A preset nobody knows.
    #[error(
        "there is no preset {name:?}: use bus, webhook, scheduler, call, or a category such as API_REQUEST"
    )]
    UnknownPreset {
        /// What was asked for.
        name: String,
    },
    /// A rule that cannot be read.
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
    fn every_invalid_policy_gets_a_typed_error_that_says_what_to_change() {
        let b = RetryPolicy::builder;
        let year_and_more = RetryPolicy::LONGEST + secs(1);
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
    fn the_limits_themselves_are_allowed() {
        let policy = RetryPolicy::builder()
            .max_attempts(RetryPolicy::MAX_ATTEMPTS)
            .multiplier(RetryPolicy::MAX_MULTIPLIER)
            .max_delay(RetryPolicy::LONGEST)
            .base_delay(RetryPolicy::LONGEST)
            .deadline(RetryPolicy::LONGEST)
            .build();
        assert!(policy.is_ok(), "{policy:?}");
    }
}
