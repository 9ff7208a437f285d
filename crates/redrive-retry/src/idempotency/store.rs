//! [`IdempotencyStore`]: claims, renews, completes and releases idempotency keys.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use uuid::Uuid;

use super::{Fingerprint, IdempotencyKey};
use crate::failure::BoxError;
use crate::timestamp::Timestamp;

/// Time after the end of a lease until the key counts as abandoned: free for any payload, and deletable.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Future of a store method.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, IdempotencyError>> + Send + 'a>>;

/// Stores idempotency keys and results. All times are taken from the store's clock.
///
/// Every change by an owner is fenced: it takes effect only while the record has that owner's token, so an owner with an
/// expired lease cannot overwrite its successor. The test suite in the module `conformance` (feature `conformance`) defines the
/// behaviour of each method.
pub trait IdempotencyStore: fmt::Debug + Send + Sync {
    /// Claims the key for this owner if it is absent, expired, failed, or (for an equal payload) its lease has ended.
    ///
    /// Idempotent for an owner, because the first answer may have been lost.
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

    /// Stores the result and optional metadata, both JSON, for the duration `keep`.
    fn complete<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        result: &'a str,
        metadata: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()>;

    /// Releases the key for the next caller. With an error the record stays visible as failed for the duration `keep`.
    fn release<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        error: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()>;

    /// Returns the record of a key; `None` if it is absent or expired.
    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>>;

    /// Deletes a key in any state. Returns whether it existed.
    fn clear<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, bool>;

    /// Deletes at most `limit` expired records; a record in progress only once it counts as abandoned.
    fn reap(&self, limit: usize) -> StoreFuture<'_, usize>;

    /// Resolves when the state of this key may have changed. Called *before* [`begin`](Self::begin), so that no change is missed
    /// in between. Optional: a waiting caller polls as well.
    fn changed<'a>(&'a self, key: &'a IdempotencyKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let _ = key;
        Box::pin(std::future::pending())
    }

    /// Releases the key of a cancelled owner without waiting, if the store can do so; otherwise the lease expires.
    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        let _ = (key, owner);
    }
}

/// Answer of [`IdempotencyStore::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The caller owns the key until the lease ends.
    Acquired,
    /// Another owner holds the key.
    InProgress {
        /// End of its lease, unless renewed.
        lease_until: Timestamp,
    },
    /// The operation has completed.
    Completed {
        /// Stored result as JSON.
        result: String,
    },
    /// The key was used with another payload. The record is unchanged.
    OtherPayload {
        /// Fingerprint of that payload.
        stored: Fingerprint,
    },
}

/// Record of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// State of the key.
    pub state: KeyState,
    /// Fingerprint of the payload.
    pub fingerprint: Fingerprint,
    /// Time of the first claim.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

impl IdempotencyRecord {
    /// Answer to a claim of the key; `None` if the key may be claimed.
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

/// State of a key that is not absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// An owner runs the operation.
    InProgress {
        /// Token of the owner.
        owner: OwnerToken,
        /// End of the lease, unless renewed.
        lease_until: Timestamp,
    },
    /// The operation has completed.
    Completed {
        /// Result as JSON.
        result: String,
        /// Metadata as JSON.
        metadata: Option<String>,
        /// Time of expiry.
        expires_at: Timestamp,
    },
    /// The operation failed; the next caller may claim the key.
    Failed {
        /// Last error.
        error: String,
        /// Time of expiry.
        expires_at: Timestamp,
    },
}

impl KeyState {
    /// Whether the key counts as absent. Computed on read, so that the result does not depend on [`IdempotencyStore::reap`].
    pub fn is_expired(&self, now: Timestamp) -> bool {
        match self {
            KeyState::InProgress { lease_until, .. } => *lease_until + ABANDONED_AFTER <= now,
            KeyState::Completed { expires_at, .. } | KeyState::Failed { expires_at, .. } => {
                *expires_at <= now
            }
        }
    }
}

/// Fencing token of a key's owner.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerToken(Uuid);

impl OwnerToken {
    /// Creates a unique token.
    pub fn new() -> Self {
        OwnerToken(Uuid::new_v4())
    }

    /// Number for a store.
    pub fn as_u128(self) -> u128 {
        self.0.as_u128()
    }

    /// Restores a token from a store.
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

/// Failure of an idempotency store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdempotencyError {
    /// The lease expired and another owner claimed the key, or the key was cleared.
    #[error(
        "the lease on idempotency key {key} was lost: make the lease longer than the longest pause of this process"
    )]
    LeaseLost {
        /// The key.
        key: IdempotencyKey,
    },
    /// The store is full.
    #[error(
        "the idempotency store is full with {capacity} keys: make it larger, or keep results for a shorter time"
    )]
    Full {
        /// Largest number of keys.
        capacity: usize,
    },
    /// The result is too large for the store. A retry does not help.
    #[error(
        "the record of idempotency key {key} takes {bytes} bytes, the store allows {limit}: store a reference to the result \
         instead"
    )]
    TooLarge {
        /// The key.
        key: IdempotencyKey,
        /// Size of the record.
        bytes: usize,
        /// Limit of the store.
        limit: usize,
    },
    /// The store is unreachable or failed.
    #[error("the idempotency store is not available: {0}")]
    Unavailable(#[source] BoxError),
}
