//! A store in a schema of its own, for a test.

use std::sync::Arc;
use std::time::Duration;

use redrive::{Clock, PostgresOptions, PostgresStore, Store};
use redrive_servers::Schema;
use tokio_postgres::{Client, NoTls};

/// Under the same name every time: whoever opens it next is who was there before, come back.
///
/// The lease goes by real time and is so long that a test can only pass if nobody waits for it. Looking at the database now and
/// then goes by the clock of the bus, and a day of virtual time would be many looks: what is waited for must come without.
pub(super) async fn open(schema: &Schema, clock: Clock) -> Arc<dyn Store> {
    let options = PostgresOptions {
        schema: schema.name().into(),
        instance: "test".into(),
        lease: Duration::from_secs(3600),
        look_again: Duration::from_secs(60),
        // Small, because many tests run at once.
        lanes: 2,
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

/// Nobody writes events until this commits.
pub(super) async fn hold(schema: &Schema) -> Client {
    let client = connect(schema).await;
    let lock = format!("BEGIN; LOCK TABLE {}.event IN EXCLUSIVE MODE", schema.name());
    client.batch_execute(&lock).await.unwrap();
    client
}

/// Nothing belongs to an event that is not there, and no event is without its payload.
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
