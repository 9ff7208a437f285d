//! Records subscriptions: name and pattern, never the handler.

use rusqlite::{Connection, params};

use super::rows;
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::query::SubscriptionRow;

/// Records a subscription. A known name keeps its id and gets the new pattern.
pub(super) fn register(connection: &Connection, subscription: &SubscriptionRow) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO subscriptions (id, name, event_type, created_at) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (name) DO UPDATE SET event_type = excluded.event_type",
        )?
        .execute(params![
            subscription.id,
            subscription.name.as_str(),
            subscription.event_type,
            subscription.created_at.to_string()
        ])?;
    Ok(())
}

pub(super) fn unregister(connection: &Connection, name: &SubscriptionName) -> Result<bool, StoreError> {
    let mut delete = connection.prepare_cached("DELETE FROM subscriptions WHERE name = ?1")?;
    Ok(delete.execute([name.as_str()])? > 0)
}

pub(super) fn list(connection: &Connection) -> Result<Vec<SubscriptionRow>, StoreError> {
    let query = "SELECT id, name, event_type, created_at FROM subscriptions ORDER BY rowid";
    rows::all(connection, query, [], |row| {
        Ok(SubscriptionRow {
            id: rows::text(row, 0)?.into_owned(),
            name: rows::subscription(row, 1)?,
            event_type: rows::text(row, 2)?.into_owned(),
            created_at: rows::text(row, 3)?.parse().unwrap_or_default(),
        })
    })
}
