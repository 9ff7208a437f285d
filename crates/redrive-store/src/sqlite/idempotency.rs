//! Stores idempotency keys in a table of the same file.
//!
//! Only a result has to be on stable storage before the reply. A power loss that undoes a claim or release ends its owner, too.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::idempotency::{
    ABANDONED_AFTER, Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyRecord,
    IdempotencyStore, OwnerToken, StoreFuture,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SqliteStore;
use super::transaction::Uncommitted;
use crate::error::StoreError;
use crate::sql::idempotency::{Change, KeyCheck, KeyRow, owner_methods, unavailable};

const READ: &str = "
    SELECT fingerprint, state, owner, until, result, metadata, created_at, updated_at FROM idempotency WHERE key = ?1";

const ACQUIRE: &str = "
    INSERT INTO idempotency (key, fingerprint, state, owner, until, created_at, updated_at)
    VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6)
    ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, state = 1, owner = excluded.owner,
    until = excluded.until, result = NULL, metadata = NULL, created_at = excluded.created_at,
    updated_at = excluded.updated_at";

/// Fenced: changes the row only while this owner holds the key.
const CHANGE: &str = "
    UPDATE idempotency SET state = ?3, until = ?4, result = ?5, metadata = ?6, updated_at = ?7
    WHERE key = ?1 AND state = 1 AND owner = ?2";

const RELEASE: &str = "DELETE FROM idempotency WHERE key = ?1 AND state = 1 AND owner = ?2";

const REAP: &str = "
    DELETE FROM idempotency WHERE key IN (
      SELECT key FROM idempotency WHERE until <= ?1 AND (state <> 1 OR until <= ?2) ORDER BY until LIMIT ?3)";

impl SqliteStore {
    /// Deletes at most `limit` expired keys and returns their number.
    pub(super) async fn reap_keys(&self, limit: usize) -> Result<usize, StoreError> {
        let now = self.clock.now().as_millis();
        let abandoned = now - i64::try_from(ABANDONED_AFTER.as_millis()).unwrap_or(i64::MAX);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let reap = move |connection: &Connection| {
            Ok(connection.prepare_cached(REAP)?.execute(params![now, abandoned, limit])?)
        };
        self.writer.run_unsynced(reap).await
    }

    /// Changes the key, or releases it without a change, if this owner holds it.
    async fn as_owner(
        &self,
        key: &IdempotencyKey,
        owner: OwnerToken,
        change: Option<Change>,
    ) -> Result<(), IdempotencyError> {
        let (name, now) = (key.as_str().to_owned(), self.clock.now());
        let is_result = change.as_ref().is_some_and(Change::is_result);
        let work = move |connection: &Connection, _: &mut Uncommitted| {
            let owner = owner.as_u128().to_be_bytes();
            let changed = match change {
                Some(change) => connection.prepare_cached(CHANGE)?.execute(params![
                    name,
                    owner,
                    change.state,
                    (now + change.keep).as_millis(),
                    change.result,
                    change.metadata,
                    now.as_millis()
                ])?,
                None => connection.prepare_cached(RELEASE)?.execute(params![name, owner])?,
            };
            Ok(changed == 1)
        };
        let changed = self.writer.run_with(is_result, work).await;
        self.key_changed.notify_waiters();
        match changed {
            Ok(true) => Ok(()),
            Ok(false) => Err(IdempotencyError::LeaseLost { key: key.clone() }),
            Err(error) => Err(unavailable(error)),
        }
    }
}

impl IdempotencyStore for SqliteStore {
    fn begin<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, Begin> {
        let (name, now) = (key.as_str().to_owned(), self.clock.now());
        let begin = move |connection: &Connection| {
            let taken_before = match KeyCheck::new(read(connection, &name)?, fingerprint, owner, now) {
                KeyCheck::Answered(answer) => return Ok(answer),
                KeyCheck::Free { taken_before } => taken_before,
            };
            connection.prepare_cached(ACQUIRE)?.execute(params![
                name,
                fingerprint.as_bytes(),
                owner.as_u128().to_be_bytes(),
                (now + lease).as_millis(),
                taken_before.unwrap_or(now).as_millis(),
                now.as_millis()
            ])?;
            Ok(Begin::Acquired)
        };
        Box::pin(async move { self.writer.run_unsynced(begin).await.map_err(unavailable) })
    }

    owner_methods!();

    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>> {
        let (name, now) = (key.as_str().to_owned(), self.clock.now());
        Box::pin(async move {
            let found = self.read(move |connection| read(connection, &name)).await.map_err(unavailable)?;
            Ok(found.filter(|record| !record.state.is_expired(now)))
        })
    }

    fn clear<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, bool> {
        let name = key.as_str().to_owned();
        Box::pin(async move {
            let delete = move |connection: &Connection| {
                Ok(connection.prepare_cached("DELETE FROM idempotency WHERE key = ?1")?.execute([name])? > 0)
            };
            let cleared = self.writer.run(delete).await.map_err(unavailable);
            self.key_changed.notify_waiters();
            cleared
        })
    }

    fn reap(&self, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move { self.reap_keys(limit).await.map_err(unavailable) })
    }

    fn changed<'a>(&'a self, _key: &'a IdempotencyKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        // `notified` counts from its creation, not from its first poll, so no change in between is missed.
        Box::pin(self.key_changed.notified())
    }

    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        let name = key.as_str().to_owned();
        let release = move |connection: &Connection| {
            let owner = owner.as_u128().to_be_bytes();
            connection.prepare_cached(RELEASE)?.execute(params![name, owner])?;
            Ok(())
        };
        let lost = |error| {
            tracing::warn!(target: "redrive::store", %error, "an idempotency key was not released and is blocked until its lease expires");
        };
        // No caller waits for it; if the queue is full, the lease expires.
        let _ = self.writer.run_detached(release, lost);
    }
}

fn read(connection: &Connection, key: &str) -> Result<Option<IdempotencyRecord>, StoreError> {
    Ok(connection.prepare_cached(READ)?.query_row([key], record).optional()?)
}

fn record(row: &Row<'_>) -> rusqlite::Result<IdempotencyRecord> {
    let owner: Option<[u8; 16]> = row.get(2)?;
    let row = KeyRow {
        fingerprint: Fingerprint::from_bytes(row.get(0)?),
        state: row.get(1)?,
        owner: owner.map(|owner| OwnerToken::from_u128(u128::from_be_bytes(owner))),
        until: Timestamp::from_millis(row.get(3)?),
        result: row.get(4)?,
        metadata: row.get(5)?,
        created_at: Timestamp::from_millis(row.get(6)?),
        updated_at: Timestamp::from_millis(row.get(7)?),
    };
    Ok(row.into())
}
