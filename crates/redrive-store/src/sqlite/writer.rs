//! The one thread that writes, and the group commit that makes it fast.
//!
//! Whatever waits becomes one transaction with one sync, and then everybody gets an answer. Settlements ride along: a batch
//! without anything that must be on disk is committed without a sync of its own, because losing a settlement costs one
//! redelivery and nothing else, and the next synced commit hardens it.
//!
//! A commit that fails has an unknown outcome (after a failed sync the kernel may have dropped the pages), so the
//! thread stops there; nothing is ever answered with a guess.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use redrive_retry::Clock;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::Durability;
use super::batch::{self, BatchFailure, Command, Pending, Reply, Work, answer, refuse, savepoint};
use super::checkpoint::Checkpoint;
use super::rhythm::{BATCH, Rhythm};
use crate::error::StoreError;
use crate::store::Finished;
use crate::work::{ClaimSink, Claimed, DueHint, Settlement};

/// How often a transaction is begun anew while another process holds the lock, each time after the busy timeout.
const BUSY_ROUNDS: u32 = 6;

/// The longest pause before a claim that could not be ended is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The handle to the thread.
#[derive(Debug)]
pub(super) struct Writer {
    // Taken out when the store is closed; dropping it ends the thread.
    sender: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    sink: Arc<Mutex<Option<ClaimSink>>>,
    due: Arc<DueHint>,
    clock: Clock,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        durability: Durability,
        queue: usize,
        clock: Clock,
        checkpoint: Option<Checkpoint>,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(queue.max(1));
        let (sink, due) = (Arc::<Mutex<Option<ClaimSink>>>::default(), Arc::new(DueHint::new()));
        let thread = WriterThread {
            connection,
            durability,
            synced: true,
            sink: Arc::clone(&sink),
            due: Arc::clone(&due),
            stopped: None,
            checkpoint,
        };
        let thread = std::thread::Builder::new()
            .name("redrive-writer".into())
            .spawn(move || thread.run(receiver))
            .expect("a thread can be started, or the program cannot work at all");
        Writer { sender: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)), sink, due, clock }
    }

    pub(super) fn attach(&self, sink: Option<ClaimSink>) {
        *lock(&self.sink) = sink;
    }

    pub(super) fn due_hint(&self) -> Arc<DueHint> {
        Arc::clone(&self.due)
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn call<T>(&self, make: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let sender = lock(&self.sender).clone().ok_or(StoreError::Closed)?;
        let _busy = self.clock.busy();
        let (reply, answer) = oneshot::channel();
        sender.send(make(reply)).await.map_err(|_| StoreError::Closed)?;
        drop(sender);
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Ends a claim. As long as the disk is full or another process holds the file, it is tried again: the work was done, and
    /// would be done once more otherwise.
    pub(super) async fn settle(
        &self,
        mut claimed: Claimed,
        mut settlement: Box<Settlement>,
    ) -> Result<Finished, StoreError> {
        let mut wait = Duration::from_millis(50);
        loop {
            let sender = lock(&self.sender).clone().ok_or(StoreError::Closed)?;
            let answered = {
                let _busy = self.clock.busy();
                let (reply, answer) = oneshot::channel();
                let command = Command::Settle { claimed, settlement, reply };
                sender.send(command).await.map_err(|_| StoreError::Closed)?;
                drop(sender);
                answer.await
            };
            match answered {
                Ok(Ok(finished)) => return Ok(finished),
                Ok(Err((StoreError::Busy | StoreError::DiskFull, back, again))) => {
                    (claimed, settlement) = (back, again);
                    self.clock.sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                Ok(Err((error, ..))) => return Err(error),
                Err(_) => return Err(StoreError::Closed),
            }
        }
    }

    /// Runs a closure inside the next transaction; its changes are undone if it fails, and on stable storage if not.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_with(true, work).await
    }

    /// The same for a change that may be lost with the power: it would only be made again.
    pub(super) async fn run_unsynced<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_with(false, work).await
    }

    async fn run_with<T: Send + 'static>(
        &self,
        sync: bool,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call(|reply: Reply<T>| {
            let work: Work = Box::new(move |connection| match connection {
                Ok(connection) => {
                    let result = savepoint(connection, |connection| work(connection));
                    Some(Box::new(move |fate| answer(reply, result, fate)))
                }
                Err(failure) => {
                    answer(reply, Err(StoreError::Closed), Err(failure));
                    None
                }
            });
            Command::Run { work, sync }
        })
        .await
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.sender).is_none()
    }

    /// Lets everything that was sent finish, then closes the file.
    pub(super) async fn close(&self) -> Result<(), StoreError> {
        let Some(sender) = lock(&self.sender).take() else { return Ok(()) };
        let (reply, answer) = oneshot::channel();
        if sender.send(Command::Close { reply }).await.is_err() {
            return Ok(());
        }
        drop(sender);
        answer.await.unwrap_or(Ok(()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.sender).take();
        if let Some(thread) = lock(&self.thread).take() {
            // What was sent is finished first. The thread does not panic; if it did, it has said so itself.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct WriterThread {
    connection: Connection,
    durability: Durability,
    /// Whether commits sync at the moment.
    synced: bool,
    sink: Arc<Mutex<Option<ClaimSink>>>,
    due: Arc<DueHint>,
    /// Why nothing is written any more.
    stopped: Option<String>,
    /// Writes the log back to the database; none in memory, where there is no log.
    checkpoint: Option<Checkpoint>,
}

impl WriterThread {
    fn run(mut self, mut receiver: mpsc::Receiver<Command>) {
        let mut commands = Vec::with_capacity(BATCH);
        let mut rhythm = Rhythm::new();
        loop {
            rhythm.begin(&mut receiver, &mut commands);
            if commands.is_empty() {
                return;
            }
            let mut after = split_off_close(&mut commands);
            self.batch(&mut commands, |more| {
                if after.is_empty() {
                    rhythm.go_on(&mut receiver, more);
                    after = split_off_close(more);
                }
            });
            if let Some(checkpoint) = &self.checkpoint {
                checkpoint.after_commit(&self.connection, rhythm.is_crowded());
            }
            rhythm.end(&receiver);
            if !after.is_empty() {
                receiver.close();
                // The background has gone before the file is closed; both before anybody is told so.
                drop(self.checkpoint.take());
                let _ = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
                drop(self);
                close_all(after);
                return;
            }
        }
    }

    /// One transaction for all, and for what comes meanwhile; then the answers.
    fn batch(&mut self, commands: &mut Vec<Command>, more: impl FnMut(&mut Vec<Command>)) {
        if commands.is_empty() {
            return;
        }
        let mut pending = Pending::default();
        let fate = self.transaction(commands, more, &mut pending);
        if let Err(failure) = &fate {
            tracing::error!(target: "redrive::store", ?failure, "a transaction failed");
            if let BatchFailure::Unknown(why) = failure {
                self.stopped = Some(why.clone());
            }
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

    fn transaction(
        &mut self,
        commands: &mut Vec<Command>,
        mut more: impl FnMut(&mut Vec<Command>),
        pending: &mut Pending,
    ) -> Result<(), BatchFailure> {
        if let Some(why) = &self.stopped {
            return Err(BatchFailure::Stopped(why.clone()));
        }
        if !commands.iter().any(Command::needs_sync) {
            more(commands); // whether to sync must be known before the transaction begins
        }
        let sync = commands.iter().any(Command::needs_sync);
        self.set_sync(sync)?;
        self.begin()?;
        pending.sink = lock(&self.sink).clone();
        while !commands.is_empty() {
            batch::execute(&self.connection, commands, pending)?;
            if sync {
                more(commands);
            }
        }
        self.connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])).map(drop).map_err(
            |error| match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => {
                    let _ = self.connection.execute_batch("ROLLBACK");
                    BatchFailure::DiskFull
                }
                _ => BatchFailure::Unknown(error.to_string()),
            },
        )
    }

    /// Waits for other processes with a pause that grows, for half a minute in all.
    fn begin(&self) -> Result<(), BatchFailure> {
        let mut rounds = 0;
        loop {
            // IMMEDIATE always: a transaction that becomes a writer later fails at once, whatever the timeout.
            let begun =
                self.connection.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([]));
            match begun {
                Ok(_) => return Ok(()),
                Err(error) => match error.sqlite_error_code() {
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) if rounds < BUSY_ROUNDS => {
                        rounds += 1;
                        std::thread::sleep(Duration::from_millis(1 << rounds));
                    }
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                        return Err(BatchFailure::Busy);
                    }
                    Some(ErrorCode::DiskFull) => return Err(BatchFailure::DiskFull),
                    _ => return Err(BatchFailure::Unknown(error.to_string())),
                },
            }
        }
    }

    fn set_sync(&mut self, sync: bool) -> Result<(), BatchFailure> {
        if self.durability == Durability::Relaxed || self.synced == sync {
            return Ok(());
        }
        let level = if sync { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
        self.connection.execute_batch(level).map_err(|error| BatchFailure::Unknown(error.to_string()))?;
        self.synced = sync;
        Ok(())
    }
}

/// The first request to close, and all that was sent after it.
fn split_off_close(commands: &mut Vec<Command>) -> Vec<Command> {
    let close = commands.iter().position(|command| matches!(command, Command::Close { .. }));
    close.map(|at| commands.split_off(at)).unwrap_or_default()
}

/// Answers commands that came after the end.
fn close_all(commands: Vec<Command>) {
    for command in commands {
        match command {
            Command::Close { reply } => drop(reply.send(Ok(()))),
            Command::AppendOne { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            Command::Append { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            Command::Claim { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            // Their replies are dropped with them, which says the same.
            Command::Settle { .. } | Command::Run { .. } => {}
        }
    }
}
