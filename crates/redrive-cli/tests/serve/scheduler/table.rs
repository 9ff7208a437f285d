//! The specified table `retry_queue`, queried by SQL while the service runs.

use std::sync::Arc;

use serde_json::json;
use tokio_postgres::{Client, NoTls};

use super::broker::failure;
use super::world::{Shop, one_in_review};
use crate::world::{TestDatabase, until};

/// Specified columns and types; a message id may be any text, not only a UUID.
const COLUMNS: [(&str, &str); 10] = [
    ("id", "bigint"),
    ("message_id", "text"),
    ("original_payload", "bytea"),
    ("original_queue", "character varying"),
    ("error_reason", "text"),
    ("retry_count", "integer"),
    ("max_retries", "integer"),
    ("next_retry_at", "timestamp without time zone"),
    ("created_at", "timestamp without time zone"),
    ("status", "character varying"),
];

#[test]
fn sql_on_retry_queue_shows_every_message() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::postgres()));
    let world = shop.schedule(&database, &[]);
    let TestDatabase::Postgres(schema, _) = database.as_ref() else { panic!("a PostgreSQL database") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client: Client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(schema.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    });
    let columns = runtime.block_on(client.query(
        "SELECT column_name::text, data_type::text FROM information_schema.columns
         WHERE table_schema = $1 AND table_name = 'retry_queue' ORDER BY ordinal_position",
        &[&schema.name()],
    ));
    let columns: Vec<(String, String)> =
        columns.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(columns, COLUMNS.map(|(name, kind)| (name.to_owned(), kind.to_owned())));

    let rows = || -> Vec<String> {
        let query = format!(
            "SELECT message_id || ' ' || status || ' ' || retry_count || ' of ' || max_retries || ' ' || error_reason || ' '
                    || convert_from(original_payload, 'UTF8') || ' ' || (next_retry_at > created_at)
             FROM {}.retry_queue WHERE original_queue = $1 ORDER BY message_id",
            schema.name()
        );
        let rows = runtime.block_on(client.query(&query, &[&shop.orders])).unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let mut waits = failure("m-1", &shop.orders, 0);
    waits["next_retry_at_ms"] = json!("4102444800000");
    shop.client.send_failure(&shop.retry_queue, &waits);
    // An implausible time is ignored: the backoff applies. The next message has none.
    shop.client.send_failure(&shop.retry_queue, &failure("m-2", &shop.orders, 1));
    shop.client.send_failure(&shop.retry_queue, &failure("m-3", &shop.orders, 3));
    one_in_review(&world);
    let expected = [
        r#"m-1 retried 1 of 3 timeout after 30 s {"order": 7} true"#,
        r#"m-2 retried 2 of 3 timeout after 30 s {"order": 7} true"#,
        r#"m-3 failed 3 of 3 timeout after 30 s {"order": 7} true"#,
    ];
    until(
        "each row has its final status",
        || rows() == expected,
        || format!("{:#?} {}", rows(), world.log()),
    );

    // One row per message, updated by its last failure.
    let in_an_hour = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
        + std::time::Duration::from_secs(3600);
    let mut again = failure("m-1", &shop.orders, 1);
    again["next_retry_at_ms"] = json!(in_an_hour.as_millis().to_string());
    shop.client.send_failure(&shop.retry_queue, &again);
    let pending = r#"m-1 pending 1 of 3 timeout after 30 s {"order": 7} true"#;
    until("it waits", || rows().first().map(String::as_str) == Some(pending), || format!("{:#?}", rows()));
    assert_eq!(rows().len(), 3);
}
