//! The retry log entry of the event bus, field for field as specified.

use serde::{Deserialize, Serialize};

/// Written for every failed attempt, the last one included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryLogEntry {
    /// Always `warn`.
    #[serde(default)]
    pub level: Level,
    /// The event.
    pub event_id: String,
    /// Its type.
    pub event_type: String,
    /// The subscription whose handler failed.
    pub subscription_id: String,
    /// Which attempt failed, counted from 1.
    pub attempt: u32,
    /// How many there may be.
    pub max_attempts: u32,
    /// The wait before the next one; 0 after the last.
    pub delay_ms: u64,
    /// The error.
    pub error: String,
}

/// The level of a retry log entry. There is only one.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A warning.
    #[default]
    Warn,
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
