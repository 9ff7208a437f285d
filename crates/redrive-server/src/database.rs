//! Which database a command works on, and how it is opened: beside whoever dispatches from it, never instead.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use redrive::{Clock, DlqInspector, StoreError};
use redrive_store::{SqliteOptions, SqliteStore};

use crate::failure::Failure;

/// The flag that every command on a database has.
#[derive(Debug, Args)]
pub(crate) struct DatabaseArgs {
    /// The database: a file, also written sqlite:PATH
    #[arg(long, value_name = "PATH", env = "REDRIVE_DB", default_value = "redrive.db", global = true)]
    pub(crate) db: Database,
}

/// A database by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Database {
    path: PathBuf,
}

impl FromStr for Database {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("postgres:") || text.starts_with("postgresql:") {
            return Err("PostgreSQL: not yet: this release knows SQLite files; give a path".to_owned());
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(format!("{scheme}: is not a database this release knows; give the path of a file"));
        }
        match text.strip_prefix("sqlite:").unwrap_or(text) {
            "" => Err("the path is empty; give the path of a file".to_owned()),
            // SQLite would make it a database in memory, which is gone when the command ends.
            ":memory:" => {
                Err("a database in memory ends with the command; give the path of a file".to_owned())
            }
            path => Ok(Database { path: path.into() }),
        }
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl Database {
    /// A file.
    pub(crate) fn at(path: &Path) -> Self {
        Database { path: path.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.exists()
    }

    /// How to name it in a command that the user may copy: nothing if it is the default.
    pub(crate) fn flag(&self) -> String {
        if self.path == Path::new("redrive.db") { String::new() } else { format!(" --db {self}") }
    }

    /// Opens the file, and makes it if it is not there.
    pub(crate) fn open_or_create(&self) -> Result<Arc<SqliteStore>, Failure> {
        let options = SqliteOptions { owner: false, ..SqliteOptions::default() };
        Ok(Arc::new(SqliteStore::open(&self.path, options)?))
    }

    /// Opens a file that must be there: whoever looks at one does not mean a new one.
    pub(crate) fn open(&self) -> Result<Arc<SqliteStore>, Failure> {
        self.must_exist()?;
        self.open_or_create()
    }

    /// Whether there is a file with something in it. An empty one would silently become a database.
    pub(crate) fn must_exist(&self) -> Result<(), Failure> {
        let say = |what: &str| {
            Err(Failure::Failed(format!("{self} {what}: give the database with --db PATH or in REDRIVE_DB")))
        };
        match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => say("does not exist"),
            Err(error) => say(&format!("cannot be read ({error})")),
            Ok(found) if found.is_dir() => say("is a folder, not a Redrive database"),
            Ok(found) if found.len() == 0 => say("is empty, not a Redrive database"),
            Ok(_) => Ok(()),
        }
    }

    /// The dead-letter queue of a file that must be there, and its store.
    pub(crate) fn open_dlq(&self) -> Result<(Arc<SqliteStore>, DlqInspector), Failure> {
        let store = self.open()?;
        Ok((Arc::clone(&store), DlqInspector::new(store, Clock::system())))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            // Written to standard output, whose reader has gone.
            StoreError::File { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe => {
                Failure::Output(source)
            }
            error => Failure::Failed(error.to_string()),
        }
    }
}

impl From<redrive::BusError> for Failure {
    fn from(error: redrive::BusError) -> Self {
        match error {
            redrive::BusError::Store(error) => error.into(),
            error => Failure::Failed(error.to_string()),
        }
    }
}

/// Runs what waits for a store.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("the system gives no resources to work with: {error}")))?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_a_file_however_it_is_written() {
        for (text, path) in [("a.db", "a.db"), ("sqlite:a.db", "a.db"), ("sqlite:/tmp/a b.db", "/tmp/a b.db")]
        {
            assert_eq!(text.parse::<Database>().unwrap().path(), Path::new(path));
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for text in ["postgres://host/db", "postgresql://host/db", "mysql://x", "", "sqlite:", ":memory:"] {
            assert!(text.parse::<Database>().is_err(), "{text}");
        }
    }
}
