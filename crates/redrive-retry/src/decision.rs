//! [`decide`]: the pure function that turns the outcome of an attempt into retry, park, dead or done.
//!
//! It reads no clock, draws no random number and has no side effect, so a decision can be recomputed from its
//! [`DecisionRecord`] at any time.

mod record;

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::record::{DecisionRecord, Discrepancy, RECORD_VERSION};
use crate::backoff::Backoff;
use crate::breaker::BreakerSnapshot;
use crate::budget::BudgetSnapshot;
use crate::class::FailureClass;
pub use crate::identity::Identity;
use crate::policy::RetryPolicy;
use crate::timestamp::{Timestamp, saturating_millis};

/// Outcome of an attempt.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// The attempt succeeded.
    Succeeded,
    /// The attempt failed.
    Failed(FailureClass),
    /// The attempt was not made because the circuit is open or the budget is spent. Consumes no attempt.
    Refused,
}

/// Inputs of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Situation<'a> {
    /// Largest number of attempts.
    pub max_attempts: u32,
    /// Delays of the policy.
    pub backoff: Backoff,
    /// Time limit of all attempts and delays together, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Number of the attempt that has ended or was refused, counted from 1.
    pub attempt: u32,
    /// Outcome of that attempt.
    pub outcome: Outcome,
    /// Start of the first attempt.
    pub started_at: Timestamp,
    /// Time of the decision.
    pub now: Timestamp,
    /// State of the circuit breaker.
    #[serde(default)]
    pub breaker: BreakerSnapshot,
    /// State of the retry budget.
    #[serde(default)]
    pub budget: BudgetSnapshot,
    /// Seed of the jitter.
    pub seed: u64,
    /// Event id, or id of a call.
    pub event: Cow<'a, str>,
    /// Subscription name, or operation of a call.
    pub subscription: Cow<'a, str>,
}

impl<'a> Situation<'a> {
    /// Describes the situation after `attempt` under this policy, with a closed circuit and no budget.
    pub fn new(
        policy: &RetryPolicy,
        identity: Identity<'a>,
        attempt: u32,
        outcome: Outcome,
        now: Timestamp,
    ) -> Self {
        Situation {
            max_attempts: policy.max_attempts(),
            backoff: *policy.backoff(),
            deadline_ms: policy.deadline().map(saturating_millis),
            attempt,
            outcome,
            started_at: now,
            now,
            breaker: BreakerSnapshot::Closed,
            budget: BudgetSnapshot::Unlimited,
            seed: identity.seed,
            event: Cow::Borrowed(identity.event),
            subscription: Cow::Borrowed(identity.subscription),
        }
    }

    fn identity(&self) -> Identity<'_> {
        Identity::new(self.seed, &self.event, &self.subscription)
    }

    /// Whether an attempt at `at` would begin after the deadline.
    fn exceeds_deadline(&self, at: Timestamp) -> bool {
        self.deadline_ms.is_some_and(|deadline| at >= self.started_at.plus_millis(deadline))
    }

    /// Converts borrowed names into owned ones.
    pub fn into_owned(self) -> Situation<'static> {
        Situation {
            event: Cow::Owned(self.event.into_owned()),
            subscription: Cow::Owned(self.subscription.into_owned()),
            ..self
        }
    }
}

/// Result of [`decide`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum Decision {
    /// The work is finished.
    Done,
    /// Make another attempt.
    Retry {
        /// Time of the attempt.
        at: Timestamp,
        /// Delay from now in milliseconds.
        delay_ms: u64,
        /// Reason of the delay.
        because: RetryReason,
    },
    /// Wait without consuming an attempt.
    Park {
        /// End of the wait.
        until: Timestamp,
        /// Reason.
        because: ParkReason,
    },
    /// Stop: the work is dead.
    Dead {
        /// Reason.
        because: DeadReason,
    },
}

/// Reason of the delay of a retry.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryReason {
    /// Backoff of the policy.
    Backoff,
    /// Requested by the destination (`Retry-After`).
    RetryAfter,
    /// The circuit is open.
    CircuitOpen,
}

/// Reason why work is parked.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkReason {
    /// The circuit is open.
    CircuitOpen,
    /// The retry budget is spent.
    BudgetSpent,
}

/// Reason why work is dead.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// The error is permanent.
    #[error("the error is permanent")]
    Permanent,
    /// All attempts are used up.
    #[error("all attempts are used up")]
    AttemptsExhausted,
    /// The next attempt would begin after the deadline.
    #[error("the next attempt would begin after the deadline")]
    DeadlineExceeded,
    /// The retry budget is spent.
    #[error("the retry budget is spent")]
    BudgetSpent,
    /// The destination requested a delay of more than a year.
    #[error("the destination requested a delay of more than a year")]
    WaitTooLong,
    /// No subscription takes it any more. Decided by the event bus, never by [`decide`].
    #[error("no subscription takes it, and none is on record")]
    NoSubscription,
}

/// Decides the next step after an attempt: done, retry, park or dead. Equal situations give equal decisions.
///
/// ```
/// use redrive_retry::decision::{DeadReason, Decision, Identity, Outcome, Situation, decide};
/// use redrive_retry::{FailureClass, RetryPolicy, Timestamp};
///
/// let now = Timestamp::from_millis(1_767_225_600_000);
/// let work = Identity::new(7, "order-1", "shipping");
/// let failed = Outcome::Failed(FailureClass::Transient);
/// let first = Situation::new(&RetryPolicy::bus(), work, 1, failed, now);
/// assert!(matches!(decide(&first), Decision::Retry { delay_ms: 900..=1100, .. }));
/// let last = Situation { attempt: 4, ..first };
/// assert_eq!(decide(&last), Decision::Dead { because: DeadReason::AttemptsExhausted });
/// ```
pub fn decide(situation: &Situation<'_>) -> Decision {
    match situation.outcome {
        Outcome::Succeeded => Decision::Done,
        Outcome::Refused => {
            let circuit = situation.breaker.refuses_until().unwrap_or(situation.now).max(situation.now);
            match situation.budget {
                BudgetSnapshot::Spent { again_at: Some(until) } if until > circuit => {
                    park(situation, until, ParkReason::BudgetSpent)
                }
                _ => park(situation, circuit, ParkReason::CircuitOpen),
            }
        }
        Outcome::Failed(class) => after_failure(situation, class),
    }
}

fn after_failure(situation: &Situation<'_>, class: FailureClass) -> Decision {
    if !class.is_retryable() {
        return Decision::Dead { because: DeadReason::Permanent };
    }
    if situation.attempt >= situation.max_attempts {
        return Decision::Dead { because: DeadReason::AttemptsExhausted };
    }
    if let BudgetSnapshot::Spent { again_at } = situation.budget {
        return match again_at {
            Some(until) => park(situation, until, ParkReason::BudgetSpent),
            None => Decision::Dead { because: DeadReason::BudgetSpent },
        };
    }
    // The delay requested by the destination and the open time of the circuit are minimums; jitter applies above them.
    let requested = class.requested_wait().unwrap_or_default();
    let circuit =
        situation.breaker.refuses_until().map_or(Duration::ZERO, |until| until.since(situation.now));
    if requested > RetryPolicy::MAX_DURATION {
        return Decision::Dead { because: DeadReason::WaitTooLong };
    }
    let minimum = requested.max(circuit);
    let next = situation.attempt + 1;
    let at = situation.now + situation.backoff.delay(next, Some(minimum), situation.identity());
    let because = if minimum <= situation.backoff.range(next, None).min() {
        RetryReason::Backoff
    } else if circuit >= requested {
        RetryReason::CircuitOpen
    } else {
        RetryReason::RetryAfter
    };
    if situation.exceeds_deadline(at) {
        return Decision::Dead { because: DeadReason::DeadlineExceeded };
    }
    Decision::Retry { at, delay_ms: saturating_millis(at.since(situation.now)), because }
}

fn park(situation: &Situation<'_>, until: Timestamp, because: ParkReason) -> Decision {
    if situation.exceeds_deadline(until) {
        return Decision::Dead { because: DeadReason::DeadlineExceeded };
    }
    Decision::Park { until, because }
}

impl Decision {
    /// Delay of a retry.
    pub fn delay(self) -> Option<Duration> {
        match self {
            Decision::Retry { delay_ms, .. } => Some(Duration::from_millis(delay_ms)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
