//! Reads the history of a database without changing it: recorded attempts and the audit log.

pub(crate) mod works;

use redrive_store::{
    AuditLine, HISTORY_PAGE, PostgresOptions, PostgresStore, RecordedAttempt, SqliteHistory,
};

use crate::database::{Database, NAMED_BY, check_scheme, must_exist};
use crate::failure::Failure;

/// A database that is open for reading.
pub(crate) enum History {
    File(SqliteHistory),
    Server(Box<PostgresStore>),
}

impl History {
    /// Opens a database that any program may own. A missing one is refused.
    pub(crate) async fn open(db: &Database) -> Result<Self, Failure> {
        if let Some(path) = db.path() {
            must_exist(path, NAMED_BY)?;
            return Ok(History::File(SqliteHistory::open(path)?));
        }
        let address = db.address().unwrap_or_default();
        check_scheme(address)?;
        let options = PostgresOptions {
            create: false,
            read_only: true,
            write_connections: 1,
            pool: 1,
            ..PostgresOptions::default()
        };
        Ok(History::Server(Box::new(PostgresStore::open(address, options).await?)))
    }

    /// Visits every recorded attempt, oldest first.
    pub(crate) async fn attempts(
        &self,
        mut visit: impl FnMut(RecordedAttempt) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let page = match self {
                History::File(file) => file.attempts(after, HISTORY_PAGE)?,
                History::Server(store) => store.recorded_attempts(after, HISTORY_PAGE).await?,
            };
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.key);
            page.into_iter().try_for_each(&mut visit)?;
        }
    }

    /// Visits every line of the audit log, oldest first.
    pub(crate) async fn audit_lines(
        &self,
        mut visit: impl FnMut(AuditLine) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let page = match self {
                History::File(file) => file.audit_lines(after, HISTORY_PAGE)?,
                History::Server(store) => store.audit_lines(after, HISTORY_PAGE).await?,
            };
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.key);
            page.into_iter().try_for_each(&mut visit)?;
        }
    }

    /// Number of events and deliveries that succeeded without a failed attempt.
    pub(crate) async fn succeeded_at_once(&self) -> Result<u64, Failure> {
        Ok(match self {
            History::File(file) => file.succeeded_at_once()?,
            History::Server(store) => store.succeeded_at_once().await?,
        })
    }
}
