//! Checks a SQLite file: existence, application id, schema version, journal mode and integrity.

use std::path::Path;

use redrive_store::{SqliteOptions, SqliteStore};
use rusqlite::{Connection, OpenFlags};

use super::finding::{Finding, Verdict};
use crate::database::{NAMED_BY, must_exist};
use crate::format;

/// Maximum errors that `quick_check` lists.
const MAX_DAMAGE_LINES: u32 = 5;

/// Checks the file; returns a read-only connection if it is a database of this release: opening another one would migrate it.
pub(super) fn check(path: &Path, checks: &mut Vec<Finding>) -> Option<Connection> {
    if let Err(failure) = must_exist(path, NAMED_BY) {
        let advice = "name the file that your program opens; `redrive publish` creates a new one";
        checks.push(Finding::fail("file", failure.into_message(), advice));
        return None;
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags);
    let read =
        opened.and_then(|connection| Identity::read(&connection).map(|identity| (connection, identity)));
    let (connection, identity) = match read {
        Ok(read) => read,
        Err(error) => {
            let advice = "choose another file; if this one was a database, restore a backup";
            checks.push(Finding::fail("file", format!("cannot be read as a database: {error}"), advice));
            return None;
        }
    };
    let size = std::fs::metadata(path).map_or(0, |file| file.len());
    checks.push(Finding::ok("file", format!("{}, a SQLite database", format::bytes(size))));
    let is_current = identity.check(checks)?;
    let is_intact = integrity(&connection, checks);
    (is_current && is_intact).then_some(connection)
}

/// Header of a database file.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    application: i64,
    version: i64,
    journal: String,
}

impl Identity {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
        Ok(Identity {
            application: pragma("application_id")?,
            version: pragma("user_version")?,
            journal: connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?,
        })
    }

    /// Header of a file created by this release, to compare with.
    fn of_new_file() -> Result<Self, redrive::retry::BoxError> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("new.db");
        drop(SqliteStore::open(&path, SqliteOptions { owner: false, ..SqliteOptions::default() })?);
        Ok(Identity::read(&Connection::open(&path)?)?)
    }

    /// Compares the header; returns whether it is that of this release, or `None` if further checks make no sense.
    fn check(&self, checks: &mut Vec<Finding>) -> Option<bool> {
        let new = match Identity::of_new_file() {
            Ok(new) => new,
            Err(error) => {
                let advice = "free space in the temporary folder";
                checks.push(Finding::fail("version", error.to_string(), advice));
                return None;
            }
        };
        if self.application != new.application {
            let advice = "choose another file: this one belongs to another program";
            checks.push(Finding::fail("owner", "not a Redrive database", advice));
            return None;
        }
        let version = format!("schema {}, this release knows {}", self.version, new.version);
        if self.version > new.version {
            checks.push(Finding::fail("version", version, "use the release that wrote it, or a newer one"));
            return None;
        }
        checks.push(if self.version == new.version {
            Finding::ok("version", version)
        } else {
            let advice =
                "the next command or program that opens it migrates it; then doctor checks its work too";
            Finding::warn("version", version, advice)
        });
        checks.push(if self.journal == new.journal {
            let text = "write-ahead log, synchronous=FULL unless a program asks for Durability::Relaxed";
            Finding::ok("settings", text)
        } else {
            let advice = "it was changed; the next program that opens it sets it back";
            Finding::warn(
                "settings",
                format!("journal mode {} instead of {}", self.journal, new.journal),
                advice,
            )
        });
        Some(self.version == new.version && self.journal == new.journal)
    }
}

/// Checks the content; returns whether it is undamaged.
fn integrity(connection: &Connection, checks: &mut Vec<Finding>) -> bool {
    let damage = connection
        .prepare(&format!("PRAGMA quick_check({MAX_DAMAGE_LINES})"))
        .and_then(|mut check| check.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>());
    let advice = "stop the program, keep a copy of the file with its -wal, and restore a backup";
    checks.push(match damage {
        Ok(lines) if lines == ["ok"] => Finding::ok("content", "quick_check finds nothing wrong"),
        Ok(lines) => Finding::fail("content", lines.join("; "), advice),
        Err(error) => Finding::fail("content", error.to_string(), advice),
    });
    checks.last().is_some_and(|content| content.verdict == Verdict::Ok)
}
