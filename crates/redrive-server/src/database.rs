//! Which database a command works on, and how it is opened: beside whoever dispatches from it, never instead.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use redrive::{PostgresOptions, PostgresStore, Store, StoreError};
use redrive_store::{Location, SqliteOptions, SqliteStore};

use crate::failure::Failure;

/// The variable that names the database.
const VARIABLE: &str = "REDRIVE_DB";

/// How the database of most commands is named.
pub(crate) const NAMED_BY: &str = "--db PATH or in REDRIVE_DB";

/// The flag that every command on a database has.
#[derive(Debug, Args)]
pub(crate) struct DatabaseArgs {
    /// The database: a file, or postgres://user@host/database (?schema=name if it is not redrive, &sslrootcert=FILE for a CA of
    /// your own, &poll_only=true behind a transaction pooler)
    // The value of the variable may hold a password, and is not shown.
    #[arg(
        long,
        value_name = "PATH|URL",
        env = VARIABLE,
        hide_env_values = true,
        default_value = "redrive.db",
        global = true
    )]
    pub(crate) db: Database,
}

/// A database by its name. Shown without the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Database {
    location: Location,
}

impl FromStr for Database {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Whatever is wrong with an address is said when it is opened: here it would be repeated with its password.
        let location = Location::of(text);
        match &location {
            Location::Sqlite(path) if path.as_os_str().is_empty() => {
                Err("the path is empty; give the path of a file".to_owned())
            }
            // SQLite would make it a database in memory, which is gone when the command ends.
            Location::Sqlite(path) if path.as_os_str() == ":memory:" => {
                Err("a database in memory ends with the command; give the path of a file".to_owned())
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
    /// The file, if it is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.location {
            Location::Sqlite(path) => Some(path),
            Location::Postgres(_) => None,
        }
    }

    /// The address, if it is a server. It may hold a password: not to be shown.
    pub(crate) fn address(&self) -> Option<&str> {
        match &self.location {
            Location::Sqlite(_) => None,
            Location::Postgres(address) => Some(address),
        }
    }

    /// The file, where only a file will do.
    pub(crate) fn file(&self, instead: &str) -> Result<&Path, Failure> {
        self.path().ok_or_else(|| Failure::Usage(format!("{self} is a server, not a file: {instead}")))
    }

    /// How to name it in a command that the user may copy: nothing if it is the default, or named by the environment. A
    /// password is not repeated.
    pub(crate) fn flag(&self) -> String {
        let named = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        match &self.location {
            _ if named.as_ref() == Some(self) => String::new(),
            Location::Sqlite(path) if named.is_none() && path == Path::new("redrive.db") => String::new(),
            Location::Sqlite(path) => format!(" --db {}", path.display()),
            Location::Postgres(_) => format!(" --db '{self}'"),
        }
    }

    /// Opens the database, and makes it if it is not there.
    pub(crate) async fn open_or_create(&self) -> Result<Arc<dyn Store>, Failure> {
        self.open_store(true).await
    }

    /// Opens a database that must be there: whoever looks at one does not mean a new one.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        if let Some(path) = self.path() {
            must_exist(path, NAMED_BY)?;
        }
        self.open_store(false).await
    }

    async fn open_store(&self, create: bool) -> Result<Arc<dyn Store>, Failure> {
        match &self.location {
            Location::Sqlite(path) => Ok(open_file(path)?),
            Location::Postgres(address) => {
                known(address)?;
                Ok(Arc::new(PostgresStore::open(address, brief_options(create)).await?))
            }
        }
    }
}

/// A command does one thing after the other.
pub(crate) fn brief_options(create: bool) -> PostgresOptions {
    PostgresOptions { create, lanes: 1, pool: 2, ..PostgresOptions::default() }
}

/// Whether it is an address of a kind that this release knows.
pub(crate) fn known(address: &str) -> Result<(), Failure> {
    match address.split_once("://") {
        Some((scheme, _)) if !scheme.contains("postgres") && scheme.len() < 40 => {
            Err(Failure::Usage(format!(
                "{scheme}: is not a database this release knows; give the path of a file, or postgres://…"
            )))
        }
        _ => Ok(()),
    }
}

/// Opens a file beside whoever dispatches from it.
pub(crate) fn open_file(path: &Path) -> Result<Arc<SqliteStore>, Failure> {
    let options = SqliteOptions { owner: false, ..SqliteOptions::default() };
    Ok(Arc::new(SqliteStore::open(path, options)?))
}

/// Whether there is a file with something in it. An empty one would silently become a database.
pub(crate) fn must_exist(path: &Path, flag: &str) -> Result<(), Failure> {
    let say = |what: &str| {
        let path = path.display();
        Err(Failure::Failed(format!("{path} {what}: give the database with {flag}")))
    };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => say("does not exist"),
        Err(error) => say(&format!("cannot be read ({error})")),
        Ok(found) if found.is_dir() => say("is a folder, not a Redrive database"),
        Ok(found) if found.len() == 0 => say("is empty, not a Redrive database"),
        Ok(_) => Ok(()),
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
            assert_eq!(text.parse::<Database>().unwrap().path(), Some(Path::new(path)));
        }
    }

    #[test]
    fn what_is_neither_a_file_nor_a_server_we_know_is_refused() {
        for text in ["", "sqlite:", ":memory:", "sqlite::memory:"] {
            assert!(text.parse::<Database>().is_err(), "{text}");
        }
        let database: Database = "mysql://anna:s3cret@host/shop".parse().expect("refused when it is opened");
        let Err(Failure::Usage(why)) = block_on(database.open()) else { panic!("it was opened") };
        assert!(why.contains("mysql: is not a database this release knows"), "{why}");
    }

    #[test]
    fn a_server_is_shown_without_its_password() {
        let database: Database = "postgres://anna:s3cret@host/shop".parse().unwrap();
        assert_eq!(database.flag(), " --db 'postgres://anna@host/shop'");
        assert!(!format!("{database:?}").contains("s3cret"));
    }
}
