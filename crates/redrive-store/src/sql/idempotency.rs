//! Rows of idempotency keys: their states, the answer to `begin`, and the changes by an owner.

use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyRecord, KeyState, OwnerToken,
};

use crate::error::StoreError;

/// The codes in the column `state`.
pub(crate) const IN_PROGRESS: i16 = 1;
const COMPLETED: i16 = 2;
const FAILED: i16 = 3;

/// The columns of one idempotency key.
#[derive(Debug)]
pub(crate) struct KeyRow {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) state: i16,
    pub(crate) owner: Option<OwnerToken>,
    /// End of the lease while the key is in progress, then end of the retention.
    pub(crate) until: Timestamp,
    /// The result of a completed call, or the error of a failed one.
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

/// Whether a caller may acquire a key.
#[derive(Debug)]
pub(crate) enum KeyCheck {
    /// The key is taken; `begin` returns this answer.
    Answered(Begin),
    /// The key can be acquired.
    Free {
        /// When the key was first acquired, if the row is not expired.
        taken_before: Option<Timestamp>,
    },
}

impl KeyCheck {
    /// Checks the record of a key.
    pub(crate) fn new(
        record: Option<IdempotencyRecord>,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        now: Timestamp,
    ) -> Self {
        let Some(record) = record.filter(|record| !record.state.is_expired(now)) else {
            return KeyCheck::Free { taken_before: None };
        };
        match record.answer(fingerprint, owner, now) {
            Some(answer) => KeyCheck::Answered(answer),
            None => KeyCheck::Free { taken_before: Some(record.created_at) },
        }
    }
}

/// A change that the owner makes to its key.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) state: i16,
    /// Duration of the lease or the retention, from now on.
    pub(crate) keep: Duration,
    pub(crate) result: Option<String>,
    pub(crate) metadata: Option<String>,
}

impl Change {
    /// Renews the lease.
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

    /// Returns whether the change has to be on stable storage before the caller gets its reply.
    pub(crate) fn is_result(&self) -> bool {
        self.state == COMPLETED
    }
}

pub(crate) fn unavailable(error: StoreError) -> IdempotencyError {
    IdempotencyError::Unavailable(error.into())
}

/// Defines the methods of `IdempotencyStore` by which an owner changes its key, through the store's own `as_owner`.
macro_rules! owner_methods {
    () => {
        fn extend<'a>(
            &'a self,
            key: &'a IdempotencyKey,
            owner: OwnerToken,
            lease: Duration,
        ) -> StoreFuture<'a, ()> {
            Box::pin(self.as_owner(key, owner, Some(Change::renewed(lease))))
        }

        fn complete<'a>(
            &'a self,
            key: &'a IdempotencyKey,
            owner: OwnerToken,
            result: &'a str,
            metadata: Option<&'a str>,
            keep: Duration,
        ) -> StoreFuture<'a, ()> {
            Box::pin(self.as_owner(key, owner, Some(Change::completed(result, metadata, keep))))
        }

        fn release<'a>(
            &'a self,
            key: &'a IdempotencyKey,
            owner: OwnerToken,
            error: Option<&'a str>,
            keep: Duration,
        ) -> StoreFuture<'a, ()> {
            Box::pin(self.as_owner(key, owner, error.map(|error| Change::failed(error, keep))))
        }
    };
}
pub(crate) use owner_methods;
