//! [`Execution`]: one guarded call with its names for the audit.

use serde_json::Value;

use super::RetryManager;
use super::environment::Environment;
use crate::audit::{AuditEvent, RetryExhausted, bounded};
use crate::breaker::CircuitBreaker;
use crate::category::Category;
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
