//! Properties of SQLite files: ownership, the files next to it, and its tables as other tools read them. Everything else is tested
//! on every store.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, Jitter, RetryOverride, RetryPolicy, Timestamp, VirtualTime};
use redrive::store::StoreError;
use redrive::{BusError, Event, EventBus, EventId, Snooze};
use rusqlite::Connection;
use serde_json::json;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

struct World {
    time: VirtualTime,
    folder: tempfile::TempDir,
    bus: EventBus,
}

impl World {
    async fn new() -> Self {
        let time = VirtualTime::new();
        let folder = tempfile::tempdir().unwrap();
        let exact = RetryPolicy::builder().jitter(Jitter::None).build().unwrap();
        let builder = EventBus::builder().clock(time.clock()).policy(exact);
        let bus = builder.open(folder.path().join("events.db")).await.unwrap();
        World { time, folder, bus }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("events.db")
    }

    /// Plain SQL connection to the file.
    fn sql(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    /// One column of an event in the specified table.
    fn column<T: rusqlite::types::FromSql>(&self, column: &str, id: EventId) -> T {
        let query = format!("SELECT {column} FROM events WHERE id = ?1");
        self.sql().query_row(&query, [id.to_string()], |row| row.get(0)).unwrap()
    }

    /// Publishes and waits for the outcome, good or bad.
    async fn publish(&self, event_type: &str) -> EventId {
        self.time.drive(async { self.bus.publish(event_type, &json!({"n": 1})).await }).await.unwrap()
    }

    /// Publishes with a single attempt and waits for the outcome.
    async fn publish_once(&self, event_type: &str) -> EventId {
        let publish = self.bus.publish(event_type, &1).retry(RetryOverride::new().max_retries(0));
        self.time.drive(async { publish.await }).await.unwrap()
    }
}

async fn works(_: Event) -> Result<(), BoxError> {
    Ok(())
}

async fn fails(_: Event) -> Result<(), BoxError> {
    Err("no".into())
}

async fn hangs(_: Event) -> Result<(), BoxError> {
    std::future::pending().await
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_has_one_owner_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("events.db"), folder.path().join("link.db"));
    let bus = EventBus::open(&path).await.unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let error = EventBus::open(&link).await.unwrap_err();
    assert!(matches!(error, BusError::Store(StoreError::InUse { .. })), "{error}");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_closes_and_releases_the_file() {
    let world = World::new().await;
    world.bus.start().await.unwrap();
    world.publish("x").await;
    world.bus.shutdown().await.unwrap();
    assert!(!world.folder.path().join("events.db-wal").exists());
    // With the old bus still alive.
    EventBus::open(world.path()).await.unwrap();
}

#[tokio::test]
async fn metrics_of_a_file_include_the_size_of_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let bus = EventBus::open(folder.path().join("events.db")).await.unwrap();
    bus.publish("x", &1).enqueue().await.unwrap();
    let depth = bus.metrics().await.unwrap().depth;
    assert!(depth.wal_bytes > 0 && depth.file_bytes > 0, "{depth:?}");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_publish_can_join_the_callers_transaction() {
    let world = World::new().await;
    let calls = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&calls);
    world
        .bus
        .subscribe("*", move |event: Event| {
            *counter.lock().unwrap() += 1;
            works(event)
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let mut own = world.sql();
    own.execute_batch("CREATE TABLE account (balance INTEGER)").unwrap();
    for commit in [false, true] {
        let event = world.bus.publish("paid", &1).into_event().unwrap();
        let transaction = own.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        transaction.execute("INSERT INTO account VALUES (1)", []).unwrap();
        redrive::store::sqlite::append_in(&transaction, &[event]).unwrap();
        if commit {
            transaction.commit().unwrap();
        }
    }
    world.bus.wake();
    world.time.drive(world.time.clock().sleep(Duration::from_secs(1))).await;
    assert_eq!(*calls.lock().unwrap(), 1, "only the one that was committed");
}

#[tokio::test]
async fn an_event_is_on_disk_before_its_handler_sees_it() {
    let world = World::new().await;
    let seen = Arc::new(Mutex::new(None));
    let (note, path) = (Arc::clone(&seen), world.path());
    world
        .bus
        .subscribe("*", move |event: Event| {
            // A separate connection sees only committed rows.
            let status: String = Connection::open(&path)
                .unwrap()
                .query_row("SELECT status FROM events WHERE id = ?1", [event.id().to_string()], |row| {
                    row.get(0)
                })
                .unwrap();
            *note.lock().unwrap() = Some(status);
            works(event)
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    world.publish("x").await;
    assert_eq!(seen.lock().unwrap().as_deref(), Some("processing"));
}

#[tokio::test]
async fn the_events_table_has_all_four_statuses() {
    let world = World::new().await;
    world.bus.subscribe("works", works).register().unwrap();
    world.bus.subscribe("fails", fails).register().unwrap();
    world.bus.subscribe("hangs", hangs).register().unwrap();
    world.bus.start().await.unwrap();
    let pending = world.bus.publish("works", &1).delay(DAY).enqueue().await.unwrap();
    let done = world.publish("works").await;
    let dead = world.publish_once("fails").await;
    let processing = world.bus.publish("hangs", &1).enqueue().await.unwrap();
    let status = |id| world.column::<String>("status", id);
    assert_eq!(
        [status(pending), status(processing), status(done), status(dead)],
        ["pending", "processing", "done", "dlq"]
    );
}

#[tokio::test]
async fn a_redriven_event_has_no_error_in_the_table() {
    let world = World::new().await;
    world.bus.subscribe("*", fails).register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.publish_once("x").await;
    assert_eq!(world.column::<Option<String>>("last_error", id).as_deref(), Some(r#"["no"]"#));
    world.bus.dispatcher().pause();
    world.bus.dlq().retry(id).await.unwrap();
    assert_eq!(world.column::<Option<String>>("last_error", id), None);
}

#[tokio::test]
async fn the_events_table_has_the_time_of_dead_lettering() {
    let world = World::new().await;
    world.bus.subscribe("works", works).register().unwrap();
    world.bus.subscribe("fails", fails).register().unwrap();
    world.bus.start().await.unwrap();
    let done = world.publish("works").await;
    let began = world.time.now();
    let dead = world.publish("fails").await;
    let dlq_at: Timestamp = world.column::<String>("dlq_at", dead).parse().unwrap();
    assert_eq!(dlq_at.since(began), 7 * SECOND, "with its last attempt, and not with its publishing");
    assert_eq!(world.column::<Option<String>>("dlq_at", done), None);
}

#[tokio::test]
async fn a_dispatch_makes_only_the_specified_status_changes() {
    let world = World::new().await;
    world
        .sql()
        .execute_batch(
            "CREATE TABLE change (before INTEGER, after INTEGER);
             CREATE TRIGGER stored AFTER INSERT ON event BEGIN
               INSERT INTO change VALUES (NULL, new.status);
             END;
             CREATE TRIGGER changed AFTER UPDATE OF status ON event BEGIN
               INSERT INTO change VALUES (old.status, new.status);
             END;",
        )
        .unwrap();
    let flaky = |event: Event| async move { if event.attempt() == 1 { Err("once") } else { Ok(()) } };
    world.bus.subscribe("works", works).register().unwrap();
    world.bus.subscribe("flaky", flaky).register().unwrap();
    world
        .bus
        .subscribe("fails", fails)
        .breaker(BreakerConfig::builder().min_samples(1).build().unwrap())
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    let delayed = world.bus.publish("works", &1).delay(SECOND);
    world.time.drive(async { delayed.await }).await.unwrap();
    for event_type in ["works", "flaky", "fails"] {
        world.publish(event_type).await;
    }
    let parked = world.publish_once("fails").await;
    // No publisher waits for a parked delivery.
    world.time.drive(world.time.clock().sleep(120 * SECOND)).await;
    assert_eq!(world.bus.store().event(parked).await.unwrap().status, EventStatus::Dlq);
    let sql = world.sql();
    let name = |status: &str| {
        format!(
            "CASE {status} WHEN 0 THEN 'pending' WHEN 3 THEN 'done' WHEN 4 THEN 'dlq' ELSE 'processing' END"
        )
    };
    let query = format!(
        "SELECT DISTINCT {} || ' → ' || {} AS change FROM change WHERE before IS NOT NULL ORDER BY 1",
        name("before"),
        name("after")
    );
    let mut statement = sql.prepare(&query).unwrap();
    let changes: Vec<String> =
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(
        changes,
        [
            "pending → processing",
            "processing → dlq",
            "processing → done",
            // Between one attempt and the next.
            "processing → processing"
        ]
    );
    let ended_at_once: i64 = sql
        .query_row("SELECT count(*) FROM change WHERE before IS NULL AND after IN (3, 4)", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(ended_at_once, 0, "nothing is stored as finished");
}

/// The waits of the dispatcher pass in the time of its clock: the runtime of an embedding program may have no timers.
#[test]
fn a_snoozed_crash_suspect_runs_again_on_a_runtime_without_timers() {
    let (folder, time) = (tempfile::tempdir().unwrap(), VirtualTime::new());
    let open = || EventBus::builder().clock(time.clock()).open(folder.path().join("events.db"));
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    for life in 0..2 {
        let begun = Arc::new(tokio::sync::Notify::new());
        let signal = Arc::clone(&begun);
        let hangs = move |_: Event| {
            signal.notify_one();
            std::future::pending::<Result<(), BoxError>>()
        };
        runtime().block_on(async {
            let bus = open().await.unwrap();
            bus.subscribe("order.*", hangs).name("mail").register().unwrap();
            bus.start().await.unwrap();
            if life == 0 {
                bus.publish("order.created", &1).enqueue().await.unwrap();
            }
            begun.notified().await;
        }); // the end of the runtime cancels the handler, as a crash would
    }
    let is_ready = Arc::new(AtomicBool::new(false));
    let was_asked = Arc::clone(&is_ready);
    let snoozes_once = move |_: Event| {
        let is_ready = was_asked.swap(true, Ordering::SeqCst);
        async move { if is_ready { Ok(()) } else { Err(BoxError::from(Snooze::new(60 * SECOND))) } }
    };
    runtime().block_on(async {
        let bus = open().await.unwrap();
        bus.subscribe("order.*", snoozes_once).name("mail").register().unwrap();
        assert_eq!(bus.start().await.unwrap(), 1);
        time.drive(time.clock().sleep(62 * SECOND)).await;
        assert!(is_ready.load(Ordering::SeqCst), "it ran at the start");
        assert_eq!(bus.store().stats().await.unwrap().done, 1, "it ran again");
        bus.shutdown().await.unwrap();
    });
}
