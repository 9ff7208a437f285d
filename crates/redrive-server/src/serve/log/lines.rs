//! `tracing` layer that writes log lines, as text or JSON. A line has each field once: its own, then those that only its spans have.

use std::fmt::Write as _;
use std::io::Write as _;

use serde::Serialize as _;
use serde_json::Value;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::LogFormat;
use super::fields::Fields;
use super::summary::RetrySummary;
use crate::terminal_text::{SafeJson, is_unsafe};

/// Target of the retry log entries, one for each failed attempt.
const RETRY_TARGET: &str = "redrive::retry";

/// Writes log lines.
pub(super) struct Lines<W> {
    pub(super) format: LogFormat,
    pub(super) has_colour: bool,
    /// Collects the retry log entries, where a summary replaces them.
    pub(super) summary: Option<RetrySummary>,
    pub(super) writer: W,
}

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.add_missing(of_span);
            }
        }
        let metadata = event.metadata();
        if let Some(summary) = self.summary.as_ref().filter(|_| metadata.target() == RETRY_TARGET) {
            return summary.add(&fields);
        }
        let line = match self.format {
            LogFormat::Text => self.text(metadata, &fields),
            LogFormat::Json => json(metadata, &fields),
        };
        // A log that cannot be written has nowhere to report that.
        let _ = self.writer.make_writer_for(metadata).write_all(line.as_bytes());
    }
}

impl<W> Lines<W> {
    fn text(&self, metadata: &Metadata<'_>, fields: &Fields) -> String {
        let (dim, colour, off) = match (self.has_colour, *metadata.level()) {
            (false, _) => ("", "", ""),
            (true, Level::ERROR) => ("\x1b[2m", "\x1b[31m", "\x1b[0m"),
            (true, Level::WARN) => ("\x1b[2m", "\x1b[33m", "\x1b[0m"),
            (true, Level::INFO) => ("\x1b[2m", "\x1b[32m", "\x1b[0m"),
            (true, _) => ("\x1b[2m", "\x1b[34m", "\x1b[0m"),
        };
        let (level, target) = (metadata.level(), metadata.target());
        let mut line = format!("{dim}{}{off} {colour}{level:>5}{off} {dim}{target}:{off}", now());
        if let Some(message) = fields.text("message") {
            line.push(' ');
            push_text(&mut line, message, is_unsafe);
        }
        for (name, value) in fields.0.iter().filter(|(name, _)| !matches!(*name, "message" | "level")) {
            let _ = write!(line, " {dim}{name}={off}"); // writing to a String cannot fail
            match value {
                Value::String(text) => {
                    push_text(&mut line, text, |c| is_unsafe(c) || c.is_whitespace() || c == '"');
                }
                other => line.push_str(&other.to_string()),
            }
        }
        line.push('\n');
        line
    }
}

/// Adds a text, in quotes and with escapes if it has a character that needs them.
fn push_text(line: &mut String, text: &str, needs_quotes: impl Fn(char) -> bool) {
    if text.is_empty() || text.contains(needs_quotes) {
        let _ = write!(line, "{text:?}"); // writing to a String cannot fail
    } else {
        line.push_str(text);
    }
}

/// One JSON object. The level is the field of that name, as retry log entries have it, or else that of the line.
fn json(metadata: &Metadata<'_>, fields: &Fields) -> String {
    let level = fields.text("level").unwrap_or_else(|| metadata.level().as_str());
    let mut line = format!(
        r#"{{"timestamp":{},"level":{},"target":{}"#,
        Value::from(now()),
        Value::from(level),
        Value::from(metadata.target())
    );
    let is_taken = |name: &str| matches!(name, "timestamp" | "level" | "target");
    for (name, value) in fields.0.iter().filter(|(name, _)| !is_taken(name)) {
        let _ = write!(line, ",{}:{}", Value::from(*name), safe_json(value)); // writing to a String cannot fail
    }
    line.push_str("}\n");
    line
}

fn safe_json(value: &Value) -> String {
    let mut text = Vec::new();
    // Neither a value nor a vector of bytes can fail.
    let _ = value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, SafeJson));
    String::from_utf8_lossy(&text).into_owned()
}

fn now() -> String {
    let mut text = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut text)); // writing to a String cannot fail
    text
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that a function logs.
    fn lines(format: LogFormat, summary: Option<RetrySummary>, log: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let layer = Lines { format, has_colour: false, summary, writer: move || writer.clone() };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// The retry log entry as the bus writes it, inside the span of its attempt.
    fn fail(attempt: u32) {
        let span = tracing::info_span!(
            target: "redrive::event", "event", event_id = "e-1", event_type = "order.created", attempt,
            subscription = "mail", outcome = tracing::field::Empty
        );
        let _inside = span.enter();
        tracing::warn!(
            target: "redrive::retry", level = "warn", event_id = "e-1", event_type = "order.created",
            subscription_id = "s-1", attempt, max_attempts = 4, delay_ms = 1000 * u64::from(attempt),
            error = "no \"stock\"\n",
        );
    }

    #[test]
    fn a_json_line_has_each_field_once_and_the_specified_level() {
        let log = lines(LogFormat::Json, None, || fail(1));
        for name in ["event_id", "event_type", "attempt", "subscription", "level"] {
            assert_eq!(log.matches(&format!("\"{name}\":")).count(), 1, "{name} in {log}");
        }
        let line: Value = serde_json::from_str(&log).unwrap();
        assert_eq!((&line["level"], &line["target"]), (&"warn".into(), &"redrive::retry".into()));
        assert_eq!((&line["attempt"], &line["subscription"]), (&1.into(), &"mail".into()));
        assert_eq!((&line["subscription_id"], &line["max_attempts"]), (&"s-1".into(), &4.into()));
        assert_eq!((&line["delay_ms"], &line["error"]), (&1000.into(), &"no \"stock\"\n".into()));
        let log = lines(LogFormat::Json, None, || tracing::info!(n = 7, "serving"));
        let line: Value = serde_json::from_str(&log).unwrap();
        assert_eq!(
            (&line["level"], &line["message"], &line["n"]),
            (&"INFO".into(), &"serving".into(), &7.into())
        );
    }

    #[test]
    fn a_text_line_has_each_field_once_on_one_line() {
        let log = lines(LogFormat::Text, None, || fail(2));
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains("  WARN redrive::retry: event_id=e-1 event_type=order.created "), "{log}");
        assert!(log.ends_with("delay_ms=2000 error=\"no \\\"stock\\\"\\n\" subscription=mail\n"), "{log}");
        let log = lines(LogFormat::Text, None, || tracing::info!(address = %"[::1]:80", "serving\u{1b}"));
        assert!(log.ends_with("\"serving\\u{1b}\" address=[::1]:80\n"), "{log}");
    }

    #[test]
    fn invisible_and_reordering_characters_are_escaped() {
        let foreign = "a\u{202e}b\u{200b}";
        let log = lines(LogFormat::Text, None, || tracing::info!(foreign, "got {foreign}"));
        assert!(log.ends_with("\"got a\\u{202e}b\\u{200b}\" foreign=\"a\\u{202e}b\\u{200b}\"\n"), "{log}");
        let log = lines(LogFormat::Json, None, || tracing::info!(foreign, "got"));
        assert!(log.contains(r#""foreign":"a\u202eb\u200b""#), "{log}");
    }

    #[test]
    fn a_summary_has_one_line_for_each_subscription() {
        let summary = RetrySummary::default();
        let log = lines(LogFormat::Json, Some(summary.clone()), || {
            (1..=3).for_each(fail);
            tracing::warn!(target: "redrive::retry", subscription_id = "s-2", delay_ms = 0, error = "crashed");
            summary.write();
            summary.write();
        });
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [mail, other] = lines.as_slice() else { panic!("{log}") };
        assert_eq!((&mail["subscription"], &mail["failed_attempts"]), (&"mail".into(), &3.into()));
        assert_eq!((&mail["event_id"], &mail["delay_ms"]), (&"e-1".into(), &3000.into()));
        assert_eq!((&mail["level"], &mail["error"]), (&"WARN".into(), &"no \"stock\"\n".into()));
        assert_eq!((&other["subscription"], &other["failed_attempts"]), (&"s-2".into(), &1.into()));
    }
}
