//! Writes in the background that no caller waits for: audit lines, and the release of abandoned idempotency keys.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Shared;
use super::queue::Queue;
use super::value::Value;

/// The maximum number of writes in one statement.
const MAX_BATCH: usize = 512;

/// The delay before a failed statement is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Writes audit lines under a lock, one process at a time, so that lines become visible in key order. Commits asynchronously: no caller
/// waits for the line, and the lock is held only briefly.
const WRITE_LINES: &str = "
    WITH locked AS MATERIALIZED (
      SELECT pg_advisory_xact_lock(to_regnamespace($1)::oid::integer, -2), set_config('synchronous_commit', 'off', true))
    INSERT INTO redrive.audit (at, line)
    SELECT l.at, l.line FROM locked, unnest($2::bigint[], $3::text[]) WITH ORDINALITY AS l(at, line, place) ORDER BY l.place";

/// Releases the keys that their owners still hold.
const RELEASE_KEYS: &str = "
    DELETE FROM redrive.idempotency r USING unnest($1::text[], $2::uuid[]) AS u(key, owner)
    WHERE r.key = u.key AND r.owner = u.owner AND r.state = 1";

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
            write(&shared, &queue, RELEASE_KEYS, &[&keys, &owners]).await;
            shared.key_changed.notify_waiters();
        }
        if !lines.is_empty() {
            let schema = shared.connector.names.schema();
            if !write(&shared, &queue, WRITE_LINES, &[&schema, &times, &lines]).await {
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
