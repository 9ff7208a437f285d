//! What is written down: every failed attempt, every exhaustion, every use of an idempotency key, and every decision
//! with the inputs it was based on.
//!
//! The field names and codes are a public contract. An [`AuditSink`] takes the events in; the
//! [`RetryManager`](crate::RetryManager) makes sure that a sink that fails is noticed and never breaks the operation.

mod channel;
mod event;
mod fanout;
mod json_lines;
mod log_entry;
mod sink;
mod tracing_sink;

pub use self::channel::ChannelSink;
pub use self::event::{
    AuditEvent, IdempotencyAction, IdempotencyUse, RetryAttempt, RetryDecision, RetryExhausted,
};
pub use self::fanout::Fanout;
pub use self::json_lines::JsonLinesSink;
pub use self::log_entry::{Level, RetryLogEntry};
pub(crate) use self::sink::Auditor;
pub use self::sink::{AuditError, AuditSink};
pub use self::tracing_sink::TracingSink;

/// Error texts are kept up to this many bytes.
const LONGEST_MESSAGE: usize = 4096;

/// An error's text, cut at a character boundary if it is too long, with a mark that it was.
pub(crate) fn bounded(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        let cut = message.floor_char_boundary(LONGEST_MESSAGE);
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
    fn long_messages_are_cut_at_a_character_and_say_so() {
        let text = bounded("é".repeat(3000));
        assert!(
            text.len() < LONGEST_MESSAGE + 40 && text.ends_with("… (1904 more bytes)"),
            "{}",
            &text[4000..]
        );
        assert_eq!(bounded("short".into()), "short");
    }
}
