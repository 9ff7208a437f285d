//! What is durable in Redrive: the model, the [`Store`] trait, and SQLite behind it; with the feature `postgres`, PostgreSQL as well.

mod audit_line;
mod budget;
mod circuit;
#[cfg(feature = "conformance")]
pub mod conformance;
mod dead_letter;
mod document;
mod error;
mod event;
mod key_row;
mod location;
#[cfg(feature = "postgres")]
pub mod postgres;
mod query;
pub mod sqlite;
mod store;
mod sync;
mod work;

pub use budget::{BudgetReport, BudgetView};
pub use circuit::{CircuitReport, CircuitView};
pub use dead_letter::{DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqPage, Redrive, fingerprint};
pub use document::{Document, DocumentKey, Documents};
pub use error::StoreError;
pub use event::{
    EventId, EventStatus, EventType, Metadata, ModelError, NewEvent, StoredEvent, SubscriptionName, To,
};
pub use location::Location;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore};
pub use query::{
    AttemptRow, AuditLine, DeliveryRow, Depth, EventDetail, EventFilter, EventPage, RawJson, Stats,
    SubscribedElsewhere, SubscriptionAttempt, SubscriptionRow, Unread,
};
pub use sqlite::{Durability, SqliteOptions, SqliteStore};
pub use store::{Appended, Call, CalledUp, Finished, Replayed, Store, StoreFuture};
pub use work::{
    ClaimSink, Claimed, DueHint, FailedAttempt, HELD, Recovered, Settlement, SucceededAttempt, Verdict,
};
