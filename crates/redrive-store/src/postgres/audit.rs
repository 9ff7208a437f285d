//! The audit log as a table beside the events.
//!
//! A line is left to be written and not waited for. One whose answer was lost with its connection may stand there twice.

use redrive_retry::Timestamp;
use redrive_retry::audit::{AuditError, AuditEvent, AuditSink, RetryLogEntry};
use serde::Serialize;
use tokio_postgres::Row;

use super::aside::Left;
use super::{PostgresStore, failure, rows};
use crate::audit_line;
use crate::error::StoreError;
use crate::query::AuditLine;

/// One process at a time, so that no line is seen after one with a larger key. Not waited for that it is on disk: then they
/// would wait for each other's disk as well, and who has left a line does not know either.
pub(super) const WRITE: &str = "
    WITH turn AS MATERIALIZED (
      SELECT pg_advisory_xact_lock(to_regnamespace($1)::oid::integer, -2), set_config('synchronous_commit', 'off', true))
    INSERT INTO redrive.audit (at, line)
    SELECT l.at, l.line FROM turn, unnest($2::bigint[], $3::text[]) WITH ORDINALITY AS l(at, line, place) ORDER BY l.place";

const LINES: &str = "SELECT key, at, line FROM redrive.audit WHERE key > $1 ORDER BY key LIMIT $2";

/// A few at a time, so that no transaction is long.
const PURGE: &str = "
    WITH gone AS (
      DELETE FROM redrive.audit WHERE key IN (SELECT key FROM redrive.audit WHERE at < $1 LIMIT 1000) RETURNING 1)
    SELECT count(*) FROM gone";

impl PostgresStore {
    /// Lines of the audit log, oldest first: those after a line, at most so many.
    pub async fn audit_lines(&self, after: Option<i64>, limit: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.read(async move |session| {
            let (after, limit) = (after.unwrap_or(0), i64::from(limit));
            let found = session.query(LINES, &[&after, &limit]).await.map_err(failure::explain)?;
            let line =
                |row: &Row| AuditLine { key: row.get(0), at: rows::timestamp(row, 1), line: row.get(2) };
            Ok(found.iter().map(line).collect())
        })
        .await
    }

    /// Deletes lines written before this instant, and says how many.
    pub async fn purge_audit(&self, before: Timestamp) -> Result<u64, StoreError> {
        let mut purged = 0;
        loop {
            let part = self.run(move |shared| async move {
                let answer = shared.insist(PURGE, &[&before.as_millis()]).await?;
                Ok(answer.rows.first().map_or(0, |row| rows::count(row, 0)))
            });
            match part.await? {
                0 => return Ok(purged),
                part => purged += part,
            }
        }
    }

    fn leave_line(&self, event: &impl Serialize) -> Result<(), AuditError> {
        let line = audit_line::write(event)?;
        let at = self.shared.time.now().as_millis();
        self.aside.leave(Left::Line { at, line }).map_err(audit_line::refused)
    }
}

impl AuditSink for PostgresStore {
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError> {
        self.leave_line(event)
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        self.leave_line(entry)
    }
}
