//! [`TracingSink`]: sends audit events to `tracing`.

use super::{AuditError, AuditEvent, AuditSink, RetryLogEntry};

/// Sends audit events to `tracing`, with the targets `redrive::audit` and `redrive::retry`. The default sink.
#[derive(Copy, Clone, Debug, Default)]
pub struct TracingSink;

/// Logs an audit event: the fields that all events have, around its own.
macro_rules! audit {
    ($level:ident, $name:literal, $event:ident, $($field:ident = $value:expr),+) => {
        tracing::$level!(
            target: "redrive::audit",
            event_type = $name,
            retry_category = $event.retry_category.code(),
            operation = $event.operation,
            $($field = $value,)+
            tenant_id = $event.tenant_id,
            correlation_id = $event.correlation_id,
            trace_id = $event.trace_id,
            timestamp = %$event.timestamp,
        )
    };
}

impl AuditSink for TracingSink {
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError> {
        match event {
            AuditEvent::RetryAttempt(e) => audit!(
                warn,
                "retry_attempt",
                e,
                attempt_number = e.attempt_number,
                max_attempts = e.max_attempts,
                delay_seconds = e.delay_seconds,
                exception_type = e.exception_type,
                exception_message = e.exception_message
            ),
            AuditEvent::RetryExhausted(e) => audit!(
                error,
                "retry_exhausted",
                e,
                total_attempts = e.total_attempts,
                final_exception_type = e.final_exception_type,
                final_exception_message = e.final_exception_message
            ),
            AuditEvent::Idempotency(e) => {
                audit!(
                    info,
                    "idempotency",
                    e,
                    idempotency_key = e.idempotency_key,
                    action = e.action.as_str()
                );
            }
            // For tools: logged at the debug level only.
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
            level = entry.level.as_str(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fmt;
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    /// Every event as its fields, with the level.
    #[derive(Clone, Default)]
    struct Capture(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

    struct Fields(BTreeMap<String, String>);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.insert(field.name().into(), format!("{value:?}").trim_matches('"').into());
        }
    }

    impl Subscriber for Capture {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut fields =
                Fields(BTreeMap::from([("tracing level".into(), event.metadata().level().to_string())]));
            event.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    /// Compares the logged fields with the JSON of the event.
    fn assert_logged(json: &str, level: &str, log: impl FnOnce(&TracingSink)) {
        let capture = Capture::default();
        tracing::subscriber::with_default(capture.clone(), || log(&TracingSink));
        let logged = capture.0.lock().unwrap().remove(0);
        assert_eq!(logged["tracing level"], level);
        let expected: BTreeMap<String, serde_json::Value> = serde_json::from_str(json).unwrap();
        for (name, value) in expected {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(logged.get(&name), Some(&text), "{name} in {logged:?}");
        }
    }

    #[test]
    fn every_field_reaches_the_log() {
        let common =
            r#""tenant_id":"t","correlation_id":"c","trace_id":"x","timestamp":"2026-01-25T21:15:00Z""#;
        let attempt = format!(
            r#"{{"event_type":"retry_attempt","retry_category":"RETRY_KV_GET","operation":"o","attempt_number":2,
            "max_attempts":3,"delay_seconds":1.05,"exception_type":"E","exception_message":"m",{common}}}"#
        );
        let exhausted = format!(
            r#"{{"event_type":"retry_exhausted","retry_category":"RETRY_KV_GET","operation":"o","total_attempts":3,
            "final_exception_type":"E","final_exception_message":"m",{common}}}"#
        );
        let hit = format!(
            r#"{{"event_type":"idempotency","retry_category":"RETRY_KV_PUT","operation":"o","idempotency_key":"k",
            "action":"hit",{common}}}"#
        );
        for (json, level) in [(attempt, "WARN"), (exhausted, "ERROR"), (hit, "INFO")] {
            assert_logged(&json, level, |sink| sink.record(&serde_json::from_str(&json).unwrap()).unwrap());
        }
        let entry = r#"{"level":"warn","event_id":"e","event_type":"order.created","subscription_id":"s","attempt":1,
            "max_attempts":4,"delay_ms":1000,"error":"boom"}"#;
        assert_logged(entry, "WARN", |sink| sink.log(&serde_json::from_str(entry).unwrap()).unwrap());
    }
}
