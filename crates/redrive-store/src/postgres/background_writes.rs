//! Writes in the background that no caller waits for: audit lines, and the release of abandoned idempotency keys.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::value::Value;
use super::{Shared, audit, idempotency, is_transient};
use crate::error::StoreError;

/// The maximum number of writes in one statement.
const MAX_BATCH: usize = 512;

/// The delay before a failed statement is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// One queued write.
#[derive(Debug)]
pub(super) enum BackgroundWrite {
    /// A line of the audit log, and its time.
    AuditLine { at: i64, line: String },
    /// An idempotency key whose owner was cancelled.
    ReleaseKey { key: String, owner: Uuid },
}

/// The queue and the task that drains it.
#[derive(Debug)]
pub(super) struct BackgroundWrites {
    /// `None` once the store is closed. The task then drains the queue and ends.
    sender: Mutex<Option<Sender<BackgroundWrite>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl BackgroundWrites {
    pub(super) fn start(shared: &Arc<Shared>, queue: usize) -> Self {
        let (sender, receiver) = mpsc::channel(queue.max(1));
        let task = tokio::spawn(run(Arc::clone(shared), receiver));
        BackgroundWrites { sender: Mutex::new(Some(sender)), task: Mutex::new(Some(task)) }
    }

    /// Fails with [`StoreError::Busy`] if the queue is full.
    pub(super) fn enqueue(&self, write: BackgroundWrite) -> Result<(), StoreError> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().ok_or(StoreError::Closed)?.try_send(write).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy,
            TrySendError::Closed(_) => StoreError::Closed,
        })
    }

    /// Closes the queue for new writes.
    pub(super) fn shut(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits until all queued writes are stored.
    pub(super) async fn finish(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            let _ = task.await; // the panic hook reports a panic
        }
    }
}

async fn run(shared: Arc<Shared>, mut queue: Receiver<BackgroundWrite>) {
    loop {
        let mut batch = Vec::new();
        if queue.recv_many(&mut batch, MAX_BATCH).await == 0 {
            return;
        }
        let (mut times, mut lines, mut keys, mut owners) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for write in batch {
            match write {
                BackgroundWrite::AuditLine { at, line } => {
                    times.push(at);
                    lines.push(line);
                }
                BackgroundWrite::ReleaseKey { key, owner } => {
                    keys.push(key);
                    owners.push(owner);
                }
            }
        }
        if !keys.is_empty() {
            write(&shared, &queue, idempotency::RELEASE_MANY, &[&keys, &owners]).await;
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

/// Retries until the statement succeeds, its error is permanent, or the store is closed. Returns whether it succeeded.
async fn write(
    shared: &Shared,
    queue: &Receiver<BackgroundWrite>,
    statement: &'static str,
    values: &[&dyn Value],
) -> bool {
    loop {
        let Err(error) = shared.retry_idempotent(statement, values).await else { return true };
        tracing::warn!(target: "redrive::store", %error, "a background write failed");
        if !is_transient(&error) || queue.is_closed() {
            return false;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
