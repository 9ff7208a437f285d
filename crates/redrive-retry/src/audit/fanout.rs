//! [`Fanout`]: sends audit events to several sinks.

use std::fmt;
use std::sync::Arc;

use super::sink::guarded;
use super::{AuditError, AuditEvent, AuditSink, RetryLogEntry};

/// Sends every event to every sink. A failing sink does not affect the other ones.
#[derive(Clone)]
pub struct Fanout {
    sinks: Vec<Arc<dyn AuditSink>>,
}

impl Fanout {
    /// Creates a fan-out to these sinks.
    pub fn new(sinks: impl IntoIterator<Item = Arc<dyn AuditSink>>) -> Self {
        Fanout { sinks: sinks.into_iter().collect() }
    }

    fn each(&self, give: impl Fn(&dyn AuditSink) -> Result<(), AuditError>) -> Result<(), AuditError> {
        let errors: Vec<_> =
            self.sinks.iter().filter_map(|sink| guarded(|| give(sink.as_ref())).err()).collect();
        if errors.is_empty() { Ok(()) } else { Err(AuditError::Several { errors, of: self.sinks.len() }) }
    }
}

impl AuditSink for Fanout {
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError> {
        self.each(|sink| sink.record(event))
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        self.each(|sink| sink.log(entry))
    }
}

impl fmt::Debug for Fanout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fanout({} sinks)", self.sinks.len())
    }
}
