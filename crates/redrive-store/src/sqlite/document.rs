//! Stores documents in a table of the same file.

use redrive_retry::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{SqliteStore, rows};
use crate::document::{Document, DocumentKey};
use crate::error::StoreError;
use crate::store::{Documents, StoreFuture};

const CREATE: &str = "
    INSERT INTO document (key, version, body, created_at, updated_at) VALUES (?1, 1, ?2, ?3, ?3)
    ON CONFLICT (key) DO NOTHING RETURNING key, version, body, created_at, updated_at";

const READ: &str = "SELECT key, version, body, created_at, updated_at FROM document WHERE key = ?1";

const LIST: &str = "
    SELECT key, version, body, created_at, updated_at FROM document WHERE key > ?1 AND key < ?2 ORDER BY key LIMIT ?3";

const REPLACE: &str = "
    UPDATE document SET version = version + 1, body = ?3, updated_at = ?4 WHERE key = ?1 AND version = ?2
    RETURNING key, version, body, created_at, updated_at";

const REMOVE: &str = "DELETE FROM document WHERE key = ?1 AND (?2 IS NULL OR version = ?2)";

const VERSIONS: &str = "SELECT key, version FROM document WHERE key > ?1 AND key < ?2 ORDER BY key";

impl Documents for SqliteStore {
    fn create(&self, key: DocumentKey, body: String) -> StoreFuture<'_, Document> {
        Box::pin(async move {
            Document::check(&body)?;
            let now = self.clock.now().as_millis();
            let create = move |connection: &Connection| {
                let mut create = connection.prepare_cached(CREATE)?;
                let created = create.query_row(params![key.as_str(), body, now], document).optional()?;
                created.ok_or(StoreError::DocumentTaken { key })
            };
            self.writer.run(create).await
        })
    }

    fn document(&self, key: DocumentKey) -> StoreFuture<'_, Option<Document>> {
        Box::pin(self.read(move |connection| read(connection, &key)))
    }

    fn documents(
        &self,
        kind: &'static str,
        after: Option<DocumentKey>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<Document>> {
        let (from, end) = DocumentKey::range(kind, after.as_ref());
        Box::pin(self.read(move |connection| {
            rows::all(connection, LIST, params![from, end, limit], |row| Ok(document(row)?))
        }))
    }

    fn replace(&self, key: DocumentKey, version: u64, body: String) -> StoreFuture<'_, Document> {
        Box::pin(async move {
            Document::check(&body)?;
            let now = self.clock.now().as_millis();
            let replace = move |connection: &Connection| {
                let values = params![key.as_str(), DocumentKey::version_column(version), body, now];
                match connection.prepare_cached(REPLACE)?.query_row(values, document).optional()? {
                    Some(document) => Ok(document),
                    None => {
                        let found = read(connection, &key)?;
                        Err(Document::conflict(key, found.as_ref()))
                    }
                }
            };
            self.writer.run(replace).await
        })
    }

    fn remove(&self, key: DocumentKey, version: Option<u64>) -> StoreFuture<'_, bool> {
        let version = version.map(DocumentKey::version_column);
        Box::pin(self.writer.run(move |connection| {
            if connection.prepare_cached(REMOVE)?.execute(params![key.as_str(), version])? > 0 {
                return Ok(true);
            }
            match read(connection, &key)? {
                found @ Some(_) => Err(Document::conflict(key, found.as_ref())),
                None => Ok(false),
            }
        }))
    }

    fn versions(&self, kind: &'static str) -> StoreFuture<'_, Vec<(DocumentKey, u64)>> {
        let (first, end) = DocumentKey::range(kind, None);
        Box::pin(self.read(move |connection| {
            rows::all(connection, VERSIONS, [first, end], |row| Ok((key_of(row)?, version_of(row)?)))
        }))
    }
}

fn read(connection: &Connection, key: &DocumentKey) -> Result<Option<Document>, StoreError> {
    Ok(connection.prepare_cached(READ)?.query_row([key.as_str()], document).optional()?)
}

/// Reads a document. Columns as in [`READ`].
fn document(row: &Row<'_>) -> rusqlite::Result<Document> {
    Ok(Document {
        key: key_of(row)?,
        version: version_of(row)?,
        body: row.get(2)?,
        created_at: Timestamp::from_millis(row.get(3)?),
        updated_at: Timestamp::from_millis(row.get(4)?),
    })
}

fn key_of(row: &Row<'_>) -> rusqlite::Result<DocumentKey> {
    Ok(DocumentKey::stored(row.get_ref(0)?.as_str()?))
}

fn version_of(row: &Row<'_>) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(1)?.unsigned_abs())
}
