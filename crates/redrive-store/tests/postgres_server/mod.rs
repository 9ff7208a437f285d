//! The server under test, a schema for each test, and common events and settlements.
#![allow(dead_code)] // not every test file uses everything

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_retry::Timestamp;
use redrive_store::{EventId, EventType, Metadata, NewEvent, PostgresOptions, Routing, Settlement, Verdict};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// The address of the server.
pub(crate) fn server() -> String {
    redrive_servers::Postgres::shared_url().unwrap_or_else(|missing| panic!("{missing}"))
}

/// A connection of the test, beside the store.
pub(crate) async fn connect() -> Client {
    let (client, connection) = tokio_postgres::connect(&server(), NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

/// The machine's time. Tests that move the database's clock use the store's clock instead.
pub(crate) fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// An event that is due when it is published, and so runs at once.
pub(crate) fn event() -> NewEvent {
    event_at(now())
}

pub(crate) fn event_at(now: Timestamp) -> NewEvent {
    NewEvent {
        id: EventId::new(),
        event_type: EventType::new("order.created").unwrap(),
        payload: Arc::from(r#"{"order":7}"#),
        metadata: Metadata::new(),
        created_at: now,
        due_at: now,
        is_scheduled: false,
        retry: None,
        to: Routing::Matching,
    }
}

pub(crate) fn settlement(verdict: Verdict) -> Settlement {
    Settlement::new(now(), verdict)
}

pub(crate) fn done() -> Settlement {
    settlement(Verdict::Done)
}

pub(crate) fn done_at(at: Timestamp) -> Settlement {
    Settlement { at, ..done() }
}

/// Options of a process with an instance name and a lease.
pub(crate) fn named(schema: &Schema, instance: &str, lease: Duration) -> PostgresOptions {
    PostgresOptions { instance: instance.into(), lease, ..schema.options() }
}

/// A schema that is dropped at the end of the test.
pub(crate) struct Schema {
    pub(crate) name: String,
}

impl Schema {
    pub(crate) fn new() -> Self {
        let name = format!("t{}", Uuid::new_v4().simple());
        Schema { name }
    }

    /// Options with a small pool, because many tests run at once.
    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions { schema: self.name.clone(), pool: 4, ..PostgresOptions::default() }
    }

    /// Rewrites a statement for this schema.
    pub(crate) fn sql(&self, text: &str) -> String {
        text.replace("redrive.", &format!("{}.", self.name))
    }

    /// Moves the database's clock forward, for this schema.
    pub(crate) async fn move_time(&self, by: Duration) {
        let moved = format!(
            "CREATE TABLE IF NOT EXISTS redrive.moved (by bigint);
             INSERT INTO redrive.moved VALUES ({});
             CREATE OR REPLACE FUNCTION redrive.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
               SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
                      + (SELECT sum(by)::bigint FROM redrive.moved) $$",
            by.as_millis()
        );
        connect().await.batch_execute(&self.sql(&moved)).await.unwrap();
    }

    /// Waits until no process holds a liveness lock of this schema.
    pub(crate) async fn is_unlocked(&self) {
        let client = connect().await;
        let query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                     AND classid = (SELECT oid FROM pg_namespace WHERE nspname = $1)";
        let began = Instant::now();
        while client.query_one(query, &[&self.name]).await.unwrap().get::<_, i64>(0) > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "the lock is released with the process");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let drop_schema = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name);
        // On a thread with its own runtime: that of the test may have ended.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = connect().await;
                client.batch_execute("SET statement_timeout = '20s'").await.unwrap();
                client.batch_execute(&drop_schema).await
            })
        });
        // A schema that is not dropped does no harm.
        drop(removed.join());
    }
}
