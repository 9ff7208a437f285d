//! Source of a transfer: reads the locked SQLite file page by page.

use std::path::Path;
use std::sync::{Arc, Mutex};

use rusqlite::types::Value as Cell;

use super::super::lock;
use super::table::Table;
use crate::error::StoreError;
use crate::sqlite::LockedFile;

/// The maximum number of rows in a page.
const MAX_PAGE_ROWS: usize = 1000;
/// A page ends after the row that exceeds this size.
const PAGE_BYTES: usize = 4 << 20;

/// Rows in key order, translated for the server.
pub(super) type Rows = Vec<Vec<Cell>>;

/// The file, locked until this is dropped.
#[derive(Clone, Debug)]
pub(super) struct Source {
    // A std mutex: locked on blocking threads only.
    file: Arc<Mutex<LockedFile>>,
}

impl Source {
    pub(super) async fn lock(path: &Path) -> Result<Self, StoreError> {
        let path = path.to_owned();
        let file = blocking(move || LockedFile::lock(&path)).await?;
        Ok(Source { file: Arc::new(Mutex::new(file)) })
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        blocking(move || query(lock(&file).connection())).await
    }

    pub(super) async fn count(&self, table: &'static Table) -> Result<u64, StoreError> {
        self.read(move |connection| {
            let query = format!("SELECT count(*) FROM {}", table.source);
            Ok(connection.query_row(&query, [], |row| row.get::<_, i64>(0))?.unsigned_abs())
        })
        .await
    }

    /// The largest key of a table; 0 if it is empty.
    pub(super) async fn largest_key(&self, table: &'static Table) -> Result<i64, StoreError> {
        self.read(move |connection| {
            let query = format!("SELECT coalesce(max(rowid), 0) FROM {}", table.source);
            Ok(connection.query_row(&query, [], |row| row.get(0))?)
        })
        .await
    }

    /// Reads the rows after a key; none at the end.
    pub(super) async fn page(&self, table: &'static Table, after: Cell) -> Result<Rows, StoreError> {
        self.read(move |connection| page(connection, table, &after)).await
    }
}

fn page(connection: &rusqlite::Connection, table: &Table, after: &Cell) -> Result<Rows, StoreError> {
    let mut statement = connection.prepare_cached(&table.select_source())?;
    let mut found =
        statement.query(rusqlite::params![after, i64::try_from(MAX_PAGE_ROWS).unwrap_or(i64::MAX)])?;
    let (mut rows, mut bytes) = (Rows::new(), 0);
    while let Some(row) = found.next()? {
        let mut cells = Vec::with_capacity(table.columns.len());
        for (index, column) in table.columns.iter().enumerate() {
            let cell = column.translate(row.get_ref(index)?).map_err(|error| match error {
                StoreError::Damaged { why } => StoreError::Damaged {
                    why: format!("table {}, row {:?}: {why}", table.source, cells.first()),
                },
                other => other,
            })?;
            bytes += size(&cell);
            cells.push(cell);
        }
        rows.push(cells);
        if bytes > PAGE_BYTES {
            break;
        }
    }
    Ok(rows)
}

fn size(cell: &Cell) -> usize {
    match cell {
        Cell::Text(text) => text.len(),
        Cell::Blob(bytes) => bytes.len(),
        _ => 8,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StoreError::Stopped { why: error.to_string() })?
}
