//! Idempotency store on NATS JetStream.
//!
//! Every key of an [`IdempotencyStore`](redrive_retry::idempotency::IdempotencyStore) is a key of one key-value bucket. Claims,
//! renewals and results are compare-and-set on the revision of that key, so exactly one of all processes that share the bucket
//! owns a key. Requires NATS server 2.9; a bucket with several replicas requires 2.9.21.
//!
//! ```no_run
//! use std::sync::Arc;
//! use redrive_nats::{NatsOptions, NatsStore};
//! use redrive_retry::RetryManager;
//!
//! # async fn example() -> Result<(), redrive_nats::NatsError> {
//! let store = NatsStore::connect("nats://127.0.0.1:4222", NatsOptions::default()).await?;
//! let manager = RetryManager::builder().idempotency_store(Arc::new(store)).build();
//! # Ok(())
//! # }
//! ```
//!
//! # Clock
//!
//! All times are the server's. An entry contains a duration (of a lease or a result), and the server stamps it with the time of
//! its write. To learn the server's time, the store writes an entry named `clock` and reads its stamp. It reuses a reading for a
//! few seconds and is never ahead of the server; before it takes a key over from another owner it reads the time again. In a
//! cluster the time is that of the leader of the bucket's stream, so synchronise the servers' clocks, as JetStream requires.
//!
//! # Durability
//!
//! An acknowledged write survives SIGKILL of the server. It survives power loss only with `sync_interval: always` in the
//! server's `jetstream` block (version 2.10 or newer) or with several replicas ([`NatsOptions::replicas`]): JetStream
//! acknowledges before the sync, and syncs every two minutes by default. If a result is lost, its side effect may run twice.
//!
//! # Expiry
//!
//! An expired entry counts as absent at once. [`reap`](redrive_retry::idempotency::IdempotencyStore::reap) deletes expired
//! entries; it reads the headers of the whole bucket. The server deletes entries that are older than
//! [`NatsOptions::max_age`].

mod bucket;
mod clock;
mod entry;
mod error;
mod name;
mod options;
mod store;

pub use async_nats;

pub use error::NatsError;
pub use options::{NatsOptions, Storage};
pub use store::NatsStore;
