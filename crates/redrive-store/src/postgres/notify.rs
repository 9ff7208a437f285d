//! Notifies other processes of due work, by NOTIFY.
//!
//! A notification takes a database-wide lock while its transaction commits, so it is never part of a transaction that stores
//! something. A background task sends it afterwards, at most once in [`MIN_INTERVAL`]. It is a hint: if it is lost, the other
//! processes find the work at their next poll.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use crate::error::StoreError;

const MIN_INTERVAL: Duration = Duration::from_millis(5);

/// Commits asynchronously: a notification need not survive a crash.
const NOTIFY: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('@channel@', $1)";

/// Sends requested notifications until the task is aborted.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        shared.notify_requested.notified().await;
        let sent = async {
            let session = shared.pool.get().await?;
            session.query(NOTIFY, &[&shared.boot.to_string()]).await.map_err(StoreError::from)
        };
        if let Err(error) = sent.await {
            tracing::debug!(target: "redrive::store", %error, "a notification of due work was not sent");
        }
        tokio::time::sleep(MIN_INTERVAL).await;
    }
}
