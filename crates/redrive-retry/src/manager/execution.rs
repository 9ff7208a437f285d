//! [`Execution`]: one guarded call with its names for the audit.

use std::future::{Future, poll_fn, ready};
use std::pin::{Pin, pin};
use std::task::Poll;

use serde_json::Value;

use super::drive::drive;
use super::environment::Environment;
use super::pause::Pause;
use super::{Attempt, IdempotentExecution, RetryError, RetryManager};
use crate::audit::{AuditEvent, RetryExhausted, bounded};
use crate::breaker::CircuitBreaker;
use crate::category::Category;
use crate::clock::Sleep;
use crate::failure::{BoxError, Failure};
use crate::idempotency::IdempotencyKey;
use crate::policy::RetryPolicy;
use crate::setters;
use crate::timestamp::Timestamp;

/// A guarded call about to be made; see [`RetryManager::execute`].
// Every field is borrowed: describing a call allocates nothing.
#[derive(Copy, Clone, Debug)]
#[must_use = "nothing happens until run()"]
pub struct Execution<'a> {
    pub(super) environment: &'a Environment,
    pub(super) category: &'a Category,
    pub(super) policy: &'a RetryPolicy,
    pub(super) call: CallOptions<'a>,
}

/// Name, circuit breaker and audit fields of a call.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct CallOptions<'a> {
    pub(super) operation: &'a str,
    pub(super) breaker: Option<&'a CircuitBreaker>,
    pub(super) tenant_id: Option<&'a str>,
    pub(super) correlation_id: Option<&'a str>,
    pub(super) trace_id: Option<&'a str>,
    pub(super) context: Option<&'a Value>,
}

impl<'a> Execution<'a> {
    #[inline(always)]
    pub(super) fn new(manager: &'a RetryManager, category: &'a Category, operation: &'a str) -> Self {
        Execution {
            environment: &manager.inner.environment,
            policy: manager.policy(category),
            category,
            call: CallOptions { operation, ..CallOptions::default() },
        }
    }

    setters! {
        /// Uses this policy in place of the category's.
        policy(policy: &'a RetryPolicy) => policy = policy;
        /// Uses the circuit breaker of the destination. While the circuit is open the call fails at once; with a deadline in the
        /// policy it waits for the circuit up to the deadline.
        breaker(breaker: &'a CircuitBreaker) => call.breaker = Some(breaker);
        /// Sets the tenant id in audit events.
        tenant(tenant_id: &'a str) => call.tenant_id = Some(tenant_id);
        /// Sets the correlation id in audit events. A call with one replays its delays: category, operation, tenant and correlation id
        /// are the identity of its jitter.
        correlation(correlation_id: &'a str) => call.correlation_id = Some(correlation_id);
        /// Sets the trace id in audit events.
        trace(trace_id: &'a str) => call.trace_id = Some(trace_id);
        /// Attaches JSON to the recorded decisions.
        context(context: &'a Value) => call.context = Some(context);
    }

    /// Makes the call idempotent: it runs at most once under this key, and later calls return the stored result.
    pub fn idempotent(self, key: IdempotencyKey) -> IdempotentExecution<'a> {
        IdempotentExecution::new(self, key)
    }

    /// Runs the operation until it succeeds or the policy allows no further attempt.
    ///
    /// Safe to cancel: dropping the future cancels the attempt in flight and frees a probe's slot.
    // Not an `async fn`: its future would hold every argument twice, as captured and as moved into its body.
    #[allow(clippy::manual_async_fn)]
    #[inline(always)] // builds the execution in place instead of copying it
    pub fn run<T, E, Op, Fut>(
        self,
        mut operation: Op,
    ) -> impl Future<Output = Result<T, RetryError>> + use<'a, T, E, Op, Fut>
    where
        Op: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError> + 'static,
    {
        async move {
            // The retry loop is boxed, to keep the future of a call that succeeds at once small.
            if self.call.breaker.is_some() | self.policy.deadline().is_some() {
                return out_of_line(self, operation).await;
            }
            // Fast path of a call that succeeds at once: no allocation, no copied name, and a clock read only for a time limit.
            let environment = self.environment;
            environment.count_first_attempt();
            let limit = self.policy.attempt_timeout();
            let deadline = limit.map(|limit| environment.clock.now() + limit);
            let first = {
                let mut first = pin!(operation(Attempt::new(1, self.policy, deadline, None)));
                let mut timer: Option<Pin<Box<Sleep>>> = None;
                poll_fn(|cx| {
                    if let Poll::Ready(result) = first.as_mut().poll(cx) {
                        return Poll::Ready(result.map_err(Failure::new));
                    }
                    let Some(limit) = limit else { return Poll::Pending };
                    // A timer exists only while the operation waits.
                    let timer = timer.get_or_insert_with(|| Box::pin(environment.clock.sleep(limit)));
                    timer.as_mut().poll(cx).map(|()| Err(Failure::timeout(limit)))
                })
                .await
            };
            match first {
                Ok(value) => {
                    environment.meter.count(self.category, 1, true);
                    Ok(value)
                }
                Err(failure) => Box::pin(drive(self, None, Pause::Async, operation, Some(failure))).await,
            }
        }
    }

    /// Runs a blocking operation until it succeeds or the policy allows no further attempt. Delays block the thread.
    ///
    /// A blocking operation cannot be cancelled: it should observe [`Attempt::deadline`].
    pub fn run_blocking<T, E, Op>(self, mut operation: Op) -> Result<T, RetryError>
    where
        Op: FnMut(Attempt) -> Result<T, E>,
        E: Into<BoxError> + 'static,
    {
        let operation = |attempt| ready(operation(attempt));
        pollster::block_on(drive(self, None, Pause::Blocking, operation, None))
    }
}

/// Boxes the retry loop outside of the fast path.
#[cold]
#[inline(never)]
fn out_of_line<'a, T, E, Op, Fut>(
    execution: Execution<'a>,
    operation: Op,
) -> Pin<Box<impl Future<Output = Result<T, RetryError>> + use<'a, T, E, Op, Fut>>>
where
    Op: FnMut(Attempt) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
{
    Box::pin(drive(execution, None, Pause::Async, operation, None))
}

impl Execution<'_> {
    /// Records the final failure of a call.
    pub(super) fn audit_exhausted(&self, attempts: u32, error_type: String, error: String, now: Timestamp) {
        self.environment.auditor.record(&AuditEvent::RetryExhausted(RetryExhausted {
            retry_category: self.category.clone(),
            operation: self.call.operation.to_owned(),
            total_attempts: attempts,
            final_exception_type: error_type,
            final_exception_message: bounded(error),
            tenant_id: self.call.tenant_id.map(str::to_owned),
            correlation_id: self.call.correlation_id.map(str::to_owned),
            trace_id: self.call.trace_id.map(str::to_owned),
            timestamp: now,
        }));
    }
}
