//! Requirements of the specification on the store and its file that no other test covers.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, Timestamp};
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, Claimed, DlqFilter, DlqPage, EventFilter, EventId, EventPage, EventStatus, EventType,
    FailedAttempt, Finished, Metadata, NewEvent, Redrive, Routing, Settlement, SqliteOptions, SqliteStore,
    Store, StoreError, SubscriptionName, SubscriptionRow, Verdict,
};
use rusqlite::Connection;
use tokio::sync::mpsc::UnboundedReceiver;

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

struct World {
    folder: tempfile::TempDir,
    store: SqliteStore,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("redrive.db"), SqliteOptions::default()).unwrap();
        World { folder, store }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("redrive.db")
    }

    fn sql(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    /// Attaches a sink, so that due events are claimed while they are stored.
    fn attach(&self) -> UnboundedReceiver<Claimed> {
        attach(&self.store)
    }
}

fn attach(store: &SqliteStore) -> UnboundedReceiver<Claimed> {
    let (sink, claims) = ClaimSink::new(1000);
    store.attach(Some(sink));
    claims
}

fn event(created_at: Timestamp) -> NewEvent {
    NewEvent {
        id: EventId::new(),
        event_type: EventType::new("order.created").unwrap(),
        payload: Arc::from("1"),
        metadata: Metadata::new(),
        created_at,
        due_at: created_at,
        is_scheduled: false,
        retry: None,
        to: Routing::Matching,
    }
}

fn dead(at: Timestamp) -> Settlement {
    let failure = FailedAttempt {
        subscription: name("s"),
        started_at: at,
        duration_ms: 0,
        class: FailureClass::Permanent,
        delay_ms: 0,
        error: "no".into(),
        record: None,
        detail: None,
    };
    Settlement { failure: Some(failure), ..Settlement::new(at, Verdict::Dead(DeadReason::Permanent)) }
}

fn name(name: &str) -> SubscriptionName {
    SubscriptionName::new(name).unwrap()
}

fn subscription(pattern: &str) -> SubscriptionRow {
    SubscriptionRow {
        id: "4e1b2d3c-aaaa-4bbb-8ccc-123456789abc".into(),
        name: name("shipping"),
        event_type: pattern.into(),
        created_at: NOW,
    }
}

#[tokio::test]
async fn a_subscription_is_created_read_changed_and_removed() {
    let world = World::new();
    let store = &world.store;
    store.register(subscription("order.*")).await.unwrap();
    assert_eq!(store.subscriptions().await.unwrap(), [subscription("order.*")]);
    store.register(subscription("order.created")).await.unwrap();
    assert_eq!(store.subscriptions().await.unwrap(), [subscription("order.created")]);
    assert!(store.unregister(name("shipping"), NOW).await.unwrap());
    assert!(store.subscriptions().await.unwrap().is_empty());
}

#[test]
fn a_status_is_one_of_four() {
    // Without a wildcard: a fifth one would not compile.
    let name = |status| match status {
        EventStatus::Pending => "pending",
        EventStatus::Processing => "processing",
        EventStatus::Done => "done",
        EventStatus::Dlq => "dlq",
    };
    for text in ["pending", "processing", "done", "dlq"] {
        assert_eq!(name(text.parse().unwrap()), text);
    }
}

#[tokio::test]
async fn dead_events_are_listed_by_the_time_of_publishing_and_not_in_the_order_of_storing() {
    let world = World::new();
    let mut claims = world.attach();
    for second in [3, 1, 4, 2] {
        world.store.append(vec![event(NOW + Duration::from_secs(second))]).await.unwrap();
        let claimed = claims.recv().await.unwrap();
        world.store.settle(claimed, dead(NOW)).await.unwrap();
    }
    let list = world.store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
    let seconds: Vec<_> = list.iter().map(|dead| dead.created_at.since(NOW).as_secs()).collect();
    assert_eq!(seconds, [4, 3, 2, 1]);
}

#[tokio::test]
async fn readers_answer_during_a_write() {
    let world = World::new();
    let stored = event(NOW);
    world.store.append(vec![stored.clone()]).await.unwrap();
    let writer = world.sql();
    writer.execute_batch("BEGIN IMMEDIATE; UPDATE event SET retry_count = 7").unwrap();
    let seen = world.store.event(stored.id).await.unwrap();
    assert_eq!(seen.retry_count, 0, "the uncommitted write is not visible");
}

#[tokio::test]
async fn a_database_in_memory_works_without_log_and_file() {
    let mode: String = Connection::open_in_memory()
        .unwrap()
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "memory", "SQLite ignores the request for WAL");
    let store = SqliteStore::open(":memory:", SqliteOptions::default()).unwrap();
    store.append(vec![event(NOW)]).await.unwrap();
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.pending, stats.file_bytes, stats.wal_bytes), (1, 0, 0));
    let is_left = |name: &str| Path::new(name).exists();
    assert!(![":memory:", ":memory:-owner", ":memory:-wal"].into_iter().any(is_left));
}

/// Returns the query plan of SQLite.
fn plan(sql: &Connection, query: &str) -> String {
    let mut statement = sql.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
    for parameter in 1..=statement.parameter_count() {
        statement.raw_bind_parameter(parameter, 0).unwrap();
    }
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get::<_, String>(3).unwrap());
    }
    lines.join("\n")
}

/// Reads a constant from a source file, so that the explained query is the executed one.
fn constant<'a>(source: &'a str, name: &str) -> &'a str {
    let (_, rest) = source.split_once(&format!("const {name}: &str =")).unwrap();
    rest.split('"').nth(1).unwrap()
}

#[test]
fn dead_events_of_one_type_are_found_by_the_index_on_type() {
    let world = World::new();
    let source = include_str!("../src/sqlite/dlq.rs");
    let query = format!(
        "SELECT {} FROM {} WHERE (d.created_at, d.event_key) < (?, ?) AND d.type = ?
         ORDER BY d.created_at DESC, d.event_key DESC, d.key DESC LIMIT ? OFFSET ?",
        constant(source, "COLUMNS"),
        constant(source, "JOINED"),
    );
    let plan = plan(&world.sql(), &query);
    assert!(plan.contains("idx_events_type") && !plan.contains("SCAN") && !plan.contains("B-TREE"), "{plan}");
}

#[test]
fn the_specified_indexes_begin_with_status_and_type() {
    let world = World::new();
    let sql = world.sql();
    let index = |name: &str| -> (String, String) {
        let query = "SELECT m.tbl_name, i.name FROM sqlite_master m, pragma_index_info(m.name) i WHERE m.name = ?1 AND i.seqno = 0";
        sql.query_row(query, [name], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let expect = |table: &str, column: &str| (table.to_owned(), column.to_owned());
    assert_eq!(index("idx_events_status"), expect("event", "status"));
    // Over dead events only: a full index would slow each publish.
    assert_eq!(index("idx_events_type"), expect("dead_letter", "type"));
}

#[tokio::test]
async fn concurrent_claims_never_return_an_event_twice() {
    let world = World::new();
    let beside = SqliteOptions { owner: false, ..SqliteOptions::default() };
    let other = SqliteStore::open(world.path(), beside).unwrap();
    world.store.append((0..500).map(|_| event(NOW)).collect()).await.unwrap();
    let (mut mine, mut others) = (world.attach(), attach(&other));
    let (one, two) = tokio::join!(world.store.claim(NOW), other.claim(NOW));
    let mut ids = Vec::new();
    while let Ok(claimed) = mine.try_recv().or_else(|_| others.try_recv()) {
        ids.push(claimed.event.id);
    }
    assert_eq!((ids.len(), one.unwrap() + two.unwrap()), (500, 500));
    assert_eq!(ids.into_iter().collect::<BTreeSet<_>>().len(), 500);
}

#[test]
fn the_table_of_subscriptions_has_the_specified_columns_and_no_handler() {
    let world = World::new();
    let sql = world.sql();
    let mut statement = sql
        .prepare("SELECT name, type, \"notnull\" OR pk, pk FROM pragma_table_info('subscriptions')")
        .unwrap();
    let columns: Vec<(String, String, bool, bool)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let column = |name: &str, not_null, is_key| (name.to_owned(), "TEXT".to_owned(), not_null, is_key);
    // The stable name is the only additional column; there is none for a handler.
    assert_eq!(
        columns,
        [
            column("id", true, true),
            column("name", true, false),
            column("event_type", true, false),
            column("created_at", true, false)
        ]
    );
}

#[tokio::test]
async fn recovery_makes_a_running_event_pending_and_counts_the_attempt() {
    let world = World::new();
    let mut claims = world.attach();
    let running = event(NOW);
    world.store.append(vec![running.clone()]).await.unwrap();
    let _claimed = claims.recv().await.unwrap();
    let row = || -> (String, i64) {
        world
            .sql()
            .query_row(
                "SELECT status, retry_count FROM events WHERE id = ?1",
                [running.id.to_string()],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap()
    };
    assert_eq!(row(), ("processing".into(), 0));
    world.store.close().await.unwrap();
    let reopened = SqliteStore::open(world.path(), SqliteOptions::default()).unwrap();
    reopened.recover(NOW).await.unwrap();
    assert_eq!(row(), ("pending".into(), 1));
}

#[tokio::test]
async fn a_publish_waits_for_a_locked_file_and_succeeds_when_it_is_free() {
    let world = World::new();
    let other = world.sql();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut append = world.store.append(vec![event(NOW)]);
    for _ in 0..20 {
        // The read gives the writer time to find the file locked.
        assert_eq!(world.store.stats().await.unwrap().pending, 0);
        let poll = append.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending(), "neither stored nor refused");
    }
    other.execute_batch("COMMIT").unwrap();
    append.await.unwrap();
    assert_eq!(world.store.stats().await.unwrap().pending, 1);
}

/// Frequent statements use the cache of prepared statements; settings do not need it.
#[test]
fn statements_are_prepared_once_and_reused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sqlite");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_file() || path.ends_with("schema.rs") {
            continue; // a file is opened once
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let product = source.split("#[cfg(test)]").next().unwrap_or_default();
        let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
        let source: String = code.flat_map(str::split_whitespace).collect();
        for call in [".prepare(", "connection.execute(", "connection.query_row(", "transaction.execute("] {
            for (at, _) in source.match_indices(call) {
                let text: String = source[at + call.len()..].chars().take(20).collect();
                assert!(text.contains("\"PRAGMA"), "{}: {call}{text}", path.display());
            }
        }
    }
}

#[tokio::test]
async fn a_closed_store_refuses_every_method() {
    let world = World::new();
    let mut claims = world.attach();
    let running = event(NOW);
    world.store.append(vec![running.clone()]).await.unwrap();
    let claimed = claims.recv().await.unwrap();
    let store: &dyn Store = &world.store;
    store.close().await.unwrap();

    fn is_refused<T>(what: &str, answer: Result<T, StoreError>) {
        assert!(matches!(answer, Err(StoreError::Closed)), "{what}: {:?}", answer.err());
    }
    let done = Settlement::new(NOW, Verdict::Done);
    is_refused::<Finished>("settle", store.settle(claimed, done).await);
    is_refused("append", store.append(vec![event(NOW)]).await);
    is_refused("claim", store.claim(NOW).await);
    is_refused("claim_suspect", store.claim_suspect(NOW, ClaimSink::new(1).0).await);
    is_refused("refresh_due", store.refresh_due().await);
    is_refused("recover", store.recover(NOW).await);
    is_refused("register", store.register(subscription("*")).await);
    is_refused("unregister", store.unregister(name("shipping"), NOW).await);
    is_refused("subscriptions", store.subscriptions().await);
    is_refused("event", store.event(running.id).await);
    is_refused("events", store.events(EventFilter::default(), EventPage::default()).await);
    is_refused("depth", store.depth().await);
    is_refused("stats", store.stats().await);
    is_refused("dead_letters", store.dead_letters(DlqFilter::default(), DlqPage::default()).await);
    is_refused("dead_letter", store.dead_letter(running.id).await);
    is_refused("dead_groups", store.dead_groups(DlqFilter::default()).await);
    is_refused("redrive", store.redrive(running.id, Redrive { at: NOW, payload: None }).await);
    is_refused("purge_dead", store.purge_dead(NOW).await);
    is_refused("purge_done", store.purge_done(NOW, 1).await);
}

#[tokio::test]
async fn the_retry_queue_shows_the_state_of_each_message() {
    let world = World::new();
    let mut claims = world.attach();
    let task = |message: &str, count: u32, payload: &str, rest: &str| NewEvent {
        event_type: EventType::new("retry.task").unwrap(),
        payload: Arc::from(format!(
            r#"{{"message_id":"{message}","original_payload":{payload},"original_queue":"orders","error_reason":"timeout",
                "retry_count":{count},"max_retries":3,"next_retry_at_ms":{}{rest}}}"#,
            NOW.as_millis()
        )),
        to: Routing::Each(vec![name("republisher")]),
        ..event(NOW)
    };
    let discarded = r#","by_hand":{"decision":"discarded","by":"anna","at":"2026-01-01T00:00:00.000Z"}"#;
    let events = vec![
        task("m-1", 0, r#"{"text":"{\"order\":7}"}"#, ""),
        task("m-2", 3, r#"{"base64":"AAE="}"#, ""),
        task("m-3", 3, r#"{"text":""}"#, discarded),
        task("m-4", 0, r#"{"text":"x"}"#, ""),
    ];
    world.store.append(events).await.unwrap();
    for verdict in [Verdict::Done, Verdict::Dead(DeadReason::Permanent), Verdict::Done] {
        let claimed = claims.recv().await.unwrap();
        let settlement = if verdict == Verdict::Done { Settlement::new(NOW, verdict) } else { dead(NOW) };
        world.store.settle(claimed, settlement).await.unwrap();
    }
    let later = NewEvent { due_at: NOW + Duration::from_secs(4), ..task("m-4", 1, r#"{"text":"x"}"#, "") };
    world.store.append(vec![later, event(NOW)]).await.unwrap();
    let sql = world.sql();
    let query = "SELECT message_id || ' ' || original_payload || ' ' || original_queue || ' ' || error_reason || ' ' || retry_count
                 || ' ' || max_retries || ' ' || next_retry_at || ' ' || status FROM retry_queue ORDER BY id";
    let rows: Vec<String> = sql
        .prepare(query)
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(
        rows,
        [
            r#"m-1 {"order":7} orders timeout 1 3 2026-01-01 00:00:00.000 retried"#,
            "m-2 AAE= orders timeout 3 3 2026-01-01 00:00:00.000 failed",
            "m-3  orders timeout 3 3 2026-01-01 00:00:00.000 failed",
            "m-4 x orders timeout 1 3 2026-01-01 00:00:04.000 pending",
        ]
    );
}

#[tokio::test]
async fn a_message_keeps_its_id_in_the_retry_queue_and_leaves_it_with_its_last_event() {
    let world = World::new();
    let mut claims = world.attach();
    let sql = world.sql();
    let row = || -> (i64, u32, String) {
        let query = "SELECT id, retry_count, status FROM retry_queue";
        sql.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
    };
    for count in 0..3 {
        let task = NewEvent {
            event_type: EventType::new("retry.task").unwrap(),
            payload: Arc::from(format!(
                r#"{{"message_id":"m-1","original_queue":"q","retry_count":{count},"next_retry_at_ms":0}}"#
            )),
            to: Routing::Each(vec![name("republisher")]),
            ..event(NOW)
        };
        world.store.append(vec![task]).await.unwrap();
        assert_eq!(row(), (1, count, "pending".into()));
        let claimed = claims.recv().await.unwrap();
        world.store.settle(claimed, Settlement::new(NOW, Verdict::Done)).await.unwrap();
        assert_eq!(row(), (1, count + 1, "retried".into()));
    }
    assert_eq!(world.store.purge_done(NOW + Duration::from_secs(1), 100).await.unwrap(), 3);
    let left: u32 = sql.query_row("SELECT count(*) FROM retry_queue", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn due_messages_and_single_messages_of_the_retry_queue_are_found_by_an_index() {
    let world = World::new();
    let due = "SELECT * FROM retry_queue WHERE status = 'pending' AND next_retry_at <= ? ORDER BY next_retry_at LIMIT 100";
    let found = plan(&world.sql(), due);
    assert!(
        found.contains("idx_retry_next_retry") && !found.contains("SCAN") && !found.contains("B-TREE"),
        "{found}"
    );
    let found = plan(&world.sql(), "SELECT * FROM retry_queue WHERE message_id = ?");
    assert!(found.contains("(message_id=?)") && !found.contains("SCAN"), "{found}");
}

#[tokio::test]
async fn the_events_view_counts_the_failed_attempts_of_every_delivery() {
    let world = World::new();
    let mut claims = world.attach();
    let new = NewEvent { to: Routing::Each(vec![name("s")]), ..event(NOW) };
    world.store.append(vec![new.clone()]).await.unwrap();
    let sql = world.sql();
    let row = || -> (String, u32, Option<String>) {
        let query = "SELECT status, retry_count, last_error FROM events";
        sql.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
    };
    assert_eq!(row(), ("processing".into(), 0, None));
    let claimed = claims.recv().await.unwrap();
    let retry = Settlement { verdict: Verdict::Retry(NOW.into()), ..dead(NOW) };
    world.store.settle(claimed, retry).await.unwrap();
    assert_eq!(row(), ("processing".into(), 1, Some(r#"["no"]"#.into())));
    world.store.claim(NOW).await.unwrap();
    let claimed = claims.recv().await.unwrap();
    world.store.settle(claimed, dead(NOW)).await.unwrap();
    assert_eq!(row(), ("dlq".into(), 2, Some(r#"["no","no"]"#.into())));
    world.store.redrive(new.id, Redrive { at: NOW, payload: None }).await.unwrap();
    assert_eq!(row(), ("pending".into(), 0, None));
}
