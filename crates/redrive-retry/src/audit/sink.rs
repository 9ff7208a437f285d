//! Where audit events go, and what happens when that fails.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{AuditEvent, RetryLogEntry, TracingSink};
use crate::failure::Failure;

/// Takes audit events in. Called on the path of the operation, so it should hand over rather than wait.
pub trait AuditSink: Send + Sync {
    /// Takes in an audit event.
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError>;

    /// Takes in a retry log entry of the event bus.
    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError>;
}

/// Why an audit event could not be taken in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// It could not be written.
    #[error("the audit event could not be written: {0}")]
    Write(#[from] io::Error),
    /// Nobody reads fast enough.
    #[error("the audit channel is full: read faster or make it larger")]
    Full,
    /// Nobody reads any more.
    #[error("the audit channel is closed: its reader is gone")]
    Closed,
    /// Some of several sinks failed.
    #[error("{} of {of} audit sinks failed, first: {}", errors.len(), errors.first().map_or_else(String::new, ToString::to_string))]
    Several {
        /// What each failing one said.
        errors: Vec<AuditError>,
        /// How many sinks there are.
        of: usize,
    },
    /// The sink panicked.
    #[error("the audit sink panicked: {0}")]
    Panicked(Failure),
}

/// Turns a panic into an error.
pub(super) fn guarded(work: impl FnOnce() -> Result<(), AuditError>) -> Result<(), AuditError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(AuditError::Panicked(Failure::panic(payload.as_ref()))))
}

/// A sink with a watch on it: failures are counted and reported, and stay away from the operation.
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
            // The event itself goes into the log, so that even now nothing is lost in silence. A log that panics as well
            // leaves the counter.
            let _ = guarded(|| {
                tracing::error!(target: "redrive::audit", %error, failures, ?event, "an audit event was not taken in");
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
