//! A retry policy as a client writes it: some fields, the others as they are.

use std::time::Duration;

use redrive::{Jitter, RetryOverride};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::Problem;

/// Some fields of a retry policy; what is not given stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retry {
    /// Attempts in all, the first one included.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    /// The wait before the second attempt.
    #[schema(minimum = 1, maximum = 86_400_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    base_delay_ms: Option<u64>,
    /// The longest wait.
    #[schema(minimum = 1, maximum = 86_400_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_delay_ms: Option<u64>,
    /// What each further wait is multiplied by.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(skip_serializing_if = "Option::is_none")]
    multiplier: Option<f64>,
    /// How waits are spread: `none`, `10%`, `0..1s`, `full`, `equal`.
    #[schema(example = "10%")]
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<String>,
}

impl From<RetryOverride> for Retry {
    fn from(retry: RetryOverride) -> Self {
        let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Retry {
            max_attempts: retry.max_attempts,
            base_delay_ms: retry.base_delay.map(millis),
            max_delay_ms: retry.max_delay.map(millis),
            multiplier: retry.multiplier,
            jitter: retry.jitter.map(|jitter| jitter.to_string()),
        }
    }
}
/// The longest wait, in milliseconds: a day.
const LONGEST_WAIT: u64 = 86_400_000;

impl Retry {
    fn check(&self) -> Result<(), Problem> {
        let is_wait = |millis: Option<u64>| millis.is_none_or(|millis| (1..=LONGEST_WAIT).contains(&millis));
        if self.max_attempts.is_some_and(|attempts| !(1..=100).contains(&attempts)) {
            return Err(Problem::invalid("retry.max_attempts is from 1 to 100"));
        }
        if !is_wait(self.base_delay_ms) || !is_wait(self.max_delay_ms) {
            return Err(Problem::invalid(format!(
                "retry: waits are from 1 to {LONGEST_WAIT} milliseconds, which is a day"
            )));
        }
        if self.multiplier.is_some_and(|multiplier| !(1.0..=100.0).contains(&multiplier)) {
            return Err(Problem::invalid("retry.multiplier is from 1 to 100"));
        }
        Ok(())
    }

    pub(crate) fn into_override(self) -> Result<RetryOverride, Problem> {
        self.check()?;
        let mut retry = RetryOverride::new();
        if let Some(attempts) = self.max_attempts {
            retry = retry.max_attempts(attempts);
        }
        if let Some(millis) = self.base_delay_ms {
            retry = retry.base_delay(Duration::from_millis(millis));
        }
        if let Some(millis) = self.max_delay_ms {
            retry = retry.max_delay(Duration::from_millis(millis));
        }
        if let Some(multiplier) = self.multiplier {
            retry = retry.backoff_multiplier(multiplier);
        }
        if let Some(jitter) = self.jitter {
            let jitter: Jitter =
                jitter.parse().map_err(|error| Problem::invalid(format!("retry.jitter: {error}")))?;
            retry = retry.jitter(jitter);
        }
        Ok(retry)
    }
}
