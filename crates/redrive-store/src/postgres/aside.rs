//! What is left to be written by the way, and nobody waits for: audit lines, and keys that were given up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::value::Value;
use super::{Shared, audit, idempotency, may_pass};
use crate::error::StoreError;

/// The most that is written by one statement.
const BATCH: usize = 512;

/// The pause before what could not be written is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// One thing.
#[derive(Debug)]
pub(super) enum Left {
    /// A line of the audit log, and when it was written.
    Line { at: i64, line: String },
    /// A key whose owner was cancelled.
    Key { key: String, owner: Uuid },
}

/// The queue, and who works it off.
#[derive(Debug)]
pub(super) struct Aside {
    /// Taken out when the store is closed; what was left is written first.
    sender: Mutex<Option<Sender<Left>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Aside {
    pub(super) fn start(shared: &Arc<Shared>, queue: usize) -> Self {
        let (sender, receiver) = mpsc::channel(queue.max(1));
        let task = tokio::spawn(run(Arc::clone(shared), receiver));
        Aside { sender: Mutex::new(Some(sender)), task: Mutex::new(Some(task)) }
    }

    /// Refused with [`StoreError::Busy`] if too much waits.
    pub(super) fn leave(&self, left: Left) -> Result<(), StoreError> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().ok_or(StoreError::Closed)?.try_send(left).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy,
            TrySendError::Closed(_) => StoreError::Closed,
        })
    }

    /// Takes nothing more in.
    pub(super) fn shut(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits until everything is written that was taken in.
    pub(super) async fn finish(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            let _ = task.await; // one that panicked has said so itself
        }
    }
}

async fn run(shared: Arc<Shared>, mut queue: Receiver<Left>) {
    loop {
        let mut left = Vec::new();
        if queue.recv_many(&mut left, BATCH).await == 0 {
            return;
        }
        let (mut times, mut lines, mut keys, mut owners) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for left in left {
            match left {
                Left::Line { at, line } => {
                    times.push(at);
                    lines.push(line);
                }
                Left::Key { key, owner } => {
                    keys.push(key);
                    owners.push(owner);
                }
            }
        }
        if !keys.is_empty() {
            write(&shared, &queue, idempotency::GIVE_ALL_UP, &[&keys, &owners]).await;
            shared.key_changed.notify_waiters();
        }
        if !lines.is_empty() {
            let schema = shared.names.schema();
            if !write(&shared, &queue, audit::WRITE, &[&schema, &times, &lines]).await {
                for line in lines {
                    tracing::error!(target: "redrive::audit", line, "an audit line is not in the database");
                }
            }
        }
    }
}

/// Until it is written, or nobody can wait any longer.
async fn write(
    shared: &Shared,
    queue: &Receiver<Left>,
    statement: &'static str,
    values: &[&dyn Value],
) -> bool {
    loop {
        let Err(error) = shared.insist(statement, values).await else { return true };
        tracing::warn!(target: "redrive::store", %error, "what was left to be written could not be");
        if !may_pass(&error) || queue.is_closed() {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
