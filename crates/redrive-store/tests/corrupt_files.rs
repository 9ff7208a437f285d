//! Damaged files and rows that were changed by hand: the store never panics or hangs, its error says what to do, and one bad row
//! never blocks the good ones.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a panic is a failed test; the counts go to the test log

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use redrive_retry::audit::{AuditEvent, AuditSink, IdempotencyAction, IdempotencyUse};
use redrive_retry::decision::DeadReason;
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyStore, OwnerToken,
};
use redrive_retry::{Category, FailureClass, Timestamp};
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, Claimed, DlqFilter, DlqPage, EventFilter, EventId, EventPage, EventStatus, EventType,
    FailedAttempt, Metadata, NewEvent, Redrive, Routing, Settlement, SqliteOptions, SqliteStore, Store,
    StoreError, SubscriptionName, SubscriptionRow, Verdict,
};
use rusqlite::Connection;
use rusqlite::types::Value;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

const HOUR: Duration = Duration::from_secs(3600);

/// Time after which a case counts as hanging.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of damaged files; `REDRIVE_CORRUPT_CASES` overrides it.
const CASES: u64 = 260;

/// A small deterministic generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % (limit.max(1) as u64)).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// Makes a folder in memory, where a sync costs nothing.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory).unwrap() } else { TempDir::new().unwrap() }
}

fn name(text: &str) -> SubscriptionName {
    SubscriptionName::new(text).unwrap()
}

fn event(n: u32) -> NewEvent {
    NewEvent {
        id: EventId::new(),
        event_type: EventType::new(if n.is_multiple_of(3) { "order.created" } else { "user.deleted" })
            .unwrap(),
        payload: Arc::from(format!(r#"{{"n":{n},"text":"{}"}}"#, "x".repeat((n as usize * 37) % 300))),
        metadata: Metadata::from([("tenant".to_owned(), format!("t-{n}"))]),
        created_at: NOW.plus_millis(n.into()),
        due_at: NOW.plus_millis(n.into()),
        is_scheduled: false,
        retry: None,
        to: if n.is_multiple_of(7) {
            Routing::Each(vec![name("audit"), name("mail")])
        } else {
            Routing::Matching
        },
    }
}

fn failure(error: &str) -> FailedAttempt {
    FailedAttempt {
        subscription: name("mail"),
        started_at: NOW,
        duration_ms: 5,
        class: FailureClass::Transient,
        delay_ms: 1000,
        error: error.to_owned(),
        record: Some(r#"{"version":1}"#.to_owned()),
        detail: None,
    }
}

fn settlement(verdict: Verdict, failed: Option<&str>) -> Settlement {
    Settlement { failure: failed.map(failure), ..Settlement::new(NOW, verdict) }
}

fn attach(store: &SqliteStore, slots: usize) -> UnboundedReceiver<Claimed> {
    let (sink, claims) = ClaimSink::new(slots);
    store.attach(Some(sink));
    claims
}

/// The file of a killed bus, with pages in the database and in the log.
struct Original {
    database: Vec<u8>,
    log: Vec<u8>,
    /// The events in the order of their replies.
    events: Vec<NewEvent>,
    /// Number of events in the database file itself.
    checkpointed: usize,
}

impl Original {
    async fn new() -> Self {
        let folder = folder();
        let path = folder.path().join("redrive.db");
        let mut events = Vec::new();
        let mut checkpointed = 0;
        for round in 0..2 {
            let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
            let mut claims = attach(&store, 1000);
            for n in 0..100 {
                // Single appends and batches.
                let batch: Vec<_> = (0..1 + n % 3).map(|m| event(round * 1000 + n * 5 + m)).collect();
                events.extend(batch.clone());
                store.append(batch).await.unwrap();
            }
            let mut number = 0;
            while let Ok(claimed) = claims.try_recv() {
                number += 1;
                let how = match number % 5 {
                    0 | 1 => settlement(Verdict::Done, None),
                    2 => settlement(Verdict::Retry(NOW.plus_millis(60_000).into()), Some("not now")),
                    3 => settlement(Verdict::Dead(DeadReason::Permanent), Some("never")),
                    _ => continue, // running when the process dies
                };
                store.settle(claimed, how).await.unwrap();
            }
            let row = SubscriptionRow {
                id: EventId::random().to_string(),
                name: name(&format!("mail-{round}")),
                event_type: "order.*".to_owned(),
                created_at: NOW,
            };
            store.register(row).await.unwrap();
            if round == 0 {
                keep_keys_and_lines(&store).await;
                store.close().await.unwrap();
                checkpointed = events.len();
            } else {
                let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
                let (database, log) = (read("redrive.db"), read("redrive.db-wal"));
                assert!(log.len() > 4096 * 20 && database.len() > 4096 * 20, "database and log have content");
                return Original { database, log, events, checkpointed };
            }
        }
        unreachable!("the second round returns")
    }
}

/// A kind of damage.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    FlipBits,
    Overwrite,
    ZeroPage,
    SwapPages,
    CopyPage,
    Truncate,
    Header,
    CutLog,
    FlipLog,
    ZeroLog,
    NoLog,
    GarbageAfterLog,
    Both,
}

const DAMAGES: [Damage; 13] = [
    Damage::FlipBits,
    Damage::Overwrite,
    Damage::ZeroPage,
    Damage::SwapPages,
    Damage::CopyPage,
    Damage::Truncate,
    Damage::Header,
    Damage::CutLog,
    Damage::FlipLog,
    Damage::ZeroLog,
    Damage::NoLog,
    Damage::GarbageAfterLog,
    Damage::Both,
];

impl Damage {
    /// Returns whether only the log is damaged: then only the end of the log may be missing.
    fn is_only_the_log(self) -> bool {
        self >= Damage::CutLog && self != Damage::Both
    }

    fn apply(self, database: &mut Vec<u8>, log: &mut Vec<u8>, random: &mut Random) {
        const PAGE: usize = 4096;
        let pages = database.len() / PAGE;
        match self {
            Damage::FlipBits => flip(database, random),
            Damage::Overwrite => {
                let from = random.below(database.len());
                let to = (from + 1 + random.below(2000)).min(database.len());
                database[from..to].fill_with(|| random.byte());
            }
            Damage::ZeroPage => {
                let page = random.below(pages) * PAGE;
                database[page..page + PAGE].fill(0);
            }
            Damage::SwapPages => {
                let (one, other) = (random.below(pages) * PAGE, random.below(pages) * PAGE);
                for offset in 0..PAGE {
                    database.swap(one + offset, other + offset);
                }
            }
            Damage::CopyPage => {
                let (one, other) = (random.below(pages) * PAGE, random.below(pages) * PAGE);
                database.copy_within(one..one + PAGE, other);
            }
            Damage::Truncate => database.truncate(random.below(database.len())),
            Damage::Header => {
                for _ in 0..=random.below(4) {
                    let place = random.below(100);
                    database[place] = random.byte();
                }
            }
            Damage::CutLog => log.truncate(random.below(log.len())),
            Damage::FlipLog => flip(log, random),
            Damage::ZeroLog => {
                let from = random.below(log.len());
                let to = (from + 1 + random.below(9000)).min(log.len());
                log[from..to].fill(0);
            }
            Damage::NoLog => log.clear(),
            Damage::GarbageAfterLog => {
                let more = 1 + random.below(9000);
                log.extend((0..more).map(|_| random.byte()));
            }
            Damage::Both => {
                flip(database, random);
                flip(log, random);
            }
        }
    }
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..=random.below(8) {
        let place = random.below(bytes.len());
        bytes[place] ^= 1 << random.below(8);
    }
}

/// Outcomes and their counts.
type Said = BTreeMap<String, u64>;

/// Panics of all threads, so that a panic of a store thread is noticed.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            if thread.starts_with("redrive") || thread.starts_with("tokio") || thread == "case" {
                PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{thread}: {info}"));
            }
            before(info);
        }));
    });
}

/// Runs a closure on its own thread and reports its last step if it hangs.
fn within_timeout<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    note_panics();
    let (sender, receiver) = channel();
    let thread =
        std::thread::Builder::new().name("case".into()).spawn(move || sender.send(work()).unwrap()).unwrap();
    match receiver.recv_timeout(CASE_TIMEOUT) {
        Ok(value) => {
            thread.join().unwrap();
            value
        }
        Err(RecvTimeoutError::Timeout) => panic!("{what}: hangs"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: panicked"),
    }
}

/// Asserts that the error of a damaged file is typed, short, and says what to do.
fn note(said: &mut Said, place: &str, error: &StoreError) {
    let kind: String = format!("{error:?}").chars().take_while(|c| c.is_alphanumeric()).collect();
    let advice = match error {
        StoreError::NotOurs { .. } => "choose another file",
        StoreError::Newer { .. } => "use the release that wrote it",
        StoreError::Damaged { .. } => "continue with a backup",
        StoreError::ReadOnly { .. } => "check its permissions",
        StoreError::Engine(_) => "`redrive doctor` says whether the file is sound",
        other => panic!("{place}: {other} ({kind}) is no answer to a damaged file"),
    };
    let text = error.to_string();
    assert!(text.contains(advice) && text.len() < 1000, "{place}: {text}");
    *said.entry(format!("{place}: {kind}")).or_default() += 1;
}

fn of_a_key(error: IdempotencyError) -> StoreError {
    let IdempotencyError::Unavailable(error) = error else {
        panic!("{error} is no answer to a damaged file")
    };
    *error.downcast().unwrap()
}

/// Uses a file like a bus and returns the events that it still has.
async fn exercise(path: &Path, original: &[NewEvent], said: &mut Said) -> Option<Vec<EventId>> {
    let store = match SqliteStore::open(path, SqliteOptions::default()) {
        Ok(store) => store,
        Err(error) => {
            note(said, "open", &error);
            return None;
        }
    };
    macro_rules! attempt {
        ($place:literal, $work:expr) => {
            match $work.await {
                Ok(value) => Some(value),
                Err(error) => {
                    note(said, $place, &error);
                    None
                }
            }
        };
    }
    attempt!("check", store.check(20));
    attempt!("subscriptions", store.subscriptions());
    attempt!("recover", store.recover(NOW.plus_millis(100_000)));
    attempt!("stats", store.stats());
    attempt!("depth", store.depth());
    let page = EventPage { limit: 10_000, after: None };
    let listed: Option<BTreeSet<EventId>> = attempt!("events", store.events(EventFilter::default(), page))
        .map(|listed| listed.into_iter().map(|event| event.id).collect());
    let page = DlqPage { limit: 10_000, ..DlqPage::default() };
    attempt!("dead letters", store.dead_letters(DlqFilter::default(), page));
    let filter = DlqFilter { text: Some("never".to_owned()), ..DlqFilter::default() };
    attempt!("dead letters by text", store.dead_letters(filter, page));
    attempt!("groups", store.dead_groups(DlqFilter::default()));
    attempt!("audit lines", store.audit_lines(None, 100));
    for n in 0..KEYS {
        attempt!("key", async { store.get(&key(n)).await.map_err(of_a_key) });
    }
    let mut found = Vec::new();
    for (n, event) in original.iter().enumerate() {
        let is_listed = listed.as_ref().is_some_and(|listed| listed.contains(&event.id));
        if is_listed && n % 10 != 0 {
            found.push(event.id);
            continue;
        }
        match store.event(event.id).await {
            Ok(_) => found.push(event.id),
            Err(StoreError::NoSuchEvent { .. }) => {}
            Err(error) => note(said, "event", &error),
        }
    }
    let mut claims = attach(&store, 1000);
    for _ in 0..3 {
        attempt!("claim", store.claim(NOW.plus_millis(200_000)));
        while let Ok(claimed) = claims.try_recv() {
            attempt!("settle", store.settle(claimed, settlement(Verdict::Done, None)));
        }
    }
    let new = event(1);
    if attempt!("append", store.append(vec![new.clone()])).is_some() {
        // An acknowledged event is there, or the file is reported as damaged.
        match store.event(new.id).await {
            Ok(shown) => {
                assert_eq!(shown.payload.get(), &*new.payload, "the payload differs from the stored one");
            }
            Err(StoreError::NoSuchEvent { id }) => panic!("{id} was acknowledged and is not there"),
            Err(error) => note(said, "the new event", &error),
        }
    }
    attempt!("purge", store.purge_dead(NOW.plus_millis(1 << 30)));
    attempt!("close", store.close());
    Some(found)
}

/// Uses one damaged file twice: the second opening must not fail in another way.
fn damaged_file(original: &Original, damage: Damage, seed: u64) -> (Said, Option<Vec<EventId>>) {
    let mut random = Random(seed);
    let (mut database, mut log) = (original.database.clone(), original.log.clone());
    damage.apply(&mut database, &mut log, &mut random);
    let events = original.events.clone();
    within_timeout(&format!("{damage:?} by seed {seed}"), move || {
        let folder = folder();
        let path = folder.path().join("redrive.db");
        std::fs::write(&path, &database).unwrap();
        if !log.is_empty() {
            std::fs::write(folder.path().join("redrive.db-wal"), &log).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut said = Said::new();
        let found = runtime.block_on(exercise(&path, &events, &mut said));
        runtime.block_on(exercise(&path, &[], &mut Said::new()));
        (said, found)
    })
}

fn cases() -> u64 {
    std::env::var("REDRIVE_CORRUPT_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES)
}

fn original() -> Original {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(Original::new())
}

#[test]
fn a_damaged_file_is_reported_and_never_panics_or_hangs() {
    let original = original();
    let mut all = Said::new();
    let mut opened = 0;
    for seed in 0..cases() {
        let damage = DAMAGES[usize::try_from(seed).unwrap() % DAMAGES.len()];
        let (said, found) = damaged_file(&original, damage, seed);
        for (what, times) in said {
            *all.entry(what).or_default() += times;
        }
        let panics = std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner));
        assert!(panics.is_empty(), "{damage:?} by seed {seed}: {panics:?}");
        opened += u64::from(found.is_some());
        if damage.is_only_the_log() {
            // The log has checksums, so the surviving events are a prefix.
            let found =
                found.unwrap_or_else(|| panic!("{damage:?} by seed {seed}: a cut log must be opened"));
            let prefix: Vec<_> = original.events.iter().take(found.len()).map(|event| event.id).collect();
            assert_eq!(found, prefix, "{damage:?} by seed {seed}");
            assert!(found.len() >= original.checkpointed, "{damage:?} by seed {seed}: {}", found.len());
        }
    }
    eprintln!("{} files, {opened} opened; what they said: {all:#?}", cases());
}

/// Every column that can be changed by hand.
const COLUMNS: [(&str, &[&str]); 7] = [
    (
        "event",
        &[
            "id",
            "type",
            "payload",
            "metadata",
            "status",
            "retry_count",
            "crashes",
            "first_at",
            "owes",
            "due_at",
            "last_error",
            "retry",
            "created_at",
            "updated_at",
            "handled",
            "scheduled",
        ],
    ),
    (
        "delivery",
        &[
            "subscription",
            "status",
            "retry_count",
            "crashes",
            "first_at",
            "due_at",
            "last_error",
            "updated_at",
        ],
    ),
    (
        "attempt",
        &["subscription", "attempt", "started_at", "duration_ms", "class", "delay_ms", "error", "record"],
    ),
    ("dead_letter", &["subscription", "type", "created_at", "dlq_at", "reason", "fingerprint", "error"]),
    ("subscriptions", &["id", "name", "event_type", "created_at"]),
    (
        "idempotency",
        &["key", "fingerprint", "state", "owner", "until", "result", "metadata", "created_at", "updated_at"],
    ),
    ("audit", &["at", "line"]),
];

/// Values to write into a column. SQLite refuses those that its type forbids.
const VALUES: [&str; 22] = [
    "NULL",
    "-1",
    "0",
    "1",
    "2",
    "99",
    "-99",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "''",
    "'a b'",
    "'*'",
    "'not json'",
    "'{\"a\":[1,{}]}'",
    "'[1,null,{\"a\":2}]'",
    "CAST(x'fffe00ff' AS TEXT)",
    "CAST(x'610062' AS TEXT)",
    "x'00'",
    "zeroblob(16)",
    "printf('%.*c', 100000, 'x')",
];

/// Makes events in every state and ends the process.
async fn world(path: &Path) {
    let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
    let mut claims = attach(&store, 1000);
    let events: Vec<_> = (0..40).map(event).collect();
    store.append(events).await.unwrap();
    let mut number = 0;
    while let Ok(claimed) = claims.try_recv() {
        number += 1;
        let how = match number % 4 {
            0 => Settlement {
                handled: vec![name("audit")],
                ..settlement(Verdict::Retry(NOW.plus_millis(1000).into()), Some("not now"))
            },
            1 => settlement(Verdict::Dead(DeadReason::Permanent), Some("never")),
            2 => continue,
            _ => {
                Settlement { split_off: vec![(name("late"), NOW.into())], ..settlement(Verdict::Done, None) }
            }
        };
        store.settle(claimed, how).await.unwrap();
    }
    store.attach(None);
    let more: Vec<_> = (40..60).map(event).collect();
    store.append(more).await.unwrap();
    let row = SubscriptionRow {
        id: EventId::random().to_string(),
        name: name("mail"),
        event_type: "order.*".to_owned(),
        created_at: NOW,
    };
    store.register(row).await.unwrap();
    keep_keys_and_lines(&store).await;
    store.close().await.unwrap();
}

/// Number of keys and audit lines.
const KEYS: usize = 9;

/// Makes idempotency keys: a third completed, a third failed, a third in progress.
async fn keep_keys_and_lines(store: &SqliteStore) {
    for n in 0..KEYS {
        let (key, owner) = (key(n), OwnerToken::new());
        assert_eq!(store.begin(&key, Fingerprint::default(), owner, HOUR).await.unwrap(), Begin::Acquired);
        match n % 3 {
            0 => store.complete(&key, owner, &n.to_string(), Some("1"), HOUR).await.unwrap(),
            1 => store.release(&key, owner, Some("not now"), HOUR).await.unwrap(),
            _ => {}
        }
        let entry = AuditEvent::Idempotency(IdempotencyUse {
            retry_category: Category::KvPut,
            operation: n.to_string(),
            idempotency_key: key.to_string(),
            action: IdempotencyAction::Record,
            tenant_id: None,
            correlation_id: None,
            trace_id: None,
            timestamp: NOW,
        });
        store.record(&entry).unwrap();
    }
}

fn key(n: usize) -> IdempotencyKey {
    IdempotencyKey::new(format!("charge/{n}")).unwrap()
}

fn in_hex(key: &IdempotencyKey) -> String {
    let digits: String = key.as_str().bytes().map(|byte| format!("{byte:02X}")).collect();
    format!("'{digits}'")
}

/// The rows that were changed by hand.
#[derive(Debug, Default)]
struct Touched {
    events: BTreeSet<i64>,
    /// Keys in hexadecimal.
    keys: BTreeSet<String>,
    lines: BTreeSet<i64>,
}

/// Checks that intact keys and lines are unchanged, and that damaged keys get some answer.
async fn look_at_keys_and_lines(store: &SqliteStore, touched: &Touched) -> Result<(), String> {
    let lines = store.audit_lines(None, 100).await.map_err(|error| format!("audit lines: {error}"))?;
    let good =
        lines.iter().filter(|line| !touched.lines.contains(&line.key) && line.line.contains("charge/"));
    if lines.len() != KEYS || good.count() != KEYS - touched.lines.len() {
        return Err(format!("audit lines: {lines:?}"));
    }
    for n in 0..KEYS {
        let key = key(n);
        let record = store.get(&key).await;
        let begun = store.begin(&key, Fingerprint::default(), OwnerToken::new(), HOUR).await;
        let is_right = match n % 3 {
            0 => begun.as_ref().is_ok_and(|begun| *begun == Begin::Completed { result: n.to_string() }),
            1 => begun.as_ref().is_ok_and(|begun| *begun == Begin::Acquired),
            _ => begun.as_ref().is_ok_and(|begun| matches!(begun, Begin::InProgress { .. })),
        };
        let is_good = is_right && record.is_ok();
        if !is_good && !touched.keys.contains(&in_hex(&key)) {
            return Err(format!("a good key: {begun:?}, {record:?}"));
        }
        // A row with any content can be cleared.
        if begun.is_err() && !store.clear(&key).await.map_err(|error| format!("clear: {error}"))? {
            return Err(format!("a damaged key is not there: {begun:?}"));
        }
    }
    store.reap(100).await.map_err(|error| format!("reap: {error}"))?;
    store.purge_audit(NOW).await.map_err(|error| format!("purge the audit log: {error}"))?;
    Ok(())
}

/// Changes a few rows by hand and returns them.
fn change_by_hand(path: &Path, random: &mut Random) -> (Vec<String>, Touched) {
    let sql = Connection::open(path).unwrap();
    let (mut done, mut touched) = (Vec::new(), Touched::default());
    for _ in 0..20 {
        let (table, columns) = COLUMNS[random.below(COLUMNS.len())];
        let column = columns[random.below(columns.len())];
        let value = VALUES[random.below(VALUES.len())];
        let count: i64 =
            sql.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        let offset = random.below(usize::try_from(count).unwrap());
        let is_key = table == "idempotency";
        let by = if is_key { "hex(key)" } else { "rowid" }; // a table without rowid, and its key may be no text any more
        let row: Value = sql
            .query_row(&format!("SELECT {by} FROM {table} LIMIT 1 OFFSET {offset}"), [], |row| row.get(0))
            .unwrap();
        let (row, number) = match row {
            Value::Integer(number) => (number.to_string(), number),
            Value::Text(text) => (format!("'{text}'"), 0),
            other => panic!("{other:?} names no row"),
        };
        let event: Option<i64> = match table {
            "event" => Some(number),
            "delivery" | "attempt" | "dead_letter" => sql
                .query_row(&format!("SELECT event_key FROM {table} WHERE rowid = {row}"), [], |row| {
                    row.get(0)
                })
                .unwrap(),
            _ => None,
        };
        let statement = format!("UPDATE {table} SET {column} = {value} WHERE {by} = {row}");
        if sql.execute(&statement, []).is_ok_and(|changed| changed == 1) {
            done.push(statement);
            touched.events.extend(event);
            if is_key {
                touched.keys.insert(row);
            }
            if table == "audit" {
                touched.lines.insert(number);
            }
            if done.len() > random.below(4) {
                break;
            }
        }
    }
    (done, touched)
}

/// Opens a file with such rows, uses it like a bus, and finishes all intact events.
async fn handle_all(path: &Path, touched: &Touched) -> Result<(), String> {
    let store =
        SqliteStore::open(path, SqliteOptions::default()).map_err(|error| format!("open: {error}"))?;
    let failed = |what: &'static str| move |error: StoreError| format!("{what}: {error}");
    store.subscriptions().await.map_err(failed("subscriptions"))?;
    let later = NOW.plus_millis(100_000);
    store.recover(later).await.map_err(failed("recover"))?;
    store.stats().await.map_err(failed("stats"))?;
    store.depth().await.map_err(failed("depth"))?;
    let mut claims = attach(&store, 16);
    while let Some(claimed) =
        store.claim_suspect(later, ClaimSink::new(1).0).await.map_err(failed("suspects"))?
    {
        store.settle(claimed, settlement(Verdict::Done, None)).await.map_err(failed("settle a suspect"))?;
    }
    let mut number = 0;
    let mut idle = 0;
    while idle < 3 {
        let claimed = store.claim(later).await.map_err(failed("claim"))?;
        idle = if claimed == 0 { idle + 1 } else { 0 };
        while let Ok(claimed) = claims.try_recv() {
            number += 1;
            let how = match number % 3 {
                0 if claimed.attempt < 9 => settlement(Verdict::Retry(NOW.into()), Some("again")),
                1 if claimed.attempt > 1 => settlement(Verdict::Dead(DeadReason::Permanent), Some("no more")),
                _ => settlement(Verdict::Done, None),
            };
            store.settle(claimed, how).await.map_err(failed("settle"))?;
        }
    }
    let page = EventPage { limit: 1000, after: None };
    let listed = store.events(EventFilter::default(), page).await.map_err(failed("events"))?;
    let good: Vec<_> = listed.iter().filter(|event| !touched.events.contains(&event.cursor)).collect();
    let expected = 60 - touched.events.len();
    if good.len() != expected {
        return Err(format!("{} good events are listed, and should be {expected}", good.len()));
    }
    for event in &good {
        let shown = store.event(event.id).await.map_err(failed("a good event"))?;
        if !matches!(shown.status, EventStatus::Done | EventStatus::Dlq) {
            return Err(format!("a good event was never handled: {shown:?}"));
        }
    }
    let page = DlqPage { limit: 1000, ..DlqPage::default() };
    let dead = store.dead_letters(DlqFilter::default(), page).await.map_err(failed("dead letters"))?;
    let good: BTreeSet<EventId> = good.iter().map(|event| event.id).collect();
    for text in ["never", "process ended"] {
        let filter = DlqFilter { text: Some(text.to_owned()), ..DlqFilter::default() };
        store.dead_letters(filter, page).await.map_err(failed("dead letters by text"))?;
    }
    store.dead_groups(DlqFilter::default()).await.map_err(failed("groups"))?;
    let dead: BTreeSet<EventId> = dead.iter().map(|letter| letter.id).collect();
    for id in dead.intersection(&good) {
        store.redrive(*id, Redrive { at: NOW, payload: None }).await.map_err(failed("redrive"))?;
    }
    look_at_keys_and_lines(&store, touched).await?;
    store.purge_done(later, 1000).await.map_err(failed("purge done"))?;
    store.purge_dead(later).await.map_err(failed("purge dead"))?;
    store.close().await.map_err(failed("close"))
}

#[test]
fn a_row_that_was_changed_by_hand_blocks_no_other_row() {
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let template = folder();
    runtime().block_on(world(&template.path().join("redrive.db")));
    let mut problems = BTreeMap::<String, (u64, String)>::new();
    for seed in 0..cases() {
        let folder = folder();
        let path = folder.path().join("redrive.db");
        std::fs::copy(template.path().join("redrive.db"), &path).unwrap();
        let (changes, touched) = change_by_hand(&path, &mut Random(seed));
        let outcome = within_timeout(&format!("seed {seed}: {changes:?}"), move || {
            runtime().block_on(handle_all(&folder.path().join("redrive.db"), &touched))
        });
        let panics = std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner));
        assert!(panics.is_empty(), "seed {seed}: {changes:?}: {panics:?}");
        if let Err(why) = outcome {
            let entry = problems.entry(why).or_insert((0, String::new()));
            entry.0 += 1;
            // Prints the shortest reproduction.
            if entry.1.is_empty() || changes.join("; ").len() < entry.1.len() {
                entry.1 = changes.join("; ");
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}
