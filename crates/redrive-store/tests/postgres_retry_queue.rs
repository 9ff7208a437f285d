//! The retry scheduler's specified table, as a view.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::decision::DeadReason;
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, EventId, EventType, Metadata, NewEvent, PostgresStore, Routing, Settlement, Store, Verdict,
};

use crate::postgres_server::{Schema, connect, server};

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

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
        to: Routing::Matching,
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
    store.append(vec![task("m-4", 0, r#"{"text":"x"}"#, ""), pending, other]).await.unwrap();
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
