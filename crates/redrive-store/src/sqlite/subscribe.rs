//! The subscriptions on record: the name and the pattern, never the handler.

use redrive_retry::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::query::SubscriptionRow;

/// Keeps the id of a name that is there already.
pub(super) fn register(
    connection: &Connection,
    name: &SubscriptionName,
    pattern: &str,
    now: Timestamp,
) -> Result<String, StoreError> {
    let known: Option<String> = connection
        .prepare_cached("UPDATE subscriptions SET event_type = ?2 WHERE name = ?1 RETURNING id")?
        .query_row(params![name.as_str(), pattern], |row| row.get(0))
        .optional()?;
    if let Some(id) = known {
        return Ok(id);
    }
    let id = Uuid::new_v4().to_string();
    connection
        .prepare_cached(
            "INSERT INTO subscriptions (id, name, event_type, created_at) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![id, name.as_str(), pattern, now.to_string()])?;
    Ok(id)
}

pub(super) fn unregister(connection: &Connection, name: &SubscriptionName) -> Result<bool, StoreError> {
    Ok(connection.execute("DELETE FROM subscriptions WHERE name = ?1", [name.as_str()])? > 0)
}

pub(super) fn list(connection: &Connection) -> Result<Vec<SubscriptionRow>, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT id, name, event_type, created_at FROM subscriptions ORDER BY rowid")?;
    let mut rows = statement.query([])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        let created_at: String = row.get(3)?;
        list.push(SubscriptionRow {
            id: row.get(0)?,
            name: SubscriptionName::new(row.get::<_, String>(1)?)?,
            event_type: row.get(2)?,
            created_at: created_at.parse().unwrap_or_default(),
        });
    }
    Ok(list)
}
