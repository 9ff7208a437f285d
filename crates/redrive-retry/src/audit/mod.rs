//! Audit events: failed attempts, exhausted calls, uses of idempotency keys, and decisions with their inputs.
//!
//! The field names and codes are a public contract. Events go to an [`AuditSink`]. A failing sink never breaks the guarded
//! call: its failures are counted and logged.
//!
//! ```
//! use redrive_retry::RetryManager;
//! use redrive_retry::audit::JsonLinesSink;
//!
//! let manager = RetryManager::builder().audit(JsonLinesSink::new(std::io::stderr())).build();
//! assert_eq!(manager.audit_failures(), 0);
//! ```

mod auditor;
mod channel;
mod event;
mod fanout;
mod json_lines;
mod log_entry;
mod sink;
mod tracing_sink;

pub(crate) use self::auditor::Auditor;
pub use self::channel::ChannelSink;
pub use self::event::{
    AuditEvent, IdempotencyAction, IdempotencyUse, RetryAttempt, RetryDecision, RetryExhausted,
};
pub use self::fanout::Fanout;
pub use self::json_lines::JsonLinesSink;
pub use self::log_entry::{Level, RetryLogEntry};
pub use self::sink::{AuditError, AuditSink};
pub use self::tracing_sink::TracingSink;

/// Longest error text in an audit event.
const MAX_MESSAGE_BYTES: usize = 4096;

pub(crate) fn bounded(message: String) -> String {
    truncated(message, MAX_MESSAGE_BYTES)
}

/// Truncates an error text at a character boundary and marks the truncation.
#[doc(hidden)]
pub fn truncated(mut message: String, max_bytes: usize) -> String {
    if message.len() > max_bytes {
        // `str::floor_char_boundary` would raise the minimum Rust version.
        let cut = (0..=max_bytes).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        let omitted = message.len() - cut;
        message.truncate(cut);
        message.push_str(&format!("… ({omitted} more bytes)"));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_truncated_at_a_character_with_a_mark() {
        let text = bounded("é".repeat(3000));
        assert!(
            text.len() < MAX_MESSAGE_BYTES + 40 && text.ends_with("… (1904 more bytes)"),
            "{}",
            &text[4000..]
        );
        assert_eq!(bounded("short".into()), "short");
    }
}
