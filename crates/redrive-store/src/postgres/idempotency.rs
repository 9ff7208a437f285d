//! Idempotency keys, shared by all processes on the database. All times are the database's.
//!
//! The decisions are shared by all stores; this module makes them atomic. A key is acquired by a statement that changes the
//! row only if it is unchanged since the decision (compare-and-swap).
//!
//! Unlike in a SQLite file, an acquired key is on stable storage before the answer: the caller may outlive the server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::idempotency::{
    ABANDONED_AFTER, Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyRecord,
    IdempotencyStore, OwnerToken, StoreFuture,
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::background_writes::BackgroundWrite;
use super::session::Session;
use super::value::millis;
use super::{PostgresStore, Shared, nul_escape, rows};
use crate::error::StoreError;
use crate::sql::idempotency::{Change, IN_PROGRESS, KeyCheck, KeyRow, owner_methods, unavailable};

/// The maximum number of lost races for a key. Each lost race is progress of another caller.
const MAX_RACES: u32 = 1000;

macro_rules! columns {
    () => {
        "redrive.now_ms(), r.fingerprint, r.state, r.owner, r.until, r.result, r.metadata, r.created_at, r.updated_at"
    };
}

/// Acquires a key that does not exist, or reads the existing one.
const BEGIN: &str = concat!(
    "WITH taken AS (
       INSERT INTO redrive.idempotency (key, fingerprint, state, owner, until, created_at, updated_at)
       SELECT $1, $2, 1, $3, t.now + $4, t.now, t.now FROM (SELECT redrive.now_ms() AS now) t
       ON CONFLICT (key) DO NOTHING RETURNING key)
     SELECT ",
    columns!(),
    ", EXISTS (SELECT 1 FROM taken)
     FROM (SELECT 1) one LEFT JOIN redrive.idempotency r ON r.key = $1"
);

/// Acquires a free key if it is unchanged: every change by an owner, and every new owner, changes state, owner or `until`.
const TAKE: &str = "
    UPDATE redrive.idempotency SET fingerprint = $5, state = 1, owner = $6, until = t.now + $7, result = NULL,
      metadata = NULL, created_at = coalesce($8, t.now), updated_at = t.now
    FROM (SELECT redrive.now_ms() AS now) t
    WHERE key = $1 AND state = $2 AND owner = $3 AND until = $4 RETURNING 1";

/// Fenced: takes effect only while this owner has the key.
const CHANGE: &str = "
    UPDATE redrive.idempotency SET state = $3, until = t.now + $4, result = $5, metadata = $6, updated_at = t.now
    FROM (SELECT redrive.now_ms() AS now) t
    WHERE key = $1 AND state = 1 AND owner = $2 RETURNING 1";

const RELEASE: &str = "
    DELETE FROM redrive.idempotency WHERE key = $1 AND state = 1 AND owner = $2 RETURNING 1";

const READ: &str = concat!("SELECT ", columns!(), " FROM redrive.idempotency r WHERE r.key = $1");

const CLEAR: &str = "DELETE FROM redrive.idempotency WHERE key = $1 RETURNING 1";

/// Deletes expired keys. Skips keys that are being acquired.
pub(super) const REAP: &str = "
    WITH now AS MATERIALIZED (SELECT redrive.now_ms() AS ms),
    gone AS (
      DELETE FROM redrive.idempotency WHERE key IN (
        SELECT key FROM redrive.idempotency
        WHERE until <= (SELECT ms FROM now) AND (state <> 1 OR until <= (SELECT ms FROM now) - $1)
        ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING 1)
    SELECT count(*) FROM gone";

/// The first parameter of [`REAP`]: milliseconds after which an expired lease counts as abandoned.
pub(super) fn abandoned_after() -> i64 {
    millis(ABANDONED_AFTER)
}

fn uuid(owner: OwnerToken) -> Uuid {
    Uuid::from_u128(owner.as_u128())
}

async fn begin(
    shared: Arc<Shared>,
    key: String,
    fingerprint: Fingerprint,
    owner: OwnerToken,
    lease: Duration,
) -> Result<Begin, StoreError> {
    let print: &[u8] = fingerprint.as_bytes();
    for _ in 0..MAX_RACES {
        let asked = shared.retry_idempotent(BEGIN, &[&key, &print, &uuid(owner), &millis(lease)]).await?;
        let Some(row) = asked.rows.first() else { continue };
        if row.get(9) {
            return Ok(Begin::Acquired);
        }
        // Another caller has created or deleted the key meanwhile.
        let Some((now, found)) = key_row(row) else { continue };
        let (state, holder, until) = (found.state, found.owner.map(uuid), found.until.as_millis());
        let created_at = match KeyCheck::new(Some(found.into()), fingerprint, owner, now) {
            KeyCheck::Answered(answer) => {
                if matches!(answer, Begin::Completed { .. }) {
                    asked.session.barrier().await?;
                }
                return Ok(answer);
            }
            KeyCheck::Free { taken_before } => taken_before.map(Timestamp::as_millis),
        };
        drop(asked); // returns its session to the pool: the next statement takes one
        let taken = shared
            .retry_idempotent(
                TAKE,
                &[&key, &state, &holder, &until, &print, &uuid(owner), &millis(lease), &created_at],
            )
            .await?;
        if !taken.rows.is_empty() {
            return Ok(Begin::Acquired);
        }
    }
    Err(StoreError::Busy)
}

/// Changes a record, or releases it, if this owner has it. Returns whether it did.
async fn as_owner(
    shared: Arc<Shared>,
    key: String,
    owner: OwnerToken,
    change: Option<Change>,
) -> Result<bool, StoreError> {
    let owner = uuid(owner);
    let answer = match &change {
        Some(change) => {
            let stored =
                |text: &Option<String>| text.as_deref().map(|text| nul_escape::escape(text).into_owned());
            let (result, metadata) = (stored(&change.result), stored(&change.metadata));
            shared
                .retry_idempotent(
                    CHANGE,
                    &[&key, &owner, &change.state, &millis(change.keep), &result, &metadata],
                )
                .await?
        }
        None => shared.retry_idempotent(RELEASE, &[&key, &owner]).await?,
    };
    if !answer.rows.is_empty() || !answer.was_resent {
        return Ok(!answer.rows.is_empty());
    }
    // The first execution, whose answer was lost, may have changed it.
    let found = read(&answer.session, &key).await?.map(|(_, row)| row);
    answer.session.barrier().await?;
    let holds = |row: &KeyRow| row.owner.map(uuid) == Some(owner);
    Ok(match change {
        Some(change) => found.is_some_and(|row| holds(&row) && row.state == change.state),
        None => !found.is_some_and(|row| holds(&row) && row.state == IN_PROGRESS),
    })
}

async fn read(session: &Session, key: &str) -> Result<Option<(Timestamp, KeyRow)>, StoreError> {
    Ok(session.query_first(READ, &[&key]).await?.as_ref().and_then(key_row))
}

/// Reads a record and the time of the query. Columns: as in `columns!`.
fn key_row(row: &Row) -> Option<(Timestamp, KeyRow)> {
    let fingerprint: Option<&[u8]> = row.get(1);
    let owner: Uuid = row.get::<_, Option<Uuid>>(3)?;
    let found = KeyRow {
        // A fingerprint that was changed by hand to a wrong length matches no payload.
        fingerprint: Fingerprint::from_bytes(fingerprint?.try_into().unwrap_or_default()),
        state: row.get(2),
        owner: Some(OwnerToken::from_u128(owner.as_u128())),
        until: rows::timestamp(row, 4),
        result: row.get::<_, Option<String>>(5).map(nul_escape::unescape),
        metadata: row.get::<_, Option<String>>(6).map(nul_escape::unescape),
        created_at: rows::timestamp(row, 7),
        updated_at: rows::timestamp(row, 8),
    };
    Some((rows::timestamp(row, 0), found))
}

impl PostgresStore {
    /// Runs work with a key, to its end even if the caller is cancelled.
    async fn with_key<T, W>(
        &self,
        key: &IdempotencyKey,
        work: impl FnOnce(Arc<Shared>, String) -> W,
    ) -> Result<T, IdempotencyError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let name = key.as_str().to_owned();
        self.run(|shared| work(shared, name)).await.map_err(unavailable)
    }

    async fn as_owner(
        &self,
        key: &IdempotencyKey,
        owner: OwnerToken,
        change: Option<Change>,
    ) -> Result<(), IdempotencyError> {
        let changed = self.with_key(key, move |shared, name| as_owner(shared, name, owner, change)).await;
        self.shared.key_changed.notify_waiters();
        if changed? { Ok(()) } else { Err(IdempotencyError::LeaseLost { key: key.clone() }) }
    }
}

impl IdempotencyStore for PostgresStore {
    fn begin<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, Begin> {
        Box::pin(self.with_key(key, move |shared, name| begin(shared, name, fingerprint, owner, lease)))
    }

    owner_methods!();

    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>> {
        Box::pin(self.with_key(key, |shared, name| async move {
            let found = read(&*shared.pool.get().await?, &name).await?;
            let record = found.map(|(now, row)| (now, IdempotencyRecord::from(row)));
            Ok(record.filter(|(now, record)| !record.state.is_expired(*now)).map(|(_, record)| record))
        }))
    }

    fn clear<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let clear = |shared: Arc<Shared>, name: String| async move {
                let answer = shared.retry_idempotent(CLEAR, &[&name]).await?;
                if answer.rows.is_empty() {
                    answer.session.barrier().await?;
                }
                Ok(!answer.rows.is_empty() || answer.was_resent)
            };
            let cleared = self.with_key(key, clear).await;
            self.shared.key_changed.notify_waiters();
            cleared
        })
    }

    fn reap(&self, limit: usize) -> StoreFuture<'_, usize> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        Box::pin(async move {
            let reaped = self.run(move |shared| async move {
                let session = shared.pool.get().await?;
                let reaped = session.count(REAP, &[&abandoned_after(), &limit]).await;
                reaped.map_err(|error| shared.explain(error))
            });
            reaped.await.map(|count| usize::try_from(count).unwrap_or(usize::MAX)).map_err(unavailable)
        })
    }

    fn changed<'a>(&'a self, _key: &'a IdempotencyKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        // Reports changes by this process only; callers poll for those of others. The future counts from its creation, so a
        // change before its first poll is not missed.
        Box::pin(self.shared.key_changed.notified())
    }

    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        // If the queue is full, the lease expires by itself.
        let write = BackgroundWrite::ReleaseKey { key: key.as_str().to_owned(), owner: uuid(owner) };
        let _ = self.background_writes.queue.try_send(write);
    }
}
