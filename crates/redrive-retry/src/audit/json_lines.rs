//! [`JsonLinesSink`]: writes audit events as JSON lines.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::{AuditError, AuditEvent, AuditSink, RetryLogEntry};

/// Writes one JSON object per line. Each line is one write, so lines of several threads never mix.
///
/// ```
/// use redrive_retry::audit::JsonLinesSink;
/// let sink = JsonLinesSink::new(std::io::stderr());
/// # drop(sink);
/// ```
pub struct JsonLinesSink<W> {
    // A std mutex: held for one write, never across an await.
    writer: Mutex<Lines<W>>,
}

struct Lines<W> {
    writer: W,
    /// Whether the last write failed and may have left a partial line.
    broken: bool,
}

impl<W: Write + Send> JsonLinesSink<W> {
    /// Creates a sink that writes to a file, pipe or buffer.
    pub fn new(writer: W) -> Self {
        JsonLinesSink { writer: Mutex::new(Lines { writer, broken: false }) }
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.writer.into_inner().unwrap_or_else(PoisonError::into_inner).writer
    }

    fn write(&self, value: &impl Serialize) -> Result<(), AuditError> {
        let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut lines = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.broken {
            // Ends a partial line, so that the next one can be parsed.
            line.insert(0, b'\n');
        }
        let written = lines.writer.write_all(&line).and_then(|()| lines.writer.flush());
        lines.broken = written.is_err();
        Ok(written?)
    }
}

impl<W: Write + Send> AuditSink for JsonLinesSink<W> {
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError> {
        self.write(event)
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        self.write(entry)
    }
}

impl<W> fmt::Debug for JsonLinesSink<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonLinesSink")
    }
}
