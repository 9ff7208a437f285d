//! Checkpoints: copies the write-ahead log into the database file, on a background thread where many publishers wait.
//!
//! A checkpoint inside a commit makes every caller wait for some megabytes of writes and one more sync. So under load a thread with
//! its own connection copies the log while the writer continues. It cannot reset the log while commits keep arriving, so the writer
//! itself finishes the short rest from time to time. Without load the writer does all of it: two threads that sync one disk at
//! the same time slow each other down.
//!
//! A checkpoint syncs the log before it copies from it. If that sync fails, the kernel may have dropped commits that were not synced
//! before, and a gap in the log hides every later commit. So the store refuses all later writes, as after a failed commit. The next store
//! copies the log that it finds before it writes.

use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ffi};

use super::schema;
use super::transaction::BatchFailure;
use crate::error::StoreError;

/// Number of new pages in the log after which the background thread copies it.
const BACKGROUND_PAGES: i32 = 500;

/// Number of pages in the log at which the writer copies the rest, so that the log is reset.
const FOREGROUND_PAGES: i32 = 1000;

/// Idle time after which the background thread copies the rest of the log.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The background thread and the length of the log.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Length of the log in pages.
    pages: Arc<AtomicI32>,
    /// Length of the log when the background thread was last woken.
    sent: i32,
    /// The failure that ended the background thread.
    failed: Arc<OnceLock<BatchFailure>>,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoint {
    /// Copies the log that is found, and replaces the automatic checkpoints of the writing connection.
    pub(super) fn start(path: &Path, writer: &mut Connection, is_owner: bool) -> Result<Self, StoreError> {
        copy_found_log(writer, is_owner).map_err(|error| schema::explain(path, error))?;
        let connection = schema::open_checkpointer(path)?;
        let pages = Arc::<AtomicI32>::default();
        let length = Arc::clone(&pages);
        writer.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            length.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        let (wake, wakes) = sync_channel(1);
        let failed = Arc::<OnceLock<BatchFailure>>::default();
        let failure = Arc::clone(&failed);
        let thread = std::thread::Builder::new()
            .name("redrive-checkpoint".into())
            .spawn(move || run(&connection, &wakes, &failure))
            .expect("the operating system can start one more thread");
        Ok(Checkpoint { pages, sent: 0, failed, wake: Some(wake), thread: Some(thread) })
    }

    /// Returns whether the writer has to copy the rest of the log.
    pub(super) fn is_due(&self) -> bool {
        self.pages.load(Ordering::Relaxed) >= FOREGROUND_PAGES
    }

    /// Returns the failure after which no write is safe.
    pub(super) fn failure(&self) -> Option<BatchFailure> {
        self.failed.get().cloned()
    }

    /// Simulates a failure of the background thread.
    #[cfg(test)]
    pub(super) fn fail(&self, failure: BatchFailure) {
        self.failed.set(failure).expect("a test fails it once");
    }

    /// Wakes the background thread under load, or copies the rest of the log. Fails if no write is safe afterwards.
    pub(super) fn after_commit(&mut self, writer: &Connection, is_busy: bool) -> Result<(), BatchFailure> {
        let pages = self.pages.load(Ordering::Relaxed);
        if self.is_due() {
            copy_passively(writer)?;
            self.pages.store(0, Ordering::Relaxed);
        }
        if pages < self.sent {
            self.sent = 0; // the log was reset
        } else if is_busy && pages >= self.sent + BACKGROUND_PAGES {
            self.sent = pages;
            // A full channel means that the thread is still at work.
            let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
        }
        Ok(())
    }

    /// Ends the background thread and returns its failure.
    pub(super) fn end(mut self) -> Option<BatchFailure> {
        self.join();
        self.failure()
    }

    fn join(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // the panic hook has reported a panic
        }
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        self.join();
    }
}

fn run(connection: &Connection, wakes: &Receiver<()>, failed: &OnceLock<BatchFailure>) {
    let mut is_clean = true;
    loop {
        let is_idle = match wakes.recv_timeout(IDLE_TIMEOUT) {
            Ok(()) => false,
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // At every wake, and once more when no wake has followed.
        let is_needed = !is_idle || !is_clean;
        if is_needed && let Err(failure) = copy_passively(connection) {
            let _ = failed.set(failure); // set only here
            return;
        }
        is_clean = is_idle;
    }
}

/// Copies as much of the log as possible without waiting. The rest stays safe in the log until the next time.
const COPY_PASSIVELY: &str = "PRAGMA wal_checkpoint(PASSIVE)";

/// Copies the whole log and truncates it. Pages that another reader needs stay in the log.
const COPY_ALL: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

fn copy_passively(connection: &Connection) -> Result<(), BatchFailure> {
    checkpoint(connection, COPY_PASSIVELY).map_err(|error| BatchFailure::of(&error))
}

/// Copies the whole log before the file is closed.
pub(super) fn finish(connection: &Connection) -> Result<(), BatchFailure> {
    checkpoint(connection, COPY_ALL).map_err(|error| BatchFailure::of(&error))
}

/// Brings the log that is found at open to stable storage, before anything in it is acknowledged and before anything is appended.
///
/// - A process that was killed between a write to the log and its sync leaves a commit that is only in memory of the kernel. Recovery finds
///   it, and a repeated publish is a duplicate, whose commit syncs nothing.
/// - After a failed sync the kernel counts the pages as written. No later sync writes them, and after a power loss the log ends there, with
///   every later commit behind the gap.
///
/// A checkpoint mends both: it syncs the log, writes the pages that recovery has read from memory into the database file, and syncs that.
/// The next commit starts a new log. A store that does not own the file leaves the log to the owner, which may be writing.
fn copy_found_log(writer: &Connection, is_owner: bool) -> rusqlite::Result<()> {
    let copied = checkpoint(writer, if is_owner { COPY_ALL } else { COPY_PASSIVELY });
    if copied.is_err() {
        // Closing would copy from a log whose content is unknown.
        writer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    }
    copied
}

fn checkpoint(connection: &Connection, statement: &str) -> rusqlite::Result<()> {
    let result = connection.query_row(statement, [], |row| row.get::<_, i64>(0));
    let Err(error) = result else { return Ok(()) };
    if leaves_log_whole(&error) {
        tracing::warn!(target: "redrive::store", %error, "the write-ahead log could not be checkpointed and grows until it can");
        return Ok(());
    }
    Err(error)
}

/// Returns whether only writing to the database file failed, so that the log is still complete.
fn leaves_log_whole(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map_or(ffi::SQLITE_ERROR, |error| error.extended_code);
    matches!(code & 0xff, ffi::SQLITE_FULL | ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED)
        || matches!(code, ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_TRUNCATE)
}
