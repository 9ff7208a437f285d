//! [`AuditSink`]: receives audit events.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{AuditEvent, RetryLogEntry};
use crate::failure::Failure;

/// Receives audit events. Called on the path of the operation, so it should not block.
pub trait AuditSink: Send + Sync {
    /// Records an audit event.
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError>;

    /// Records a retry log entry of the event bus.
    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError>;
}

/// Failure of an audit sink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The event could not be written.
    #[error("the audit event could not be written: {0}")]
    Write(#[from] io::Error),
    /// The channel is full.
    #[error("the audit channel is full: read faster or make it larger")]
    Full,
    /// The channel has no reader.
    #[error("the audit channel is closed: its reader is gone")]
    Closed,
    /// Some of several sinks failed.
    #[error("{} of {of} audit sinks failed, first: {}", errors.len(), errors.first().map_or_else(String::new, ToString::to_string))]
    Several {
        /// Errors of the failing sinks.
        errors: Vec<AuditError>,
        /// Number of sinks.
        of: usize,
    },
    /// The sink panicked.
    #[error("the audit sink panicked: {0}")]
    Panicked(Failure),
}

/// Turns a panic of `work` into an error.
pub(super) fn guarded(work: impl FnOnce() -> Result<(), AuditError>) -> Result<(), AuditError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(AuditError::Panicked(Failure::panic(payload.as_ref()))))
}
