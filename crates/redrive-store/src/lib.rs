//! What is durable in Redrive: the model, the [`Store`] trait, and SQLite behind it.

#[cfg(feature = "conformance")]
pub mod conformance;
mod dead_letter;
mod error;
mod event;
mod query;
pub mod sqlite;
mod store;
mod work;

pub use dead_letter::{DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqPage, Redrive, fingerprint};
pub use error::StoreError;
pub use event::{
    EventId, EventStatus, EventType, Metadata, ModelError, NewEvent, StoredEvent, SubscriptionName,
};
pub use query::{
    AttemptRow, DeliveryRow, Depth, EventDetail, EventFilter, EventPage, RawJson, Stats, SubscriptionRow,
};
pub use sqlite::{Durability, SqliteOptions, SqliteStore};
pub use store::{Appended, Finished, Store, StoreFuture};
pub use work::{ClaimSink, Claimed, DueHint, FailedAttempt, Recovered, Settlement, Verdict};
