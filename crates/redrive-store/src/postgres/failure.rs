//! Classifies errors of the server: whether a retry helps, and whether the statement may have taken effect.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::error::StoreError;

/// The effect of an error on its statement.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum ErrorClass {
    /// The server has rejected and rolled back the statement, and will do so again.
    Rejected,
    /// Rolled back after a deadlock or serialization failure. A retry may succeed.
    Conflict,
    /// The connection is lost or closing. The outcome of the statement is unknown.
    ConnectionLost,
}

pub(super) fn classify(error: &Error) -> ErrorClass {
    let Some(code) = error.code() else {
        return if error.is_closed() || is_transport(error) {
            ErrorClass::ConnectionLost
        } else {
            ErrorClass::Rejected
        };
    };
    match *code {
        SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => ErrorClass::Conflict,
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::IDLE_SESSION_TIMEOUT
        | SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN => ErrorClass::ConnectionLost,
        _ if code.code().starts_with("08") => ErrorClass::ConnectionLost,
        _ => ErrorClass::Rejected,
    }
}

/// Whether the error comes from the network and not from the server.
fn is_transport(error: &Error) -> bool {
    error.source().is_some_and(|source| source.is::<std::io::Error>())
}

/// Whether the server's certificate is not trusted.
pub(super) fn is_about_trust(error: &Error) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    let cause = cause.and_then(std::io::Error::get_ref).and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

/// Turns the error of a statement that only reads, or can be repeated, into a store error that says what to do. The error of a
/// statement that changes something goes through `Shared::explain`: its outcome may be unknown.
impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        let why = full_message(&error);
        if classify(&error) == ErrorClass::ConnectionLost {
            return StoreError::Lost { why };
        }
        match error.code() {
            Some(&SqlState::DISK_FULL) => StoreError::DiskFull,
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => StoreError::Forbidden { why },
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => StoreError::Busy,
            _ => StoreError::Server { why, source: error },
        }
    }
}

/// The message with its details and causes, which the client's own message leaves out.
pub(super) fn full_message(error: &Error) -> String {
    if let Some(database) = error.as_db_error() {
        let detail = database.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        return format!("{}{detail}", database.message());
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
