//! The one thread that writes, and the group commit that makes it fast.
//!
//! Whatever waits, up to [`BATCH`] commands, becomes one transaction with one sync, and then everybody gets an answer.
//! Settlements ride along: a batch without anything that must be on disk is committed without a sync of its own, because
//! losing a settlement costs one redelivery and nothing else, and the next synced commit hardens it.
//!
//! A commit that fails has an unknown outcome (after a failed sync the kernel may have dropped the pages), so the
//! thread stops there; nothing is ever answered with a guess.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redrive_retry::{Clock, Timestamp};
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::{Durability, append, claim, settle};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::store::{Appended, Finished};
use crate::work::{ClaimSink, Claimed, DueHint, Settlement};

/// The most commands in one transaction.
const BATCH: usize = 1024;

/// How often a transaction is begun anew while another process holds the lock, each time after the busy timeout.
const BUSY_ROUNDS: u32 = 6;

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the thread is asked to do. The frequent ones are typed; the rest is a closure.
pub(super) enum Command {
    Append { events: Vec<NewEvent>, reply: Reply<Vec<Appended>> },
    Claim { now: Timestamp, reply: Reply<usize> },
    Settle { claimed: Claimed, settlement: Box<Settlement>, reply: Reply<Finished> },
    Run { work: Box<dyn FnOnce(&Connection) -> Completion + Send>, sync: bool },
    Close { reply: Reply<()> },
}

impl Command {
    /// Whether the answer promises that the change is on stable storage.
    fn needs_sync(&self) -> bool {
        !matches!(self, Command::Claim { .. } | Command::Settle { .. } | Command::Run { sync: false, .. })
    }
}

/// Called when the fate of the transaction is known.
pub(super) type Completion = Box<dyn FnOnce(Result<(), &BatchFailure>) + Send>;

/// Why a whole batch failed.
#[derive(Clone, Debug)]
pub(super) enum BatchFailure {
    /// Rolled back; nothing was changed.
    DiskFull,
    /// Rolled back; nothing was changed.
    Busy,
    /// Nobody knows.
    Unknown(String),
    /// The thread has stopped before.
    Stopped(String),
}

impl BatchFailure {
    fn to_error(&self) -> StoreError {
        match self {
            BatchFailure::DiskFull => StoreError::DiskFull,
            BatchFailure::Busy => StoreError::Busy,
            BatchFailure::Unknown(why) => StoreError::Unknown { why: why.clone() },
            BatchFailure::Stopped(why) => StoreError::Stopped { why: why.clone() },
        }
    }
}

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
    pub(super) fn start(connection: Connection, durability: Durability, queue: usize, clock: Clock) -> Self {
        let (sender, receiver) = mpsc::channel(queue.max(1));
        let (sink, due) = (Arc::<Mutex<Option<ClaimSink>>>::default(), Arc::new(DueHint::new()));
        let thread = WriterThread {
            connection,
            durability,
            synced: true,
            sink: Arc::clone(&sink),
            due: Arc::clone(&due),
            stopped: None,
        };
        let thread = std::thread::Builder::new()
            .name("redrive-writer".into())
            .spawn(move || thread.run(receiver))
            .expect("a thread can be started, or the program cannot work at all");
        Writer { sender: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)), sink, due, clock }
    }

    pub(super) fn attach(&self, sink: ClaimSink) {
        *lock(&self.sink) = Some(sink);
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
            let work = Box::new(move |connection: &Connection| -> Completion {
                let result = savepoint(connection, |connection| work(connection));
                Box::new(move |fate| answer(reply, result, fate))
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

fn answer<T>(reply: Reply<T>, result: Result<T, StoreError>, fate: Result<(), &BatchFailure>) {
    // Who has stopped waiting does not want to know.
    let _ = reply.send(match fate {
        Ok(()) => result,
        Err(failure) => Err(failure.to_error()),
    });
}

/// Runs a closure so that its changes are undone if it fails, and its neighbours' are not.
pub(super) fn savepoint<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.prepare_cached("SAVEPOINT command")?.execute([])?;
    match work(connection) {
        Ok(value) => {
            connection.prepare_cached("RELEASE command")?.execute([])?;
            Ok(value)
        }
        Err(error) => {
            // After a full disk the engine has rolled the whole transaction back, and there is nothing left to undo.
            if !connection.is_autocommit() {
                connection.prepare_cached("ROLLBACK TO command")?.execute([])?;
                connection.prepare_cached("RELEASE command")?.execute([])?;
            }
            Err(error)
        }
    }
}

/// How the last batch went, to tell whether more is about to come.
///
/// Whoever was answered together comes back together, but not at the same instant: without a moment's patience the first
/// one back gets a sync of its own, and the others wait for it. (The same idea as PostgreSQL's `commit_delay`.)
#[derive(Default)]
struct Rhythm {
    size: usize,
    took: Duration,
}

impl Rhythm {
    /// Waits for as many as came last time, but not for longer than a part of what the last batch took.
    fn gather(&self, receiver: &mut mpsc::Receiver<Command>, commands: &mut Vec<Command>) {
        const LONGEST: Duration = Duration::from_micros(2000);
        if self.size < 2 || commands.len() >= self.size {
            return;
        }
        let began = Instant::now();
        let patience = (self.took / 2).min(LONGEST);
        while commands.len() < self.size.min(BATCH) && began.elapsed() < patience {
            match receiver.try_recv() {
                Ok(command) => commands.push(command),
                Err(mpsc::error::TryRecvError::Empty) => std::thread::yield_now(),
                Err(mpsc::error::TryRecvError::Disconnected) => return,
            }
        }
    }
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
}

impl WriterThread {
    fn run(mut self, mut receiver: mpsc::Receiver<Command>) {
        let mut commands = Vec::with_capacity(BATCH);
        let mut rhythm = Rhythm::default();
        while receiver.blocking_recv_many(&mut commands, BATCH) > 0 {
            rhythm.gather(&mut receiver, &mut commands);
            let close = commands.iter().position(|command| matches!(command, Command::Close { .. }));
            let after = close.map(|at| commands.split_off(at));
            rhythm.size = commands.len();
            let began = Instant::now();
            self.batch(&mut commands);
            rhythm.took = began.elapsed();
            if let Some(after) = after {
                receiver.close();
                let _ = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
                // Closed before anybody is told so.
                drop(self);
                refuse(after);
                return;
            }
        }
    }

    /// One transaction for all, and then the answers.
    fn batch(&mut self, commands: &mut Vec<Command>) {
        if commands.is_empty() {
            return;
        }
        let mut pending = Pending::default();
        let fate = self.transaction(commands, &mut pending);
        if let Err(failure) = &fate {
            tracing::error!(target: "redrive::store", ?failure, commands = commands.len(), "a transaction failed");
            if let BatchFailure::Unknown(why) = failure {
                self.stopped = Some(why.clone());
            }
        }
        let fate = fate.as_ref().copied();
        if fate.is_ok() {
            let sink = lock(&self.sink).clone();
            for claimed in pending.claimed {
                if let Some(sink) = &sink {
                    sink.send(claimed);
                }
            }
            if let Some(at) = pending.earliest_due {
                self.due.pull_forward(at);
            }
        }
        for completion in pending.completions {
            completion.call(fate);
        }
        // Those that were not reached.
        for command in commands.drain(..) {
            if let Err(failure) = fate {
                Unreached(command).call(failure);
            }
        }
    }

    fn transaction(
        &mut self,
        commands: &mut Vec<Command>,
        pending: &mut Pending,
    ) -> Result<(), BatchFailure> {
        if let Some(why) = &self.stopped {
            return Err(BatchFailure::Stopped(why.clone()));
        }
        self.set_sync(commands.iter().any(Command::needs_sync))?;
        self.begin()?;
        let sink = lock(&self.sink).clone();
        for command in commands.drain(..) {
            execute(&self.connection, command, sink.as_ref(), pending);
            if self.connection.is_autocommit() {
                return Err(BatchFailure::DiskFull); // the engine rolled everything back
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

/// Answers commands that came after the end.
fn refuse(commands: Vec<Command>) {
    for command in commands {
        match command {
            Command::Close { reply } => drop(reply.send(Ok(()))),
            Command::Append { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            Command::Claim { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            Command::Settle { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            Command::Run { .. } => {} // its reply is dropped with it, which says the same
        }
    }
}

/// What is to be done once the fate of the transaction is known.
#[derive(Default)]
pub(super) struct Pending {
    completions: Vec<Waiting>,
    pub(super) claimed: Vec<Claimed>,
    pub(super) earliest_due: Option<Timestamp>,
}

impl Pending {
    pub(super) fn due(&mut self, at: Timestamp) {
        self.earliest_due = Some(self.earliest_due.map_or(at, |earliest| earliest.min(at)));
    }
}

enum Waiting {
    Append(Reply<Vec<Appended>>, Result<Vec<Appended>, StoreError>),
    Claim(Reply<usize>, Result<usize, StoreError>),
    // The claim is dropped, and its place given back, only after the commit.
    Settle(Reply<Finished>, Result<Finished, StoreError>, Claimed),
    Run(Completion),
}

impl Waiting {
    fn call(self, fate: Result<(), &BatchFailure>) {
        match self {
            Waiting::Append(reply, result) => answer(reply, result, fate),
            Waiting::Claim(reply, result) => answer(reply, result, fate),
            Waiting::Settle(reply, result, claimed) => {
                drop(claimed);
                answer(reply, result, fate);
            }
            Waiting::Run(completion) => completion(fate),
        }
    }
}

struct Unreached(Command);

impl Unreached {
    fn call(self, failure: &BatchFailure) {
        match self.0 {
            Command::Append { reply, .. } => answer(reply, Ok(Vec::new()), Err(failure)),
            Command::Claim { reply, .. } => answer(reply, Ok(0), Err(failure)),
            Command::Settle { reply, .. } => answer(reply, Ok(Finished::NotYet), Err(failure)),
            Command::Run { .. } | Command::Close { .. } => {}
        }
    }
}

fn execute(connection: &Connection, command: Command, sink: Option<&ClaimSink>, pending: &mut Pending) {
    let waiting = match command {
        Command::Append { events, reply } => {
            let claimed_before = pending.claimed.len();
            let result = append::append(connection, &events, sink, pending);
            if result.is_err() {
                pending.claimed.truncate(claimed_before);
            }
            Waiting::Append(reply, result)
        }
        Command::Claim { now, reply } => {
            let claimed_before = pending.claimed.len();
            let result = savepoint(connection, |connection| claim::claim(connection, now, sink, pending));
            if result.is_err() {
                pending.claimed.truncate(claimed_before);
            }
            Waiting::Claim(reply, result)
        }
        Command::Settle { claimed, settlement, reply } => {
            let result = settle::settle(connection, &claimed, &settlement, pending);
            Waiting::Settle(reply, result, claimed)
        }
        Command::Run { work, .. } => Waiting::Run(work(connection)),
        Command::Close { .. } => unreachable!("the batch ends before a close"),
    };
    pending.completions.push(waiting);
}
