//! [`Auditor`]: sends audit events to a sink and keeps the failures of the sink from the operation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sink::guarded;
use super::{AuditEvent, AuditSink, TracingSink};

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
