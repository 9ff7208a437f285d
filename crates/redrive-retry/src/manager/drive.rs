//! The retry loop. One for async and blocking operations, with and without idempotency.
//!
//! [`Execution::run`] makes the first attempt of a plain call by itself and comes here only when that has failed.

use std::cell::OnceCell;
use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use super::pause::Pause;
use super::{Attempt, Execution, RetryError, RetryErrorReason};
use crate::audit::{AuditEvent, RetryAttempt, RetryDecision, bounded};
use crate::breaker::{BreakerPermit, BreakerSnapshot, Refused};
use crate::budget::BudgetSnapshot;
use crate::decision::{Decision, Outcome, Situation};
use crate::failure::{BoxError, Failure};
use crate::idempotency::IdempotencyKey;
use crate::identity::Identity;
use crate::policy::RetryPolicy;
use crate::record::DecisionRecord;
use crate::timestamp::Timestamp;

/// Runs the operation until it succeeds or the policy gives up. A first attempt that has failed already is passed in.
pub(super) async fn drive<T, E, Op, Fut>(
    execution: Execution<'_>,
    key: Option<&IdempotencyKey>,
    pause: Pause<'_>,
    mut operation: Op,
    first_failure: Option<Failure>,
) -> Result<T, RetryError>
where
    Op: FnMut(Attempt) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
{
    let policy = execution.policy;
    let clock = &execution.manager.inner.clock;
    let sleep = |wait: Duration| pause.sleep(clock, wait);
    let mut counted = first_failure.is_some();
    let mut troubles = Troubles::new(&execution, key);
    let mut number = 1;
    if let Some(failure) = first_failure {
        sleep(troubles.failed(number, failure, None)?).await;
        number += 1;
    }
    loop {
        let permit = match execution.breaker.map(|breaker| breaker.acquire()).transpose() {
            Ok(permit) => permit,
            Err(refused) => {
                sleep(troubles.refused(number, refused)?).await;
                continue;
            }
        };
        if !std::mem::replace(&mut counted, true) {
            execution.manager.count_first_attempt();
        }
        let limit = time_limit(policy, troubles.started_at, clock.now());
        let attempt = Attempt::new(number, policy, limit.map(|limit| clock.now() + limit), key);
        let result = match limit {
            Some(limit) if pause.is_async() => {
                // The operation first: a result that is there counts, even if the time is up.
                tokio::select! {
                    biased;
                    result = operation(attempt) => result.map_err(Failure::new),
                    () = clock.sleep(limit) => Err(Failure::timeout(limit)),
                }
            }
            _ => operation(attempt).await.map_err(Failure::new),
        };
        match result {
            Ok(value) => {
                if let Some(permit) = permit {
                    permit.success();
                }
                return Ok(value);
            }
            Err(failure) => {
                sleep(troubles.failed(number, failure, permit)?).await;
                number += 1;
            }
        }
    }
}

/// How long the attempt may take: its own timeout, or what is left of the deadline if that is less.
fn time_limit(policy: &RetryPolicy, started_at: Timestamp, now: Timestamp) -> Option<Duration> {
    // At least a millisecond, or an attempt that was just allowed could not even begin; and never more than all of it,
    // even if the clock was set back.
    let left = policy
        .deadline()
        .map(|deadline| (started_at + deadline).since(now).clamp(Duration::from_millis(1), deadline));
    match (policy.attempt_timeout(), left) {
        (Some(timeout), Some(left)) => Some(timeout.min(left)),
        (timeout, left) => timeout.or(left),
    }
}

/// What a call has been through.
struct Troubles<'a> {
    execution: &'a Execution<'a>,
    policy: &'a RetryPolicy,
    key: Option<&'a IdempotencyKey>,
    /// Made when first needed.
    identity: OnceCell<String>,
    /// When the call began; for one without a deadline, when it first failed.
    started_at: Timestamp,
    last: Option<Failure>,
}

impl<'a> Troubles<'a> {
    fn new(execution: &'a Execution<'a>, key: Option<&'a IdempotencyKey>) -> Self {
        Troubles {
            execution,
            policy: execution.policy,
            key,
            identity: OnceCell::new(),
            started_at: execution.manager.inner.clock.now(),
            last: None,
        }
    }
}

impl Troubles<'_> {
    /// An attempt failed: how long to wait before the next one, or the error that ends it all.
    fn failed(
        &mut self,
        number: u32,
        failure: Failure,
        permit: Option<BreakerPermit>,
    ) -> Result<Duration, RetryError> {
        let inner = &self.execution.manager.inner;
        if let Some(permit) = permit {
            permit.failure();
        }
        let now = inner.clock.now();
        let class = self.policy.rules().class_of(&failure);
        let another_possible = class.is_retryable() && number < self.policy.max_attempts();
        let budget =
            match inner.budget.as_ref().filter(|_| another_possible).map(|budget| budget.withdraw(now)) {
                None => BudgetSnapshot::Unlimited,
                // A call waits in memory with somebody at the other end: it does not queue for budget.
                Some(BudgetSnapshot::Spent { .. }) => BudgetSnapshot::Spent { again_at: None },
                Some(granted) => granted,
            };
        let breaker = self.execution.breaker.map_or(BreakerSnapshot::Closed, |breaker| breaker.snapshot());
        let decision = self.decide(number, Outcome::Failed(class), breaker, budget, now);
        match decision {
            Decision::Retry { delay_ms, .. } => {
                self.audit_attempt(number, delay_ms, &failure, now);
                self.last = Some(failure);
                Ok(Duration::from_millis(delay_ms))
            }
            Decision::Dead { because } => {
                if let (Some(budget), BudgetSnapshot::Granted) = (&inner.budget, budget) {
                    budget.refund();
                }
                self.last = Some(failure);
                Err(self.give_up(number, RetryErrorReason::GaveUp(because), now))
            }
            Decision::Done | Decision::Park { .. } => {
                unreachable!("a failed call without a queue is retried or given up, not {decision:?}")
            }
        }
    }

    /// The circuit let nothing through: how long to wait for it, or the error that ends it all.
    fn refused(&mut self, number: u32, refused: Refused) -> Result<Duration, RetryError> {
        let inner = &self.execution.manager.inner;
        let now = inner.clock.now();
        let breaker = BreakerSnapshot::Open { until: refused.until };
        let decision = self.decide(number, Outcome::Refused, breaker, BudgetSnapshot::Unlimited, now);
        match decision {
            // A parked call uses up no attempt, so only a deadline keeps the wait finite.
            Decision::Park { until, .. } if self.policy.deadline().is_some() => {
                Ok(until.since(now).max(Duration::from_millis(1)))
            }
            Decision::Dead { because } => {
                Err(self.give_up(number - 1, RetryErrorReason::GaveUp(because), now))
            }
            _ => {
                let reason = RetryErrorReason::CircuitOpen { until: refused.until };
                Err(self.give_up(number - 1, reason, now))
            }
        }
    }

    fn decide(
        &self,
        number: u32,
        outcome: Outcome,
        breaker: BreakerSnapshot,
        budget: BudgetSnapshot,
        now: Timestamp,
    ) -> Decision {
        let Execution { category, operation, context, .. } = self.execution;
        // A key is the same on every replay; a call without one gets an identity of its own.
        let identity = self
            .identity
            .get_or_init(|| self.key.map_or_else(|| Uuid::new_v4().to_string(), ToString::to_string));
        let identity = Identity::new(self.execution.manager.inner.seed, identity, operation);
        let situation = Situation::new(self.policy, identity, number, outcome, now);
        let record =
            DecisionRecord::decide(Situation { started_at: self.started_at, breaker, budget, ..situation });
        let decision = record.decision();
        self.execution.manager.inner.auditor.record(&AuditEvent::RetryDecision(RetryDecision {
            retry_category: (*category).clone(),
            operation: (*operation).to_owned(),
            context: context.cloned(),
            record,
        }));
        decision
    }

    fn audit_attempt(&self, number: u32, delay_ms: u64, failure: &Failure, now: Timestamp) {
        let execution = self.execution;
        #[allow(clippy::cast_precision_loss)] // a delay of 285,000 years would lose a millisecond
        let delay_seconds = delay_ms as f64 / 1000.0;
        execution.manager.inner.auditor.record(&AuditEvent::RetryAttempt(RetryAttempt {
            retry_category: execution.category.clone(),
            operation: execution.operation.to_owned(),
            attempt_number: number,
            max_attempts: self.policy.max_attempts(),
            delay_seconds,
            exception_type: short_name(failure.type_name()),
            exception_message: bounded(failure.to_string()),
            tenant_id: execution.tenant_id.map(str::to_owned),
            correlation_id: execution.correlation_id.map(str::to_owned),
            trace_id: execution.trace_id.map(str::to_owned),
            timestamp: now,
        }));
    }

    fn give_up(&mut self, attempts: u32, reason: RetryErrorReason, now: Timestamp) -> RetryError {
        let execution = self.execution;
        let failure = self.last.take();
        let (kind, text) = match &failure {
            Some(failure) => (short_name(failure.type_name()), failure.to_string()),
            None => ("CircuitOpen".into(), "the circuit is open".into()),
        };
        execution.audit_exhausted(attempts, kind, text, now);
        let cause = failure.map(Failure::into_inner);
        RetryError::new(execution.category, execution.operation, attempts, reason, cause)
    }
}

/// A type's name without paths: `TimeoutError`, `Box<dyn Error + Send + Sync>`.
fn short_name(type_name: &str) -> String {
    let parts = type_name.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    parts.map(|part| part.rsplit("::").next().unwrap_or(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_are_shown_without_their_paths() {
        assert_eq!(short_name("TimeoutError"), "TimeoutError");
        assert_eq!(short_name(std::any::type_name::<std::io::Error>()), "Error");
        assert_eq!(short_name(std::any::type_name::<BoxError>()), "Box<dyn Error + Send + Sync>");
        assert_eq!(short_name(std::any::type_name::<&str>()), "&str");
    }
}
