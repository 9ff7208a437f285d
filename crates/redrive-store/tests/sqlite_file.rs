//! The SQLite file: its tables, its settings, and every error of opening and writing it.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a panic is a failed test; a child process prints to its parent

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::decision::DeadReason;
use redrive_retry::{Clock, FailureClass, Timestamp, VirtualTime};
use redrive_store::traits::*;
use redrive_store::{
    Appended, ClaimSink, Durability, EventId, EventStatus, EventType, FailedAttempt, Finished, Metadata,
    NewEvent, Redrive, Routing, Settlement, SqliteOptions, SqliteStore, Store, StoreError, SubscriptionName,
    Verdict,
};
use rusqlite::Connection;

fn event(n: u32) -> NewEvent {
    let now = Clock::system().now();
    NewEvent {
        id: EventId::new(),
        event_type: EventType::new("order.created").unwrap(),
        payload: Arc::from(format!(r#"{{"n":{n}}}"#)),
        metadata: Metadata::from([("tenant".to_owned(), "t-1".to_owned())]),
        created_at: now,
        due_at: now,
        is_scheduled: false,
        retry: None,
        to: Routing::Matching,
    }
}

fn open(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(path, SqliteOptions::default())
}

#[tokio::test]
async fn the_specified_tables_and_columns_answer_plain_sql() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let store = open(&path).unwrap();
    let one = event(1);
    store.append(vec![one.clone(), event(2)]).await.unwrap();
    let sql = Connection::open(&path).unwrap();
    let counts: (String, i64) = sql
        .query_row("select status, count(*) from events group by 1", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(counts, ("pending".into(), 2));
    let row: (String, String, String, String, i64, Option<String>, Option<String>, String, String) = sql
        .query_row(
            "SELECT id, type, payload, status, retry_count, last_error, metadata, created_at, updated_at FROM events
             WHERE id = ?1",
            [one.id.to_string()],
            |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?, row.get(8)?))
            },
        )
        .unwrap();
    assert_eq!((row.0, row.1.as_str(), row.2.as_str()), (one.id.to_string(), "order.created", r#"{"n":1}"#));
    assert_eq!(
        (row.3.as_str(), row.4, row.5, row.6.as_deref()),
        ("pending", 0, None, Some(r#"{"tenant":"t-1"}"#))
    );
    assert_eq!(row.7.parse::<Timestamp>().unwrap(), one.created_at, "ISO text");
    sql.prepare("SELECT id, event_type, created_at FROM subscriptions").unwrap();
    for index in ["idx_events_status", "idx_events_type"] {
        let found: i64 = sql
            .query_row(
                "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name = ?1",
                [index],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(found, 1, "{index}");
    }
    let mode: String = sql.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
}

#[tokio::test]
async fn the_same_id_is_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("redrive.db")).unwrap();
    let one = event(1);
    let answers = store.append(vec![one.clone(), one.clone(), event(2)]).await.unwrap();
    assert_eq!(answers, [Appended::New, Appended::Duplicate, Appended::New]);
    assert_eq!(store.event(one.id).await.unwrap().status, EventStatus::Pending);
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_a_new_database_its_log_its_lock_and_its_backup() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let store = open(&path).unwrap();
    store.append(vec![event(1)]).await.unwrap();
    store.backup(folder.path().join("backup.db")).await.unwrap();
    let mode = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    for name in ["redrive.db", "redrive.db-wal", "redrive.db-shm", "redrive.db-owner", "backup.db"] {
        assert_eq!(format!("{:o}", mode(name)), "600", "{name}");
    }
    store.close().await.unwrap();
    drop(store);

    // A mode that an administrator has set stays, and the log gets it.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let store = open(&path).unwrap();
    store.append(vec![event(2)]).await.unwrap();
    assert_eq!((mode("redrive.db"), mode("redrive.db-wal")), (0o640, 0o640));
}

#[test]
fn a_file_that_is_no_database_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let text = "these are my notes, and they are longer than a header\n".repeat(100);
    std::fs::write(&path, &text).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, StoreError::NotOurs { .. }), "{error}");
    assert!(error.to_string().contains("choose another file"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_database_of_another_program_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE recipes (name TEXT)").unwrap();
    let error = open(&path).unwrap_err();
    assert!(error.to_string().contains("belongs to another program"), "{error}");
    let tables: i64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1);
}

#[test]
fn a_file_of_a_newer_release_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    drop(open(&path).unwrap());
    Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("use the release that wrote it"), "{error}");
}

#[test]
fn a_second_owner_is_refused_with_the_name_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let first = open(&path).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    SqliteStore::open(&path, SqliteOptions { owner: false, ..SqliteOptions::default() })
        .expect("beside it, without dispatching");
    drop(first);
    open(&path).expect("free again");
}

#[test]
fn a_missing_folder_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = open(&folder.path().join("missing/redrive.db")).unwrap_err();
    assert!(error.to_string().contains("missing/redrive.db"), "{error}");
}

#[tokio::test]
async fn a_corrupt_file_is_refused_or_found_by_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let store = open(&path).unwrap();
    store.append((0..2000).map(event).collect()).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    let (from, to) = (bytes.len() / 3, bytes.len() * 2 / 3);
    bytes[from..to].fill(0xA5);
    std::fs::write(&path, bytes).unwrap();
    match open(&path) {
        Err(error) => assert!(matches!(error, StoreError::NotOurs { .. }), "{error}"),
        Ok(store) => assert!(store.check(10).await.map_or(true, |problems| !problems.is_empty())),
    }
}

#[tokio::test]
async fn a_backup_is_a_database_with_everything_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("redrive.db")).unwrap();
    store.append((0..500).map(event).collect()).await.unwrap();
    let copy = folder.path().join("copy.db");
    store.backup(&copy).await.unwrap();
    assert_eq!(open(&copy).unwrap().stats().await.unwrap().pending, 500);
    assert!(store.backup(&copy).await.unwrap_err().to_string().contains("choose a new name"));
}

#[tokio::test]
async fn a_closed_store_refuses_everything_and_closing_again_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("redrive.db")).unwrap();
    store.close().await.unwrap();
    store.close().await.unwrap();
    assert!(matches!(store.append(vec![event(1)]).await, Err(StoreError::Closed)));
    assert!(matches!(store.stats().await, Err(StoreError::Closed)));
    assert!(!folder.path().join("redrive.db-wal").exists(), "the log is checkpointed");
    open(&folder.path().join("redrive.db")).expect("and it is free for another owner");
}

#[tokio::test]
async fn relaxed_durability_has_to_be_named() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { durability: Durability::Relaxed, ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.path().join("redrive.db"), options).unwrap();
    store.append(vec![event(1)]).await.unwrap();
    assert_eq!(store.stats().await.unwrap().pending, 1);
}

/// A limit on the size of the file simulates a full disk without a mount: SQLite returns the same error.
#[tokio::test]
async fn a_full_disk_is_reported_and_writes_resume_with_free_space() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let store =
        SqliteStore::open(&path, SqliteOptions { max_pages: Some(200), ..SqliteOptions::default() }).unwrap();
    let big = |n: u32| NewEvent {
        payload: Arc::from(format!("\"{}\"", "x".repeat(100_000 + n as usize))),
        ..event(n)
    };
    let mut stored = 0;
    let error = loop {
        match store.append(vec![big(stored)]).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100, "the file fills up");
    };
    assert!(matches!(error, StoreError::DiskFull), "{error}");
    assert_eq!(
        store.stats().await.unwrap().pending,
        u64::from(stored),
        "what was acknowledged, and nothing else"
    );
    store.append(vec![event(1)]).await.expect("a small one still fits: the store goes on");
}

#[tokio::test]
async fn a_settlement_that_finds_the_disk_full_waits_for_space() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { max_pages: Some(200), ..SqliteOptions::default() };
    let store = Arc::new(SqliteStore::open(folder.path().join("redrive.db"), options).unwrap());
    let (sink, mut claims) = ClaimSink::new(2);
    store.attach(Some(sink));
    let big = |n: u32| NewEvent { payload: Arc::from(format!("\"{}\"", "x".repeat(200_000))), ..event(n) };
    store.append(vec![event(1)]).await.unwrap();
    store.append(vec![big(2)]).await.unwrap();
    let (small, large) = (claims.recv().await.unwrap(), claims.recv().await.unwrap());
    let now = Clock::system().now();
    let done = Settlement::new(now, Verdict::Done);
    store.settle(large, done.clone()).await.unwrap();
    store.attach(None);
    let mut size = 200_000;
    while size > 100 {
        let filler = NewEvent { payload: Arc::from(format!("\"{}\"", "x".repeat(size))), ..event(3) };
        if store.append(vec![filler]).await.is_err() {
            size /= 2;
        }
    }
    let failure = FailedAttempt {
        subscription: SubscriptionName::new("s").unwrap(),
        started_at: now,
        duration_ms: 1,
        class: FailureClass::Transient,
        delay_ms: 0,
        error: "e".repeat(50_000),
        record: None,
        detail: None,
    };
    let id = small.event.id;
    let settlement = Settlement { verdict: Verdict::Retry(now.into()), failure: Some(failure), ..done };
    let settling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.settle(small, settlement).await }
    });
    // There is no space for the error until the limit is raised.
    assert!(store.append(vec![event(4), big(5)]).await.is_err());
    assert_eq!(store.purge_done(now + Duration::from_secs(1), 10).await.unwrap(), 1);
    assert_eq!(settling.await.unwrap().unwrap(), Finished::NotYet);
    assert_eq!(store.event(id).await.unwrap().errors.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_finishes_during_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&folder.path().join("redrive.db")).unwrap());
    for n in 0..20 {
        store.append((0..500).map(|m| event(n * 500 + m)).collect()).await.unwrap();
    }
    let writing = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            for n in 0.. {
                store.append(vec![event(n)]).await.unwrap();
            }
        }
    });
    let copy = folder.path().join("copy.db");
    store.backup(&copy).await.unwrap();
    writing.abort();
    let copied = open(&copy).unwrap().stats().await.unwrap();
    assert!(copied.pending >= 10_000, "{copied:?}");
    assert!(!folder.path().join("copy.db.part").exists());
}

/// The child process of the next test, run as a user without write permission.
#[test]
fn child_without_write_permission() {
    let Some(path) = std::env::var_os("REDRIVE_READ_ONLY_FILE") else { return };
    let error = open(Path::new(&path)).unwrap_err();
    println!("refused: {error}");
}

#[cfg(unix)]
#[test]
fn a_read_only_file_is_refused_and_unchanged() {
    use std::fs::{Permissions, copy, read, set_permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    drop(open(&path).unwrap());
    let before = read(&path).unwrap();
    let is_root = std::fs::metadata(&path).unwrap().uid() == 0;
    // Root may write to every file, so the child runs as the user `nobody`, who needs access to the folder.
    let program = folder.path().join("reader");
    copy(std::env::current_exe().unwrap(), &program).unwrap();
    for file in [path.clone(), folder.path().join("redrive.db-owner")] {
        set_permissions(&file, Permissions::from_mode(0o444)).unwrap();
    }
    set_permissions(&program, Permissions::from_mode(0o555)).unwrap();
    set_permissions(folder.path(), Permissions::from_mode(0o555)).unwrap();
    let mut command = std::process::Command::new(&program);
    command.args(["--exact", "sqlite_file::child_without_write_permission", "--nocapture"]);
    command.env("REDRIVE_READ_ONLY_FILE", &path).current_dir("/");
    if is_root {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("refused: ") && said.contains("check its permissions"), "{said}");
    assert_eq!(read(&path).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inline_commit_never_waits_for_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let store = open(&path).unwrap();
    // From the second publish on, commits may run inline on this thread.
    for n in 0..5 {
        store.append(vec![event(n)]).await.unwrap();
    }
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = std::time::Instant::now();
    // A commit that waited on this thread could not time out.
    let abandoned = tokio::time::timeout(Duration::from_millis(50), store.append(vec![event(5)])).await;
    assert!(abandoned.is_err());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    other.execute_batch("ROLLBACK").unwrap();
    store.append(vec![event(6)]).await.unwrap();
    assert_eq!(store.stats().await.unwrap().pending, 7, "the publish that timed out is stored as well");
}

#[tokio::test]
async fn settlements_of_one_batch_count_in_the_order_of_their_arrival() {
    let store = SqliteStore::open(":memory:", SqliteOptions::default()).unwrap();
    let (sink, mut claims) = ClaimSink::new(2);
    store.attach(Some(sink));
    let billing = SubscriptionName::new("billing").unwrap();
    for n in 0..20 {
        let event = event(n);
        let now = event.created_at;
        let split_off = |verdict| Settlement {
            split_off: vec![(billing.clone(), now.into())],
            ..Settlement::new(now, verdict)
        };
        store.append(vec![event.clone()]).await.unwrap();
        let claimed = claims.recv().await.unwrap();
        store.settle(claimed, split_off(Verdict::Dead(DeadReason::Permanent))).await.unwrap();
        store.redrive(event.id, Redrive { at: now, payload: None }).await.unwrap();
        store.claim(now).await.unwrap();
        let (one, other) = (claims.recv().await.unwrap(), claims.recv().await.unwrap());
        let (whole, single) = if one.subscription.is_none() { (one, other) } else { (other, one) };
        assert_eq!(single.subscription.as_ref(), Some(&billing));

        // The append keeps the writer busy, so that both settlements share the next batch.
        let done = Settlement::new(now, Verdict::Done);
        let later = NewEvent { due_at: now + Duration::from_hours(1), ..self::event(n) };
        let (appended, first, second) = tokio::join!(
            biased;
            store.append(vec![later]),
            store.settle(single, done),
            store.settle(whole, split_off(Verdict::Done)),
        );
        assert_eq!(appended.unwrap(), [Appended::New]);
        assert_eq!((first.unwrap(), second.unwrap()), (Finished::NotYet, Finished::NotYet), "round {n}");
        let open = store.event(event.id).await.unwrap().deliveries;
        assert_eq!(
            open.first().unwrap().status,
            EventStatus::Pending,
            "round {n}: split off after it was done"
        );
        store.claim(now).await.unwrap();
        let again = claims.recv().await.unwrap();
        store.settle(again, Settlement::new(now, Verdict::Done)).await.unwrap();
    }
}

#[tokio::test]
async fn a_step_of_the_clock_moves_waits_and_neither_schedules_nor_values_written_by_hand() {
    const STEP_MS: i64 = -7_200_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let time = VirtualTime::new();
    let options = SqliteOptions { clock: time.clock(), ..SqliteOptions::default() };
    let store = SqliteStore::open(&path, options).unwrap();
    let now = time.now();
    let new = |n: u32, due_at: Timestamp| NewEvent { created_at: now, due_at, ..event(n) };
    let in_an_hour = now + Duration::from_hours(1);
    let (due, delayed, by_hand, waiting) = (new(1, now), new(2, in_an_hour), new(3, now), new(4, now));
    let scheduled = NewEvent { is_scheduled: true, ..new(5, in_an_hour) };
    let to_one = NewEvent {
        to: Routing::Each(vec![SubscriptionName::new("billing").unwrap()]),
        is_scheduled: true,
        ..new(6, in_an_hour)
    };
    let all = [due, delayed, by_hand, waiting, scheduled, to_one];
    store.append(all.to_vec()).await.unwrap();
    let sql = Connection::open(&path).unwrap();
    let change = |set: &str, id: EventId| {
        let changed =
            sql.execute(&format!("UPDATE event SET {set} WHERE id = ?1"), [id.as_uuid().as_bytes()]);
        assert_eq!(changed.unwrap(), 1);
    };
    let most = i64::MAX;
    change(&format!("due_at = {most}, first_at = {}, updated_at = {most}", i64::MIN), all[2].id);
    let retry_at = in_an_hour.as_millis() + 1;
    change(&format!("status = 2, retry_count = 1, due_at = {retry_at}"), all[3].id);

    time.step_wall_clock(STEP_MS);
    store.follow_wall_clock().await.unwrap();
    assert_eq!(store.clock().now(), now.shifted(STEP_MS));
    let due_at = async |n: usize| {
        let event = store.event(all[n].id).await.unwrap();
        event.due_at.or_else(|| event.deliveries[0].due_at).map(Timestamp::as_millis)
    };
    assert_eq!(due_at(0).await, Some(now.as_millis() + STEP_MS));
    assert_eq!(due_at(1).await, Some(in_an_hour.as_millis() + STEP_MS), "a delay keeps its length");
    assert_eq!(due_at(2).await, Some(most), "written by hand");
    assert_eq!(due_at(3).await, Some(retry_at + STEP_MS));
    assert_eq!(due_at(4).await, Some(in_an_hour.as_millis()), "a schedule keeps its date");
    assert_eq!(due_at(5).await, Some(in_an_hour.as_millis()), "so does one for a single subscription");

    // Publishes and settlements that were on the way are written with the time of before the step.
    let late = [new(7, now), new(8, now)];
    store.append(late.to_vec()).await.unwrap();
    change(&format!("status = 2, retry_count = 1, due_at = {} + 4000", now.as_millis()), late[1].id);
    store.follow_wall_clock().await.unwrap();
    let due = async |n: usize| store.event(late[n].id).await.unwrap().due_at.unwrap();
    assert_eq!(due(0).await, now.shifted(STEP_MS), "due at once");
    assert_eq!(due(1).await, now.shifted(STEP_MS + 4000));
    store.recover(store.clock().now()).await.unwrap();
}
