//! How the bucket is made, and how long an answer may take.

use std::time::Duration;

/// Where the server keeps the bucket.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// In files.
    #[default]
    File,
    /// In its memory: gone with the server's process.
    Memory,
}

/// What a store is opened with. A bucket that is there already must be as described here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsOptions {
    /// The name of the bucket; made if it is not there. Default: `redrive_idempotency`.
    pub bucket: String,
    /// How many servers of a cluster have it: 1, 3 or 5. Default: 1.
    pub replicas: usize,
    /// Default: files.
    pub storage: Storage,
    /// The server deletes what was not written for so long, whatever it is. Longer than every lease, and as long as any
    /// result is to be kept: a result cannot be kept for longer. Default: never.
    pub max_age: Option<Duration>,
    /// How long the server may take for one answer. Default: 5 s.
    pub timeout: Duration,
}

impl Default for NatsOptions {
    fn default() -> Self {
        NatsOptions {
            bucket: "redrive_idempotency".into(),
            replicas: 1,
            storage: Storage::File,
            max_age: None,
            timeout: Duration::from_secs(5),
        }
    }
}
