//! Names and opens the database of a command or service.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use redrive::store::{PostgresOptions, PostgresStore, Store, StoreError};
use redrive_retry::idempotency::IdempotencyStore;
use redrive_store::{Location, SqliteOptions, SqliteStore};

use crate::failure::Failure;

/// Variable that names the database.
const VARIABLE: &str = "REDRIVE_DB";

/// Flag and variable that name the database, for messages.
pub const NAMED_BY: &str = "--db PATH or in REDRIVE_DB";

/// Flag of every command on a database.
#[derive(Debug, Args)]
pub struct DatabaseArgs {
    /// Database: a file, or postgres://user@host/database (?schema=name for a schema other than redrive, &sslrootcert=FILE for your
    /// own CA, &poll_only=true behind a transaction pooler)
    // The variable may hold a password: its value is hidden.
    #[arg(
        long,
        value_name = "PATH|URL",
        env = VARIABLE,
        hide_env_values = true,
        default_value = "redrive.db",
        global = true
    )]
    pub db: Database,
}

/// Name of a database; displayed without the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Database {
    location: Location,
}

impl FromStr for Database {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A URL is validated when it is opened: clap would repeat it here with its password.
        let location = Location::of(text);
        match &location {
            Location::Sqlite(path) if path.as_os_str().is_empty() => {
                Err("the path is empty; give the path of a file".to_owned())
            }
            Location::Sqlite(path) if path.as_os_str() == ":memory:" => {
                Err("a database in memory is lost when the command ends; give the path of a file".to_owned())
            }
            _ => Ok(Database { location }),
        }
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location.fmt(f)
    }
}

impl Database {
    /// Path of a SQLite file.
    pub fn path(&self) -> Option<&Path> {
        match &self.location {
            Location::Sqlite(path) => Some(path),
            Location::Postgres(_) => None,
        }
    }

    /// URL of a PostgreSQL server. It may hold a password: do not print it.
    pub fn address(&self) -> Option<&str> {
        match &self.location {
            Location::Sqlite(_) => None,
            Location::Postgres(address) => Some(address),
        }
    }

    /// Path of a SQLite file; fails for a server, with the alternative `instead`.
    pub fn file(&self, instead: &str) -> Result<&Path, Failure> {
        self.path().ok_or_else(|| Failure::Usage(format!("{self} is a server, not a file: {instead}")))
    }

    /// Flag for a command that the user may copy, without the password; empty for the default and for `REDRIVE_DB`.
    pub fn flag(&self) -> String {
        let named = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        match &self.location {
            _ if named.as_ref() == Some(self) => String::new(),
            Location::Sqlite(path) if named.is_none() && path == Path::new("redrive.db") => String::new(),
            Location::Sqlite(path) => format!(" --db {}", path.display()),
            Location::Postgres(_) => format!(" --db '{self}'"),
        }
    }

    /// Opens the database next to a running dispatcher; a missing one is created or refused.
    pub(crate) async fn open(&self, create: bool) -> Result<Opened, Failure> {
        match &self.location {
            Location::Sqlite(path) => {
                if !create {
                    must_exist(path, NAMED_BY)?;
                }
                Ok(Opened::of(open_file(path)?))
            }
            Location::Postgres(address) => {
                check_scheme(address)?;
                Ok(Opened::of(Arc::new(PostgresStore::open(address, short_lived_options(create)).await?)))
            }
        }
    }

    /// Opens the database as its dispatcher; creates it if missing.
    pub(crate) async fn open_as_dispatcher(&self) -> Result<Opened, Failure> {
        match self.location.clone() {
            Location::Sqlite(path) => {
                // Opening reads and may migrate the file, which blocks.
                let open = move || SqliteStore::open(path, SqliteOptions::default());
                let opened = tokio::task::spawn_blocking(open).await;
                Ok(Opened::of(Arc::new(opened.expect("opening a store does not panic")?)))
            }
            Location::Postgres(address) => {
                check_scheme(&address)?;
                Ok(Opened::of(Arc::new(PostgresStore::open(&address, PostgresOptions::default()).await?)))
            }
        }
    }
}

/// Open database: the event store, and its idempotency keys.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) idempotency: Arc<dyn IdempotencyStore>,
}

impl Opened {
    fn of<S: Store + IdempotencyStore + 'static>(store: Arc<S>) -> Self {
        Opened { store: Arc::clone(&store) as _, idempotency: store }
    }
}

/// Options of a short-lived command, which works sequentially.
fn short_lived_options(create: bool) -> PostgresOptions {
    PostgresOptions { create, write_connections: 1, pool: 2, ..PostgresOptions::default() }
}

/// Refuses the URL of an unknown kind of database.
pub fn check_scheme(address: &str) -> Result<(), Failure> {
    match address.split_once("://") {
        Some((scheme, _)) if !scheme.contains("postgres") && scheme.len() < 40 => Err(Failure::Usage(
            format!("unknown kind of database {scheme}: give the path of a file, or postgres://…"),
        )),
        _ => Ok(()),
    }
}

/// Opens a file next to a running dispatcher.
pub fn open_file(path: &Path) -> Result<Arc<SqliteStore>, Failure> {
    let options = SqliteOptions { owner: false, ..SqliteOptions::default() };
    Ok(Arc::new(SqliteStore::open(path, options)?))
}

/// Refuses a missing or empty file: SQLite would silently turn an empty one into a database.
pub fn must_exist(path: &Path, flag: &str) -> Result<(), Failure> {
    let refuse = |what: &str| {
        let path = path.display();
        Err(Failure::Failed(format!("{path} {what}: name the database with {flag}")))
    };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => refuse("does not exist"),
        Err(error) => refuse(&format!("cannot be read ({error})")),
        Ok(found) if found.is_dir() => refuse("is a folder, not a Redrive database"),
        Ok(found) if found.len() == 0 => refuse("is empty, not a Redrive database"),
        Ok(_) => Ok(()),
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            // Standard output is a closed pipe.
            StoreError::File { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe => {
                Failure::Output(source)
            }
            error if error.is_temporary() => Failure::Unavailable(error.to_string()),
            error => Failure::failed(error),
        }
    }
}

impl From<redrive::BusError> for Failure {
    fn from(error: redrive::BusError) -> Self {
        match error {
            redrive::BusError::Store(error) => error.into(),
            error => Failure::failed(error),
        }
    }
}

/// Runs a future on a new single-threaded runtime.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start the async runtime: {error}")))?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_with_and_without_scheme() {
        for (text, path) in [("a.db", "a.db"), ("sqlite:a.db", "a.db"), ("sqlite:/tmp/a b.db", "/tmp/a b.db")]
        {
            assert_eq!(text.parse::<Database>().unwrap().path(), Some(Path::new(path)));
        }
    }

    #[test]
    fn unknown_databases_are_refused() {
        for text in ["", "sqlite:", ":memory:", "sqlite::memory:"] {
            assert!(text.parse::<Database>().is_err(), "{text}");
        }
        let database: Database = "mysql://anna:s3cret@host/shop".parse().expect("refused when it is opened");
        let Err(Failure::Usage(why)) = block_on(database.open(false)) else {
            panic!("the database was opened")
        };
        assert!(why.contains("unknown kind of database mysql"), "{why}");
    }

    #[test]
    fn a_server_is_shown_without_its_password() {
        let database: Database = "postgres://anna:s3cret@host/shop".parse().unwrap();
        assert_eq!(database.flag(), " --db 'postgres://anna@host/shop'");
        assert!(!format!("{database:?}").contains("s3cret"));
    }
}
