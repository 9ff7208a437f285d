//! [`NatsOptions`]: settings of the bucket and the request timeout.

use std::time::Duration;

/// Storage of the bucket on the server.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// Files.
    #[default]
    File,
    /// Memory of the server process.
    Memory,
}

/// Settings of a store. An existing bucket must match them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsOptions {
    /// Name of the bucket; created if it does not exist. Default: `redrive_idempotency`.
    pub bucket: String,
    /// Number of replicas in a cluster: 1, 3 or 5. Default: 1.
    pub replicas: usize,
    /// Storage of the bucket. Default: files.
    pub storage: Storage,
    /// Age at which the server deletes an entry. Must exceed every lease, and limits the retention of results. Default: never.
    pub max_age: Option<Duration>,
    /// Timeout of one request. Default: 5 s.
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
