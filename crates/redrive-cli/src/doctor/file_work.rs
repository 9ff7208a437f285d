//! Reads the work in a SQLite file, and checks its write-ahead log.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::finding::Finding;
use super::work::{OVERDUE, Work};
use crate::{format, time_format};

/// Size at which the write-ahead log has missed its checkpoints.
const WARN_WAL_BYTES: u64 = 256 << 20;

pub(super) fn check(path: &Path, flag: &str, connection: &Connection, checks: &mut Vec<Finding>) {
    match read(path, connection) {
        Ok(work) => checks.extend(work.findings(flag)),
        Err(error) => checks.push(Finding::fail(
            "work",
            format!("cannot be read: {error}"),
            "if the database is locked, repeat the command; otherwise restore a backup",
        )),
    }
    checks.push(wal(path));
}

fn read(path: &Path, connection: &Connection) -> rusqlite::Result<Work> {
    let owner = owner(path);
    let count =
        |query: &str| connection.query_row(query, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs);
    let unfinished = |which: &str| {
        count(&format!(
            "SELECT (SELECT count(*) FROM event WHERE status < 3 AND {which})
                  + (SELECT count(*) FROM delivery WHERE status < 3 AND {which})"
        ))
    };
    let running = unfinished("status = 1")?;
    let before = time_format::ago(OVERDUE).as_millis();
    let mut orphans = connection.prepare(
        "SELECT subscription, count(*) FROM delivery
         WHERE status < 3 AND subscription NOT IN (SELECT name FROM subscriptions) GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
    )?;
    let orphans = orphans.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())))?;
    Ok(Work {
        running,
        abandoned: if owner.is_some() { 0 } else { running },
        check: "dispatcher",
        dispatchers: owner.into_iter().map(|owner| format!("{owner} dispatches")).collect(),
        if_slow: "the program does not keep up: look for slow handlers, or raise in_flight",
        overdue: unfinished(&format!("status IN (0, 2) AND due_at < {before}"))?,
        orphans: orphans.collect::<Result<_, _>>()?,
        dead: count("SELECT count(DISTINCT event_key) FROM dead_letter")?,
    })
}

/// Name of the process with the owner lock. The lock is probed for an instant; a bus that starts in this instant retries.
fn owner(path: &Path) -> Option<String> {
    let path = beside(path, "-owner");
    let file = File::open(&path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let name = std::fs::read_to_string(&path).unwrap_or_default();
            Some(if name.trim().is_empty() { "another process".to_owned() } else { format::one_line(&name) })
        }
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

fn wal(path: &Path) -> Finding {
    let size = std::fs::metadata(beside(path, "-wal")).map_or(0, |file| file.len());
    let found = format::bytes(size);
    if size < WARN_WAL_BYTES {
        return Finding::ok("log", found);
    }
    Finding::warn("log", found, "a long-running reader blocks its checkpoints: find it and end it")
}
