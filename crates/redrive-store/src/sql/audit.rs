//! Converts audit events to lines of JSON, and errors of queueing them.

use std::io;

use redrive_retry::audit::AuditError;
use serde::Serialize;

use crate::error::StoreError;

/// Serialises one audit event to its line of JSON.
pub(crate) fn line(event: &impl Serialize) -> Result<String, AuditError> {
    Ok(serde_json::to_string(event).map_err(io::Error::other)?)
}

/// Converts the error of queueing a line.
pub(crate) fn not_queued(error: StoreError) -> AuditError {
    match error {
        StoreError::Busy => AuditError::Full,
        _ => AuditError::Closed,
    }
}
