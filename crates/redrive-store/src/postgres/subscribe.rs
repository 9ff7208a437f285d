//! Subscriptions on record: name and pattern, never the handler.

use uuid::Uuid;

use super::session::Session;
use super::{remote_subscriptions, rows};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::query::SubscriptionRow;

/// Ignores a conflict of name or id: two processes may register one subscription at the same time.
const REGISTER: &str = "
    INSERT INTO redrive.subscriptions (id, name, event_type, created_at) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING";

/// Changes the pattern of an existing name, which keeps its id.
const CHANGE: &str = "UPDATE redrive.subscriptions SET event_type = $2 WHERE name = $1 AND event_type <> $2";

const UNREGISTER: &str = "DELETE FROM redrive.subscriptions WHERE name = $1 RETURNING 1";

const LIST: &str = "SELECT id, name, event_type, created_at FROM redrive.subscriptions ORDER BY key";

pub(super) async fn register(
    session: &Session,
    boot: Uuid,
    subscription: &SubscriptionRow,
) -> Result<(), StoreError> {
    let SubscriptionRow { id, name, event_type, created_at } = subscription;
    session.query(REGISTER, &[id, &name.as_str(), event_type, &created_at.to_string()]).await?;
    session.query(CHANGE, &[&name.as_str(), event_type]).await?;
    remote_subscriptions::announce(session, boot, subscription).await
}

pub(super) async fn unregister(
    session: &Session,
    boot: Uuid,
    name: &SubscriptionName,
) -> Result<bool, StoreError> {
    remote_subscriptions::withdraw(session, boot, name).await?;
    let found = session.query(UNREGISTER, &[&name.as_str()]).await?;
    Ok(!found.is_empty())
}

pub(super) async fn list(session: &Session) -> Result<Vec<SubscriptionRow>, StoreError> {
    let found = session.query(LIST, &[]).await?;
    let subscription = |row: &tokio_postgres::Row| SubscriptionRow {
        id: row.get(0),
        name: rows::subscription(row, 1),
        event_type: row.get(2),
        created_at: row.get::<_, &str>(3).parse().unwrap_or_default(),
    };
    Ok(found.iter().map(subscription).collect())
}
