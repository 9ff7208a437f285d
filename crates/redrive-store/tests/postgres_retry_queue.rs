//! The retry scheduler's specified table.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::decision::DeadReason;
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, EventId, EventType, Metadata, NewEvent, PostgresOptions, PostgresStore, Redrive, Replayed,
    Routing, Settlement, Store, SubscriptionName, Verdict,
};

use crate::postgres_server::{Schema, connect, server};

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

fn republisher() -> SubscriptionName {
    SubscriptionName::new("republisher").unwrap()
}

fn task(message: &str, count: u32, payload: &str, rest: &str) -> NewEvent {
    let task = format!(
        r#"{{"message_id":"{message}","original_payload":{payload},"original_queue":"orders","error_reason":"timeout",
            "retry_count":{count},"max_retries":3,"next_retry_at_ms":{},"properties":{{"odd":"\u0000"}}{rest}}}"#,
        NOW.as_millis()
    );
    NewEvent {
        id: EventId::new(),
        event_type: EventType::new("retry.task").unwrap(),
        payload: Arc::from(task),
        metadata: Metadata::new(),
        created_at: NOW,
        due_at: NOW,
        is_scheduled: false,
        retry: None,
        to: Routing::Each(vec![republisher()]),
    }
}

#[tokio::test]
async fn the_retry_queue_view_shows_the_state_of_each_message() {
    let schema = Schema::new();
    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let (sink, mut claims) = ClaimSink::new(100);
    store.attach(Some(sink));
    let discarded = r#","by_hand":{"decision":"discarded","by":"anna","at":"2026-01-01T00:00:00.000Z"}"#;
    let verdicts = [
        (task("m-1", 0, r#"{"text":"{\"order\":7}"}"#, ""), Verdict::Done),
        (task("m-2", 3, r#"{"base64":"AIA="}"#, ""), Verdict::Dead(DeadReason::Permanent)),
        (task("m-3", 3, r#"{"text":""}"#, discarded), Verdict::Done),
    ];
    for (event, verdict) in verdicts {
        store.append(vec![event]).await.unwrap();
        let claimed = claims.recv().await.unwrap();
        store.settle(claimed, Settlement::new(NOW, verdict)).await.unwrap();
    }
    store.attach(None);
    let due_at = NOW + Duration::from_secs(4);
    let pending = NewEvent { due_at, ..task("m-4", 1, r#"{"text":"x"}"#, "") };
    let other = NewEvent { event_type: EventType::new("order.created").unwrap(), ..task("m-5", 0, "{}", "") };
    let not_addressed = NewEvent { to: Routing::Matching, ..task("m-6", 0, "{}", "") };
    store.append(vec![task("m-4", 0, r#"{"text":"x"}"#, ""), pending, other, not_addressed]).await.unwrap();
    let client = connect().await;
    let query = schema.sql(
        "SELECT message_id || ' ' || encode(original_payload, 'escape') || ' ' || original_queue || ' ' || error_reason || ' '
                || retry_count || ' ' || max_retries || ' ' || next_retry_at || ' ' || status
         FROM redrive.retry_queue WHERE id > 0 AND created_at IS NOT NULL ORDER BY message_id",
    );
    let rows: Vec<String> = client.query(&query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(
        rows,
        [
            r#"m-1 {"order":7} orders timeout 1 3 2026-01-01 00:00:00 retried"#,
            r"m-2 \000\200 orders timeout 3 3 2026-01-01 00:00:00 failed",
            "m-3  orders timeout 3 3 2026-01-01 00:00:00 failed",
            "m-4 x orders timeout 1 3 2026-01-01 00:00:04 pending",
        ]
    );
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_message_keeps_its_id_when_it_fails_again_and_leaves_with_its_last_event() {
    let schema = Schema::new();
    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let client = connect().await;
    let ids = async || -> Vec<(i64, i32, String)> {
        let query = schema.sql("SELECT id, retry_count, status FROM redrive.retry_queue");
        let rows = client.query(&query, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    };
    let (sink, mut claims) = ClaimSink::new(10);
    store.attach(Some(sink));
    let mut id = None;
    for count in 0..3 {
        store.append(vec![task("m-1", count, r#"{"text":"x"}"#, "")]).await.unwrap();
        let before = ids().await;
        assert_eq!(
            (before.len(), before[0].1, before[0].2.as_str()),
            (1, i32::try_from(count).unwrap(), "pending")
        );
        assert_eq!(*id.get_or_insert(before[0].0), before[0].0, "the id is stable");
        let claimed = claims.recv().await.unwrap();
        store.settle(claimed, Settlement::new(NOW, Verdict::Done)).await.unwrap();
        assert_eq!(ids().await[0].2, "retried");
    }
    assert_eq!(store.purge_done(NOW + Duration::from_secs(1), 100).await.unwrap(), 3);
    assert_eq!(ids().await, []);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_message_is_pending_from_its_redrive_until_it_ends_again() {
    let schema = Schema::new();
    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let client = connect().await;
    let shown = async || -> String {
        let query = schema.sql("SELECT status || ' ' || retry_count FROM redrive.retry_queue");
        client.query_one(&query, &[]).await.unwrap().get(0)
    };
    let (sink, mut claims) = ClaimSink::new(10);
    store.attach(Some(sink));
    let mut end = async |verdict| {
        let claimed = match claims.try_recv() {
            Ok(claimed) => claimed,
            Err(_) => {
                store.claim(store.clock().now() + Duration::from_secs(60)).await.unwrap();
                claims.recv().await.unwrap()
            }
        };
        store.settle(claimed, Settlement::new(NOW, verdict)).await.unwrap();
    };
    let new = task("m-1", 3, r#"{"text":"x"}"#, "");
    let (id, payload) = (new.id, new.payload.to_string());
    store.append(vec![new]).await.unwrap();
    end(Verdict::Dead(DeadReason::Permanent)).await;
    assert_eq!(shown().await, "failed 3");
    store.redrive(id, Redrive { at: NOW, payload: None }).await.unwrap();
    assert_eq!(shown().await, "pending 3");
    end(Verdict::Dead(DeadReason::Permanent)).await;
    assert_eq!(shown().await, "failed 3");
    assert_eq!(store.replay(id, republisher(), NOW).await.unwrap(), Replayed::Again);
    assert_eq!(shown().await, "pending 3");
    end(Verdict::Dead(DeadReason::Permanent)).await;
    // A review discards it: the task is edited and then ends.
    let discarded = payload[..payload.len() - 1].to_owned() + r#","by_hand":{"decision":"discarded"}}"#;
    store.redrive(id, Redrive { at: NOW, payload: Some(discarded) }).await.unwrap();
    assert_eq!(shown().await, "pending 3");
    end(Verdict::Done).await;
    assert_eq!(shown().await, "failed 3");
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_message_that_occurs_twice_in_a_batch_has_one_row_with_its_last_failure() {
    let schema = Schema::new();
    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let first = task("m-2", 0, r#"{"text":"x"}"#, "");
    let events = vec![
        first.clone(),
        task("m-1", 1, r#"{"text":"x"}"#, ""),
        task("m-1", 2, r#"{"text":"x"}"#, ""),
        task("m-1", 0, r#"{"text":"x"}"#, ""),
    ];
    store.append(events).await.unwrap();
    store
        .append(vec![task("m-3", 0, r#"{"text":"x"}"#, ""), first, task("m-0", 7, r#"{"text":"x"}"#, "")])
        .await
        .unwrap();
    let query = "SELECT message_id || ' ' || retry_count FROM redrive.retry_queue ORDER BY message_id";
    let rows = connect().await.query(&schema.sql(query), &[]).await.unwrap();
    let rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(rows, ["m-0 7", "m-1 2", "m-2 0", "m-3 0"]);
    store.close().await.unwrap();
}

#[tokio::test]
async fn the_retry_queue_is_found_with_the_default_search_path_and_has_the_specified_types() {
    let schema = Schema::new();
    let client = connect().await;
    let database = format!("{}_db", schema.name);
    client.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    let address = format!("{}/{database}", server().rsplit_once('/').unwrap().0);
    let store = PostgresStore::open(&address, schema.options()).await.unwrap();
    store.append(vec![task("m-1", 0, r#"{"text":"x"}"#, "")]).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let found = client.query("SELECT * FROM retry_queue", &[]).await.unwrap();
    assert_eq!(found.len(), 1);
    let types = "SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
                 WHERE attrelid = 'retry_queue'::regclass AND attnum > 0 ORDER BY attnum";
    let types: Vec<String> = client.query(types, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(
        types,
        [
            "id bigint",
            "message_id text", // specified as uuid, but the id of a message may be any text
            "original_payload bytea",
            "original_queue character varying(255)",
            "error_reason text",
            "retry_count integer",
            "max_retries integer",
            "next_retry_at timestamp without time zone",
            "created_at timestamp without time zone",
            "status character varying(50)",
        ]
    );
    store.close().await.unwrap();

    // The first schema of a database gets the view; a second one changes nothing.
    let other = PostgresOptions { schema: "other".into(), ..schema.options() };
    PostgresStore::open(&address, other).await.unwrap().close().await.unwrap();
    assert_eq!(client.query("SELECT * FROM retry_queue", &[]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn due_messages_and_single_messages_are_found_by_an_index() {
    let schema = Schema::new();
    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let client = connect().await;
    let fill = "
        INSERT INTO redrive.event (key, id, type, status, created_at, updated_at)
        SELECT n, redrive.new_id(), 'retry.task', 5, 0, 0 FROM generate_series(1, 20000) n;
        INSERT INTO redrive.payload (event_key, payload)
        SELECT n, format('{\"message_id\":\"m-%s\",\"original_queue\":\"q\",\"retry_count\":0,\"max_retries\":3,\"next_retry_at_ms\":%s}', n, n * 1000)
        FROM generate_series(1, 20000) n;
        INSERT INTO redrive.delivery (event_key, subscription, status, updated_at)
        SELECT n, 'republisher', 0, 0 FROM generate_series(1, 20000) n;
        SELECT redrive.fill_retry_messages();
        ANALYZE redrive.event; ANALYZE redrive.payload; ANALYZE redrive.retry_message;
        SET enable_seqscan = off"; // which a small table would use
    client.batch_execute(&schema.sql(fill)).await.unwrap();
    for (query, index) in [
        (
            "SELECT * FROM redrive.retry_queue WHERE status = 'pending' AND next_retry_at <= now()
             ORDER BY next_retry_at LIMIT 100",
            "idx_retry_next_retry",
        ),
        (
            "SELECT * FROM redrive.retry_queue WHERE message_id = 'm-7'",
            "retry_message_message_id_original_queue_key",
        ),
    ] {
        let explain = format!("EXPLAIN {}", schema.sql(query));
        let plan = client.query(&explain, &[]).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        assert!(plan.contains(index) && !plan.contains("Seq Scan"), "{query}: {plan}");
    }
    store.close().await.unwrap();
}
