//! Stores the audit log in a table of the same file.
//!
//! Callers queue a line and do not wait: it becomes durable with one of the next synced commits.

use std::sync::Arc;

use redrive_retry::Timestamp;
use redrive_retry::audit::{AuditError, AuditEvent, AuditSink, RetryLogEntry};
use rusqlite::{Connection, params};
use serde::Serialize;

use super::{SqliteStore, rows};
use crate::error::StoreError;
use crate::query::AuditLine;
use crate::sql::audit;

impl SqliteStore {
    /// Returns at most `limit` lines of the audit log behind `after`, oldest first.
    pub async fn audit_lines(&self, after: Option<i64>, limit: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.read(move |connection| {
            let query = "SELECT key, at, line FROM audit WHERE key > ?1 ORDER BY key LIMIT ?2";
            rows::all(connection, query, params![after.unwrap_or(0), limit], |row| {
                let (at, line) = (rows::timestamp(row, 1)?, rows::text(row, 2)?.into_owned());
                Ok(AuditLine { key: row.get(0)?, at, line })
            })
        })
        .await
    }

    /// Deletes lines written before this instant and returns their number.
    pub async fn purge_audit(&self, before: Timestamp) -> Result<u64, StoreError> {
        let mut purged = 0;
        loop {
            // In small batches, so that publishers are served in between.
            let part = self.writer.run_unsynced(move |connection| {
                let mut purge = connection.prepare_cached(
                    "DELETE FROM audit WHERE key IN (SELECT key FROM audit WHERE at < ?1 LIMIT 1000)",
                )?;
                Ok(purge.execute([before.as_millis()])? as u64)
            });
            match part.await? {
                0 => return Ok(purged),
                part => purged += part,
            }
        }
    }

    fn queue_line(&self, value: &impl Serialize) -> Result<(), AuditError> {
        let line: Arc<str> = audit::line(value)?.into();
        let (at, written) = (self.clock.now().as_millis(), Arc::clone(&line));
        let write = move |connection: &Connection| {
            let mut insert = connection.prepare_cached("INSERT INTO audit (at, line) VALUES (?1, ?2)")?;
            insert.execute(params![at, written])?;
            Ok(())
        };
        let lost = move |error| {
            tracing::error!(target: "redrive::audit", line = &*line, %error, "an audit line is not in the database");
        };
        self.writer.run_detached(write, lost).map_err(audit::not_queued)
    }
}

impl AuditSink for SqliteStore {
    fn record(&self, event: &AuditEvent) -> Result<(), AuditError> {
        self.queue_line(event)
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        self.queue_line(entry)
    }
}
