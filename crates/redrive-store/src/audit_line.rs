//! Audit events as lines of a table: what is the same in every database.

use std::io;

use redrive_retry::audit::AuditError;
use serde::Serialize;

use crate::error::StoreError;

/// The line of one event: JSON, as in a log of JSON lines.
pub(crate) fn write(event: &impl Serialize) -> Result<String, AuditError> {
    Ok(serde_json::to_string(event).map_err(io::Error::other)?)
}

/// Why a line could not be left to be written.
pub(crate) fn refused(error: StoreError) -> AuditError {
    match error {
        StoreError::Busy => AuditError::Full,
        _ => AuditError::Closed,
    }
}
