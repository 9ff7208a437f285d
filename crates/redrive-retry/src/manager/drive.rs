//! The retry loop for async and blocking operations, with and without idempotency.
//!
//! [`Execution::run`] makes the first attempt of a plain call itself and enters the loop only after a failure.

use std::cell::OnceCell;
use std::future::Future;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::pause::Pause;
use super::{Attempt, Execution, RetryError, RetryErrorReason};
use crate::audit::{AuditEvent, RetryAttempt, RetryDecision, bounded};
use crate::breaker::{BreakerPermit, BreakerSnapshot, Refused};
use crate::budget::BudgetSnapshot;
use crate::clock::Clock;
use crate::decision::{DeadReason, Decision, DecisionRecord, Outcome, Situation};
use crate::error_name::error_name;
use crate::failure::{BoxError, Failure};
use crate::idempotency::IdempotencyKey;
use crate::identity::Identity;
use crate::policy::RetryPolicy;
use crate::timestamp::Timestamp;

/// Runs the operation until it succeeds or the policy stops. `first_failure` is a first attempt that has already failed.
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
    // A step of the wall clock during the call must not end it early or make it wait.
    let clock = &execution.environment.clock.anchored();
    let sleep = |wait: Duration| pause.sleep(clock, wait);
    // Whether the first attempt has paid its share into the budget.
    let mut is_counted = first_failure.is_some();
    let (identity, started_at) = (OnceCell::new(), clock.now());
    let mut progress = Progress { execution: &execution, clock, key, identity, started_at, last: None };
    let mut number = 1;
    if let Some(failure) = first_failure {
        sleep(progress.failed(number, failure, None)?).await;
        number += 1;
    }
    loop {
        let permit = match execution.call.breaker.map(|breaker| breaker.acquire()).transpose() {
            Ok(permit) => permit,
            Err(refused) => {
                sleep(progress.refused(number, refused)?).await;
                continue;
            }
        };
        if !std::mem::replace(&mut is_counted, true) {
            execution.environment.count_first_attempt();
        }
        let limit = time_limit(policy, progress.started_at, clock.now());
        let attempt = Attempt::new(number, policy, limit.map(|limit| clock.now() + limit), key);
        let result = match limit {
            Some(limit) if pause.is_async() => {
                // The operation is polled first: a finished result counts even if the timeout has passed.
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
                progress.succeeded(number);
                return Ok(value);
            }
            Err(failure) => {
                sleep(progress.failed(number, failure, permit)?).await;
                number += 1;
            }
        }
    }
}

/// Time limit of an attempt: its timeout or the remaining deadline, whichever is less.
fn time_limit(policy: &RetryPolicy, started_at: Timestamp, now: Timestamp) -> Option<Duration> {
    // At least a millisecond, so that the attempt can begin; at most the whole deadline, even if the clock was set back.
    let left = policy
        .deadline()
        .map(|deadline| (started_at + deadline).since(now).clamp(Duration::from_millis(1), deadline));
    match (policy.attempt_timeout(), left) {
        (Some(timeout), Some(left)) => Some(timeout.min(left)),
        (timeout, left) => timeout.or(left),
    }
}

/// Progress of a call with at least one failure or refusal.
struct Progress<'a> {
    execution: &'a Execution<'a>,
    /// The clock of this call.
    clock: &'a Clock,
    key: Option<&'a IdempotencyKey>,
    /// Created on first use.
    identity: OnceCell<String>,
    /// Start of the call; without a deadline, the time of the first failure.
    started_at: Timestamp,
    last: Option<Failure>,
}

impl Progress<'_> {
    /// Handles a failed attempt: returns the delay before the next one, or the final error.
    fn failed(
        &mut self,
        number: u32,
        failure: Failure,
        permit: Option<BreakerPermit>,
    ) -> Result<Duration, RetryError> {
        let environment = self.execution.environment;
        if let Some(permit) = permit {
            permit.failure();
        }
        let now = self.clock.now();
        let class = self.execution.policy.rules().class_of(&failure);
        let another_possible = class.is_retryable() && number < self.execution.policy.max_attempts();
        let budget = match environment
            .budget
            .as_ref()
            .filter(|_| another_possible)
            .map(|budget| budget.withdraw(self.clock.steady()))
        {
            None => BudgetSnapshot::Unlimited,
            // The caller of a guarded call is waiting: a call does not queue for budget.
            Some(BudgetSnapshot::Spent { .. }) => BudgetSnapshot::Spent { again_at: None },
            Some(granted) => granted,
        };
        let breaker =
            self.execution.call.breaker.map_or(BreakerSnapshot::Closed, |breaker| breaker.snapshot());
        let decision = self.decide(number, Outcome::Failed(class), breaker, budget, now);
        match decision {
            Decision::Retry { delay_ms, .. } => {
                self.audit_attempt(number, delay_ms, &failure, now);
                self.last = Some(failure);
                Ok(Duration::from_millis(delay_ms))
            }
            Decision::Dead { because } => {
                if let (Some(budget), BudgetSnapshot::Granted) = (&environment.budget, budget) {
                    budget.refund();
                }
                self.last = Some(failure);
                Err(self.finish(number, RetryErrorReason::Dead(because), now))
            }
            Decision::Done | Decision::Park { .. } => {
                unreachable!("a failed call without a queue is retried or dead, not {decision:?}")
            }
        }
    }

    /// Handles a refusal by the circuit: returns the delay until the next request, or the final error.
    fn refused(&mut self, number: u32, refused: Refused) -> Result<Duration, RetryError> {
        let now = self.clock.now();
        // The breaker tells the time of its own clock, which may have been set during the call.
        let until = now + refused.until.since(self.execution.environment.clock.now());
        let breaker = BreakerSnapshot::Open { until };
        let decision = self.decide(number, Outcome::Refused, breaker, BudgetSnapshot::Unlimited, now);
        match decision {
            // A parked call consumes no attempt, so only a deadline bounds the wait.
            Decision::Park { until, .. } if self.execution.policy.deadline().is_some() => {
                Ok(until.since(now).max(Duration::from_millis(1)))
            }
            Decision::Dead { because } => Err(self.finish(number - 1, RetryErrorReason::Dead(because), now)),
            _ => {
                let reason = RetryErrorReason::CircuitOpen { until: refused.until };
                Err(self.finish(number - 1, reason, now))
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
        let Execution { category, call, .. } = self.execution;
        let identity = self.identity.get_or_init(|| self.call_identity());
        let identity = Identity::new(self.execution.environment.seed, identity, call.operation);
        let situation = Situation::new(self.execution.policy, identity, number, outcome, now);
        let record =
            DecisionRecord::decide(Situation { started_at: self.started_at, breaker, budget, ..situation });
        let decision = record.decision();
        self.execution.environment.auditor.record(&AuditEvent::RetryDecision(RetryDecision {
            retry_category: (*category).clone(),
            operation: call.operation.to_owned(),
            context: call.context.cloned(),
            record,
        }));
        decision
    }

    /// Identity of the call, which seeds its delays: a call with a correlation id or an idempotency key replays them, any other call
    /// draws new ones.
    fn call_identity(&self) -> String {
        let Execution { category, call, .. } = self.execution;
        match (call.correlation_id, self.key) {
            // As JSON, so that no two calls share a text.
            (Some(correlation_id), _) => json!([category.code(), call.tenant_id, correlation_id]).to_string(),
            (None, Some(key)) => key.to_string(),
            (None, None) => Uuid::new_v4().to_string(),
        }
    }

    /// Records the success of a call with an earlier failure, so that the audit trail tells how every such call ended.
    fn succeeded(&self, number: u32) {
        if self.last.is_some() {
            let now = self.execution.environment.clock.now();
            let breaker = BreakerSnapshot::Closed;
            self.decide(number, Outcome::Succeeded, breaker, BudgetSnapshot::Unlimited, now);
        }
        self.execution.environment.meter.count(self.execution.category, number, true);
    }

    fn audit_attempt(&self, number: u32, delay_ms: u64, failure: &Failure, now: Timestamp) {
        let execution = self.execution;
        #[allow(clippy::cast_precision_loss)] // a delay of 285,000 years would lose a millisecond
        let delay_seconds = delay_ms as f64 / 1000.0;
        execution.environment.auditor.record(&AuditEvent::RetryAttempt(RetryAttempt {
            retry_category: execution.category.clone(),
            operation: execution.call.operation.to_owned(),
            attempt_number: number,
            max_attempts: self.execution.policy.max_attempts(),
            delay_seconds,
            exception_type: error_name(failure),
            exception_message: bounded(failure.to_string()),
            tenant_id: execution.call.tenant_id.map(str::to_owned),
            correlation_id: execution.call.correlation_id.map(str::to_owned),
            trace_id: execution.call.trace_id.map(str::to_owned),
            timestamp: now,
        }));
    }

    fn finish(&mut self, attempts: u32, reason: RetryErrorReason, now: Timestamp) -> RetryError {
        let execution = self.execution;
        let failure = self.last.take();
        let (kind, text) = match &failure {
            Some(failure) => (error_name(failure), failure.to_string()),
            None => ("CircuitOpen".into(), "the circuit is open".into()),
        };
        // A non-retryable error exhausts nothing; its decision is on record.
        if reason != RetryErrorReason::Dead(DeadReason::Permanent) {
            execution.audit_exhausted(attempts, kind, text, now);
        }
        execution.environment.meter.count(execution.category, attempts, false);
        RetryError::new(execution, attempts, reason, failure)
    }
}
