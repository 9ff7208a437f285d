//! Audit log in a table of the schema.
//!
//! Lines are written in the background. A line whose answer was lost with the connection may be stored twice.

use redrive_retry::Timestamp;
use redrive_retry::audit::{AuditError, AuditEvent, AuditSink, RetryLogEntry};
use serde::Serialize;
use tokio_postgres::Row;

use super::background_writes::BackgroundWrite;
use super::{PostgresStore, rows};
use crate::error::StoreError;
use crate::query::AuditLine;
use crate::sql::audit;

const LINES: &str = "SELECT key, at, line FROM redrive.audit WHERE key > $1 ORDER BY key LIMIT $2";

/// Deletes a limited number of lines, so that no transaction is long.
const PURGE: &str = "
    WITH gone AS (
      DELETE FROM redrive.audit WHERE key IN (SELECT key FROM redrive.audit WHERE at < $1 LIMIT 1000) RETURNING 1)
    SELECT count(*) FROM gone";

impl PostgresStore {
    /// Reads lines of the audit log after a key, oldest first, at most `limit`.
    pub async fn audit_lines(&self, after: Option<i64>, limit: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.read(async move |session| {
            let (after, limit) = (after.unwrap_or(0), i64::from(limit));
            let found = session.query(LINES, &[&after, &limit]).await?;
            let line =
                |row: &Row| AuditLine { key: row.get(0), at: rows::timestamp(row, 1), line: row.get(2) };
            Ok(found.iter().map(line).collect())
        })
        .await
    }

    /// Deletes lines written before an instant. Returns their number.
    pub async fn purge_audit(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.purge_all(move |shared| async move {
            let answer = shared.retry_idempotent(PURGE, &[&before.as_millis()]).await?;
            Ok(answer.rows.first().map_or(0, |row| rows::count(row, 0)))
        })
        .await
    }

    fn queue_line(&self, event: &impl Serialize) -> Result<(), AuditError> {
        let line = audit::line(event)?;
        let at = self.shared.time.now().as_millis();
        let write = BackgroundWrite::AuditLine { at, line };
        self.background_writes.queue.try_send(write).map_err(audit::not_queued)
    }
}

impl AuditSink for PostgresStore {
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError> {
        self.queue_line(event)
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        self.queue_line(entry)
    }
}
