//! Why it cannot be done.

use redrive_retry::BoxError;
use redrive_retry::idempotency::IdempotencyError;

/// What is wrong with the server, the way to it, or the bucket, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// No connection could be made.
    #[error("no connection to NATS: {0}; check the address, and that the server is running")]
    Connect(#[source] BoxError),
    /// The connection is down. The client is connecting again; ask again.
    #[error("the NATS server is away; the client is connecting to it again, ask again")]
    Away,
    /// It may have been done, or not. Ask again as the same owner: that tells.
    #[error("the NATS server did not answer in time; it is not known whether it has done what was asked for")]
    NoAnswer,
    /// The server said no.
    #[error("the NATS server refused: {0}")]
    Refused(#[source] BoxError),
    /// The bucket cannot be opened or made.
    #[error(
        "the bucket {bucket} cannot be opened: {source}; JetStream must be enabled on the server (`--jetstream`)"
    )]
    Bucket {
        /// Its name.
        bucket: String,
        /// What the server said.
        source: BoxError,
    },
    /// The bucket is there, and is not what was asked for.
    #[error("the bucket {bucket} has {found}, not {wanted}: change the bucket or the options")]
    OtherBucket {
        /// Its name.
        bucket: String,
        /// What it has.
        found: String,
        /// What it should have.
        wanted: String,
    },
    /// A server that gives one key to several, if others have the bucket, too.
    #[error(
        "NATS {version} with a replicated bucket gives one key to several: use 2.9.21 or newer, or one replica"
    )]
    OldServer {
        /// Of the server that the client is connected to.
        version: String,
    },
    /// A lease that the server would forget before it ends.
    #[error("a lease of {lease} ms does not fit a bucket that forgets after {max_age} ms: make it shorter")]
    LeaseTooLong {
        /// What was asked for, in milliseconds.
        lease: u128,
        /// What the bucket has, in milliseconds.
        max_age: u128,
    },
    /// Somebody else writes to this bucket, or a newer version of this does.
    #[error("the entry {entry} cannot be read: {why}; nobody else may write to this bucket")]
    Unreadable {
        /// The entry's name in the bucket.
        entry: String,
        /// What is wrong with it.
        why: String,
    },
    /// Others came first, again and again.
    #[error("the key is contended: others came first too often, ask again")]
    Contended,
    /// The runtime that the store was opened on is gone.
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
