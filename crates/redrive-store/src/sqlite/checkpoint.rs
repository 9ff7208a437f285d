//! Writes the log back to the database, beside the writer instead of inside its commits.
//!
//! A checkpoint inside a commit makes everybody wait for some megabytes of writes and one more sync. So where many wait, a
//! thread with a connection of its own does it while the writer goes on. It cannot start the log anew while there is always
//! something in it that it has not seen; therefore the writer itself finishes the rest now and then, which is short. Where
//! only a few wait, the writer does all of it: two threads that sync one disk at the same time hold each other up.
//!
//! A checkpoint syncs the log before it copies from it. If that fails, the kernel may have dropped commits that nobody had
//! synced before, and a hole in the log hides every commit behind it, however well that one is synced. So nothing is written
//! any more, exactly as after a commit that failed.

use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ffi};

use super::batch::BatchFailure;
use super::schema;
use crate::error::StoreError;

/// Pages in the log after which the background begins, and after so many more again.
const BACKGROUND: i32 = 500;

/// Pages in the log at which the writer finishes what the background has left over, so that the log starts anew.
const FOREGROUND: i32 = 1000;

/// How long there must be nothing new before the rest is written back, too.
const QUIET: Duration = Duration::from_secs(1);

/// The thread, and how long the log is.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pages: Arc<AtomicI32>,
    /// How long the log was when the background was last sent.
    sent: AtomicI32,
    /// What stopped the background for good.
    failed: Arc<OnceLock<BatchFailure>>,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoint {
    /// Takes over from the engine's own checkpoints on the connection that writes.
    pub(super) fn start(path: &Path, writer: &mut Connection) -> Result<Self, StoreError> {
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
            .expect("a thread can be started, or the program cannot work at all");
        Ok(Checkpoint { pages, sent: AtomicI32::new(0), failed, wake: Some(wake), thread: Some(thread) })
    }

    /// Whether the writer is to finish what the background has left over.
    pub(super) fn is_due(&self) -> bool {
        self.pages.load(Ordering::Relaxed) >= FOREGROUND
    }

    /// Why nothing may be written any more.
    pub(super) fn failure(&self) -> Option<BatchFailure> {
        self.failed.get().cloned()
    }

    /// As if the background had failed.
    #[cfg(test)]
    pub(super) fn fail(&self, failure: BatchFailure) {
        self.failed.set(failure).expect("it fails once");
    }

    /// Sends the background if many wait, or finishes what is left over. Fails if nothing may be written after it.
    pub(super) fn after_commit(&self, writer: &Connection, is_crowded: bool) -> Result<(), BatchFailure> {
        let pages = self.pages.load(Ordering::Relaxed);
        if self.is_due() {
            write_back(writer)?;
            self.pages.store(0, Ordering::Relaxed);
        }
        let sent = self.sent.load(Ordering::Relaxed);
        if pages < sent {
            self.sent.store(0, Ordering::Relaxed); // the log was started anew
        } else if is_crowded && pages >= sent + BACKGROUND {
            self.sent.store(pages, Ordering::Relaxed);
            // If it is still busy with the last time, it is busy enough.
            let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
        }
        Ok(())
    }
}

impl Checkpoint {
    /// Ends the background, and says why nothing may be written after it.
    pub(super) fn end(mut self) -> Option<BatchFailure> {
        self.join();
        self.failure()
    }

    fn join(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it does not panic; if it did, it has said so itself
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
        let written = match wakes.recv_timeout(QUIET) {
            Ok(()) => {
                is_clean = false;
                write_back(connection)
            }
            Err(RecvTimeoutError::Timeout) if is_clean => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                is_clean = true;
                write_back(connection)
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Err(failure) = written {
            let _ = failed.set(failure); // nobody else sets it
            return;
        }
    }
}

/// Passive: waits for nobody. What it cannot write back now it will the next time; the data is safe in the log.
fn write_back(connection: &Connection) -> Result<(), BatchFailure> {
    checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)")
}

/// All of it, at the end, and the log is empty then. What others keep from being written back stays in the log.
pub(super) fn finish(connection: &Connection) -> Result<(), BatchFailure> {
    checkpoint(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
}

fn checkpoint(connection: &Connection, statement: &str) -> Result<(), BatchFailure> {
    let result = connection.query_row(statement, [], |row| row.get::<_, i64>(0));
    let Err(error) = result else { return Ok(()) };
    if leaves_log_whole(&error) {
        tracing::warn!(target: "redrive::store", %error, "the log could not be written back; it grows until it can be");
        return Ok(());
    }
    Err(BatchFailure::of(&error))
}

/// Whether only the database could not be written: the log still has everything, and is read instead.
fn leaves_log_whole(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map_or(ffi::SQLITE_ERROR, |error| error.extended_code);
    matches!(code & 0xff, ffi::SQLITE_FULL | ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED)
        || matches!(code, ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_TRUNCATE)
}
