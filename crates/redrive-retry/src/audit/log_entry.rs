//! Retry log entry of the event bus with the field names of the specification.

use serde::{Deserialize, Serialize};

/// Log entry of a failed attempt of the event bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryLogEntry {
    /// Always `warn`.
    #[serde(default)]
    pub level: Level,
    /// Event id.
    pub event_id: String,
    /// Event type.
    pub event_type: String,
    /// Subscription whose handler failed.
    pub subscription_id: String,
    /// Number of the failed attempt, counted from 1.
    pub attempt: u32,
    /// Largest number of attempts.
    pub max_attempts: u32,
    /// Delay before the next attempt; 0 after the last one.
    pub delay_ms: u64,
    /// Text of the error.
    pub error: String,
}

/// Level of a retry log entry.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A warning.
    #[default]
    Warn,
}

impl Level {
    /// The name, as JSON has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Warn => "warn",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_has_exactly_the_specified_fields() {
        let entry = RetryLogEntry {
            level: Level::Warn,
            event_id: "e".into(),
            event_type: "order.created".into(),
            subscription_id: "s".into(),
            attempt: 1,
            max_attempts: 4,
            delay_ms: 1000,
            error: "boom".into(),
        };
        let json = r#"{"level":"warn","event_id":"e","event_type":"order.created","subscription_id":"s","attempt":1,"max_attempts":4,"delay_ms":1000,"error":"boom"}"#;
        assert_eq!(serde_json::to_string(&entry).unwrap(), json);
        assert_eq!(serde_json::from_str::<RetryLogEntry>(json).unwrap(), entry);
    }
}
