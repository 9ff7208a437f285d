//! [`AuditSink`]: receives audit events.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{AuditEvent, RetryLogEntry, TracingSink};
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

/// Sends events to a sink; counts and logs its failures and keeps them from the operation.
#[derive(Clone)]
pub(crate) struct Auditor {
    sink: Arc<dyn AuditSink>,
    failures: Arc<AtomicU64>,
}

impl Auditor {
    pub(crate) fn new(sink: Arc<dyn AuditSink>) -> Self {
        Auditor { sink, failures: Arc::default() }
    }

    pub(crate) fn record(&self, event: &AuditEvent) {
        if let Err(error) = guarded(|| self.sink.record(event)) {
            let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            // The event is logged, so that it is not lost silently. If the log panics as well, the counter remains.
            let _ = guarded(|| {
                tracing::error!(target: "redrive::audit", %error, failures, ?event, "an audit event was not recorded");
                Ok(())
            });
        }
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Default for Auditor {
    fn default() -> Self {
        Auditor::new(Arc::new(TracingSink))
    }
}

impl fmt::Debug for Auditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auditor").field("failures", &self.failures()).finish_non_exhaustive()
    }
}
