//! The protocol that every idempotency store speaks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use uuid::Uuid;

use super::{Fingerprint, IdempotencyKey};
use crate::failure::BoxError;
use crate::timestamp::Timestamp;

/// So long after its lease has ended, an owner will not come back: the key is free for any payload, and may be deleted.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// What the methods of a store return.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, IdempotencyError>> + Send + 'a>>;

/// Keeps what has been done under which key. All times are the store's own, never the caller's.
///
/// Every change by an owner is fenced: it takes effect only while that owner's token stands in the record, so an owner
/// that was thought dead cannot overwrite its successor. The suite in the module `conformance` (feature
/// `conformance`) says exactly what each method must do.
pub trait IdempotencyStore: fmt::Debug + Send + Sync {
    /// Takes the key for this owner if it is free: absent, expired, failed, or (for the same payload) its lease has ended.
    ///
    /// The same owner asking again gets it again: a first answer may have been lost on the way.
    fn begin<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, Begin>;

    /// Renews the lease from now on.
    fn extend<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, ()>;

    /// Stores the result (JSON), with whatever is to be kept beside it (JSON), for this long.
    fn complete<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        result: &'a str,
        metadata: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()>;

    /// Gives the key up, so that the next caller runs. With an error the record stays visible as failed for `keep`.
    fn release<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        error: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()>;

    /// What is known of a key; `None` if nothing is, or if it has expired.
    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>>;

    /// Forgets a key, whatever its state. Says whether there was anything to forget.
    fn clear<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, bool>;

    /// Deletes at most `limit` expired records. Never one that is in progress, before it counts as abandoned.
    fn reap(&self, limit: usize) -> StoreFuture<'_, usize>;

    /// Resolves when the state of this key may have changed; a hint. Called *before* [`begin`](Self::begin), so that
    /// nothing is missed in between. Without a hint the waiting caller looks again from time to time.
    fn changed<'a>(&'a self, key: &'a IdempotencyKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let _ = key;
        Box::pin(std::future::pending())
    }

    /// The owner was cancelled and cannot wait for [`release`](Self::release). Best effort; the lease ends by itself.
    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        let _ = (key, owner);
    }
}

/// The answer to [`IdempotencyStore::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The key is yours until the lease ends.
    Acquired,
    /// Somebody else is at it.
    InProgress {
        /// When their lease ends, unless they renew it.
        lease_until: Timestamp,
    },
    /// It has been done.
    Completed {
        /// The stored result, JSON.
        result: String,
    },
    /// The key stands for another payload. The record is untouched.
    OtherPayload {
        /// Of the payload that the key stands for.
        stored: Fingerprint,
    },
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// The state.
    pub state: KeyState,
    /// Of the payload.
    pub fingerprint: Fingerprint,
    /// When the key was first taken.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl IdempotencyRecord {
    /// What somebody who asks for the key is told now; `None` if it may be taken.
    pub fn answer(&self, fingerprint: Fingerprint, owner: OwnerToken, now: Timestamp) -> Option<Begin> {
        if self.state.is_expired(now) {
            return None;
        }
        match &self.state {
            KeyState::InProgress { .. } | KeyState::Completed { .. } if self.fingerprint != fingerprint => {
                Some(Begin::OtherPayload { stored: self.fingerprint })
            }
            KeyState::Completed { result, .. } => Some(Begin::Completed { result: result.clone() }),
            KeyState::InProgress { owner: holder, lease_until } if *holder != owner && now < *lease_until => {
                Some(Begin::InProgress { lease_until: *lease_until })
            }
            KeyState::InProgress { .. } | KeyState::Failed { .. } => None,
        }
    }
}

/// The state of a key that is not absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// An owner is at it.
    InProgress {
        /// Who.
        owner: OwnerToken,
        /// Until when, unless renewed.
        lease_until: Timestamp,
    },
    /// It has been done.
    Completed {
        /// The result, JSON.
        result: String,
        /// What was kept beside it, JSON.
        metadata: Option<String>,
        /// Until when it is kept.
        expires_at: Timestamp,
    },
    /// It was tried and failed; the next caller may try again.
    Failed {
        /// The last error.
        error: String,
        /// Until when this is kept.
        expires_at: Timestamp,
    },
}

impl KeyState {
    /// Whether the key counts as absent. Computed when read, so that nothing depends on when somebody last cleaned up.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        match self {
            KeyState::InProgress { lease_until, .. } => *lease_until + ABANDONED_AFTER <= now,
            KeyState::Completed { expires_at, .. } | KeyState::Failed { expires_at, .. } => {
                *expires_at <= now
            }
        }
    }
}

/// Tells one owner of a key from another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerToken(Uuid);

impl OwnerToken {
    /// A new one, different from all others.
    pub fn new() -> Self {
        OwnerToken(Uuid::new_v4())
    }

    /// As a store keeps it.
    pub fn as_u128(self) -> u128 {
        self.0.as_u128()
    }

    /// As a store kept it.
    pub fn from_u128(value: u128) -> Self {
        OwnerToken(Uuid::from_u128(value))
    }
}

impl Default for OwnerToken {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a store did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdempotencyError {
    /// The lease ended and somebody else took the key, or it was cleared.
    #[error(
        "the lease on idempotency key {key} was lost: make the lease longer than the longest pause of this process"
    )]
    LeaseLost {
        /// The key.
        key: IdempotencyKey,
    },
    /// The store holds as much as it may.
    #[error(
        "the idempotency store is full with {capacity} keys: make it larger, or keep results for a shorter time"
    )]
    Full {
        /// How many it may hold.
        capacity: usize,
    },
    /// The store takes no result of this size. Asking again does not help.
    #[error(
        "what is to be stored under idempotency key {key} takes {bytes} bytes, the store takes {limit}: keep a reference to \
         it instead"
    )]
    TooLarge {
        /// The key.
        key: IdempotencyKey,
        /// What it takes.
        bytes: usize,
        /// What the store takes.
        limit: usize,
    },
    /// The store cannot be reached or has broken.
    #[error("the idempotency store is not available: {0}")]
    Unavailable(#[source] BoxError),
}
