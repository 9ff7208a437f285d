//! [`RetryPolicyBuilder`]: validates the settings once, in `build`.

use std::time::Duration;

use super::{PolicyError, RetryPolicy, checked_multiplier};
use crate::backoff::{Backoff, Growth};
use crate::jitter::Jitter;
use crate::rules::{ErrorRule, Rules};
use crate::setters;

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

    /// Sets the largest number of attempts after the first one.
    pub fn max_retries(self, retries: u32) -> Self {
        self.max_attempts(retries.saturating_add(1))
    }

    /// Sets base delay, multiplier, longest delay and jitter at once, such as those of a recorded decision.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.multiplier = backoff.multiplier.as_f64();
        self.policy.backoff = backoff;
        self
    }

    setters! {
        /// Sets the largest number of attempts, the first one included.
        max_attempts(attempts: u32) => policy.max_attempts = attempts;
        /// Sets the longest delay, without jitter.
        max_delay(delay: Duration) => policy.backoff.max_delay = delay;
        /// Sets the random part of the delays.
        jitter(jitter: Jitter) => policy.backoff.jitter = jitter;
        /// Sets the time limit of one attempt, after which its future is dropped.
        attempt_timeout(timeout: Duration) => policy.attempt_timeout = Some(timeout);
        /// Sets the time limit of all attempts and delays together.
        deadline(deadline: Duration) => policy.deadline = Some(deadline);
        /// Replaces all error rules.
        rules(rules: Rules) => policy.rules = rules;
    }

    /// Sets the delay before the second attempt. Fixed delays of a preset become exponential.
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.policy.backoff.growth = Growth::Exponential;
        self.policy.backoff.base_delay = delay;
        self
    }

    /// Sets the factor between consecutive delays. Fixed delays of a preset become exponential.
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.policy.backoff.growth = Growth::Exponential;
        self.multiplier = multiplier;
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
