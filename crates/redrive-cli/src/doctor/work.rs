//! Checks the work in a SQLite file: its dispatcher, overdue and orphaned deliveries, dead letters and the write-ahead log.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::finding::Finding;
use crate::{format, time_format};

/// Time after its due time at which work counts as overdue.
const OVERDUE_MS: i64 = 60_000;
/// Size at which the write-ahead log has missed its checkpoints.
const WARN_WAL_BYTES: u64 = 256 << 20;

pub(super) fn check(path: &Path, flag: &str, connection: &Connection, checks: &mut Vec<Finding>) {
    let owner = owner(path);
    checks.push(match &owner {
        Some(owner) => Finding::ok("dispatcher", format!("{owner} dispatches")),
        None => Finding::ok("dispatcher", "no process dispatches at the moment"),
    });
    let looked = running(connection, owner.as_deref()).and_then(|running| {
        Ok([running, overdue(connection, owner.is_some())?, orphaned(connection)?, dead(connection, flag)?])
    });
    match looked {
        Ok(findings) => checks.extend(findings),
        Err(error) => checks.push(Finding::fail(
            "work",
            format!("cannot be read: {error}"),
            "if the database is locked, repeat the command; otherwise restore a backup",
        )),
    }
    checks.push(wal(path));
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

fn count(connection: &Connection, query: &str) -> rusqlite::Result<u64> {
    connection.query_row(query, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}

fn running(connection: &Connection, owner: Option<&str>) -> rusqlite::Result<Finding> {
    let running = count(
        connection,
        "SELECT (SELECT count(*) FROM event WHERE status < 3 AND status = 1) +
         (SELECT count(*) FROM delivery WHERE status < 3 AND status = 1)",
    )?;
    let found = format::counted(running, "event");
    Ok(match owner {
        Some(_) => Finding::ok("running", format!("{found} being handled")),
        None if running == 0 => Finding::ok("running", "no work was interrupted"),
        None => Finding::warn(
            "running",
            format!("{found} claimed by a process that has ended"),
            "start the program that handles them: it recovers them and charges an attempt",
        ),
    })
}

fn overdue(connection: &Connection, is_owned: bool) -> rusqlite::Result<Finding> {
    let before = time_format::now().as_millis() - OVERDUE_MS;
    let overdue = count(
        connection,
        &format!(
            "SELECT (SELECT count(*) FROM event WHERE status < 3 AND status IN (0, 2) AND due_at < {before})
                  + (SELECT count(*) FROM delivery WHERE status < 3 AND status IN (0, 2) AND due_at < {before})"
        ),
    )?;
    if overdue == 0 {
        return Ok(Finding::ok("waiting", "nothing is overdue"));
    }
    let found = format!("{} due for more than a minute", format::counted(overdue, "event"));
    let advice = if is_owned {
        "the program does not keep up: look for slow handlers, or raise in_flight"
    } else {
        "start the program that handles them"
    };
    Ok(Finding::warn("waiting", found, advice))
}

fn orphaned(connection: &Connection) -> rusqlite::Result<Finding> {
    let mut statement = connection.prepare(
        "SELECT subscription, count(*) FROM delivery
         WHERE status < 3 AND subscription NOT IN (SELECT name FROM subscriptions) GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
    )?;
    let orphans = statement
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?.unsigned_abs())))?;
    let orphans = orphans.collect::<Result<Vec<_>, _>>()?;
    if orphans.is_empty() {
        return Ok(Finding::ok("deliveries", "every open delivery has its subscription"));
    }
    let list: Vec<String> =
        orphans.iter().map(|(name, number)| format!("{} for {name:?}", format::count(*number))).collect();
    Ok(Finding::warn(
        "deliveries",
        format!("{}, which is not a subscription on record", list.join(", ")),
        "they wait until a program subscribes under that name again",
    ))
}

fn dead(connection: &Connection, flag: &str) -> rusqlite::Result<Finding> {
    let dead = count(connection, "SELECT count(DISTINCT event_key) FROM dead_letter")?;
    Ok(match dead {
        0 => Finding::ok("dead letters", "none"),
        dead => Finding::warn(
            "dead letters",
            format::counted(dead, "event"),
            format!("see what killed them: redrive dlq groups{flag}"),
        ),
    })
}

fn wal(path: &Path) -> Finding {
    let size = std::fs::metadata(beside(path, "-wal")).map_or(0, |file| file.len());
    let found = format::bytes(size);
    if size < WARN_WAL_BYTES {
        return Finding::ok("log", found);
    }
    Finding::warn("log", found, "a long-running reader blocks its checkpoints: find it and end it")
}
