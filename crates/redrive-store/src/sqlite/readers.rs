//! Reading beside the writer, away from the async threads.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use super::schema;
use crate::error::StoreError;

/// So many steps of the engine go by until it is looked whether anybody still waits for the answer: a fraction of a millisecond.
const STEPS: i32 = 10_000;

/// Connections that only read.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    /// A std mutex: held to take one out or put it back.
    idle: Mutex<Vec<Connection>>,
    /// Shared by every read under way, wherever its caller has gone; closing waits for all of them.
    under_way: Arc<RwLock<()>>,
}

/// One read that is about to be made, or is.
pub(super) type UnderWay = OwnedRwLockReadGuard<()>;

/// Says that nobody waits any more, when it is dropped.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Readers {
    pub(super) fn new(path: &Path) -> Self {
        Readers { path: path.to_owned(), idle: Mutex::default(), under_way: Arc::default() }
    }

    /// From here on closing waits.
    pub(super) async fn begin(&self) -> UnderWay {
        Arc::clone(&self.under_way).read_owned().await
    }

    /// Runs a query in a thread of its own. Whoever stops waiting for it stops it: what nobody wants to know keeps no thread busy.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        under_way: UnderWay,
        query: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let is_waited_for = Arc::new(AtomicBool::new(true));
        let _waiting = Waiting(Arc::clone(&is_waited_for));
        let readers = Arc::clone(self);
        let work = move || {
            let result = readers.query(is_waited_for, query);
            drop(under_way);
            result
        };
        let read = tokio::task::spawn_blocking(work).await;
        read.map_err(|error| StoreError::Stopped { why: error.to_string() })?
    }

    fn query<T>(
        &self,
        is_waited_for: Arc<AtomicBool>,
        query: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if !is_waited_for.load(Ordering::Relaxed) {
            return Err(StoreError::Closed); // nobody hears it
        }
        let idle = self.idle().pop();
        let mut connection = idle.map_or_else(|| schema::open_reader(&self.path), Ok)?;
        connection.progress_handler(STEPS, Some(move || !is_waited_for.load(Ordering::Relaxed)))?;
        let result = query(&connection);
        connection.progress_handler(0, None::<fn() -> bool>)?;
        self.idle().push(connection);
        result
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When all have ended.
    pub(super) async fn close(&self) {
        let _none_under_way = self.under_way.write().await;
        self.idle().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_read_to_its_end() {
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
        assert_eq!(count.await.unwrap(), 0, "others are not concerned");
        tokio::time::timeout(Duration::from_secs(30), readers.close())
            .await
            .expect("the thread is free again");
    }
}
