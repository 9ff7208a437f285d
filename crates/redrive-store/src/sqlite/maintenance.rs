//! Runs retention, counts, backup and integrity checks.

use std::path::Path;
use std::time::Duration;

use redrive_retry::Timestamp;
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::owner::with_suffix;
use super::{SqliteStore, private_file, rows, status};
use crate::error::StoreError;
use crate::query::{Depth, Stats, WaitingDeliveries, WaitingWork};

/// Number of consecutive events that are too young at which the search ends. One publisher with a fast clock does not end it.
const MAX_YOUNG_EVENTS: u32 = 1000;

/// Returns the keys of handled events that were finished before this instant, oldest first. Keys follow the order of publishing
/// closely, so the search ends where events are too young; an index over finished events would make every publish slower.
pub(super) fn finished(
    connection: &Connection,
    before: Timestamp,
    limit: u32,
) -> Result<Vec<i64>, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT key, status, updated_at, created_at FROM event ORDER BY key")?;
    let mut rows = statement.query([])?;
    let (mut keys, mut too_young) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        too_young = if row.get::<_, i64>(3)? >= before.as_millis() { too_young + 1 } else { 0 };
        if keys.len() >= limit as usize || too_young >= MAX_YOUNG_EVENTS {
            break;
        }
        if rows::status(row, 1)? == status::DONE && row.get::<_, i64>(2)? < before.as_millis() {
            keys.push(row.get(0)?);
        }
    }
    Ok(keys)
}

/// Counts open work by its partial indexes, without reading finished events.
pub(super) fn depth(connection: &Connection, path: &Path) -> Result<Depth, StoreError> {
    let mut depth = Depth::default();
    let open = "SELECT status, count(*) FROM event WHERE status < 3 GROUP BY status";
    for (state, count) in by_status(connection, open)? {
        match state {
            status::RUNNING => depth.running = count,
            status::WAITING => depth.waiting = count,
            _ => depth.pending += count,
        }
    }
    depth.open_deliveries = open_deliveries(connection)?;
    (depth.file_bytes, depth.wal_bytes) = sizes(path);
    Ok(depth)
}

pub(super) fn stats(connection: &Connection, path: &Path) -> Result<Stats, StoreError> {
    let mut stats = Stats::default();
    for (state, count) in by_status(connection, "SELECT status, count(*) FROM event GROUP BY status")? {
        status::count(&mut stats, state, count);
    }
    stats.open_deliveries = open_deliveries(connection)?;
    (stats.file_bytes, stats.wal_bytes) = sizes(path);
    Ok(stats)
}

fn by_status(connection: &Connection, query: &str) -> Result<Vec<(i16, u64)>, StoreError> {
    rows::all(connection, query, [], |row| Ok((rows::status(row, 0)?, row.get::<_, i64>(1)?.unsigned_abs())))
}

fn open_deliveries(connection: &Connection) -> Result<u64, StoreError> {
    let mut count = connection.prepare_cached("SELECT count(*) FROM delivery WHERE status < 3")?;
    Ok(count.query_row([], |row| row.get::<_, i64>(0))?.unsigned_abs())
}

const OVERDUE: &str = "
    SELECT (SELECT count(*) FROM event WHERE status < 3 AND status <> 1 AND due_at < ?1)
         + (SELECT count(*) FROM delivery WHERE status < 3 AND status <> 1 AND due_at < ?1)";

/// Keys follow the order of publishing closely, so the smallest key is the oldest event. A leased delivery does not wait until its lease ends.
const WAITING: &str = "
    SELECT subscription, subscription IN (SELECT name FROM subscriptions), due, parked, retrying, backlogged,
      (SELECT created_at FROM event WHERE key = oldest_parked), (SELECT created_at FROM event WHERE key = oldest_backlogged)
    FROM (
      SELECT subscription, count(*) AS waiting,
        count(*) FILTER (WHERE due_at <= ?1) AS due,
        count(*) FILTER (WHERE status <= 0 AND due_at > ?1 AND due_at < 9000000000000000) AS parked,
        count(*) FILTER (WHERE status = 2 AND due_at > ?1 AND due_at < 9000000000000000) AS retrying,
        count(*) FILTER (WHERE due_at = 9000000000000000) AS backlogged,
        min(event_key) FILTER (WHERE status <= 0 AND due_at > ?1 AND due_at < 9000000000000000) AS oldest_parked,
        min(event_key) FILTER (WHERE due_at = 9000000000000000) AS oldest_backlogged
      FROM delivery WHERE status < 3 AND status <> 1 AND (status <> -2 OR due_at <= ?1) GROUP BY subscription)
    ORDER BY waiting DESC, subscription LIMIT 100";

/// Counts the work that waits, by subscription, and the part that has been due since before `overdue_before`.
pub(super) fn waiting(
    connection: &Connection,
    now: Timestamp,
    overdue_before: Timestamp,
) -> Result<WaitingWork, StoreError> {
    let mut overdue = connection.prepare_cached(OVERDUE)?;
    let overdue = overdue.query_row([overdue_before.as_millis()], |row| row.get::<_, i64>(0))?;
    let subscriptions = rows::all(connection, WAITING, [now.as_millis()], |row| {
        let count = |column| Ok::<_, StoreError>(row.get::<_, i64>(column)?.unsigned_abs());
        let time =
            |column| Ok::<_, StoreError>(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis));
        Ok(WaitingDeliveries {
            subscription: rows::text(row, 0)?.into_owned(),
            is_on_record: row.get(1)?,
            due: count(2)?,
            parked: count(3)?,
            oldest_parked_at: time(6)?,
            retrying: count(4)?,
            backlogged: count(5)?,
            oldest_backlogged_at: time(7)?,
        })
    })?;
    Ok(WaitingWork { overdue: overdue.unsigned_abs(), subscriptions })
}

/// Returns the sizes of the database file and of its write-ahead log.
fn sizes(path: &Path) -> (u64, u64) {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    (size(path), size(&with_suffix(path, "-wal")))
}

impl SqliteStore {
    /// Writes a consistent copy of the database to a new file, while the store stays in use.
    pub async fn backup(&self, to: impl AsRef<Path>) -> Result<(), StoreError> {
        let to = to.as_ref().to_owned();
        self.read(move |connection| backup(connection, &to)).await
    }

    /// Checks the integrity of the file and returns at most `limit` problems.
    pub async fn check(&self, limit: u32) -> Result<Vec<String>, StoreError> {
        let query = format!("PRAGMA quick_check({})", limit.max(1));
        let problems = self.read(move |connection| rows::all(connection, &query, [], |row| Ok(row.get(0)?)));
        Ok(problems.await?.into_iter().filter(|line: &String| line != "ok").collect())
    }
}

fn backup(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    if to.exists() {
        let source =
            std::io::Error::new(std::io::ErrorKind::AlreadyExists, "the file exists; choose a new name");
        return Err(StoreError::File { path: to.into(), source });
    }
    // Under another name until the copy is complete, so that half a copy is never mistaken for a backup.
    let unfinished = with_suffix(to, ".part");
    let failed = |source: std::io::Error| StoreError::File { path: unfinished.clone(), source };
    let _ = std::fs::remove_file(&unfinished); // left by an interrupted backup
    private_file::create(&unfinished).map_err(failed)?;
    let mut target = Connection::open(&unfinished)?;
    // One step reads one snapshot without blocking writers; several steps would restart at every commit.
    let copy = Backup::new(connection, &mut target)?;
    while copy.step(-1)? != StepResult::Done {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(copy);
    target.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_checkpoint(TRUNCATE)")?;
    target.close().map_err(|(_, error)| error)?;
    std::fs::File::open(&unfinished).and_then(|file| file.sync_all()).map_err(failed)?;
    std::fs::rename(&unfinished, to).map_err(failed)
}
