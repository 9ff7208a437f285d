//! NATS JetStream as an idempotency store.
//!
//! Every key of an [`IdempotencyStore`](redrive_retry::idempotency::IdempotencyStore) is a key of one key-value bucket. It is
//! taken, renewed and completed by compare-and-set on the revision of that key, so that of all processes that share the bucket
//! one has the key. A server of version 2.9 is enough; a cluster with more than one replica needs 2.9.21, or opening it is refused.
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
//! # Whose clock
//!
//! The server's. What is written says *for how long* (a lease, a result), and the server stamps every entry with the time at which
//! it stored it; no process's clock is in it. Who reads must know what time it is for the server: NATS cannot be asked,
//! so an entry named `clock` is written and its stamp read. That reading is used for some seconds, never ahead of the server;
//! a key is taken from another owner only after a reading of that moment. In a cluster it is the clock of whoever
//! leads the bucket's stream: keep the clocks of the servers together, as JetStream itself asks for.
//!
//! # What is promised
//!
//! What was acknowledged survives the end of the server's process, by SIGKILL too. It survives the loss of power only if the
//! server writes through (`sync_interval: always` in its `jetstream` block, version 2.10 or newer), or if another server of a cluster has it
//! ([`NatsOptions::replicas`]): JetStream acknowledges before the disk has it, and syncs every two minutes unless told
//! otherwise. A result that is lost that way is a side effect that may happen twice.
//!
//! # What goes away
//!
//! Expired entries count as absent from the moment on at which they expire; they are deleted by
//! [`reap`](redrive_retry::idempotency::IdempotencyStore::reap), which reads the headers of the whole bucket, or by the server when
//! they are older than [`NatsOptions::max_age`].

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
