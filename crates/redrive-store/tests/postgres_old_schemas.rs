//! Migration of schemas of every version, with events in every state.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::every_state::{LIVES, event, handle_all, live, picture};
use crate::postgres_server::{Schema, connect, server};
use redrive_store::traits::*;
use redrive_store::{
    EventType, NewEvent, PostgresOptions, PostgresStore, Routing, Store, StoreError, SubscriptionName,
};
use tokio_postgres::Client;

/// The migration scripts: a schema of version N is made by the first N.
const MIGRATIONS: [&str; 11] = [
    include_str!("../src/postgres/sql/schema_1.sql"),
    include_str!("../src/postgres/sql/schema_2.sql"),
    include_str!("../src/postgres/sql/schema_3.sql"),
    include_str!("../src/postgres/sql/schema_4.sql"),
    include_str!("../src/postgres/sql/schema_5.sql"),
    include_str!("../src/postgres/sql/schema_6.sql"),
    include_str!("../src/postgres/sql/schema_7.sql"),
    include_str!("../src/postgres/sql/schema_8.sql"),
    include_str!("../src/postgres/sql/schema_9.sql"),
    include_str!("../src/postgres/sql/schema_10.sql"),
    include_str!("../src/postgres/sql/schema_11.sql"),
];

async fn open(schema: &Schema) -> PostgresStore {
    PostgresStore::open(&server(), schema.options()).await.unwrap()
}

async fn names(client: &Client, query: &str) -> Vec<String> {
    client.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// All tables, columns and functions of a schema.
async fn shape(client: &Client, schema: &Schema) -> Vec<String> {
    let query = format!(
        "SELECT c.relkind::text || ' ' || c.relname || ' ' || coalesce(a.attname || ' ' || a.atttypid::regtype, '')
         FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relnamespace = '{0}'::regnamespace
         UNION ALL
         SELECT 'function ' || proname || ' ' || pg_get_function_identity_arguments(oid) FROM pg_proc
         WHERE pronamespace = '{0}'::regnamespace ORDER BY 1",
        schema.name
    );
    names(client, &query).await
}

/// Creates a schema of an older version.
async fn make(client: &Client, old: &Schema, version: usize) {
    let mut scripts = format!(
        "CREATE SCHEMA {};
         CREATE TABLE redrive.migration (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());",
        old.name
    );
    for (number, script) in (1..).zip(&MIGRATIONS[..version]) {
        scripts.push_str(script);
        scripts.push_str(&format!("INSERT INTO redrive.migration (version) VALUES ({number});"));
    }
    let scripts = old.sql(&scripts).replace("@channel@", &format!("redrive_{}", old.name));
    client.batch_execute(&scripts).await.unwrap();
}

/// Creates a schema of an older version, with the rows of a newer one in the columns that exist in both.
async fn downgrade(client: &Client, newest: &Schema, old: &Schema, version: usize) {
    make(client, old, version).await;
    let tables = format!(
        "SELECT relname::text FROM pg_class WHERE relnamespace = '{}'::regnamespace AND relkind = 'r'
         AND relname <> 'migration'",
        old.name
    );
    for table in names(client, &tables).await {
        let columns = format!(
            "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = '{}.{table}'::regclass AND attnum > 0",
            old.name
        );
        let columns = names(client, &columns).await.join(", ");
        let copy = format!(
            "INSERT INTO {0}.{table} ({columns}) SELECT {columns} FROM {1}.{table} ON CONFLICT DO NOTHING",
            old.name, newest.name
        );
        client.batch_execute(&copy).await.unwrap();
        if columns.split(", ").any(|column| column == "key")
            && !["idempotency", "document"].contains(&table.as_str())
        {
            let next = format!(
                "SELECT setval(pg_get_serial_sequence('{0}.{table}', 'key'), coalesce(max(key), 0) + 1) FROM {0}.{table}",
                old.name
            );
            client.batch_execute(&next).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_of_every_version_are_migrated_without_loss() {
    let newest = Schema::new();
    for life in 0..LIVES {
        let store = open(&newest).await;
        let claimed = live(&store, life).await;
        drop((store, claimed));
        newest.is_unlocked().await;
    }
    let client = connect().await;
    let mut olds = Vec::new();
    for version in 1..=MIGRATIONS.len() {
        let old = Schema::new();
        downgrade(&client, &newest, &old, version).await;
        let states = "SELECT DISTINCT status::text FROM redrive.event ORDER BY 1";
        assert_eq!(names(&client, &old.sql(states)).await.len(), 7, "events in every state");
        olds.push(old);
    }
    let store = open(&newest).await;
    let expected = picture(&store).await;
    for (version, old) in (1..).zip(&olds) {
        let store = open(old).await;
        assert_eq!(picture(&store).await, expected, "version {version}");
        assert_eq!(shape(&client, old).await, shape(&client, &newest).await, "version {version}");
        handle_all(&store).await;
        let counts = client
            .query(
                &old.sql(
                    "SELECT status, count(*) FROM redrive.events WHERE id IS NOT NULL AND type = 'order.created'
                     AND payload <> '' AND retry_count >= 0 AND metadata IS NOT NULL AND created_at LIKE '20%Z'
                     AND updated_at LIKE '20%Z' AND (last_error IS NULL OR last_error LIKE '[%') GROUP BY 1",
                ),
                &[],
            )
            .await
            .unwrap();
        let counts: Vec<(String, i64)> = counts.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(counts, [("done".to_owned(), i64::from(45 * LIVES))], "version {version}");
        store.close().await.unwrap();
    }
}

/// Anyone may publish an event of the type `retry.task`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_retry_tasks_fail_neither_their_insert_nor_a_migration_nor_the_view() {
    let malformed = |index: usize| {
        [
            r#""retry_count":"three","next_retry_at_ms":1"#,
            r#""retry_count":99999999999999999999,"next_retry_at_ms":1"#,
            r#""retry_count":-9223372036854775808,"next_retry_at_ms":1"#,
            r#""retry_count":0,"next_retry_at_ms":{}"#,
            r#""retry_count":0,"next_retry_at_ms":1,"by_hand":"\ud800""#,
            r#""retry_count":0,"next_retry_at_ms":1,"max_retries":"many","original_payload":{"base64":"!"}"#,
            r#""retry_count":0,"next_retry_at_ms":1,"max_retries":99999999999,"original_payload":{"text":"\udc00"}"#,
            r#""retry_count":0,"next_retry_at_ms":1,"max_retries":3,"original_payload":7,"error_reason":"\ud800""#,
            r#""retry_count":0,"next_retry_at_ms":9223372036854775807,"max_retries":-1"#,
            r#""retry_count":0,"next_retry_at_ms":1,"original_payload":"hello""#,
            &format!(r#""retry_count":0,"next_retry_at_ms":1,"nested":{}{}"#, "[".repeat(20_000), "]".repeat(20_000)),
        ]
        .get(index)
        .map(|rest| format!(r#"{{"message_id":"m-{index}","original_queue":"orders",{rest}}}"#))
    };
    let newest = Schema::new();
    let store = open(&newest).await;
    let mut count = 0;
    while let Some(payload) = malformed(count) {
        let event = NewEvent {
            event_type: EventType::new("retry.task").unwrap(),
            payload: Arc::from(payload),
            to: Routing::Each(vec![SubscriptionName::new("republisher").unwrap()]),
            ..event(1)
        };
        store.append(vec![event]).await.unwrap();
        count += 1;
    }
    store.close().await.unwrap();
    let client = connect().await;
    let old = Schema::new();
    downgrade(&client, &newest, &old, 10).await;
    open(&old).await.close().await.unwrap();
    // The migration reads the tasks with PostgreSQL, and leaves out those with texts that it cannot decode.
    for (schema, expected) in
        [(&newest, &["m-10", "m-5", "m-6", "m-7", "m-8", "m-9"][..]), (&old, &["m-5", "m-8", "m-9"][..])]
    {
        let rows = client.query(&schema.sql("SELECT * FROM redrive.retry_queue"), &[]).await.unwrap();
        let mut shown: Vec<String> = rows.iter().map(|row| row.get("message_id")).collect();
        shown.sort();
        assert_eq!(shown, expected, "those with names, a count and a time");
        let events = client.query_one(&schema.sql("SELECT count(*) FROM redrive.events"), &[]).await.unwrap();
        assert_eq!(events.get::<_, i64>(0), i64::try_from(count).unwrap());
    }
}

/// A migration waits for all users of a table, and later users wait for the migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_behind_a_long_transaction_does_not_block_readers() {
    let old = Schema::new();
    let mut client = connect().await;
    make(&client, &old, 3).await;
    let read = old.sql("SELECT count(*) FROM redrive.event");
    let long = client.transaction().await.unwrap();
    long.query_one(&read, &[]).await.unwrap();
    let options = PostgresOptions { outage_timeout: Duration::from_secs(3), ..old.options() };
    let opening = tokio::spawn(async move { PostgresStore::open(&server(), options).await });
    let other = connect().await;
    other.batch_execute("SET statement_timeout = '10s'").await.unwrap();
    let began = Instant::now();
    while !opening.is_finished() {
        other.query_one(&read, &[]).await.expect("readers do not wait");
        assert!(began.elapsed() < Duration::from_secs(40), "the migration fails in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let error = opening.await.unwrap().map(drop).unwrap_err();
    assert!(matches!(&error, StoreError::SchemaLocked { schema } if *schema == old.name), "{error}");
    assert!(error.to_string().contains("pg_stat_activity"), "{error}");
    long.commit().await.unwrap();
    open(&old).await.stats().await.unwrap();
}
