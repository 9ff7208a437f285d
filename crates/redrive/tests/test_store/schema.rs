//! PostgreSQL store in its own schema.

use std::sync::Arc;
use std::time::Duration;

use redrive::retry::Clock;
use redrive::store::{PostgresOptions, PostgresStore, Store};
use redrive_servers::Schema;
use tokio_postgres::{Client, NoTls};

/// Options with a constant instance name: the next bus counts as the same process after a restart.
///
/// The lease, on real time, is longer than any test, and the poll interval is long on the clock of the bus: a test passes only if
/// it waits for neither.
pub(super) async fn open(schema: &Schema, clock: Clock) -> Arc<dyn Store> {
    let options = PostgresOptions {
        schema: schema.name().into(),
        instance: "test".into(),
        lease: Duration::from_secs(3600),
        poll_interval: Duration::from_secs(60),
        // Small, because many tests run at once.
        write_connections: 2,
        pool: 2,
        clock,
        ..PostgresOptions::default()
    };
    Arc::new(PostgresStore::open(schema.url(), options).await.unwrap())
}

async fn connect(schema: &Schema) -> Client {
    let (client, connection) = tokio_postgres::connect(schema.url(), NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

/// Blocks writes of events until it commits.
pub(super) async fn hold(schema: &Schema) -> Client {
    let client = connect(schema).await;
    let lock = format!("BEGIN; LOCK TABLE {}.event IN EXCLUSIVE MODE", schema.name());
    client.batch_execute(&lock).await.unwrap();
    client
}

/// Checks that no row refers to a missing event and that every event has a payload.
pub(super) async fn is_sound(schema: &Schema) {
    let client = connect(schema).await;
    for table in ["payload", "delivery", "attempt", "dead_letter", "redriven"] {
        let query = "SELECT count(*) FROM s.t WHERE event_key NOT IN (SELECT key FROM s.event)";
        let query = query.replace("s.", &format!("{}.", schema.name())).replace(".t ", &format!(".{table} "));
        assert_eq!(client.query_one(&query, &[]).await.unwrap().get::<_, i64>(0), 0, "{table}");
    }
    let query = "SELECT count(*) FROM s.event WHERE key NOT IN (SELECT event_key FROM s.payload)";
    let query = query.replace("s.", &format!("{}.", schema.name()));
    assert_eq!(client.query_one(&query, &[]).await.unwrap().get::<_, i64>(0), 0, "without a payload");
}
