//! Transfer from a file to PostgreSQL: everything is copied, and dispatch continues.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::dlq::{DlqFilter, DlqPage};
use redrive::events::{EventFilter, EventPage};
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, ClassifyError, Jitter, RetryOverride, RetryPolicy, VirtualTime};
use redrive::store::postgres::{Step, TableProof, Transfer};
use redrive::store::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store, StoreError};
use redrive::{Event, EventBus, EventId, Tracking};
use redrive_retry::audit::{AuditSink, Level, RetryLogEntry};
use redrive_retry::idempotency::{Fingerprint, IdempotencyKey, IdempotencyStore, OwnerToken};
use redrive_servers::Schema;
use redrive_store::{DocumentKey, traits::*};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    folder: tempfile::TempDir,
    schema: Schema,
}

impl World {
    fn new() -> Self {
        let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
        World { folder: tempfile::tempdir().unwrap(), schema }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("events.db")
    }

    async fn transfer(&self) -> Result<Vec<TableProof>, StoreError> {
        self.open_transfer().await?.run(&mut |_| {}).await
    }

    async fn open_transfer(&self) -> Result<Transfer, StoreError> {
        Transfer::open(self.file(), &self.schema.address(), PostgresOptions::default()).await
    }

    async fn server(&self) -> Result<PostgresStore, StoreError> {
        PostgresStore::open(&self.schema.address(), PostgresOptions::default()).await
    }

    /// Stores this many pending events in a file.
    async fn publish(&self, count: u32) {
        let bus = EventBus::open(self.file()).await.unwrap();
        let events: Vec<_> = (0..count).map(|n| ("order.created", n)).collect();
        for part in events.chunks(1000) {
            bus.publish_batch(part.iter().map(|(event_type, n)| (*event_type, n))).await.unwrap();
        }
        bus.shutdown().await.unwrap();
    }
}

fn store(path: &Path) -> SqliteStore {
    SqliteStore::open(path, SqliteOptions { owner: false, ..SqliteOptions::default() }).unwrap()
}

/// Bus whose subscriptions behave by event type and record their calls. Their circuits open after `min_samples` calls.
async fn open(
    builder: redrive::EventBusBuilder,
    samples: u32,
    time: &VirtualTime,
    at: impl AsRef<Path>,
) -> (EventBus, Log) {
    let policy = RetryPolicy::builder().jitter(Jitter::None).build().unwrap();
    let bus = builder.clock(time.clock()).policy(policy).open(at).await.unwrap();
    let log = Log::default();
    for (name, pattern) in [("one", "*"), ("two", "*"), ("three", "hangs")] {
        let (log, clock, began) = (log.clone(), time.clock(), time.now());
        let opens = BreakerConfig::builder().min_samples(samples).open_for(30 * SECOND).build().unwrap();
        bus.subscribe(pattern, move |event: Event| {
            let at = clock.now().since(began).as_millis();
            log.0.lock().unwrap().push((at, name, event.id(), event.attempt()));
            async move {
                match (event.event_type().as_str(), name) {
                    ("hangs", "three") => std::future::pending().await,
                    ("bad", "one") => {
                        Err(format!("bad\0 order \u{10FFFE} {}", event.payload()).permanent().into())
                    }
                    ("fails", "two") => Err(BoxError::from("not today")),
                    ("once", "one") if event.attempt() == 1 => Err(BoxError::from("once")),
                    _ => Ok(()),
                }
            }
        })
        .name(name)
        .timeout(20 * SECOND)
        .breaker(opens)
        .register()
        .unwrap();
    }
    (bus, log)
}

/// Idempotency keys and their results.
const KEYS: [(&str, Option<&str>); 3] =
    [("paid-1", Some("{\"receipt\": \"\0\"}")), ("paid-2", None), ("Zahlung-2", Some("1"))];

type Entry = (u128, &'static str, EventId, u32);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Entry>>>);

/// Fills a file with data of every kind.
async fn fill(path: &Path, time: &VirtualTime) {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let (bus, _) = open(EventBus::builder().tracking(tracking), 4, time, path).await;
        bus.start().await.unwrap();
        let once = RetryOverride::new().max_retries(0);
        for event_type in ["good", "bad", "once", "fails"] {
            let publish =
                bus.publish(event_type, &json!({"order": [1, "ü", null]})).metadata("tenant", "t-1");
            time.drive(async { publish.await }).await.unwrap();
        }
        let edited = time.drive(async { bus.publish("bad", &1).retry(once.clone()).await }).await.unwrap();
        bus.dlq().retry_edited(edited, &json!({"edited": true})).await.unwrap();
        time.drive(time.clock().sleep(SECOND)).await;
        // These open the circuit of one subscription, so the following events are parked.
        for n in 0..4 {
            bus.publish("fails", &n).enqueue().await.unwrap();
        }
        time.drive(time.clock().sleep(SECOND / 10)).await;
        bus.publish("good", &"parked").enqueue().await.unwrap();
        bus.publish("good", &"later").delay(300 * SECOND).enqueue().await.unwrap();
        bus.publish("once", &"retries")
            .retry(RetryOverride::new().base_delay_ms(9000))
            .enqueue()
            .await
            .unwrap();
        bus.publish("hangs", &"running").enqueue().await.unwrap();
        time.drive(time.clock().sleep(SECOND / 10)).await;
        // Simulates a crash.
        drop(bus);
        while let Err(error) = SqliteStore::open(path, SqliteOptions::default()) {
            assert!(matches!(error, StoreError::InUse { .. }), "{error}");
            tokio::task::yield_now().await;
        }
    }
    let store = store(path);
    let owner = OwnerToken::new();
    for (key, result) in KEYS {
        let key = IdempotencyKey::new(key).unwrap();
        store.begin(&key, Fingerprint::of(&"order 7").unwrap(), owner, 3600 * SECOND).await.unwrap();
        if let Some(result) = result {
            store.complete(&key, owner, result, None, 3600 * SECOND).await.unwrap();
        }
    }
    let entry = RetryLogEntry {
        level: Level::default(),
        event_id: EventId::new().to_string(),
        event_type: "order.created".into(),
        subscription_id: "one".into(),
        attempt: 1,
        max_attempts: 4,
        delay_ms: 1000,
        error: "no\0t today: ü".into(),
    };
    store.log(&entry).unwrap();
    let key = DocumentKey::new("endpoint", "ep_7").unwrap();
    store.create(key.clone(), r#"{"url": "https://example.com/ü"}"#.into()).await.unwrap();
    store.replace(key, 1, r#"{"url": "https://example.com/ä"}"#.into()).await.unwrap();
    store.close().await.unwrap();
    // An event that was running at two crashes.
    let file = rusqlite::Connection::open(path).unwrap();
    let suspect = "
        UPDATE event SET status = -1, crashes = 2, due_at = created_at WHERE payload = '\"later\"' AND status = 0";
    assert_eq!(file.execute(suspect, []).unwrap(), 1);
}

/// Everything readable of a store.
async fn read(store: &dyn Store) -> Value {
    let page = EventPage { limit: u32::MAX, after: None };
    let all = DlqPage { limit: u32::MAX, ..DlqPage::default() };
    let text = DlqFilter { text: Some("bad\0 order".into()), ..DlqFilter::default() };
    let dead = store.dead_letters(DlqFilter::default(), all).await.unwrap();
    let depth = store.depth().await.unwrap();
    json!({
        "events": store.events(EventFilter::default(), page).await.unwrap(),
        "dead": dead,
        "cursors": dead.iter().map(|dead| dead.cursor.to_string()).collect::<Vec<_>>(),
        "found": store.dead_letters(text, all).await.unwrap().len(),
        "groups": store.dead_groups(DlqFilter::default()).await.unwrap(),
        "subscriptions": format!("{:?}", store.subscriptions().await.unwrap()),
        "documents": format!("{:?}", store.documents("endpoint", None, 10).await.unwrap()),
        "depth": [depth.pending, depth.running, depth.waiting, depth.open_deliveries],
    })
}

/// Handles all events; returns the calls and the outcomes.
async fn handle(time: &VirtualTime, at: impl AsRef<Path>) -> (u64, Vec<Entry>, Value) {
    // The store decides which of several due deliveries is the probe, so no circuit opens here.
    let (bus, log) = open(EventBus::builder(), u32::MAX, time, at).await;
    let recovered = bus.start().await.unwrap();
    time.drive(time.clock().sleep(600 * SECOND)).await;
    let mut left = read(&**bus.store()).await;
    // Later keys, and the order of simultaneous calls, may differ.
    left["cursors"].take();
    for event in left["events"].as_array_mut().unwrap() {
        event["attempts"].as_array_mut().unwrap().sort_by_key(Value::to_string);
    }
    left["dead"].as_array_mut().unwrap().sort_by_key(Value::to_string);
    time.drive(bus.shutdown()).await.unwrap();
    let mut log = log.0.lock().unwrap().clone();
    log.sort();
    (recovered as u64, log, left)
}

#[tokio::test]
async fn a_transfer_copies_everything_and_dispatch_continues() {
    let world = World::new();
    let time = VirtualTime::new();
    fill(&world.file(), &time).await;
    let copy = world.folder.path().join("copy.db");
    store(&world.file()).backup(&copy).await.unwrap();

    let proofs = world.transfer().await.unwrap();
    assert!(proofs.iter().all(|table| table.rows > 0), "every table has something in it: {proofs:?}");
    let (file, server) = (store(&world.file()), world.server().await.unwrap());
    let (expected, found) = (read(&file).await, read(&server).await);
    assert_eq!(expected, found);
    for (key, _) in KEYS {
        let key = IdempotencyKey::new(key).unwrap();
        let record = file.get(&key).await.unwrap();
        assert!(record.is_some());
        assert_eq!(record, server.get(&key).await.unwrap());
    }
    let lines = file.audit_lines(None, 10).await.unwrap();
    assert_eq!(
        (lines.len(), format!("{lines:?}")),
        (1, format!("{:?}", server.audit_lines(None, 10).await.unwrap()))
    );
    server.close().await.unwrap();

    let (file_time, server_time) =
        (VirtualTime::starting_at(time.now()), VirtualTime::starting_at(time.now()));
    let expected = handle(&file_time, &copy).await;
    let found = handle(&server_time, world.schema.address()).await;
    assert!(expected.0 > 0 && expected.1.len() > 10, "there was something to do: {expected:?}");
    assert_eq!(expected.0, found.0, "what was running is taken back");
    assert_eq!(expected.1, found.1, "the same calls at the same times");
    assert_eq!(expected.2, found.2, "with the same end");
}

#[tokio::test]
async fn an_interrupted_transfer_resumes_and_completes() {
    let world = World::new();
    world.publish(5500).await;
    let (mut cuts, mut copied) = (0, 0);
    loop {
        let transfer = world.open_transfer().await.unwrap();
        let (cut, is_cut) = tokio::sync::oneshot::channel();
        let mut cut = Some(cut);
        let mut count = |step: Step| {
            if let Step::Copied(rows) = step {
                copied += rows;
                // After two pages of each run.
                if let Some(cut) = (copied % 2000 < 1000).then(|| cut.take()).flatten() {
                    cut.send(()).unwrap();
                }
            }
        };
        tokio::select! {
            biased;
            proofs = transfer.run(&mut count) => {
                assert_eq!(proofs.unwrap()[0].rows, 5500);
                break;
            }
            _ = is_cut => cuts += 1,
        }
        drop(transfer);
        let error = world.server().await.unwrap_err();
        assert!(matches!(error, StoreError::UnfinishedTransfer { .. }), "{error}");
    }
    assert!(cuts > 3, "{cuts}");
    // Events and payloads. A page written at the interruption is stored but was not reported.
    assert!(copied + cuts * 1000 >= 11_000, "each row once: {copied} reported of, {cuts} cuts");
    let server = world.server().await.unwrap();
    assert_eq!(server.depth().await.unwrap().pending, 5500);
    // New events follow the copied ones.
    server.close().await.unwrap();
    let bus = EventBus::open(world.schema.address()).await.unwrap();
    bus.publish("new", &1).enqueue().await.unwrap();
    assert_eq!(bus.store().stats().await.unwrap().pending, 5501);
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_second_transfer_reports_rows_that_changed() {
    let world = World::new();
    world.publish(10).await;
    let first = world.transfer().await.unwrap();
    assert_eq!(world.transfer().await.unwrap(), first);

    let bus = EventBus::open(world.schema.address()).await.unwrap();
    bus.publish("new", &1).enqueue().await.unwrap();
    bus.shutdown().await.unwrap();
    let error = world.transfer().await.unwrap_err();
    assert!(error.to_string().contains("its table event has 11 rows already"), "{error}");
}

#[tokio::test]
async fn an_occupied_or_locked_target_is_refused_with_a_remedy() {
    let world = World::new();
    world.publish(3).await;
    let bus = EventBus::open(world.file()).await.unwrap();
    let error = world.open_transfer().await.unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    bus.shutdown().await.unwrap();

    // While the lock is held, no process can store events that the copy would miss.
    let transfer = world.open_transfer().await.unwrap();
    let other = rusqlite::Connection::open(world.file()).unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    assert!(other.execute_batch("BEGIN IMMEDIATE").is_err());
    transfer.plan().await.unwrap();
    drop(transfer);

    let bus = EventBus::open(world.schema.address()).await.unwrap();
    bus.start().await.unwrap();
    bus.publish("x", &1).await.unwrap();
    let error = world.transfer().await.unwrap_err();
    assert!(error.to_string().contains("dispatches from it; stop that process first"), "{error}");
    bus.shutdown().await.unwrap();
    let error = world.transfer().await.unwrap_err();
    assert!(error.to_string().contains("name an empty one"), "{error}");
}
