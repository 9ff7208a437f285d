//! [`ChannelSink`]: sends audit events over a channel.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{AuditError, AuditEvent, AuditSink, RetryLogEntry};

/// Sends audit events over a bounded channel. A full channel is an error; the sink never waits.
#[derive(Clone, Debug)]
pub struct ChannelSink {
    events: mpsc::Sender<AuditEvent>,
    entries: mpsc::Sender<RetryLogEntry>,
}

impl ChannelSink {
    /// Creates a sink and its receivers of audit events and of retry log entries. `capacity` (at least 1) applies to each channel.
    pub fn new(capacity: usize) -> (Self, mpsc::Receiver<AuditEvent>, mpsc::Receiver<RetryLogEntry>) {
        let (events, event_reader) = mpsc::channel(capacity.max(1));
        let (entries, entry_reader) = mpsc::channel(capacity.max(1));
        (ChannelSink { events, entries }, event_reader, entry_reader)
    }
}

fn send<T>(channel: &mpsc::Sender<T>, value: T) -> Result<(), AuditError> {
    channel.try_send(value).map_err(|error| match error {
        TrySendError::Full(_) => AuditError::Full,
        TrySendError::Closed(_) => AuditError::Closed,
    })
}

impl AuditSink for ChannelSink {
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError> {
        send(&self.events, event.clone())
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        send(&self.entries, entry.clone())
    }
}
