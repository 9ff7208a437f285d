//! Errors of the NATS idempotency store, and their conversion to [`IdempotencyError`].

use redrive_retry::BoxError;
use redrive_retry::idempotency::IdempotencyError;

/// Failure of the server, the connection or the bucket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// The connection failed.
    #[error("no connection to NATS: {0}; check the address, and that the server is running")]
    Connect(#[source] BoxError),
    /// The connection is down, and the client reconnects.
    #[error("the connection to NATS is down; the client reconnects, retry the request")]
    Disconnected,
    /// The request timed out and may have taken effect. Retry it with the same owner.
    #[error("the NATS server did not answer in time; the request may have taken effect")]
    NoAnswer,
    /// The server refused the request.
    #[error("the NATS server refused: {0}")]
    Refused(#[source] BoxError),
    /// The bucket cannot be opened or created.
    #[error(
        "the bucket {bucket} cannot be opened: {source}; JetStream must be enabled on the server (`--jetstream`)"
    )]
    Bucket {
        /// Name of the bucket.
        bucket: String,
        /// Error of the server.
        source: BoxError,
    },
    /// The existing bucket does not match the options.
    #[error("the bucket {bucket} has {found}, not {wanted}: change the bucket or the options")]
    OtherBucket {
        /// Name of the bucket.
        bucket: String,
        /// Setting of the bucket.
        found: String,
        /// Setting of the options.
        wanted: String,
    },
    /// The server version has a compare-and-set bug with replicated buckets.
    #[error(
        "NATS {version} lets several writers of a replicated bucket win: use 2.9.21 or newer, or one replica"
    )]
    OldServer {
        /// Version of the server.
        version: String,
    },
    /// The lease exceeds the maximum age of the bucket.
    #[error("a lease of {lease} ms is not below the bucket's max_age of {max_age} ms: make it shorter")]
    LeaseTooLong {
        /// Requested lease in milliseconds.
        lease: u128,
        /// Maximum age of the bucket in milliseconds.
        max_age: u128,
    },
    /// The entry has an unknown format.
    #[error("the entry {entry} cannot be read: {why}; no other program may write to this bucket")]
    Unreadable {
        /// Name of the entry.
        entry: String,
        /// Reason.
        why: String,
    },
    /// Other writers changed the key first too often.
    #[error("the key is contended: other writers were first too often, retry the request")]
    Contended,
    /// The runtime of the store has ended.
    #[error(
        "the runtime that the store was opened on has ended: open it on one that lives as long as it is used"
    )]
    NoRuntime,
}

impl From<NatsError> for IdempotencyError {
    fn from(error: NatsError) -> Self {
        IdempotencyError::Unavailable(error.into())
    }
}
