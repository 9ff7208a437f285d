//! Records subscriptions: name and pattern, never the handler. The backlog of a removed one becomes due: no limit frees for it any more.

use redrive_retry::Timestamp;
use rusqlite::{Connection, params};

use super::transaction::Uncommitted;
use super::{SqliteStore, rows};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::query::SubscriptionRow;
use crate::store::{Cluster, StoreFuture};

/// A known name keeps its id and gets the new pattern.
const REGISTER: &str = "
    INSERT INTO subscriptions (id, name, event_type, created_at) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (name) DO UPDATE SET event_type = excluded.event_type";

/// The literal is that of the index of the backlog.
const RELEASE_BACKLOG: &str = "
    UPDATE delivery SET due_at = ?2, updated_at = ?2 WHERE due_at = 9000000000000000 AND subscription = ?1";

/// Reads one entry of the index for each subscription, however long its backlog is.
const SELECT_REMOVED: &str = "
    WITH RECURSIVE backlog(name) AS (
      SELECT min(subscription) FROM delivery WHERE due_at = 9000000000000000
      UNION ALL
      SELECT (SELECT min(subscription) FROM delivery WHERE due_at = 9000000000000000 AND subscription > backlog.name)
      FROM backlog WHERE name IS NOT NULL)
    SELECT name FROM backlog WHERE name IS NOT NULL AND name NOT IN (SELECT name FROM subscriptions)";

impl Cluster for SqliteStore {
    fn register(&self, subscription: SubscriptionRow) -> StoreFuture<'_, ()> {
        let SubscriptionRow { id, name, event_type, created_at } = subscription;
        Box::pin(self.writer.run(move |connection| {
            let values = params![id, name.as_str(), event_type, created_at.to_string()];
            connection.prepare_cached(REGISTER)?.execute(values)?;
            Ok(())
        }))
    }

    fn unregister(&self, name: SubscriptionName, now: Timestamp) -> StoreFuture<'_, bool> {
        Box::pin(self.writer.run_with(true, move |connection, uncommitted| {
            let released = params![name.as_str(), now.as_millis()];
            if connection.prepare_cached(RELEASE_BACKLOG)?.execute(released)? > 0 {
                uncommitted.due(now);
            }
            let mut delete = connection.prepare_cached("DELETE FROM subscriptions WHERE name = ?1")?;
            Ok(delete.execute([name.as_str()])? > 0)
        }))
    }

    fn subscriptions(&self) -> StoreFuture<'_, Vec<SubscriptionRow>> {
        let query = "SELECT id, name, event_type, created_at FROM subscriptions ORDER BY rowid";
        Box::pin(self.read(move |connection| {
            rows::all(connection, query, [], |row| {
                Ok(SubscriptionRow {
                    id: rows::text(row, 0)?.into_owned(),
                    name: rows::subscription(row, 1)?,
                    event_type: rows::text(row, 2)?.into_owned(),
                    created_at: rows::text(row, 3)?.parse().unwrap_or_default(),
                })
            })
        }))
    }
}

impl SqliteStore {
    /// Makes the backlogs of subscriptions due that are not on record: a delivery may be deferred while its subscription is removed.
    pub(super) async fn release_removed(&self, now: Timestamp) -> Result<(), StoreError> {
        let release = move |connection: &Connection, uncommitted: &mut Uncommitted| {
            let removed =
                rows::all(connection, SELECT_REMOVED, [], |row| Ok(rows::text(row, 0)?.into_owned()))?;
            for name in &removed {
                connection.prepare_cached(RELEASE_BACKLOG)?.execute(params![name, now.as_millis()])?;
                uncommitted.due(now);
            }
            Ok(())
        };
        self.writer.run_with(false, release).await
    }
}
