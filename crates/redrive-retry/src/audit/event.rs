//! The audit events, field for field as specified.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::category::Category;
use crate::record::DecisionRecord;
use crate::timestamp::{Timestamp, rfc3339};

/// One line of the audit log. `event_type` says which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event_type", rename_all = "snake_case")]
pub enum AuditEvent {
    /// An attempt failed and another one follows.
    RetryAttempt(RetryAttempt),
    /// The operation was given up.
    RetryExhausted(RetryExhausted),
    /// A stored result was used or stored.
    Idempotency(IdempotencyUse),
    /// A decision with everything it was based on, for `redrive audit verify`.
    RetryDecision(RetryDecision),
}

/// An attempt failed and another one follows after the delay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryAttempt {
    /// The code of the category.
    pub retry_category: Category,
    /// What was tried.
    pub operation: String,
    /// Which attempt failed, counted from 1.
    pub attempt_number: u32,
    /// How many there may be.
    pub max_attempts: u32,
    /// The wait before the next one.
    pub delay_seconds: f64,
    /// The type of the error.
    pub exception_type: String,
    /// Its text.
    pub exception_message: String,
    /// Whose operation it was.
    pub tenant_id: Option<String>,
    /// What it belongs to.
    pub correlation_id: Option<String>,
    /// The trace it is part of.
    pub trace_id: Option<String>,
    /// When the attempt failed.
    #[serde(with = "rfc3339")]
    pub timestamp: Timestamp,
}

/// The operation was given up: all attempts used, or no further attempt could help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryExhausted {
    /// The code of the category.
    pub retry_category: Category,
    /// What was tried.
    pub operation: String,
    /// How many attempts were made.
    pub total_attempts: u32,
    /// The type of the last error.
    pub final_exception_type: String,
    /// Its text.
    pub final_exception_message: String,
    /// Whose operation it was.
    pub tenant_id: Option<String>,
    /// What it belongs to.
    pub correlation_id: Option<String>,
    /// The trace it is part of.
    pub trace_id: Option<String>,
    /// When it was given up.
    #[serde(with = "rfc3339")]
    pub timestamp: Timestamp,
}

/// A stored result was returned instead of running the operation, or the result of a run was stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdempotencyUse {
    /// The code of the category.
    pub retry_category: Category,
    /// What was guarded.
    pub operation: String,
    /// The key.
    pub idempotency_key: String,
    /// Used or stored.
    pub action: IdempotencyAction,
    /// Whose operation it was.
    pub tenant_id: Option<String>,
    /// What it belongs to.
    pub correlation_id: Option<String>,
    /// The trace it is part of.
    pub trace_id: Option<String>,
    /// When.
    #[serde(with = "rfc3339")]
    pub timestamp: Timestamp,
}

/// What happened to an idempotency key.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdempotencyAction {
    /// A stored result was returned.
    Hit,
    /// A result was stored.
    Record,
}

impl IdempotencyAction {
    /// The name in audit events.
    pub fn as_str(self) -> &'static str {
        match self {
            IdempotencyAction::Hit => "hit",
            IdempotencyAction::Record => "record",
        }
    }
}

/// A decision of the retry loop with its record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryDecision {
    /// The code of the category.
    pub retry_category: Category,
    /// What was tried.
    pub operation: String,
    /// Whatever the caller wanted to be kept with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
    /// Inputs, decision and digest.
    pub record: DecisionRecord,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(json: &str) -> AuditEvent {
        let event: AuditEvent = serde_json::from_str(json).unwrap();
        let expected: Value = serde_json::from_str(json).unwrap();
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            expected,
            "exactly the specified fields, no more, no less"
        );
        event
    }

    #[test]
    fn the_retry_attempt_of_the_specification_is_read_and_written_field_for_field() {
        let event = round_trip(
            r#"{"event_type":"retry_attempt","retry_category":"RETRY_NATS_PUBLISH",
                "operation":"Publish to exoarmur.audit.append.v1","attempt_number":2,"max_attempts":3,
                "delay_seconds":1.05,"exception_type":"TimeoutError","exception_message":"Connection timeout",
                "tenant_id":"tenant-123","correlation_id":"corr-456","trace_id":"trace-789",
                "timestamp":"2026-01-25T21:15:00Z"}"#,
        );
        assert!(matches!(
            event,
            AuditEvent::RetryAttempt(RetryAttempt { retry_category: Category::NatsPublish, .. })
        ));
    }

    #[test]
    fn the_retry_exhaustion_of_the_specification_is_read_and_written_field_for_field() {
        round_trip(
            r#"{"event_type":"retry_exhausted","retry_category":"RETRY_KV_GET","operation":"Get kill switch status",
                "total_attempts":3,"final_exception_type":"TimeoutError",
                "final_exception_message":"KV operation timeout","tenant_id":"tenant-123",
                "correlation_id":"corr-456","trace_id":"trace-789","timestamp":"2026-01-25T21:15:00Z"}"#,
        );
    }

    #[test]
    fn the_idempotency_event_of_the_specification_is_read_and_written_field_for_field() {
        for action in ["hit", "record"] {
            round_trip(&format!(
                r#"{{"event_type":"idempotency","retry_category":"RETRY_KV_PUT",
                    "operation":"Store kill switch state","idempotency_key":"abc123def456...","action":"{action}",
                    "tenant_id":"tenant-123","correlation_id":"corr-456","trace_id":"trace-789",
                    "timestamp":"2026-01-25T21:15:00Z"}}"#
            ));
        }
    }

    #[test]
    fn an_unknown_field_is_refused() {
        let json = r#"{"event_type":"idempotency","retry_category":"RETRY_KV_PUT","operation":"x",
            "idempotency_key":"k","action":"hit","tenant_id":null,"correlation_id":null,"trace_id":null,
            "timestamp":"2026-01-25T21:15:00Z","colour":"red"}"#;
        assert!(serde_json::from_str::<AuditEvent>(json).is_err());
    }
}
