//! Audit events as structured `tracing` events.

use super::{AuditError, AuditEvent, AuditSink, RetryLogEntry};

/// Sends everything to `tracing`: targets `redrive::audit` and `redrive::retry`. The default sink.
#[derive(Copy, Clone, Debug, Default)]
pub struct TracingSink;

impl AuditSink for TracingSink {
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError> {
        match event {
            AuditEvent::RetryAttempt(e) => tracing::warn!(
                target: "redrive::audit",
                event_type = "retry_attempt",
                retry_category = e.retry_category.code(),
                operation = e.operation,
                attempt_number = e.attempt_number,
                max_attempts = e.max_attempts,
                delay_seconds = e.delay_seconds,
                exception_type = e.exception_type,
                exception_message = e.exception_message,
                tenant_id = e.tenant_id,
                correlation_id = e.correlation_id,
                trace_id = e.trace_id,
                timestamp = %e.timestamp,
            ),
            AuditEvent::RetryExhausted(e) => tracing::error!(
                target: "redrive::audit",
                event_type = "retry_exhausted",
                retry_category = e.retry_category.code(),
                operation = e.operation,
                total_attempts = e.total_attempts,
                final_exception_type = e.final_exception_type,
                final_exception_message = e.final_exception_message,
                tenant_id = e.tenant_id,
                correlation_id = e.correlation_id,
                trace_id = e.trace_id,
                timestamp = %e.timestamp,
            ),
            AuditEvent::Idempotency(e) => tracing::info!(
                target: "redrive::audit",
                event_type = "idempotency",
                retry_category = e.retry_category.code(),
                operation = e.operation,
                idempotency_key = e.idempotency_key,
                action = ?e.action,
                tenant_id = e.tenant_id,
                correlation_id = e.correlation_id,
                trace_id = e.trace_id,
                timestamp = %e.timestamp,
            ),
            // For machines, not for people: a log that wants it asks for the debug level.
            AuditEvent::RetryDecision(e) => tracing::debug!(
                target: "redrive::audit",
                event_type = "retry_decision",
                retry_category = e.retry_category.code(),
                operation = e.operation,
                record = serde_json::to_string(&e.record).unwrap_or_default(),
            ),
        }
        Ok(())
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        tracing::warn!(
            target: "redrive::retry",
            event_id = entry.event_id,
            event_type = entry.event_type,
            subscription_id = entry.subscription_id,
            attempt = entry.attempt,
            max_attempts = entry.max_attempts,
            delay_ms = entry.delay_ms,
            error = entry.error,
        );
        Ok(())
    }
}
