//! Group commit: one transaction and one sync for all commands that wait together.
//!
//! The writer's thread gives all waiting commands to the [`Committer`] as one batch: `BEGIN IMMEDIATE`, all statements, `COMMIT` with one
//! sync of the write-ahead log. Only then does the committer hand claims to the dispatcher and reply to the callers. So a publish that
//! returned `Ok` is on stable storage, and a hundred concurrent publishers share the price of one sync.
//!
//! A batch of only settlements and claims is committed without a sync: a lost settlement costs one redelivery, and the next synced
//! commit makes it durable. A failed commit has an unknown outcome, because after a failed sync the kernel may have dropped the pages.
//! The committer then refuses all later writes.
//!
//! The [`CommitLock`] guards the committer. The writer's thread holds it batch by batch. An uncontended publisher may take it and commit
//! inline on its own thread, because two thread switches take a good part of the time of a sync. Five conditions make that harmless: the
//! last commit was short, so an async thread blocks for less than a millisecond; the runtime has other worker threads; there is one
//! committer, so at most one thread blocks even if the disk hangs; an inline commit waits for no other transaction; and checkpoints stay
//! with the writer's thread.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use redrive_retry::fault;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::Durability;
use super::batch::{self, Command, refuse};
use super::checkpoint::{self, Checkpoint};
use super::schema::BUSY_TIMEOUT;
use super::transaction::{BatchFailure, Uncommitted};
use crate::error::StoreError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::work::{ClaimSink, DueHint};

/// Number of times that `BEGIN` is retried while another process holds the write lock, each time after the busy timeout.
const MAX_BUSY_RETRIES: u32 = 6;

/// The sink that is attached to the store, if any.
pub(super) type SharedSink = Arc<std::sync::Mutex<Option<ClaimSink>>>;

/// The connection that writes, and its transactions.
#[derive(Debug)]
pub(super) struct Committer {
    connection: Connection,
    durability: Durability,
    /// Whether the connection is set to sync at commit.
    synced: bool,
    sink: SharedSink,
    due: Arc<DueHint>,
    /// The failure after which every write is refused.
    stopped: Option<BatchFailure>,
    /// Copies the write-ahead log into the database file; `None` for a database in memory.
    checkpoint: Option<Checkpoint>,
}

impl Committer {
    pub(super) fn new(
        connection: Connection,
        durability: Durability,
        sink: SharedSink,
        due: Arc<DueHint>,
        checkpoint: Option<Checkpoint>,
    ) -> Self {
        Committer { connection, durability, synced: true, sink, due, stopped: None, checkpoint }
    }

    /// Commits all commands, and those that `more` adds meanwhile, in one transaction, and sends the replies.
    pub(super) fn commit_batch(
        &mut self,
        commands: &mut Vec<Command>,
        mut more: impl FnMut(&mut Vec<Command>),
    ) {
        if commands.is_empty() {
            return;
        }
        let mut uncommitted = Uncommitted::default();
        let outcome = match self.open(commands, &mut more) {
            Ok(true) => self.execute_and_commit(commands, more, &mut uncommitted),
            Ok(false) => self.execute_and_commit(commands, |_| {}, &mut uncommitted),
            Err(failure) => Err(failure),
        };
        self.reply(outcome, commands, uncommitted);
    }

    /// Commits one command in a transaction of its own. Returns the command if that is not possible without waiting.
    pub(super) fn commit_inline(&mut self, command: Command) -> Option<Command> {
        let is_possible =
            self.why_stopped().is_none() && !self.checkpoint.as_ref().is_some_and(Checkpoint::is_due);
        if !is_possible || self.set_sync(command.needs_sync()).is_err() || !self.begin_without_waiting() {
            return Some(command);
        }
        let (mut commands, mut uncommitted) = (vec![command], Uncommitted::default());
        let outcome = self.execute_and_commit(&mut commands, |_| {}, &mut uncommitted);
        self.reply(outcome, &mut commands, uncommitted);
        None
    }

    /// Checkpoints the write-ahead log if it has grown long.
    pub(super) fn checkpoint(&mut self, is_busy: bool) {
        if self.why_stopped().is_some() {
            return;
        }
        if let Some(checkpoint) = &mut self.checkpoint
            && let Err(failure) = checkpoint.after_commit(&self.connection, is_busy)
        {
            self.stop(&failure);
        }
    }

    /// Checkpoints the whole log and closes the file. Fails if the content of the file is unknown then.
    pub(super) fn close(mut self) -> Result<(), StoreError> {
        // The background thread ends before the file is closed; its last failure counts.
        let is_whole = self.why_stopped().is_none();
        let failed = self.checkpoint.take().and_then(Checkpoint::end);
        if let Some(failure) = failed.filter(|_| is_whole) {
            self.stop(&failure);
        } else if is_whole && let Err(failure) = checkpoint::finish(&self.connection) {
            self.stop(&failure);
        }
        self.stopped.as_ref().map_or(Ok(()), |failure| Err(failure.to_error()))
    }

    /// Returns the failure after which every write is refused.
    fn why_stopped(&mut self) -> Option<&BatchFailure> {
        if self.stopped.is_none()
            && let Some(failure) = self.checkpoint.as_ref().and_then(Checkpoint::failure)
        {
            self.stop(&failure);
        }
        self.stopped.as_ref()
    }

    /// Refuses all later writes if this failure leaves the content of the file unknown.
    pub(super) fn stop(&mut self, failure: &BatchFailure) {
        tracing::error!(target: "redrive::store", ?failure, "the file could not be written");
        if self.stopped.is_none() && !fault!("failed-sync-ignored") {
            self.stopped = failure.is_final();
        }
        if self.stopped.is_some() {
            // The log may not hold what was written to it, so it must not be copied into the database file.
            let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }

    /// Begins a transaction and returns whether its commit syncs.
    fn open(
        &mut self,
        commands: &mut Vec<Command>,
        more: &mut impl FnMut(&mut Vec<Command>),
    ) -> Result<bool, BatchFailure> {
        if let Some(failure) = self.why_stopped() {
            return Err(failure.clone());
        }
        if !commands.iter().any(Command::needs_sync) {
            more(commands); // the sync mode is set before the transaction begins
        }
        let sync = commands.iter().any(Command::needs_sync);
        self.set_sync(sync)?;
        self.begin()?;
        Ok(sync)
    }

    /// Executes all commands inside the open transaction and commits it.
    fn execute_and_commit(
        &mut self,
        commands: &mut Vec<Command>,
        mut more: impl FnMut(&mut Vec<Command>),
        uncommitted: &mut Uncommitted,
    ) -> Result<(), BatchFailure> {
        uncommitted.sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner).clone();
        while !commands.is_empty() {
            batch::execute(&self.connection, commands, uncommitted)?;
            more(commands);
        }
        fault!("acknowledge-before-commit" => { uncommitted.hand_over(); std::mem::take(uncommitted).reply(Ok(())) });
        self.connection
            .prepare_cached("COMMIT")
            .and_then(|mut commit| commit.execute([]))
            .map(drop)
            .map_err(|error| match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => {
                    let _ = self.connection.execute_batch("ROLLBACK");
                    BatchFailure::DiskFull
                }
                _ => BatchFailure::of(&error),
            })?;
        // A checkpoint whose sync failed meanwhile may have lost log pages that this commit depends on.
        self.checkpoint.as_ref().and_then(Checkpoint::failure).map_or(Ok(()), Err)
    }

    /// Hands claimed deliveries over and replies to every command.
    fn reply(
        &mut self,
        outcome: Result<(), BatchFailure>,
        commands: &mut Vec<Command>,
        mut uncommitted: Uncommitted,
    ) {
        if let Err(failure) = &outcome {
            self.stop(failure);
            // These commands were not executed.
            for command in commands.drain(..) {
                refuse(command, failure);
            }
        } else {
            uncommitted.hand_over();
            if let Some(at) = uncommitted.earliest_due {
                self.due.pull_forward(at);
            }
        }
        uncommitted.reply(outcome.as_ref().copied());
    }

    /// Begins a transaction unless another process holds the write lock.
    fn begin_without_waiting(&self) -> bool {
        let begun = self.connection.busy_timeout(Duration::ZERO).and_then(|()| self.begin_once());
        begun.and(self.connection.busy_timeout(BUSY_TIMEOUT)).is_ok()
    }

    fn begin_once(&self) -> rusqlite::Result<()> {
        // Always IMMEDIATE: SQLite refuses a read transaction that upgrades to a write at once, whatever the busy timeout.
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    /// Begins a transaction and waits for other processes, half a minute in all.
    fn begin(&self) -> Result<(), BatchFailure> {
        for retry in 1.. {
            let Err(error) = self.begin_once() else { break };
            if !matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
            {
                return Err(BatchFailure::of(&error));
            }
            if retry > MAX_BUSY_RETRIES {
                return Err(BatchFailure::Busy);
            }
            std::thread::sleep(Duration::from_millis(1 << retry));
        }
        Ok(())
    }

    fn set_sync(&mut self, sync: bool) -> Result<(), BatchFailure> {
        let sync = sync && !fault!("normal-for-full");
        if self.durability == Durability::Relaxed || self.synced == sync {
            return Ok(());
        }
        let level = if sync { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
        self.connection.execute_batch(level).map_err(|error| BatchFailure::of(&error))?;
        self.synced = sync;
        Ok(())
    }
}

/// The lock on the committer, and the conditions for an inline commit.
#[derive(Debug)]
pub(super) struct CommitLock {
    /// `None` once the store is closed. A std mutex: no holder awaits anything.
    committer: Mutex<Option<Committer>>,
    /// Whether the last batch was one command that was committed in a short time.
    uncontended: AtomicBool,
    /// Whether the writer's thread has commands and waits for the lock: it goes first.
    thread_waits: AtomicBool,
    /// Commits that take this long or longer stay off async threads.
    pub(super) inline_commit_below: Duration,
}

impl CommitLock {
    pub(super) fn new(committer: Committer, inline_commit_below: Duration) -> Self {
        CommitLock {
            committer: Mutex::new(Some(committer)),
            uncontended: AtomicBool::new(false),
            thread_waits: AtomicBool::new(false),
            inline_commit_below,
        }
    }

    /// Waits for the lock. Called by the writer's thread.
    pub(super) fn acquire(&self) -> MutexGuard<'_, Option<Committer>> {
        self.thread_waits.store(true, Ordering::Relaxed);
        let guard = match self.committer.lock() {
            Ok(guard) => guard,
            Err(poisoned) => {
                let mut guard = poisoned.into_inner();
                if let Some(committer) = guard.as_mut().filter(|committer| committer.stopped.is_none()) {
                    // The panic left a transaction open whose content is unknown.
                    committer.stop(&BatchFailure::Unknown("a commit panicked".to_owned()));
                }
                guard
            }
        };
        self.thread_waits.store(false, Ordering::Relaxed);
        guard
    }

    /// Records whether the last batch was one short command with no other waiting.
    pub(super) fn set_uncontended(&self, uncontended: bool) {
        self.uncontended.store(uncontended, Ordering::Relaxed);
    }

    /// Commits a single append on the caller's thread if that is harmless. Otherwise returns the command.
    pub(super) fn try_commit_inline(&self, command: Command) -> Option<Command> {
        let is_free = self.uncontended.load(Ordering::Relaxed) && !self.thread_waits.load(Ordering::Relaxed);
        let is_append = matches!(command, Command::AppendOne { .. });
        if !is_append || !is_free || !runtime_has_other_threads() {
            return Some(command);
        }
        // Neither if the lock is poisoned: the writer's thread then stops all writes.
        let Ok(mut committer) = self.committer.try_lock() else { return Some(command) };
        let Some(committer) = committer.as_mut() else { return Some(command) };
        let began = Instant::now();
        let returned = committer.commit_inline(command);
        if began.elapsed() >= self.inline_commit_below {
            self.set_uncontended(false);
        }
        returned
    }

    /// Takes the committer out for good and closes the file.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        // Through `acquire`: after a panic in a commit, closing must not write either.
        let committer = self.acquire().take();
        committer.map_or(Ok(()), Committer::close)
    }
}

fn runtime_has_other_threads() -> bool {
    Handle::try_current().is_ok_and(|handle| {
        handle.runtime_flavor() == RuntimeFlavor::MultiThread && handle.metrics().num_workers() > 1
    })
}

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
#[cfg(test)]
mod tests;
