//! Durable state of Redrive: the model of events and deliveries, the sealed store traits, and their SQLite implementation; with the
//! feature `postgres`, PostgreSQL as well.
//!
//! [`Store`] joins the traits: [`EventStore`] appends events and looks them up, [`WorkQueue`] claims and settles deliveries,
//! [`DeadLetters`] lists and redrives dead letters, [`Cluster`] shares state between processes, [`Documents`] keeps configuration.

mod budget;
mod circuit;
#[cfg(feature = "conformance")]
pub mod conformance;
mod dead_letter;
mod document;
mod due;
mod error;
mod event;
mod history;
mod lease;
mod location;
#[cfg(feature = "postgres")]
pub mod postgres;
mod query;
mod sql;
pub mod sqlite;
mod store;
mod sync;
mod work;

pub use budget::{BudgetReport, BudgetView};
pub use circuit::{CircuitReport, CircuitState, CircuitView};
pub use dead_letter::{DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqPage, Redrive, fingerprint};
pub use document::{Document, DocumentKey};
pub use due::Due;
pub use error::StoreError;
pub use event::{
    EventContent, EventId, EventStatus, EventType, Metadata, ModelError, NewEvent, Routing, StoredEvent,
    SubscriptionName,
};
pub use history::{HISTORY_PAGE, RecordedAttempt};
pub use lease::{LeaseToken, NotALeaseToken};
pub use location::Location;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore};
pub use query::{
    AttemptFilter, AttemptRow, AuditLine, DeliveryRow, Depth, EventDetail, EventFilter, EventPage,
    PayloadOmitted, RawJson, RemoteSubscription, Stats, SubscriptionAttempt, SubscriptionRow,
    WaitingDeliveries, WaitingWork,
};
pub use sqlite::{Durability, SqliteHistory, SqliteOptions, SqliteStore};
pub use store::{
    Appended, BacklogClaimed, BacklogRequest, Cluster, DeadLetters, Documents, EventStore, Finished, Leases,
    Replayed, Store, StoreFuture, WorkQueue,
};
pub use work::{
    ClaimSink, Claimed, DueHint, FailedAttempt, Recovered, Settlement, SucceededAttempt, Verdict,
};

/// Every store trait, for a glob import where a store is used by its concrete type. `dyn Store` needs no import.
pub mod traits {
    pub use crate::store::{Cluster, DeadLetters, Documents, EventStore, Store, WorkQueue};
}
