//! The work in the file: who does it, and whether anything is stuck.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::finding::Finding;
use crate::{label, moment};

/// What has been due for longer than this is not just about to begin.
const OVERDUE_MS: i64 = 60_000;
/// A log longer than this was not written back for a while.
const LONG_WAL: u64 = 256 << 20;

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
            "if the database is locked, try again; else restore a backup",
        )),
    }
    checks.push(wal(path));
}

/// Who holds the lock. It is asked for and let go at once; a bus that starts at this very moment has to try again.
fn owner(path: &Path) -> Option<String> {
    let path = beside(path, "-owner");
    let file = File::open(&path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let name = std::fs::read_to_string(&path).unwrap_or_default();
            Some(if name.trim().is_empty() { "another process".to_owned() } else { label::one_line(&name) })
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
    let found = label::counted(running, "event");
    Ok(match owner {
        Some(_) => Finding::ok("running", format!("{found} being handled")),
        None if running == 0 => Finding::ok("running", "nothing was cut off"),
        None => Finding::warn(
            "running",
            format!("{found} in the hands of a process that is gone"),
            "start the program that handles them: its start takes them back and charges an attempt",
        ),
    })
}

fn overdue(connection: &Connection, is_owned: bool) -> rusqlite::Result<Finding> {
    let before = moment::now().as_millis() - OVERDUE_MS;
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
    let found = format!("{} due for more than a minute", label::counted(overdue, "event"));
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
        return Ok(Finding::ok("deliveries", "every open one has its subscription"));
    }
    let list: Vec<String> =
        orphans.iter().map(|(name, number)| format!("{} for {name:?}", label::count(*number))).collect();
    Ok(Finding::warn(
        "deliveries",
        format!("{}, and no such subscription is on record", list.join(", ")),
        "subscribe under that name again, and they are handled; they wait until then",
    ))
}

fn dead(connection: &Connection, flag: &str) -> rusqlite::Result<Finding> {
    let dead = count(connection, "SELECT count(DISTINCT event_key) FROM dead_letter")?;
    Ok(match dead {
        0 => Finding::ok("dead letters", "none"),
        dead => Finding::warn(
            "dead letters",
            label::counted(dead, "event"),
            format!("see what killed them: redrive dlq groups{flag}"),
        ),
    })
}

fn wal(path: &Path) -> Finding {
    let size = std::fs::metadata(beside(path, "-wal")).map_or(0, |file| file.len());
    let found = label::bytes(size);
    if size < LONG_WAL {
        return Finding::ok("log", found);
    }
    Finding::warn(
        "log",
        found,
        "a reader that never ends keeps it from being written back: look for one, and end it",
    )
}
