//! One guarded call: what it is called in the audit, and how it is run.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;

use serde_json::Value;

use super::drive::drive;
use super::pause::Pause;
use super::{Attempt, IdempotentExecution, RetryError, RetryManager};
use crate::audit::{AuditEvent, RetryExhausted, bounded};
use crate::breaker::SharedBreaker;
use crate::category::Category;
use crate::failure::{BoxError, Failure};
use crate::idempotency::IdempotencyKey;
use crate::policy::RetryPolicy;
use crate::timestamp::Timestamp;

/// A call about to be made; see [`RetryManager::execute`].
// Everything is borrowed: describing a call allocates nothing.
#[derive(Copy, Clone)]
#[must_use = "nothing happens until run()"]
pub struct Execution<'a> {
    pub(super) manager: &'a RetryManager,
    pub(super) category: &'a Category,
    pub(super) operation: &'a str,
    pub(super) policy: &'a RetryPolicy,
    pub(super) breaker: Option<&'a SharedBreaker>,
    pub(super) tenant_id: Option<&'a str>,
    pub(super) correlation_id: Option<&'a str>,
    pub(super) trace_id: Option<&'a str>,
    pub(super) context: Option<&'a Value>,
}

impl<'a> Execution<'a> {
    #[inline(always)]
    pub(super) fn new(manager: &'a RetryManager, category: &'a Category, operation: &'a str) -> Self {
        Execution {
            manager,
            policy: manager.policy(category),
            category,
            operation,
            breaker: None,
            tenant_id: None,
            correlation_id: None,
            trace_id: None,
            context: None,
        }
    }

    /// Another policy than the category's.
    pub fn policy(mut self, policy: &'a RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The circuit of the destination. While it is open the call fails at once; if the policy has a deadline, it waits
    /// for the circuit as long as that allows.
    pub fn breaker(mut self, breaker: &'a SharedBreaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// Whose call it is, for the audit.
    pub fn tenant(mut self, tenant_id: &'a str) -> Self {
        self.tenant_id = Some(tenant_id);
        self
    }

    /// What it belongs to, for the audit.
    pub fn correlation(mut self, correlation_id: &'a str) -> Self {
        self.correlation_id = Some(correlation_id);
        self
    }

    /// The trace it is part of, for the audit.
    pub fn trace(mut self, trace_id: &'a str) -> Self {
        self.trace_id = Some(trace_id);
        self
    }

    /// Anything else to be kept with the recorded decisions.
    pub fn context(mut self, context: &'a Value) -> Self {
        self.context = Some(context);
        self
    }

    /// Makes the call run at most once under this key: its result is stored, and returned to whoever asks again.
    pub fn idempotent(self, key: IdempotencyKey) -> IdempotentExecution<'a> {
        IdempotentExecution::new(self, key)
    }

    /// Runs the operation until it succeeds or the policy gives up. Finite in any case.
    ///
    /// Safe to cancel: dropping the future stops the attempt under way, frees a probe's slot and leaves nothing behind.
    // Not an `async fn`: that would keep every argument twice, as captured and as moved into its body.
    #[allow(clippy::manual_async_fn)]
    #[inline(always)] // so that the description of the call is built where it is kept, not copied there
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
            // What follows a failure is boxed, so that the future of a call that succeeds at once is little more than the
            // operation's own: it is moved and stored by whoever awaits it.
            if self.breaker.is_some() | self.policy.is_timed() {
                return out_of_line(self, operation, None).await;
            }
            // The path of a call that succeeds at once: no clock is read, nothing is allocated, no name is copied.
            self.manager.count_first_attempt();
            match operation(Attempt::new(1, self.policy, None, None)).await {
                Ok(value) => Ok(value),
                Err(error) => {
                    Box::pin(drive(self, None, Pause::Async, operation, Some(Failure::new(error)))).await
                }
            }
        }
    }

    /// The same for an operation that blocks. Waits block the thread, so call it outside of async code.
    ///
    /// A blocking operation cannot be cut off: it should look at [`Attempt::deadline`] itself.
    pub fn run_blocking<T, E, Op>(self, mut operation: Op) -> Result<T, RetryError>
    where
        Op: FnMut(Attempt) -> Result<T, E>,
        E: Into<BoxError> + 'static,
    {
        let operation = |attempt| ready(operation(attempt));
        pollster::block_on(drive(self, None, Pause::Blocking, operation, None))
    }
}

/// The retry loop, made and kept away from the path of a call that succeeds at once.
#[cold]
#[inline(never)]
fn out_of_line<'a, T, E, Op, Fut>(
    execution: Execution<'a>,
    operation: Op,
    first_failure: Option<Failure>,
) -> Pin<Box<impl Future<Output = Result<T, RetryError>> + use<'a, T, E, Op, Fut>>>
where
    Op: FnMut(Attempt) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
{
    Box::pin(drive(execution, None, Pause::Async, operation, first_failure))
}

impl Execution<'_> {
    /// The operation ends without success: no end is silent.
    pub(super) fn audit_exhausted(&self, attempts: u32, error_type: String, error: String, now: Timestamp) {
        self.manager.inner.auditor.record(&AuditEvent::RetryExhausted(RetryExhausted {
            retry_category: self.category.clone(),
            operation: self.operation.to_owned(),
            total_attempts: attempts,
            final_exception_type: error_type,
            final_exception_message: bounded(error),
            tenant_id: self.tenant_id.map(str::to_owned),
            correlation_id: self.correlation_id.map(str::to_owned),
            trace_id: self.trace_id.map(str::to_owned),
            timestamp: now,
        }));
    }
}

impl fmt::Debug for Execution<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("category", &self.category)
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}
