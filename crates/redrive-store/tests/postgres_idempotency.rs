//! Idempotency keys and the audit log in the database of the events.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::audit::{AuditSink, Level, RetryLogEntry};
use redrive_retry::idempotency::conformance::{StoreHarness, exercise, race};
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyStore, KeyState, OwnerToken,
};
use redrive_store::{PostgresOptions, PostgresStore, Store};
use tokio::task::JoinSet;

use crate::postgres_proxy::{Cut, Proxy};
use crate::postgres_server::{Schema, connect, server};

const LEASE: Duration = Duration::from_secs(10);
const KEEP: Duration = Duration::from_secs(3600);

async fn open(schema: &Schema) -> PostgresStore {
    PostgresStore::open(&server(), schema.options()).await.unwrap()
}

fn key(name: &str) -> IdempotencyKey {
    IdempotencyKey::new(name).unwrap()
}

struct Database {
    schema: Schema,
    store: Arc<PostgresStore>,
}

impl StoreHarness for Database {
    fn store(&self) -> Arc<dyn IdempotencyStore> {
        self.store.clone()
    }

    async fn elapse(&self, duration: Duration) {
        self.schema.move_time(duration).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_passes_the_idempotency_conformance_suite() {
    let schema = Schema::new();
    let store = Arc::new(open(&schema).await);
    exercise(&Database { schema, store }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_only_store_passes_the_idempotency_conformance_suite() {
    let schema = Schema::new();
    let options = PostgresOptions { poll_only: true, ..schema.options() };
    let store = Arc::new(PostgresStore::open(&server(), options).await.unwrap());
    exercise(&Database { schema, store }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_processes_acquires_the_key_and_all_get_the_result() {
    let schema = Schema::new();
    let mut handles: Vec<Arc<dyn IdempotencyStore>> = Vec::new();
    for _ in 0..3 {
        handles.push(Arc::new(open(&schema).await));
    }
    race(&handles).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_change_with_a_lost_answer_takes_effect_once() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions { pool: 1, ..schema.options() };
    let store = PostgresStore::open_with(proxy.config(), options).await.unwrap();
    let print = Fingerprint::default();
    for (round, cut) in [Cut::Answer, Cut::Request, Cut::Answer, Cut::Request].into_iter().enumerate() {
        let (key, owner) = (key(&format!("charge/{round}")), OwnerToken::new());
        // Prepares the statements before the connection is cut.
        store.begin(&key, print, owner, LEASE).await.unwrap();
        store.extend(&key, owner, LEASE).await.unwrap();
        proxy.cut(cut);
        assert_eq!(store.begin(&key, print, owner, LEASE).await.unwrap(), Begin::Acquired, "{cut:?}");
        store.extend(&key, owner, LEASE).await.unwrap();
        proxy.cut(cut);
        if round < 2 {
            store.complete(&key, owner, "1", None, KEEP).await.unwrap();
            let again = store.complete(&key, owner, "2", None, KEEP).await;
            assert!(matches!(again, Err(IdempotencyError::LeaseLost { .. })), "{again:?}");
        } else {
            store.release(&key, owner, None, KEEP).await.unwrap();
            assert_eq!(store.get(&key).await.unwrap(), None);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_error_text_is_kept_and_an_abandoned_key_is_free() {
    let schema = Schema::new();
    let store = open(&schema).await;
    let (key, print, owner) = (key("charge/é"), Fingerprint::default(), OwnerToken::new());
    store.begin(&key, print, owner, LEASE).await.unwrap();
    store.release(&key, owner, Some("a \0 in it"), KEEP).await.unwrap();
    let record = store.get(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, KeyState::Failed { error, .. } if error == "a \0 in it"));
    let owner = OwnerToken::new();
    store.begin(&key, print, owner, Duration::MAX).await.unwrap();
    let changed = store.changed(&key);
    store.abandon(&key, owner);
    changed.await;
    assert_eq!(store.begin(&key, print, OwnerToken::new(), LEASE).await.unwrap(), Begin::Acquired);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_without_a_runtime_can_use_the_store() {
    let schema = Schema::new();
    let store = Arc::new(open(&schema).await);
    let manager = redrive_retry::RetryManager::builder().idempotency_store(store).build();
    let called = std::thread::spawn(move || {
        manager
            .execute(&redrive_retry::Category::ApiRequest, "charge card")
            .idempotent(key("charge/blocking"))
            .run_blocking(|_attempt| Ok::<u32, std::io::Error>(7))
            .unwrap()
    });
    assert_eq!(tokio::task::spawn_blocking(move || called.join().unwrap()).await.unwrap(), 7);
}

fn entry(attempt: u32) -> RetryLogEntry {
    RetryLogEntry {
        level: Level::Warn,
        event_id: "e-1".into(),
        event_type: "order.created".into(),
        subscription_id: "s-1".into(),
        attempt,
        max_attempts: 4,
        delay_ms: 1000,
        error: "no \0".into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_lines_are_kept_in_their_order_and_purged_by_age() {
    let schema = Schema::new();
    let store = open(&schema).await;
    for attempt in 1..=3 {
        store.log(&entry(attempt)).unwrap();
    }
    store.close().await.unwrap();
    assert!(store.log(&entry(4)).is_err(), "closed");
    let store = open(&schema).await;
    let lines = store.audit_lines(None, 2).await.unwrap();
    assert_eq!(lines.len(), 2);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&lines[0].line).unwrap()["attempt"], 1);
    let rest = store.audit_lines(Some(lines[1].key), 100).await.unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&rest[0].line).unwrap()["attempt"], 3);
    let age = schema.sql("UPDATE redrive.audit SET at = at - 1000 WHERE key <= $1");
    connect().await.execute(&age, &[&lines[1].key]).await.unwrap();
    assert_eq!(store.purge_audit(rest[0].at).await.unwrap(), 2);
    assert_eq!(store.audit_lines(None, 100).await.unwrap(), rest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_audit_log_misses_no_line_of_any_process() {
    let schema = Schema::new();
    let stores = [Arc::new(open(&schema).await), Arc::new(open(&schema).await)];
    let mut writers = JoinSet::new();
    for (process, store) in stores.iter().enumerate() {
        let store = Arc::clone(store);
        writers.spawn(async move {
            for number in 0..300 {
                store.log(&entry(u32::try_from(process * 1000 + number).unwrap())).unwrap();
                tokio::task::yield_now().await;
            }
        });
    }
    let (mut after, mut seen) = (None, HashSet::new());
    while seen.len() < 600 {
        for line in stores[0].audit_lines(after, 50).await.unwrap() {
            after = Some(line.key);
            let attempt = serde_json::from_str::<serde_json::Value>(&line.line).unwrap()["attempt"].as_u64();
            assert!(seen.insert(attempt), "once");
        }
    }
    writers.join_all().await;
}
