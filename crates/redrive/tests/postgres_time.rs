//! On a server, the database's clock counts: for this bus, and so for all that share it.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::time::{Duration, SystemTime};

use redrive::{Event, EventBus};
use redrive_retry::Timestamp;
use tokio::sync::mpsc;

const AHEAD: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_database_calls_due_is_handled_now_whatever_the_machine_says() {
    let server = redrive_servers::Postgres::shared_url().unwrap();
    let schema = format!("t{}", SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos());
    let joint = if server.contains('?') { '&' } else { '?' };
    let address = format!("{server}{joint}schema={schema}");
    // The bus makes the schema; then its clock is set.
    EventBus::open(&address).await.unwrap().shutdown().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let ahead = format!(
        "CREATE OR REPLACE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
         $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + {} $$",
        AHEAD.as_millis()
    );
    client.batch_execute(&ahead).await.unwrap();

    let bus = EventBus::open(&address).await.unwrap();
    let (seen, mut handled) = mpsc::unbounded_channel();
    bus.subscribe("order.*", move |event: Event| {
        let seen = seen.clone();
        async move { seen.send(event.event_type().to_string()) }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    client.batch_execute(&format!("SELECT {schema}.publish('order.created', '1')")).await.unwrap();
    let soon = |next| tokio::time::timeout(Duration::from_secs(20), next);
    assert_eq!(soon(handled.recv()).await.unwrap().as_deref(), Some("order.created"), "due by its own clock");
    let id = bus.publish("order.paid", &1).await.unwrap();
    assert_eq!(handled.recv().await.as_deref(), Some("order.paid"));
    let created = bus.store().event(id).await.unwrap().created_at;
    let machine = Timestamp::from(SystemTime::now());
    assert!(created.since(machine) > AHEAD / 2, "published at {created}, by the machine's clock {machine}");
    bus.shutdown().await.unwrap();
    client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
}
