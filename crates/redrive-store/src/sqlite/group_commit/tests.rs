//! Tests of group commit and inline commit.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::Path;

use redrive_retry::Timestamp;
use tokio::sync::oneshot;

use super::*;
use crate::event::{EventId, EventType, Metadata, NewEvent, Routing};
use crate::sqlite::schema;
use crate::sqlite::transaction::Reply;
use crate::store::Appended;

fn committer() -> Committer {
    let connection = schema::open_writer(Path::new(":memory:"), Durability::Full).unwrap();
    Committer::new(connection, Durability::Full, Arc::default(), Arc::new(DueHint::new()), None)
}

pub(super) fn commit_lock() -> CommitLock {
    let lock = CommitLock::new(committer(), Duration::from_millis(1));
    lock.set_uncontended(true);
    lock
}

pub(super) fn append() -> (Command, oneshot::Receiver<Result<Appended, crate::error::StoreError>>) {
    let now = Timestamp::from_millis(1_000);
    let event = NewEvent {
        id: EventId::new(),
        event_type: EventType::new("order.created").unwrap(),
        payload: Arc::from("{}"),
        metadata: Metadata::new(),
        created_at: now,
        due_at: now,
        is_scheduled: false,
        retry: None,
        to: Routing::Matching,
    };
    let (reply, answer): (Reply<Appended>, _) = oneshot::channel();
    (Command::AppendOne { row: event.into(), reply }, answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_publisher_commits_inline() {
    let (command, mut answer) = append();
    assert!(commit_lock().try_commit_inline(command).is_none());
    assert_eq!(answer.try_recv().unwrap().unwrap(), Appended::New);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_publisher_is_sent_to_the_writer_thread() {
    let lock = commit_lock();
    let guard = lock.acquire();
    assert!(lock.try_commit_inline(append().0).is_some(), "the thread holds the lock");
    drop(guard);
    lock.set_uncontended(false);
    assert!(lock.try_commit_inline(append().0).is_some(), "the last batch was contended");
    lock.set_uncontended(true);
    lock.thread_waits.store(true, Ordering::Relaxed);
    assert!(lock.try_commit_inline(append().0).is_some(), "the thread waits for the lock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_runtime_with_one_worker_never_commits_inline() {
    assert!(commit_lock().try_commit_inline(append().0).is_some());
}

#[test]
fn a_thread_without_a_runtime_never_commits_inline() {
    assert!(commit_lock().try_commit_inline(append().0).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_during_a_commit_stops_all_writes() {
    let lock = Arc::new(commit_lock());
    let other = Arc::clone(&lock);
    let panicked = std::thread::spawn(move || {
        let _committer = other.acquire();
        panic!("in the middle of a commit");
    });
    assert!(panicked.join().is_err());
    assert!(lock.try_commit_inline(append().0).is_some());
    let (command, mut answer) = append();
    lock.acquire().as_mut().unwrap().commit_batch(&mut vec![command], |_| {});
    let error = answer.try_recv().unwrap().unwrap_err();
    assert!(error.to_string().contains("a commit panicked"), "{error}");
}

fn empty_append() -> (Command, oneshot::Receiver<Result<Vec<crate::store::Appended>, StoreError>>) {
    let (reply, answer): (Reply<_>, _) = oneshot::channel();
    (
        Command::run(true, reply, |connection, uncommitted| {
            crate::sqlite::append::append(connection, &[], uncommitted)
        }),
        answer,
    )
}

/// A command at which SQLite rolls the whole transaction back with this error.
fn broken(code: i32) -> Command {
    let (reply, _): (Reply<()>, _) = oneshot::channel();
    Command::run(true, reply, move |connection, _| {
        connection.prepare_cached("ROLLBACK")?.execute([])?;
        let error = rusqlite::ffi::Error::new(code);
        Err(StoreError::Engine(rusqlite::Error::SqliteFailure(error, None)))
    })
}

#[test]
fn an_io_error_stops_the_store_and_a_full_disk_does_not() {
    for (code, is_final) in [(rusqlite::ffi::SQLITE_IOERR, true), (rusqlite::ffi::SQLITE_FULL, false)] {
        let mut committer = committer();
        let ((before, mut first), (after, mut last)) = (empty_append(), empty_append());
        committer.commit_batch(&mut vec![before, broken(code), after], |_| {});
        for answer in [&mut first, &mut last] {
            let error = answer.try_recv().unwrap().unwrap_err();
            assert_eq!(matches!(error, StoreError::Unknown { .. }), is_final, "{error}");
            assert_eq!(matches!(error, StoreError::DiskFull), !is_final, "{error}");
        }
        assert_eq!(committer.why_stopped().is_some(), is_final);
    }
}

#[test]
fn a_failed_checkpoint_stops_all_writes_and_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let mut connection = schema::open_writer(&path, Durability::Full).unwrap();
    let checkpoint = Checkpoint::start(&path, &mut connection, true).unwrap();
    let mut committer = Committer::new(
        connection,
        Durability::Full,
        Arc::default(),
        Arc::new(DueHint::new()),
        Some(checkpoint),
    );
    let (command, mut answer) = empty_append();
    committer.commit_batch(&mut vec![command], |_| {});
    answer.try_recv().unwrap().unwrap();

    // A failure during the commit makes its outcome unknown.
    let (command, mut answer) = empty_append();
    let mut commands = vec![command];
    committer.open(&mut commands, &mut |_| {}).unwrap();
    committer.checkpoint.as_ref().unwrap().fail(BatchFailure::Unknown("disk I/O error".to_owned()));
    let mut uncommitted = Uncommitted::default();
    let outcome = committer.execute_and_commit(&mut commands, |_| {}, &mut uncommitted);
    committer.reply(outcome, &mut commands, uncommitted);
    assert!(matches!(answer.try_recv().unwrap(), Err(StoreError::Unknown { .. })));

    // Later writes are refused.
    let (command, mut answer) = empty_append();
    let returned = committer.commit_inline(command).unwrap();
    committer.commit_batch(&mut vec![returned], |_| {});
    assert!(matches!(answer.try_recv().unwrap(), Err(StoreError::Stopped { .. })));

    let log = folder.path().join("redrive.db-wal");
    let before = std::fs::metadata(&log).unwrap().len();
    assert!(matches!(committer.close(), Err(StoreError::Stopped { .. })));
    assert_eq!(std::fs::metadata(&log).unwrap().len(), before);
}
