//! Reads the recorded attempts and the audit log of a file, without changing it.

use std::path::Path;

use rusqlite::{Connection, Row, params};

use super::{rows, schema, status};
use crate::error::StoreError;
use crate::history::{RecordedAttempt, recorded_attempts, succeeded_at_once};
use crate::query::{AttemptRow, AuditLine, RawJson};

const ATTEMPTS: &str = recorded_attempts!("", "?1", "?2");
const SUCCEEDED_AT_ONCE: &str = succeeded_at_once!("");
const LINES: &str = "SELECT key, at, line FROM audit WHERE key > ?1 ORDER BY key LIMIT ?2";

/// A read-only connection to a file that any program may own.
#[derive(Debug)]
pub struct SqliteHistory {
    connection: Connection,
}

/// Reads a decision record as it is, also if it was changed and is not JSON any more.
fn record(row: &Row<'_>, column: usize) -> Result<Option<Box<RawJson>>, StoreError> {
    Ok(rows::optional_text(row, column)?.map(|text| Box::new(RawJson(text.into_owned()))))
}

impl SqliteHistory {
    /// Opens a file without creating, migrating or changing it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(SqliteHistory { connection: schema::open_history(path)? })
    }

    /// Returns at most `limit` recorded attempts behind `after`, oldest first.
    pub fn attempts(&self, after: Option<i64>, limit: u32) -> Result<Vec<RecordedAttempt>, StoreError> {
        rows::all(&self.connection, ATTEMPTS, params![after.unwrap_or(0), limit], |row| {
            Ok(RecordedAttempt {
                key: row.get(0)?,
                event_id: rows::event_id(row, 1)?,
                event_type: rows::event_type(row, 2)?,
                is_delivery: row.get(3)?,
                status: status::name(rows::status(row, 4)?),
                updated_at: rows::timestamp(row, 5)?,
                attempt: AttemptRow { record: record(row, 13)?, ..rows::attempt(row, 6)? },
            })
        })
    }

    /// Counts the work that succeeded without a failed attempt. Reads every handled event.
    pub fn succeeded_at_once(&self) -> Result<u64, StoreError> {
        let count: i64 =
            self.connection.prepare_cached(SUCCEEDED_AT_ONCE)?.query_row([], |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }

    /// Returns at most `limit` lines of the audit log behind `after`, oldest first.
    pub fn audit_lines(&self, after: Option<i64>, limit: u32) -> Result<Vec<AuditLine>, StoreError> {
        rows::all(&self.connection, LINES, params![after.unwrap_or(0), limit], |row| {
            let (at, line) = (rows::timestamp(row, 1)?, rows::text(row, 2)?.into_owned());
            Ok(AuditLine { key: row.get(0)?, at, line })
        })
    }
}
