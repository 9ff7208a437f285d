//! Conformance suite on PostgreSQL.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;

use redrive_store::conformance::{Harness, MAX_PAYLOAD, Restart};
use redrive_store::{PostgresOptions, PostgresStore, Store};

use crate::postgres_server::{Schema, server};

struct Postgres {
    /// `None` only during a restart.
    store: Option<Arc<dyn Store>>,
    schema: Schema,
}

impl Postgres {
    async fn open(schema: &Schema) -> Option<Arc<dyn Store>> {
        let options = PostgresOptions { max_payload: MAX_PAYLOAD, ..schema.options() };
        Some(Arc::new(PostgresStore::open(&server(), options).await.unwrap()))
    }
}

impl Harness for Postgres {
    async fn fresh() -> Self {
        let schema = Schema::new();
        Postgres { store: Postgres::open(&schema).await, schema }
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().unwrap()
    }
}

impl Restart for Postgres {
    async fn restart(&mut self) {
        let old = self.store.take().unwrap();
        assert_eq!(Arc::strong_count(&old), 1, "this is the last reference to the store");
        drop(old);
        // The server may not have noticed yet that the old process has ended.
        self.schema.is_unlocked().await;
        self.store = Postgres::open(&self.schema).await;
    }
}

/// A store in the mode for transaction poolers.
struct PollOnly {
    store: Arc<dyn Store>,
    _schema: Schema,
}

impl Harness for PollOnly {
    async fn fresh() -> Self {
        let schema = Schema::new();
        let options = PostgresOptions { max_payload: MAX_PAYLOAD, poll_only: true, ..schema.options() };
        let store = Arc::new(PostgresStore::open(&server(), options).await.unwrap());
        PollOnly { store, _schema: schema }
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

mod sessions {
    redrive_store::conformance_tests!(super::Postgres);
    redrive_store::restart_conformance_tests!(super::Postgres);
}

mod poll_only {
    redrive_store::conformance_tests!(super::PollOnly);
}
