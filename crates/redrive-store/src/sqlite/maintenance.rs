//! Retention, counts, backup and checks.

use std::path::Path;
use std::time::Duration;

use redrive_retry::Timestamp;
use rusqlite::{Connection, backup::Backup, params};

use super::status;
use crate::error::StoreError;
use crate::query::Stats;

pub(super) fn purge_done(
    connection: &Connection,
    finished_before: Timestamp,
    limit: u32,
) -> Result<u64, StoreError> {
    let purged = connection.execute(
        // In order of publishing, which needs no index: an index over finished events would cost every event.
        "DELETE FROM event WHERE key IN
         (SELECT key FROM event WHERE status = 3 AND updated_at < ?1 ORDER BY key LIMIT ?2)",
        params![finished_before.as_millis(), limit],
    )?;
    Ok(purged as u64)
}

pub(super) fn stats(connection: &Connection, path: &Path) -> Result<Stats, StoreError> {
    let mut stats = Stats::default();
    let mut statement = connection.prepare_cached("SELECT status, count(*) FROM event GROUP BY status")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let count = row.get::<_, i64>(1)?.unsigned_abs();
        match row.get(0)? {
            status::PENDING => stats.pending = count,
            status::DONE => stats.done = count,
            status::DEAD => stats.dlq = count,
            _ => stats.processing += count,
        }
    }
    stats.open_deliveries = connection
        .query_row("SELECT count(*) FROM delivery WHERE status < 3", [], |row| row.get::<_, i64>(0))?
        .unsigned_abs();
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    stats.file_bytes = size(path);
    stats.wal_bytes = size(Path::new(&wal));
    Ok(stats)
}

pub(super) fn backup(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    if to.exists() {
        let source =
            std::io::Error::new(std::io::ErrorKind::AlreadyExists, "the file exists; choose a new name");
        return Err(StoreError::File { path: to.into(), source });
    }
    let mut target = Connection::open(to)?;
    Backup::new(connection, &mut target)?.run_to_completion(1024, Duration::from_millis(1), None)?;
    target.execute_batch("PRAGMA journal_mode = WAL")?;
    Ok(())
}

pub(super) fn quick_check(connection: &Connection, limit: u32) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare(&format!("PRAGMA quick_check({})", limit.max(1)))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}
