//! Runs queries on a pool of read-only connections, off the async threads.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rusqlite::Connection;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use super::schema;
use crate::error::StoreError;

/// Number of SQLite instructions between two checks whether the caller still waits: a fraction of a millisecond.
const CANCEL_CHECK_STEPS: i32 = 10_000;

/// The pool of read-only connections.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    /// A std mutex, held only to take a connection out or put it back.
    idle: Mutex<Vec<Connection>>,
    /// Locked for reading by every query in flight, even if its caller is gone; closing waits for all of them.
    in_flight: Arc<RwLock<()>>,
}

/// Marks one query in flight.
pub(super) type Reading = OwnedRwLockReadGuard<()>;

impl Readers {
    pub(super) fn new(path: &Path) -> Self {
        Readers { path: path.to_owned(), idle: Mutex::default(), in_flight: Arc::default() }
    }

    /// Registers a query; closing waits for it from here on.
    pub(super) async fn begin(&self) -> Reading {
        Arc::clone(&self.in_flight).read_owned().await
    }

    /// Runs a query on a blocking thread. A caller that stops waiting cancels it.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        reading: Reading,
        query: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // Dropped when the caller stops waiting.
        let waiting = Arc::new(());
        let (readers, caller) = (Arc::clone(self), Arc::downgrade(&waiting));
        let work = move || {
            let result = readers.query(caller, query);
            drop(reading);
            result
        };
        let read = tokio::task::spawn_blocking(work).await;
        read.map_err(|error| StoreError::Stopped { why: error.to_string() })?
    }

    fn query<T>(
        &self,
        caller: Weak<()>,
        query: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let is_cancelled = move || caller.strong_count() == 0;
        if is_cancelled() {
            return Err(StoreError::Closed);
        }
        let idle = self.idle().pop();
        let mut connection = idle.map_or_else(|| schema::open_reader(&self.path), Ok)?;
        connection.progress_handler(CANCEL_CHECK_STEPS, Some(is_cancelled))?;
        let result = query(&connection);
        connection.progress_handler(0, None::<fn() -> bool>)?;
        self.idle().push(connection);
        result
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all queries and closes the connections.
    pub(super) async fn close(&self) {
        let _none_in_flight = self.in_flight.write().await;
        self.idle().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_query_is_cancelled_when_its_caller_stops_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.db");
        drop(schema::open_writer(&path, super::super::Durability::Full).unwrap());
        let readers = Arc::new(Readers::new(&path));
        let endless =
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n";
        let reading = readers.run(readers.begin().await, move |connection| {
            Ok(connection.query_row(endless, [], |row| row.get::<_, i64>(0))?)
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), reading).await.is_err());
        let count = readers.run(readers.begin().await, |connection| {
            Ok(connection.query_row("SELECT count(*) FROM event", [], |row| row.get::<_, i64>(0))?)
        });
        assert_eq!(count.await.unwrap(), 0, "other queries continue");
        tokio::time::timeout(Duration::from_secs(30), readers.close())
            .await
            .expect("the cancelled query ends");
    }
}
