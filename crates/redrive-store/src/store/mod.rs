//! The store traits: the interface between the bus and a database, split by reader.
//!
//! [`EventStore`] stores events and looks them up, [`WorkQueue`] claims and settles deliveries,
//! [`DeadLetters`] lists and redrives dead letters, [`Cluster`] shares subscriptions, breakers and budgets between processes, and
//! [`Documents`] keeps configuration. [`Store`] joins them, so that `Arc<dyn Store>` offers every method.
//!
//! All of them are sealed: only the stores of this crate implement them, and the API is not stable.

mod cluster;
mod dead_letters;
mod documents;
mod events;
mod work_queue;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use redrive_retry::{Clock, Timestamp};

pub use self::cluster::Cluster;
pub use self::dead_letters::{DeadLetters, Replayed};
pub use self::documents::Documents;
pub use self::events::{Appended, EventStore};
pub use self::work_queue::{BacklogClaimed, BacklogRequest, Finished, WorkQueue};
use crate::error::StoreError;

/// Interval between two runs of the retention cleanup.
pub(crate) const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// Number of rows that one statement of the retention cleanup deletes at most.
pub(crate) const CLEANUP_BATCH_ROWS: u32 = 1000;

/// Returns the instant before which finished events have outlived `retention`.
pub(crate) fn retention_cutoff(now: Timestamp, retention: Duration) -> Timestamp {
    let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(retention))
}

/// The boxed future that every store method returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps crates outside from implementing the store traits.
pub(crate) trait Sealed: Send + Sync + fmt::Debug {}

/// A durable store of events and deliveries, with every trait of this module.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
///
/// A future of a writing method resolves to `Ok` only when the change is committed; for [`append`](EventStore::append) and the
/// dead-letter methods also when the change is on stable storage. An error other than [`StoreError::Unknown`] and
/// [`StoreError::Stopped`] means that nothing was changed.
pub trait Store: EventStore + WorkQueue + DeadLetters + Cluster + Documents {
    /// Returns the clock that due times and leases are measured by. All processes that share the store agree on it.
    fn clock(&self) -> Clock;

    /// Finishes queued commands and closes the store. Later calls fail with [`StoreError::Closed`].
    fn close(&self) -> StoreFuture<'_, ()>;
}
