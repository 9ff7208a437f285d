//! Reads which process dispatches from a SQLite file, and the work in flight there.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::finding::Finding;
use super::in_flight::InFlight;
use crate::format;

/// Checks the dispatcher and the work in flight; returns whether a process dispatches.
pub(super) fn check(path: &Path, connection: &Connection, checks: &mut Vec<Finding>) -> bool {
    let owner = owner(path);
    let is_dispatched = owner.is_some();
    match running(connection) {
        Ok(running) => checks.extend(
            InFlight {
                check: "dispatcher",
                running,
                abandoned: if is_dispatched { 0 } else { running },
                dispatchers: owner.into_iter().map(|owner| format!("{owner} dispatches")).collect(),
            }
            .findings(),
        ),
        Err(error) => checks.push(Finding::fail(
            "running",
            format!("cannot be read: {error}"),
            "if the database is locked, repeat the command; otherwise restore a backup",
        )),
    }
    is_dispatched
}

fn running(connection: &Connection) -> rusqlite::Result<u64> {
    let query = "SELECT (SELECT count(*) FROM event WHERE status < 3 AND status = 1)
                      + (SELECT count(*) FROM delivery WHERE status < 3 AND status = 1)";
    connection.query_row(query, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}

/// Name of the process with the owner lock. The lock is probed for an instant; a bus that starts in this instant retries.
fn owner(path: &Path) -> Option<String> {
    let path = owner_file(path);
    let file = File::open(&path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let name = std::fs::read_to_string(&path).unwrap_or_default();
            Some(if name.trim().is_empty() { "another process".to_owned() } else { format::one_line(&name) })
        }
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

fn owner_file(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push("-owner");
    path.into()
}
