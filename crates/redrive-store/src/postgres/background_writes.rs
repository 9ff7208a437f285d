//! Writes in the background that no caller waits for: audit lines, and the release of abandoned idempotency keys.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::queue::Queue;
use super::value::Value;
use super::{Shared, audit, idempotency};

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

/// Executes queued writes until the queue is shut and empty.
pub(super) async fn run(shared: Arc<Shared>, queue: Arc<Queue<BackgroundWrite>>) {
    loop {
        let batch = queue.take(MAX_BATCH).await;
        if batch.is_empty() {
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
            let schema = shared.connector.names.schema();
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
    queue: &Queue<BackgroundWrite>,
    statement: &'static str,
    values: &[&dyn Value],
) -> bool {
    loop {
        let Err(error) = shared.retry_idempotent(statement, values).await else { return true };
        tracing::warn!(target: "redrive::store", %error, "a background write failed");
        if !error.is_temporary() || queue.is_shut() {
            return false;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
