//! The one thread that writes, and the group commit that makes it fast.
//!
//! Whatever waits is one batch for the committer. When to begin one and how much to take is the rhythm's to say. A publisher
//! who is alone does not come here at all: see the desk.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use redrive_retry::Clock;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::SqliteOptions;
use super::batch::{BatchFailure, Command, Ran, Reply, Work, answer, savepoint};
use super::checkpoint::Checkpoint;
use super::committer::{Committer, SharedSink};
use super::desk::Desk;
use super::rhythm::{BATCH, Queue, Rhythm};
use crate::error::StoreError;
use crate::store::Finished;
use crate::work::{ClaimSink, Claimed, DueHint, Settlement};

/// The longest pause before a claim that could not be ended is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The handle to the thread.
#[derive(Debug)]
pub(super) struct Writer {
    // Taken out when the store is closed; dropping it ends the thread.
    sender: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    desk: Arc<Desk>,
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
        let &SqliteOptions { durability, queue, brief, .. } = options;
        let clock = options.clock.clone();
        let (sender, receiver) = mpsc::channel(queue.max(1));
        let (sink, due) = (SharedSink::default(), Arc::new(DueHint::new()));
        let committer = Committer {
            connection,
            durability,
            synced: true,
            sink: Arc::clone(&sink),
            due: Arc::clone(&due),
            stopped: None,
            checkpoint,
        };
        let desk = Arc::new(Desk::new(committer, brief));
        let of_thread = Arc::clone(&desk);
        let thread = std::thread::Builder::new()
            .name("redrive-writer".into())
            .spawn(move || run(&of_thread, receiver))
            .expect("a thread can be started, or the program cannot work at all");
        let (sender, thread) = (Mutex::new(Some(sender)), Mutex::new(Some(thread)));
        Writer { sender, thread, desk, sink, due, clock }
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
        if let Some(command) = self.alone(make(reply), &sender) {
            sender.send(command).await.map_err(|_| StoreError::Closed)?;
        }
        drop(sender);
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Stores an event on the caller's thread if nothing else is to be done, or gives the command back.
    fn alone(&self, command: Command, sender: &mpsc::Sender<Command>) -> Option<Command> {
        let nobody_waits = sender.capacity() == sender.max_capacity();
        if nobody_waits && matches!(command, Command::AppendOne { .. }) {
            return self.desk.at_once(command);
        }
        Some(command)
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
                    Ran {
                        failure: result.as_ref().err().and_then(BatchFailure::behind),
                        completion: Some(Box::new(move |fate| answer(reply, result, fate))),
                    }
                }
                Err(failure) => {
                    answer(reply, Err(StoreError::Closed), Err(failure));
                    Ran::default()
                }
            });
            Command::Run { work, sync }
        })
        .await
    }

    /// Leaves something to be done when its turn comes, and does not wait for it. Refused if the queue is full or closed.
    pub(super) fn leave(
        &self,
        work: impl FnOnce(&Connection) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let work: Work = Box::new(move |connection| {
            let done = connection.map(|connection| savepoint(connection, work));
            let Ok(Err(error)) = done else { return Ran::default() };
            tracing::error!(target: "redrive::store", %error, "something that nobody waits for was not written");
            Ran { failure: BatchFailure::behind(&error), completion: None }
        });
        let sender = lock(&self.sender).clone().ok_or(StoreError::Closed)?;
        sender.try_send(Command::Run { work, sync: false }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })
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

/// The life of the thread.
pub(super) fn run(desk: &Desk, mut queue: impl Queue<Command>) {
    let mut commands = Vec::with_capacity(BATCH);
    let mut rhythm = Rhythm::new(desk.brief());
    loop {
        rhythm.begin(&mut queue, &mut commands);
        if commands.is_empty() {
            // Whoever just drops a store does not want to know; it was said in the log.
            let _ = desk.close();
            return;
        }
        rhythm.linger(&mut queue, &mut commands, Command::is_hurry);
        let mut after = split_off_close(&mut commands);
        if let Some(committer) = desk.take().as_mut() {
            committer.batch(&mut commands, |more| {
                if after.is_empty() {
                    rhythm.go_on(&mut queue, more);
                    after = split_off_close(more);
                }
            });
            committer.checkpoint(rhythm.is_crowded());
        }
        rhythm.end(&queue);
        desk.is_quiet(rhythm.is_quiet());
        if !after.is_empty() {
            queue.close();
            // The file is closed before anybody is told so.
            let closed = desk.close();
            close_all(after, closed);
            return;
        }
    }
}

/// The first request to close, and all that was sent after it.
fn split_off_close(commands: &mut Vec<Command>) -> Vec<Command> {
    let close = commands.iter().position(|command| matches!(command, Command::Close { .. }));
    close.map(|at| commands.split_off(at)).unwrap_or_default()
}

/// Answers commands that came after the end.
fn close_all(commands: Vec<Command>, closed: Result<(), StoreError>) {
    let mut closed = Some(closed);
    for command in commands {
        match command {
            // Whoever asked first is told how it went.
            Command::Close { reply } => drop(reply.send(closed.take().unwrap_or(Ok(())))),
            Command::AppendOne { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            Command::Append { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            Command::Claim { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            Command::CallUp { reply, .. } => drop(reply.send(Err(StoreError::Closed))),
            // Their replies are dropped with them, which says the same.
            Command::Settle { .. } | Command::Run { .. } => {}
        }
    }
}
