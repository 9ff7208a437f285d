//! Audit events with the field names of the specification.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::category::Category;
use crate::decision::DecisionRecord;
use crate::timestamp::{Timestamp, rfc3339};

/// An audit event; the field `event_type` names the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event_type", rename_all = "snake_case")]
pub enum AuditEvent {
    /// An attempt failed and another one follows.
    RetryAttempt(RetryAttempt),
    /// The call failed finally.
    RetryExhausted(RetryExhausted),
    /// A stored result was returned, or a result was stored.
    Idempotency(IdempotencyUse),
    /// A decision with its inputs, for `redrive audit verify`.
    RetryDecision(RetryDecision),
}

/// Defines an audit event: the fields that every event has, around its own.
macro_rules! audit_event {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $field:ident: $kind:ty,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// Code of the category.
            pub retry_category: Category,
            /// Name of the operation.
            pub operation: String,
            $($(#[$meaning])* pub $field: $kind,)+
            /// Tenant id.
            pub tenant_id: Option<String>,
            /// Correlation id.
            pub correlation_id: Option<String>,
            /// Trace id.
            pub trace_id: Option<String>,
            /// Time of the event.
            #[serde(with = "rfc3339")]
            pub timestamp: Timestamp,
        }
    };
}

audit_event! {
    /// An attempt failed and another one follows after the delay.
    RetryAttempt {
        /// Number of the failed attempt, counted from 1.
        attempt_number: u32,
        /// Largest number of attempts.
        max_attempts: u32,
        /// Delay before the next attempt.
        delay_seconds: f64,
        /// Type of the error.
        exception_type: String,
        /// Text of the error.
        exception_message: String,
    }
}

audit_event! {
    /// The call failed finally: no attempts left, or no further attempt allowed.
    RetryExhausted {
        /// Number of attempts made.
        total_attempts: u32,
        /// Type of the last error.
        final_exception_type: String,
        /// Text of the last error.
        final_exception_message: String,
    }
}

audit_event! {
    /// A stored result was returned instead of running the operation, or the result of a run was stored.
    IdempotencyUse {
        /// Idempotency key.
        idempotency_key: String,
        /// Returned or stored.
        action: IdempotencyAction,
    }
}

/// Use of an idempotency key.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdempotencyAction {
    /// A stored result was returned.
    Hit,
    /// A result was stored.
    Record,
}

impl IdempotencyAction {
    /// Name in audit events.
    pub fn as_str(self) -> &'static str {
        match self {
            IdempotencyAction::Hit => "hit",
            IdempotencyAction::Record => "record",
        }
    }
}

/// A recorded decision of the retry loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryDecision {
    /// Code of the category.
    pub retry_category: Category,
    /// Name of the operation.
    pub operation: String,
    /// JSON attached by the caller.
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
        assert_eq!(serde_json::to_value(&event).unwrap(), expected, "exactly the specified fields");
        event
    }

    #[test]
    fn the_specified_retry_attempt_survives_a_round_trip() {
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
    fn the_specified_retry_exhaustion_survives_a_round_trip() {
        round_trip(
            r#"{"event_type":"retry_exhausted","retry_category":"RETRY_KV_GET","operation":"Get kill switch status",
                "total_attempts":3,"final_exception_type":"TimeoutError",
                "final_exception_message":"KV operation timeout","tenant_id":"tenant-123",
                "correlation_id":"corr-456","trace_id":"trace-789","timestamp":"2026-01-25T21:15:00Z"}"#,
        );
    }

    #[test]
    fn the_specified_idempotency_event_survives_a_round_trip() {
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
