//! Audit events over a channel, for whoever wants to look at them in the program.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{AuditError, AuditEvent, AuditSink, RetryLogEntry};

/// Sends audit events over a bounded channel without ever waiting: a full channel is an error, not a pause.
#[derive(Clone, Debug)]
pub struct ChannelSink {
    events: mpsc::Sender<AuditEvent>,
    entries: mpsc::Sender<RetryLogEntry>,
}

impl ChannelSink {
    /// A sink and the two ends to read from: audit events, and retry log entries of the bus.
    ///
    /// `capacity` is how many of each may wait to be read; 0 counts as 1.
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
