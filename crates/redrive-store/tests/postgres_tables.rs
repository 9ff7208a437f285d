//! Columns and views for plain SQL, and the indexes behind lists.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, Timestamp};
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, EventId, EventType, FailedAttempt, Metadata, NewEvent, PostgresStore, Redrive, Routing,
    Settlement, Store, SubscriptionName, Verdict,
};

use crate::postgres_server::{Schema, connect, server};

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

fn name(text: &str) -> SubscriptionName {
    SubscriptionName::new(text).unwrap()
}

fn failed(subscription: &str, error: &str, verdict: Verdict) -> Settlement {
    let failure = FailedAttempt {
        subscription: name(subscription),
        started_at: NOW,
        duration_ms: 1,
        class: FailureClass::Transient,
        delay_ms: 0,
        error: error.to_owned(),
        record: None,
        detail: None,
    };
    Settlement { failure: Some(failure), ..Settlement::new(NOW, verdict) }
}

fn event(to: Routing) -> NewEvent {
    NewEvent {
        is_scheduled: false,
        id: EventId::new(),
        event_type: EventType::new("order.created").unwrap(),
        payload: Arc::from("1"),
        metadata: Metadata::new(),
        created_at: NOW,
        due_at: NOW,
        retry: None,
        to,
    }
}

#[tokio::test]
async fn the_events_view_counts_the_failed_attempts_of_every_delivery() {
    let schema = Schema::new();
    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let (sink, mut claims) = ClaimSink::new(10);
    store.attach(Some(sink));
    let new = event(Routing::Each(vec![name("shop")]));
    let id = new.id;
    store.append(vec![new]).await.unwrap();
    let client = connect().await;
    let row = async || -> (String, i32, Option<String>) {
        let query = schema.sql("SELECT status, retry_count, last_error FROM redrive.events");
        let row = client.query_one(&query, &[]).await.unwrap();
        (row.get(0), row.get(1), row.get(2))
    };
    assert_eq!(row().await, ("processing".into(), 0, None));
    let claimed = claims.recv().await.unwrap();
    store.settle(claimed, failed("shop", "one", Verdict::Retry(NOW.into()))).await.unwrap();
    assert_eq!(row().await, ("processing".into(), 1, Some(r#"["one"]"#.into())));
    store.claim(NOW).await.unwrap();
    let claimed = claims.recv().await.unwrap();
    let dead = failed("shop", "two", Verdict::Dead(DeadReason::AttemptsExhausted));
    store.settle(claimed, dead).await.unwrap();
    assert_eq!(row().await, ("dlq".into(), 2, Some(r#"["one", "two"]"#.into())));
    store.redrive(id, Redrive { at: NOW, payload: None }).await.unwrap();
    assert_eq!(row().await, ("pending".into(), 0, None));
    store.close().await.unwrap();
}

/// Reads a constant from the source, so that the explained condition is the executed one.
fn constant(name: &str) -> String {
    let source = include_str!("../src/postgres/read.rs");
    let (_, rest) = source.split_once(&format!("const {name}: &str =")).unwrap();
    rest.split('"').nth(1).unwrap().to_owned()
}

/// With few of many events open or dead, no list of those reads the others.
#[tokio::test]
async fn lists_of_open_and_dead_events_use_an_index() {
    let schema = Schema::new();
    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let client = connect().await;
    let fill = "
        INSERT INTO redrive.event (id, type, status, created_at, updated_at)
        SELECT redrive.new_id(), 'order.created', 3, 0, 0 FROM generate_series(1, 20000) n;
        INSERT INTO redrive.dead_letter (event_key, type, created_at, dlq_at, reason, fingerprint, error)
        SELECT n, 'order.' || n, 0, 0, 'permanent', '', '' FROM generate_series(1, 2000) n;
        ANALYZE redrive.event; ANALYZE redrive.delivery; ANALYZE redrive.dead_letter;
        SET enable_seqscan = off"; // which a small table would use
    client.batch_execute(&schema.sql(fill)).await.unwrap();
    for (name, index) in [
        ("PENDING", "event_ready"),
        ("PROCESSING", "event_ready"),
        ("DEAD", "event_pkey"),
        ("DEAD_OF_TYPE", "dead_letter_type"),
    ] {
        let condition = constant(name).replace("$3", "'order.7'");
        let query = format!(
            "EXPLAIN SELECT e.key FROM redrive.event e WHERE e.key < 1000000{condition} ORDER BY e.key DESC LIMIT 100"
        );
        let plan = client.query(&schema.sql(&query), &[]).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        assert!(plan.contains(index) && !plan.contains("Seq Scan on event"), "{name}: {plan}");
    }
    store.close().await.unwrap();
}
