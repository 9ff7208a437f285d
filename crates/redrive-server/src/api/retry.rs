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
    #[schema(value_type = String, pattern = "^(none|full|equal|([1-9]|[1-9][0-9])%)$", example = "10%")]
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

impl Retry {
    pub(crate) fn into_override(self) -> Result<RetryOverride, Problem> {
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
