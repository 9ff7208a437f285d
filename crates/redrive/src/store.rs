//! The store behind a bus: SQLite, or PostgreSQL with the feature `postgres`.
//!
//! [`EventBusBuilder::open`](crate::EventBusBuilder::open) opens one by its location. Open it yourself for options that the builder does
//! not have, or to publish inside your own transaction ([`sqlite::append_in`]).

pub use redrive_store::{
    Appended, Depth, Durability, EventContent, Location, ModelError, NewEvent, Replayed, Routing,
    SqliteOptions, SqliteStore, Stats, Store, StoreError, sqlite,
};
#[cfg(feature = "postgres")]
pub use redrive_store::{PostgresOptions, PostgresStore, postgres};
