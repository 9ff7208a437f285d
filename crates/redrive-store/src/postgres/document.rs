//! Versioned documents, shared by all processes on the database. All times are the database's.

use tokio_postgres::Row;

use super::retry_idempotent::Answer;
use super::session::Session;
use super::{PostgresStore, rows};
use crate::document::{Document, DocumentKey};
use crate::error::StoreError;
use crate::store::{Documents, StoreFuture};

const CREATE: &str = "
    INSERT INTO redrive.document AS d (key, version, body, created_at, updated_at)
    SELECT $1, 1, $2, t.now, t.now FROM (SELECT redrive.now_ms() AS now) t
    ON CONFLICT (key) DO NOTHING RETURNING d.key, d.version, d.body, d.created_at, d.updated_at";

const READ: &str = "SELECT key, version, body, created_at, updated_at FROM redrive.document WHERE key = $1";

const LIST: &str = "
    SELECT key, version, body, created_at, updated_at FROM redrive.document WHERE key > $1 AND key < $2
    ORDER BY key LIMIT $3";

const REPLACE: &str = "
    UPDATE redrive.document d SET version = d.version + 1, body = $3, updated_at = redrive.now_ms()
    WHERE d.key = $1 AND d.version = $2 RETURNING d.key, d.version, d.body, d.created_at, d.updated_at";

const REMOVE: &str = "
    DELETE FROM redrive.document WHERE key = $1 AND ($2::bigint IS NULL OR version = $2) RETURNING 1";

const VERSIONS: &str = "SELECT key, version FROM redrive.document WHERE key > $1 AND key < $2 ORDER BY key";

impl Documents for PostgresStore {
    fn create(&self, key: DocumentKey, body: String) -> StoreFuture<'_, Document> {
        Box::pin(async move {
            Document::check(&body)?;
            self.run(move |shared| async move {
                let Answer { rows, was_resent, session } =
                    shared.retry_idempotent(CREATE, &[&key.as_str(), &body]).await?;
                if let Some(row) = rows.first() {
                    return Ok(document(row));
                }
                // The first execution, whose answer was lost, may have created it.
                let existing = if was_resent { read(&session, &key).await? } else { None };
                session.barrier().await?;
                let is_own = |found: &Document| found.version == 1 && found.body == body;
                existing.filter(is_own).ok_or(StoreError::DocumentTaken { key })
            })
            .await
        })
    }

    fn document(&self, key: DocumentKey) -> StoreFuture<'_, Option<Document>> {
        Box::pin(self.read(async move |session| read(session, &key).await))
    }

    fn documents(
        &self,
        kind: &'static str,
        after: Option<DocumentKey>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<Document>> {
        Box::pin(self.read(async move |session| {
            let (from, end) = DocumentKey::range(kind, after.as_ref());
            let found = session.query(LIST, &[&from, &end, &i64::from(limit)]).await?;
            Ok(found.iter().map(document).collect())
        }))
    }

    fn replace(&self, key: DocumentKey, version: u64, body: String) -> StoreFuture<'_, Document> {
        Box::pin(async move {
            Document::check(&body)?;
            self.run(move |shared| async move {
                let replaced = DocumentKey::version_column(version);
                let Answer { rows, was_resent, session } =
                    shared.retry_idempotent(REPLACE, &[&key.as_str(), &replaced, &body]).await?;
                if let Some(row) = rows.first() {
                    return Ok(document(row));
                }
                let found = read(&session, &key).await?;
                // The first execution, whose answer was lost, may have changed it.
                let is_own = |found: &Document| found.version == version + 1 && found.body == body;
                match found {
                    Some(found) if was_resent && is_own(&found) => {
                        session.barrier().await?;
                        Ok(found)
                    }
                    other => Err(Document::conflict(key, other.as_ref())),
                }
            })
            .await
        })
    }

    fn remove(&self, key: DocumentKey, version: Option<u64>) -> StoreFuture<'_, bool> {
        Box::pin(self.run(move |shared| async move {
            let version = version.map(DocumentKey::version_column);
            let Answer { rows, was_resent, session } =
                shared.retry_idempotent(REMOVE, &[&key.as_str(), &version]).await?;
            if !rows.is_empty() {
                return Ok(true);
            }
            if let found @ Some(_) = read(&session, &key).await? {
                return Err(Document::conflict(key, found.as_ref()));
            }
            session.barrier().await?;
            Ok(was_resent)
        }))
    }

    fn versions(&self, kind: &'static str) -> StoreFuture<'_, Vec<(DocumentKey, u64)>> {
        Box::pin(self.read(async move |session| {
            let (first, end) = DocumentKey::range(kind, None);
            let found = session.query(VERSIONS, &[&first, &end]).await?;
            Ok(found.iter().map(|row| (DocumentKey::stored(row.get(0)), rows::count(row, 1))).collect())
        }))
    }
}

async fn read(session: &Session, key: &DocumentKey) -> Result<Option<Document>, StoreError> {
    Ok(session.query_first(READ, &[&key.as_str()]).await?.as_ref().map(document))
}

/// Columns: as in [`READ`].
fn document(row: &Row) -> Document {
    Document {
        key: DocumentKey::stored(row.get(0)),
        version: rows::count(row, 1),
        body: row.get(2),
        created_at: rows::timestamp(row, 3),
        updated_at: rows::timestamp(row, 4),
    }
}
