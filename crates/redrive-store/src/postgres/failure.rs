//! What an error of the server means: for whom it is, whether it passes, and whether something may have been changed.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::error::StoreError;

/// What is to be done after an error.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The statement was refused and undone. It will be again.
    Refused,
    /// Undone, because two were in each other's way: the next time it may work.
    Undone,
    /// The connection is gone, or going. Nobody knows what became of the statement.
    Lost,
}

pub(super) fn fate(error: &Error) -> Fate {
    let Some(code) = error.code() else {
        return if error.is_closed() || is_transport(error) { Fate::Lost } else { Fate::Refused };
    };
    match *code {
        SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => Fate::Undone,
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::IDLE_SESSION_TIMEOUT
        | SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN => Fate::Lost,
        _ if code.code().starts_with("08") => Fate::Lost,
        _ => Fate::Refused,
    }
}

/// Not said by the server.
fn is_transport(error: &Error) -> bool {
    error.source().is_some_and(|source| source.is::<std::io::Error>())
}

/// Whether the server has shown a certificate that is not to be trusted.
pub(super) fn is_about_trust(error: &Error) -> bool {
    let said = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    let said = said.and_then(std::io::Error::get_ref).and_then(|said| said.downcast_ref());
    matches!(said, Some(rustls::Error::InvalidCertificate(_)))
}

/// An error of a statement as one that says what to do.
pub(super) fn explain(error: Error) -> StoreError {
    let why = said(&error);
    if fate(&error) == Fate::Lost {
        return StoreError::Lost { why };
    }
    match error.code() {
        Some(&SqlState::DISK_FULL) => StoreError::DiskFull,
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => StoreError::Forbidden { why },
        Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => StoreError::Busy,
        _ => StoreError::Server { why, source: error },
    }
}

/// The error in full: the client's own words say little.
pub(super) fn said(error: &Error) -> String {
    if let Some(said) = error.as_db_error() {
        let detail = said.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        return format!("{}{detail}", said.message());
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
