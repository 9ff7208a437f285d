//! Building a policy step by step; everything is checked once, at the end.

use std::time::Duration;

use super::{PolicyError, RetryPolicy, checked_multiplier};
use crate::jitter::Jitter;
use crate::rules::{ErrorRule, Rules};

/// Builds a [`RetryPolicy`]. The setters take anything; [`build`](Self::build) says what does not work.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until build()"]
pub struct RetryPolicyBuilder {
    policy: RetryPolicy,
    /// Kept apart until `build`: the policy's own field cannot hold NaN.
    multiplier: f64,
}

impl RetryPolicyBuilder {
    pub(super) fn new(start: RetryPolicy) -> Self {
        RetryPolicyBuilder { multiplier: start.multiplier(), policy: start }
    }

    /// Attempts in all, the first one included.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.policy.max_attempts = attempts;
        self
    }

    /// Attempts after the first one.
    pub fn max_retries(self, retries: u32) -> Self {
        self.max_attempts(retries.saturating_add(1))
    }

    /// The wait before the second attempt.
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.policy.backoff.base_delay = delay;
        self
    }

    /// The longest nominal wait.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.policy.backoff.max_delay = delay;
        self
    }

    /// What each further wait is multiplied by.
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.multiplier = multiplier;
        self
    }

    /// How waits are spread.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.policy.backoff.jitter = jitter;
        self
    }

    /// How long one attempt may take; its future is dropped then.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.policy.attempt_timeout = Some(timeout);
        self
    }

    /// How long all attempts and waits may take together.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.policy.deadline = Some(deadline);
        self
    }

    /// Replaces all rules.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.policy.rules = rules;
        self
    }

    /// Errors that match are given up on at once. Checked before the retryable ones.
    pub fn non_retryable(mut self, rule: ErrorRule) -> Self {
        self.policy.rules = self.policy.rules.non_retryable(rule);
        self
    }

    /// Errors that match are retried, even if they call themselves permanent.
    pub fn retryable(mut self, rule: ErrorRule) -> Self {
        self.policy.rules = self.policy.rules.retryable(rule);
        self
    }

    /// Checks everything and makes the policy.
    pub fn build(mut self) -> Result<RetryPolicy, PolicyError> {
        self.policy.backoff.multiplier = checked_multiplier(self.multiplier)?;
        self.policy.validate()
    }
}
