//! Idempotency keys and the audit log in a SQLite file.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::audit::{AuditSink, Level, RetryLogEntry};
use redrive_retry::idempotency::conformance::{StoreHarness, exercise};
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyKey, IdempotencyStore, KeyState, OwnerToken,
};
use redrive_retry::{Clock, VirtualTime};
use redrive_store::{SqliteOptions, SqliteStore, Store};

const LEASE: Duration = Duration::from_secs(10);
const KEEP: Duration = Duration::from_secs(3600);

fn open(path: &Path, clock: Clock) -> SqliteStore {
    SqliteStore::open(path, SqliteOptions { clock, ..SqliteOptions::default() }).unwrap()
}

struct File {
    time: VirtualTime,
    store: Arc<SqliteStore>,
}

impl StoreHarness for File {
    fn store(&self) -> Arc<dyn IdempotencyStore> {
        self.store.clone()
    }

    async fn elapse(&self, duration: Duration) {
        self.time.advance(duration);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sqlite_store_passes_the_idempotency_suite() {
    let folder = tempfile::tempdir().unwrap();
    let time = VirtualTime::new();
    let store = Arc::new(open(&folder.path().join("redrive.db"), time.clock()));
    exercise(&File { time, store }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_survives_a_restart_and_is_returned_to_every_caller() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let (key, print, owner) =
        (IdempotencyKey::new("charge/7").unwrap(), Fingerprint::default(), OwnerToken::new());
    let store = open(&path, Clock::system());
    assert_eq!(store.begin(&key, print, owner, LEASE).await.unwrap(), Begin::Acquired);
    store.complete(&key, owner, r#"{"charged":true}"#, Some("1"), KEEP).await.unwrap();
    drop(store);
    let store = open(&path, Clock::system());
    let begun = store.begin(&key, print, OwnerToken::new(), LEASE).await.unwrap();
    assert_eq!(begun, Begin::Completed { result: r#"{"charged":true}"#.into() });
    let record = store.get(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, KeyState::Completed { metadata: Some(kept), .. } if kept == "1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_a_dead_process_is_taken_until_its_lease_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let time = VirtualTime::new();
    let (key, print) = (IdempotencyKey::new("charge/8").unwrap(), Fingerprint::default());
    let (first, second) = (OwnerToken::new(), OwnerToken::new());
    let store = open(&path, time.clock());
    store.begin(&key, print, first, LEASE).await.unwrap();
    drop(store);
    let store = open(&path, time.clock());
    assert!(matches!(store.begin(&key, print, second, LEASE).await.unwrap(), Begin::InProgress { .. }));
    time.advance(LEASE);
    assert_eq!(store.begin(&key, print, second, LEASE).await.unwrap(), Begin::Acquired);
    assert!(
        store.complete(&key, first, "1", None, KEEP).await.is_err(),
        "the owner of an expired lease is refused"
    );
    store.complete(&key, second, "2", None, KEEP).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_abandoned_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("redrive.db"), Clock::system());
    let (key, print, owner) =
        (IdempotencyKey::new("charge/9").unwrap(), Fingerprint::default(), OwnerToken::new());
    store.begin(&key, print, owner, LEASE).await.unwrap();
    store.abandon(&key, owner);
    // Queued behind the abandoned key.
    assert_eq!(store.begin(&key, print, OwnerToken::new(), LEASE).await.unwrap(), Begin::Acquired);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_lines_keep_their_order_and_are_purged_by_age() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let time = VirtualTime::new();
    let store = open(&path, time.clock());
    let entry = |attempt| RetryLogEntry {
        level: Level::Warn,
        event_id: "e-1".into(),
        event_type: "order.created".into(),
        subscription_id: "s-1".into(),
        attempt,
        max_attempts: 4,
        delay_ms: 1000,
        error: "no".into(),
    };
    for attempt in 1..=3 {
        store.log(&entry(attempt)).unwrap();
        time.advance(Duration::from_secs(1));
    }
    store.close().await.unwrap();
    assert!(store.log(&entry(4)).is_err(), "closed");
    drop(store);
    let store = open(&path, time.clock());
    let lines = store.audit_lines(None, 2).await.unwrap();
    assert_eq!(lines.len(), 2);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&lines[0].line).unwrap()["attempt"], 1);
    let rest = store.audit_lines(Some(lines[1].key), 100).await.unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&rest[0].line).unwrap()["attempt"], 3);
    assert_eq!(store.purge_audit(rest[0].at).await.unwrap(), 2);
    assert_eq!(store.audit_lines(None, 100).await.unwrap(), rest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_keeps_its_length_when_the_wall_clock_is_set() {
    for step_ms in [-7_200_000, 7_200_000] {
        let folder = tempfile::tempdir().unwrap();
        let time = VirtualTime::new();
        let store = open(&folder.path().join("redrive.db"), time.clock());
        let (key, print) = (IdempotencyKey::new("charge/9").unwrap(), Fingerprint::default());
        let (first, second) = (OwnerToken::new(), OwnerToken::new());
        store.begin(&key, print, first, LEASE).await.unwrap();
        time.step_wall_clock(step_ms);
        store.follow_wall_clock().await.unwrap();
        assert_eq!(store.clock().now(), time.clock().now(), "the store follows the wall clock");
        time.advance(LEASE / 2);
        let begun = store.begin(&key, print, second, LEASE).await.unwrap();
        assert!(matches!(begun, Begin::InProgress { .. }), "{begun:?} after a step of {step_ms} ms");
        time.advance(LEASE / 2);
        assert_eq!(store.begin(&key, print, second, LEASE).await.unwrap(), Begin::Acquired);
    }
}
