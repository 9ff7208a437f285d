//! [`RetryPolicyBuilder`]: validates the settings once, in `build`.

use std::time::Duration;

use super::{PolicyError, RetryPolicy, checked_multiplier};
use crate::jitter::Jitter;
use crate::rules::{ErrorRule, Rules};

/// Builds a [`RetryPolicy`]. The setters accept any value; [`build`](Self::build) reports invalid ones.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until build()"]
pub struct RetryPolicyBuilder {
    policy: RetryPolicy,
    /// Kept apart until `build`, because the policy's field cannot hold NaN.
    multiplier: f64,
}

impl RetryPolicyBuilder {
    pub(super) fn new(start: RetryPolicy) -> Self {
        RetryPolicyBuilder { multiplier: start.multiplier(), policy: start }
    }

    /// Sets the largest number of attempts, the first one included.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.policy.max_attempts = attempts;
        self
    }

    /// Sets the largest number of attempts after the first one.
    pub fn max_retries(self, retries: u32) -> Self {
        self.max_attempts(retries.saturating_add(1))
    }

    /// Sets the delay before the second attempt.
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.policy.backoff.base_delay = delay;
        self
    }

    /// Sets the longest delay, without jitter.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.policy.backoff.max_delay = delay;
        self
    }

    /// Sets the factor between consecutive delays.
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.multiplier = multiplier;
        self
    }

    /// Sets the random part of the delays.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.policy.backoff.jitter = jitter;
        self
    }

    /// Sets the time limit of one attempt, after which its future is dropped.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.policy.attempt_timeout = Some(timeout);
        self
    }

    /// Sets the time limit of all attempts and delays together.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.policy.deadline = Some(deadline);
        self
    }

    /// Replaces all error rules.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.policy.rules = rules;
        self
    }

    /// Makes matching errors permanent. Checked before the retryable rules.
    pub fn non_retryable(mut self, rule: ErrorRule) -> Self {
        self.policy.rules = self.policy.rules.non_retryable(rule);
        self
    }

    /// Retries matching errors, even if they are marked as permanent.
    pub fn retryable(mut self, rule: ErrorRule) -> Self {
        self.policy.rules = self.policy.rules.retryable(rule);
        self
    }

    /// Checks the settings and builds the policy.
    pub fn build(mut self) -> Result<RetryPolicy, PolicyError> {
        self.policy.backoff.multiplier = checked_multiplier(self.multiplier)?;
        self.policy.validate()
    }
}
