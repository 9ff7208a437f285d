//! The connection that writes, and what a transaction is on it.
//!
//! Whatever waits becomes one transaction with one sync, and then everybody gets an answer. Settlements ride along: a batch
//! without anything that must be on disk is committed without a sync of its own, because losing a settlement costs one
//! redelivery and nothing else, and the next synced commit hardens it.
//!
//! A commit that fails has an unknown outcome (after a failed sync the kernel may have dropped the pages), so nothing is
//! written after it; nothing is ever answered with a guess.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_retry::planted::Planted;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

use super::Durability;
use super::batch::{self, BatchFailure, Command, Pending, refuse};
use super::checkpoint::{self, Checkpoint};
use super::schema::BUSY_TIMEOUT;
use crate::error::StoreError;
use crate::work::{ClaimSink, DueHint};

/// How often a transaction is begun anew while another process holds the lock, each time after the busy timeout.
const BUSY_ROUNDS: u32 = 6;

/// Who attached to the store takes in what is claimed.
pub(super) type SharedSink = Arc<Mutex<Option<ClaimSink>>>;

/// The only one that writes.
#[derive(Debug)]
pub(super) struct Committer {
    pub(super) connection: Connection,
    pub(super) durability: Durability,
    /// Whether commits sync at the moment.
    pub(super) synced: bool,
    pub(super) sink: SharedSink,
    pub(super) due: Arc<DueHint>,
    /// Why nothing is written any more.
    pub(super) stopped: Option<BatchFailure>,
    /// Writes the log back to the database; none in memory, where there is no log.
    pub(super) checkpoint: Option<Checkpoint>,
}

impl Committer {
    /// One transaction for all, and for what comes meanwhile; then the answers.
    pub(super) fn batch(&mut self, commands: &mut Vec<Command>, mut more: impl FnMut(&mut Vec<Command>)) {
        if commands.is_empty() {
            return;
        }
        let mut pending = Pending::default();
        let fate = match self.open(commands, &mut more) {
            Ok(true) => self.carry_out(commands, more, &mut pending),
            Ok(false) => self.carry_out(commands, |_| {}, &mut pending),
            Err(failure) => Err(failure),
        };
        self.tell(fate, commands, pending);
    }

    /// One command in a transaction of its own, without waiting for anybody; given back where that is not possible.
    pub(super) fn at_once(&mut self, command: Command) -> Option<Command> {
        let is_free =
            self.why_stopped().is_none() && !self.checkpoint.as_ref().is_some_and(Checkpoint::is_due);
        if !is_free || self.set_sync(command.needs_sync()).is_err() || !self.begins_at_once() {
            return Some(command);
        }
        let (mut commands, mut pending) = (vec![command], Pending::default());
        let fate = self.carry_out(&mut commands, |_| {}, &mut pending);
        self.tell(fate, &mut commands, pending);
        None
    }

    /// Writes the log back if it is long enough.
    pub(super) fn checkpoint(&mut self, is_crowded: bool) {
        if self.why_stopped().is_some() {
            return;
        }
        let written =
            self.checkpoint.as_ref().map(|checkpoint| checkpoint.after_commit(&self.connection, is_crowded));
        if let Some(Err(failure)) = written {
            self.stop(&failure);
        }
    }

    /// Closes the file, and leaves no log behind. Fails if nobody knows what is in the file then.
    pub(super) fn close(mut self) -> Result<(), StoreError> {
        // The background has gone before the file is closed; what it found out last counts.
        let is_whole = self.why_stopped().is_none();
        let failed = self.checkpoint.take().and_then(Checkpoint::end);
        if let Some(failure) = failed.filter(|_| is_whole) {
            self.stop(&failure);
        } else if is_whole && let Err(failure) = checkpoint::finish(&self.connection) {
            self.stop(&failure);
        }
        self.stopped.as_ref().map_or(Ok(()), |failure| Err(failure.to_error()))
    }

    /// Why nothing is written any more, if so.
    fn why_stopped(&mut self) -> Option<&BatchFailure> {
        if self.stopped.is_none()
            && let Some(failure) = self.checkpoint.as_ref().and_then(Checkpoint::failure)
        {
            self.stop(&failure);
        }
        self.stopped.as_ref()
    }

    /// Writes nothing any more if this failure leaves unknown what is in the file.
    pub(super) fn stop(&mut self, failure: &BatchFailure) {
        tracing::error!(target: "redrive::store", ?failure, "the file could not be written");
        if self.stopped.is_none() && !Planted::FailedSyncIgnored.is_here() {
            self.stopped = failure.is_final();
        }
        if self.stopped.is_some() {
            // What is in the log may not be what was written there; it is not to be copied into the database.
            let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }

    /// Begins a transaction, and says whether its commit syncs.
    fn open(
        &mut self,
        commands: &mut Vec<Command>,
        more: &mut impl FnMut(&mut Vec<Command>),
    ) -> Result<bool, BatchFailure> {
        if let Some(failure) = self.why_stopped() {
            return Err(failure.clone());
        }
        if !commands.iter().any(Command::needs_sync) {
            more(commands); // whether to sync must be known before the transaction begins
        }
        let sync = commands.iter().any(Command::needs_sync);
        self.set_sync(sync)?;
        self.begin()?;
        Ok(sync)
    }

    /// Everything inside the transaction, and its commit.
    fn carry_out(
        &mut self,
        commands: &mut Vec<Command>,
        mut more: impl FnMut(&mut Vec<Command>),
        pending: &mut Pending,
    ) -> Result<(), BatchFailure> {
        pending.sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner).clone();
        while !commands.is_empty() {
            batch::execute(&self.connection, commands, pending)?;
            more(commands);
        }
        if Planted::AcknowledgeBeforeCommit.is_here() {
            let mut early = std::mem::take(pending);
            early.hand_over();
            early.answer(Ok(()));
        }
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
        // A sync that failed beside it may have taken from the log what this commit stands on.
        self.checkpoint.as_ref().and_then(Checkpoint::failure).map_or(Ok(()), Err)
    }

    /// Hands over what was claimed, and answers everybody.
    fn tell(&mut self, fate: Result<(), BatchFailure>, commands: &mut Vec<Command>, mut pending: Pending) {
        if let Err(failure) = &fate {
            self.stop(failure);
            // Those that were not reached.
            for command in commands.drain(..) {
                refuse(command, failure);
            }
        } else {
            pending.hand_over();
            if let Some(at) = pending.earliest_due {
                self.due.pull_forward(at);
            }
        }
        pending.answer(fate.as_ref().copied());
    }

    /// Begins a transaction if nobody is in the way.
    fn begins_at_once(&self) -> bool {
        let begun = self.connection.busy_timeout(Duration::ZERO).and_then(|()| self.begin_once());
        begun.and(self.connection.busy_timeout(BUSY_TIMEOUT)).is_ok()
    }

    fn begin_once(&self) -> rusqlite::Result<()> {
        // IMMEDIATE always: a transaction that becomes a writer later fails at once, whatever the timeout.
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    /// Waits for other processes with a pause that grows, for half a minute in all.
    fn begin(&self) -> Result<(), BatchFailure> {
        let mut rounds = 0;
        loop {
            match self.begin_once() {
                Ok(()) => return Ok(()),
                Err(error) => match error.sqlite_error_code() {
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) if rounds < BUSY_ROUNDS => {
                        rounds += 1;
                        std::thread::sleep(Duration::from_millis(1 << rounds));
                    }
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                        return Err(BatchFailure::Busy);
                    }
                    _ => return Err(BatchFailure::of(&error)),
                },
            }
        }
    }

    fn set_sync(&mut self, sync: bool) -> Result<(), BatchFailure> {
        let sync = sync && !Planted::NormalForFull.is_here();
        if self.durability == Durability::Relaxed || self.synced == sync {
            return Ok(());
        }
        let level = if sync { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
        self.connection.execute_batch(level).map_err(|error| BatchFailure::of(&error))?;
        self.synced = sync;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::sqlite::batch::Reply;
    use crate::sqlite::schema;

    fn append() -> (Command, oneshot::Receiver<Result<Vec<crate::store::Appended>, StoreError>>) {
        let (reply, answer): (Reply<_>, _) = oneshot::channel();
        (Command::Append { rows: Vec::new(), reply }, answer)
    }

    /// A command over which the engine gives the whole transaction up, with this error.
    fn broken(code: i32) -> Command {
        let work: batch::Work = Box::new(move |connection| {
            let connection = connection.unwrap();
            let result = batch::savepoint(connection, |connection| {
                connection.prepare_cached("ROLLBACK")?.execute([])?;
                let error = rusqlite::ffi::Error::new(code);
                Err::<(), _>(StoreError::Engine(rusqlite::Error::SqliteFailure(error, None)))
            });
            let failure = result.as_ref().err().and_then(BatchFailure::behind);
            batch::Ran { failure, completion: None }
        });
        Command::Run { work, sync: true }
    }

    #[test]
    fn an_error_of_the_device_is_no_full_disk_whoever_meets_it() {
        for (code, is_final) in [(rusqlite::ffi::SQLITE_IOERR, true), (rusqlite::ffi::SQLITE_FULL, false)] {
            let mut committer = Committer {
                connection: schema::open_writer(std::path::Path::new(":memory:"), Durability::Full).unwrap(),
                durability: Durability::Full,
                synced: true,
                sink: Arc::default(),
                due: Arc::new(DueHint::new()),
                stopped: None,
                checkpoint: None,
            };
            let ((before, mut first), (after, mut last)) = (append(), append());
            committer.batch(&mut vec![before, broken(code), after], |_| {});
            for answer in [&mut first, &mut last] {
                let error = answer.try_recv().unwrap().unwrap_err();
                assert_eq!(matches!(error, StoreError::Unknown { .. }), is_final, "{error}");
                assert_eq!(matches!(error, StoreError::DiskFull), !is_final, "{error}");
            }
            assert_eq!(committer.why_stopped().is_some(), is_final);
        }
    }

    #[test]
    fn nothing_is_written_after_a_failed_checkpoint_and_nothing_written_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redrive.db");
        let mut connection = schema::open_writer(&path, Durability::Full).unwrap();
        let checkpoint = Checkpoint::start(&path, &mut connection).unwrap();
        let mut committer = Committer {
            connection,
            durability: Durability::Full,
            synced: true,
            sink: Arc::default(),
            due: Arc::new(DueHint::new()),
            stopped: None,
            checkpoint: Some(checkpoint),
        };
        let (command, mut answer) = append();
        committer.batch(&mut vec![command], |_| {});
        answer.try_recv().unwrap().unwrap();

        // During a commit: its end is unknown.
        let (command, mut answer) = append();
        let mut commands = vec![command];
        committer.open(&mut commands, &mut |_| {}).unwrap();
        committer.checkpoint.as_ref().unwrap().fail(BatchFailure::Unknown("disk I/O error".to_owned()));
        let mut pending = Pending::default();
        let fate = committer.carry_out(&mut commands, |_| {}, &mut pending);
        committer.tell(fate, &mut commands, pending);
        assert!(matches!(answer.try_recv().unwrap(), Err(StoreError::Unknown { .. })));

        // After it: nothing is tried.
        let (command, mut answer) = append();
        let given_back = committer.at_once(command).unwrap();
        committer.batch(&mut vec![given_back], |_| {});
        assert!(matches!(answer.try_recv().unwrap(), Err(StoreError::Stopped { .. })));

        let log = folder.path().join("redrive.db-wal");
        let before = std::fs::metadata(&log).unwrap().len();
        assert!(matches!(committer.close(), Err(StoreError::Stopped { .. })));
        assert_eq!(std::fs::metadata(&log).unwrap().len(), before);
    }
}
