//! An idempotency key as a row of a table: what is the same in every database.

use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyRecord, KeyState, OwnerToken,
};

use crate::error::StoreError;

/// The numbers in the column `state`.
pub(crate) const IN_PROGRESS: i16 = 1;
const COMPLETED: i16 = 2;
const FAILED: i16 = 3;

/// The columns.
#[derive(Debug)]
pub(crate) struct KeyRow {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) state: i16,
    pub(crate) owner: Option<OwnerToken>,
    /// The end of the lease while it is in progress, then the end of keeping.
    pub(crate) until: Timestamp,
    /// Of what is completed, or the error of what failed.
    pub(crate) result: Option<String>,
    pub(crate) metadata: Option<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

impl From<KeyRow> for IdempotencyRecord {
    fn from(row: KeyRow) -> Self {
        let KeyRow { fingerprint, state, owner, until, result, metadata, created_at, updated_at } = row;
        let text = result.unwrap_or_default();
        let state = match (state, owner) {
            (COMPLETED, _) => KeyState::Completed { result: text, metadata, expires_at: until },
            (IN_PROGRESS, Some(owner)) => KeyState::InProgress { owner, lease_until: until },
            _ => KeyState::Failed { error: text, expires_at: until },
        };
        IdempotencyRecord { state, fingerprint, created_at, updated_at }
    }
}

/// The answer to whoever asks for a key.
#[derive(Debug)]
pub(crate) enum Asked {
    /// It is not to be had.
    Told(Begin),
    /// It is free.
    Free {
        /// When it was first taken, if it still stands for the same.
        taken_before: Option<Timestamp>,
    },
}

impl Asked {
    /// By what is known of the key.
    pub(crate) fn of(
        record: Option<IdempotencyRecord>,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        now: Timestamp,
    ) -> Self {
        let Some(record) = record.filter(|record| !record.state.is_expired(now)) else {
            return Asked::Free { taken_before: None };
        };
        match record.answer(fingerprint, owner, now) {
            Some(answer) => Asked::Told(answer),
            None => Asked::Free { taken_before: Some(record.created_at) },
        }
    }
}

/// What an owner makes of its key.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) state: i16,
    /// From now on.
    pub(crate) keep: Duration,
    pub(crate) result: Option<String>,
    pub(crate) metadata: Option<String>,
}

impl Change {
    /// The lease begins anew.
    pub(crate) fn renewed(lease: Duration) -> Self {
        Change { state: IN_PROGRESS, keep: lease, result: None, metadata: None }
    }

    pub(crate) fn completed(result: &str, metadata: Option<&str>, keep: Duration) -> Self {
        let metadata = metadata.map(str::to_owned);
        Change { state: COMPLETED, keep, result: Some(result.to_owned()), metadata }
    }

    pub(crate) fn failed(error: &str, keep: Duration) -> Self {
        Change { state: FAILED, keep, result: Some(error.to_owned()), metadata: None }
    }

    /// Whether it must be on stable storage before anybody is told.
    pub(crate) fn is_result(&self) -> bool {
        self.state == COMPLETED
    }
}

pub(crate) fn unavailable(error: StoreError) -> IdempotencyError {
    IdempotencyError::Unavailable(error.into())
}
