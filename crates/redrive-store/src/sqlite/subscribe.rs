//! Records subscriptions: name and pattern, never the handler.

use rusqlite::params;

use super::{SqliteStore, rows};
use crate::event::SubscriptionName;
use crate::query::SubscriptionRow;
use crate::store::{Cluster, StoreFuture};

/// A known name keeps its id and gets the new pattern.
const REGISTER: &str = "
    INSERT INTO subscriptions (id, name, event_type, created_at) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (name) DO UPDATE SET event_type = excluded.event_type";

impl Cluster for SqliteStore {
    fn register(&self, subscription: SubscriptionRow) -> StoreFuture<'_, ()> {
        let SubscriptionRow { id, name, event_type, created_at } = subscription;
        Box::pin(self.writer.run(move |connection| {
            let values = params![id, name.as_str(), event_type, created_at.to_string()];
            connection.prepare_cached(REGISTER)?.execute(values)?;
            Ok(())
        }))
    }

    fn unregister(&self, name: SubscriptionName) -> StoreFuture<'_, bool> {
        Box::pin(self.writer.run(move |connection| {
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
