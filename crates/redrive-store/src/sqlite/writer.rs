//! The writer: a handle that sends commands, and the one thread that commits them in batches.
//!
//! The [`BatchPacer`] decides when a batch begins and how many commands it takes; [`group_commit`](super::group_commit) commits it and
//! sends the replies. An uncontended publisher bypasses the thread and commits inline.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redrive_retry::Clock;
use rusqlite::Connection;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::oneshot;

use super::SqliteOptions;
use super::batch::{Command, refuse};
use super::checkpoint::Checkpoint;
use super::group_commit::{CommitLock, Committer, SharedSink};
use super::transaction::{BatchFailure, Reply, Uncommitted};
use crate::error::StoreError;
use crate::store::Finished;
use crate::work::{ClaimSink, Claimed, DueHint, Settlement};

/// Longest delay between retries of a settlement that met a full disk or a locked file.
const MAX_SETTLE_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Maximum number of commands in one transaction.
const MAX_BATCH_COMMANDS: usize = 1024;

/// With this number of concurrent commands or more, a batch takes only half of them.
const BUSY_FROM_COMMANDS: usize = 128;

/// The pacer polls for at most this number of missing commands. With this number of concurrent commands or more, settlements gather.
const FEW_COMMANDS: usize = 8;

/// Time for which the thread polls for the next command before it sleeps.
const SPIN_TIMEOUT: Duration = Duration::from_micros(150);

/// Longest time that a batch waits for more commands.
const MAX_BATCH_DELAY: Duration = Duration::from_millis(2);

/// Size of a batch at which its settlements stop waiting for more.
const ENOUGH_SETTLEMENTS: usize = 64;

/// Interval at which a waiting batch polls for more settlements.
const GATHER_INTERVAL: Duration = Duration::from_micros(200);

/// The handle to the writer's thread.
#[derive(Debug)]
pub(super) struct Writer {
    /// Taken out when the store is closed; dropping the last sender ends the thread.
    sender: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    commit_lock: Arc<CommitLock>,
    sink: SharedSink,
    due: Arc<DueHint>,
    clock: Clock,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        options: &SqliteOptions,
        checkpoint: Option<Checkpoint>,
    ) -> Self {
        let &SqliteOptions { durability, queue, inline_commit_below, .. } = options;
        let clock = options.clock.clone();
        let (sender, receiver) = mpsc::channel(queue.max(1));
        let (sink, due) = (SharedSink::default(), Arc::new(DueHint::new()));
        let committer =
            Committer::new(connection, durability, Arc::clone(&sink), Arc::clone(&due), checkpoint);
        let commit_lock = Arc::new(CommitLock::new(committer, inline_commit_below));
        let (thread_lock, thread_clock) = (Arc::clone(&commit_lock), clock.clone());
        let thread = std::thread::Builder::new()
            .name("redrive-writer".into())
            .spawn(move || run(&thread_lock, receiver, &thread_clock))
            .expect("the operating system can start one more thread");
        let (sender, thread) = (Mutex::new(Some(sender)), Mutex::new(Some(thread)));
        Writer { sender, thread, commit_lock, sink, due, clock }
    }

    pub(super) fn attach(&self, sink: Option<ClaimSink>) {
        *lock(&self.sink) = sink;
    }

    pub(super) fn due_hint(&self) -> Arc<DueHint> {
        Arc::clone(&self.due)
    }

    /// Sends a command, or commits it inline if the queue is empty, and waits for its reply.
    pub(super) async fn call<T>(&self, make: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let sender = lock(&self.sender).clone().ok_or(StoreError::Closed)?;
        let _busy = self.clock.busy();
        let (reply, answer) = oneshot::channel();
        let command = make(reply);
        let is_queue_empty = sender.capacity() == sender.max_capacity();
        let queued = if is_queue_empty { self.commit_lock.try_commit_inline(command) } else { Some(command) };
        if let Some(command) = queued {
            sender.send(command).await.map_err(|_| StoreError::Closed)?;
        }
        drop(sender);
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Settles a claim, with retries while the disk is full or the file is locked: the attempt has run, and must not run again for that.
    pub(super) async fn settle(
        &self,
        mut claimed: Claimed,
        mut settlement: Box<Settlement>,
    ) -> Result<Finished, StoreError> {
        let mut delay = Duration::from_millis(50);
        loop {
            match self.call(|reply| Command::Settle { claimed, settlement, reply }).await? {
                Ok(finished) => return Ok(finished),
                Err((StoreError::Busy | StoreError::DiskFull, back, again)) => {
                    (claimed, settlement) = (back, again);
                    self.clock.sleep(delay).await;
                    delay = (delay * 2).min(MAX_SETTLE_RETRY_DELAY);
                }
                Err((error, ..)) => return Err(error),
            }
        }
    }

    /// Runs a closure inside the next transaction. Its changes are on stable storage on success and rolled back on failure.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_with(true, |connection, _| work(connection)).await
    }

    /// Runs a closure inside the next transaction, which need not sync: a power loss may undo its changes.
    pub(super) async fn run_unsynced<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_with(false, |connection, _| work(connection)).await
    }

    /// Runs a closure inside the next transaction, with the claims and replies that wait for its commit. Syncs the commit if `sync` is
    /// set.
    pub(super) async fn run_with<T: Send + 'static>(
        &self,
        sync: bool,
        work: impl FnOnce(&Connection, &mut Uncommitted) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call(|reply| Command::run(sync, reply, work)).await
    }

    /// Queues a closure for the next transaction without waiting for it. Fails if the queue is full or closed. Calls `lost` if the changes
    /// are not committed later.
    pub(super) fn run_detached(
        &self,
        work: impl FnOnce(&Connection) -> Result<(), StoreError> + Send + 'static,
        lost: impl FnOnce(StoreError) + Send + 'static,
    ) -> Result<(), StoreError> {
        let sender = lock(&self.sender).clone().ok_or(StoreError::Closed)?;
        sender.try_send(Command::detached(work, lost)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.sender).is_none()
    }

    /// Finishes the queued commands, then closes the file.
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
            // The thread finishes the queued commands first. A panic in it has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the writer's thread until the store is closed or its last handle is dropped.
pub(super) fn run(commit_lock: &CommitLock, mut queue: impl Queue<Command>, clock: &Clock) {
    let mut commands = Vec::with_capacity(MAX_BATCH_COMMANDS);
    let mut pacer = BatchPacer::new(commit_lock.inline_commit_below);
    loop {
        pacer.begin(&mut queue, &mut commands);
        if commands.is_empty() {
            // The handle was dropped: no caller waits for this result, and failures are in the log.
            let _ = commit_lock.close();
            return;
        }
        // A caller may stop waiting while its batch is committed and those who wait for the result are not woken yet.
        let _busy = clock.busy();
        pacer.wait_for_more(&mut queue, &mut commands, Command::latency_sensitive);
        let mut after = split_off_close(&mut commands);
        if let Some(committer) = commit_lock.acquire().as_mut() {
            committer.commit_batch(&mut commands, |more| {
                if after.is_empty() {
                    pacer.extend_batch(&mut queue, more);
                    after = split_off_close(more);
                }
            });
            committer.checkpoint(pacer.is_busy());
        }
        pacer.end(&queue);
        commit_lock.set_uncontended(pacer.uncontended());
        if !after.is_empty() {
            queue.close();
            // The file is closed before the caller gets its reply.
            let mut closed = Some(commit_lock.close());
            for command in after {
                match command {
                    // Only the first close gets the result.
                    Command::Close { reply } => drop(reply.send(closed.take().unwrap_or(Ok(())))),
                    other => refuse(other, &BatchFailure::Closed),
                }
            }
            return;
        }
    }
}

/// Splits off the first request to close and every command sent after it.
fn split_off_close(commands: &mut Vec<Command>) -> Vec<Command> {
    let close = commands.iter().position(|command| matches!(command, Command::Close { .. }));
    close.map(|at| commands.split_off(at)).unwrap_or_default()
}

/// The source of commands: the channel, or a queue of the interleaving tests.
pub(super) trait Queue<T> {
    /// Takes one command that waits.
    fn try_take(&mut self) -> Result<T, TryRecvError>;
    /// Waits for a command and takes up to `max`. Takes none when the queue is closed and empty.
    fn wait_and_take(&mut self, commands: &mut Vec<T>, max: usize);
    /// Returns the number of waiting commands.
    fn waiting(&self) -> usize;
    /// Refuses new commands.
    fn close(&mut self);
}

impl<T> Queue<T> for Receiver<T> {
    fn try_take(&mut self) -> Result<T, TryRecvError> {
        self.try_recv()
    }

    fn wait_and_take(&mut self, commands: &mut Vec<T>, max: usize) {
        self.blocking_recv_many(commands, max);
    }

    fn waiting(&self) -> usize {
        self.len()
    }

    fn close(&mut self) {
        Receiver::close(self);
    }
}

/// Batch pacing: decides by the last batch how long the next one waits for commands, and how many it takes.
///
/// Publishers that got their replies together return together, but not at the same instant. Three cases:
///
/// - One publisher: it returns within the time that waking this thread takes, so the thread polls for a moment before it sleeps.
/// - A few publishers: without a short wait the first one to return would get a sync of its own and the rest would wait for it (as
///   with PostgreSQL's `commit_delay`). The commands that are there are executed meanwhile.
/// - Many publishers: a batch takes only half of them, so that the other half prepares the next batch during the commit.
#[derive(Debug)]
struct BatchPacer {
    /// Number of commands in the batch.
    size: usize,
    /// Number of concurrent commands: those of the last batch, and those waiting when it ended.
    concurrent: usize,
    began: Instant,
    took: Duration,
    ended: Instant,
    /// Time between the end of the last batch and the next command.
    gap: Duration,
    inline_commit_below: Duration,
}

impl BatchPacer {
    fn new(inline_commit_below: Duration) -> Self {
        let now = Instant::now();
        BatchPacer {
            size: 0,
            concurrent: 0,
            began: now,
            took: Duration::ZERO,
            ended: now,
            gap: Duration::MAX,
            inline_commit_below,
        }
    }

    /// Fills `commands` with the first commands of a batch; leaves it empty when the queue is closed.
    fn begin<T>(&mut self, queue: &mut impl Queue<T>, commands: &mut Vec<T>) {
        let wanted =
            if self.is_busy() { (self.concurrent / 2).min(MAX_BATCH_COMMANDS) } else { MAX_BATCH_COMMANDS };
        if self.gap <= SPIN_TIMEOUT {
            poll(queue, commands, 1, SPIN_TIMEOUT.saturating_sub(self.ended.elapsed()));
        }
        if commands.len() < wanted && (commands.is_empty() || queue.waiting() > 0) {
            queue.wait_and_take(commands, wanted - commands.len());
        }
        self.began = Instant::now();
        self.gap = self.began.saturating_duration_since(self.ended);
        self.size = commands.len();
    }

    /// Waits for more settlements, to commit them together, while many arrive and the batch has no latency-sensitive command.
    fn wait_for_more<T>(
        &mut self,
        queue: &mut impl Queue<T>,
        commands: &mut Vec<T>,
        latency_sensitive: impl Fn(&T) -> bool,
    ) {
        let began = Instant::now();
        while self.concurrent >= FEW_COMMANDS
            && commands.len() < ENOUGH_SETTLEMENTS
            && began.elapsed() < MAX_BATCH_DELAY
        {
            if commands.iter().any(&latency_sensitive) {
                break;
            }
            std::thread::sleep(GATHER_INTERVAL);
            while let Ok(command) = queue.try_take() {
                commands.push(command);
            }
        }
        self.began = Instant::now();
        self.size = commands.len();
    }

    /// Fills `commands` with commands that arrived meanwhile and still join this batch; leaves it empty when the batch is complete.
    fn extend_batch<T>(&mut self, queue: &mut impl Queue<T>, commands: &mut Vec<T>) {
        if self.size < self.concurrent && !self.is_busy() {
            let missing = self.concurrent - self.size;
            let timeout = (self.took / 2).min(MAX_BATCH_DELAY).saturating_sub(self.began.elapsed());
            poll(queue, commands, missing.min(FEW_COMMANDS), timeout);
            if commands.len() < missing && queue.waiting() > 0 {
                queue.wait_and_take(commands, missing - commands.len());
            }
            self.size += commands.len();
        }
    }

    fn is_busy(&self) -> bool {
        self.concurrent >= BUSY_FROM_COMMANDS
    }

    /// Returns whether the last batch was a single command that was committed in a short time.
    fn uncontended(&self) -> bool {
        self.concurrent <= 1 && self.took < self.inline_commit_below
    }

    fn end<T>(&mut self, queue: &impl Queue<T>) {
        self.ended = Instant::now();
        self.took = self.ended.saturating_duration_since(self.began);
        self.concurrent = self.size + queue.waiting();
    }
}

/// Takes commands until there are `enough` or the timeout has passed, and yields the processor meanwhile.
fn poll<T>(queue: &mut impl Queue<T>, commands: &mut Vec<T>, enough: usize, timeout: Duration) {
    let began = Instant::now();
    while commands.len() < enough {
        match queue.try_take() {
            Ok(command) => commands.push(command),
            Err(TryRecvError::Empty) if began.elapsed() < timeout => std::thread::yield_now(),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
        }
    }
}
