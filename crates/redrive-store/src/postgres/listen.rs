//! Keeps one connection that listens for notifications and holds the process's liveness lock.
//!
//! The server releases the lock when the connection ends, however the process ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_retry::Timestamp;

use super::Shared;
use super::connector::Purpose;
use super::session::Session;
use crate::error::StoreError;

/// Interval between checks of the connection and the lock.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Does not wait: if the lock is taken, it belongs to a lost connection of this process that the server has not closed yet.
const TRY_LOCK: &str = "
    SELECT pg_try_advisory_lock(to_regnamespace($1)::oid::integer, ($2 % 2147483647)::integer)";

/// The listening connection, once it is made.
#[derive(Default)]
pub(super) struct ListenConnection {
    session: Option<Session>,
    /// The process whose lock this connection holds.
    lock: Option<i64>,
}

impl ListenConnection {
    /// Reconnects if needed, and takes the lock of a process if it is not held.
    pub(super) async fn keep(&mut self, shared: &Shared, process: Option<i64>) -> Result<(), StoreError> {
        if !self.session.as_ref().is_some_and(Session::is_usable) {
            let is_first = self.session.is_none();
            self.lock = None;
            self.session = Some(listen(shared).await?);
            if !is_first {
                // Notifications may have been missed meanwhile.
                shared.note_due_now();
            }
        }
        if let (Some(process), Some(session)) = (process, &self.session)
            && self.lock != Some(process)
        {
            let found = session.query_first(TRY_LOCK, &[&shared.connector.names.schema(), &process]).await?;
            self.lock = found.is_some_and(|row| row.get(0)).then_some(process);
        }
        Ok(())
    }
}

async fn listen(shared: &Shared) -> Result<Session, StoreError> {
    let (due, boot) = (Arc::clone(&shared.due), shared.boot.to_string());
    let on_notification = move |notification: tokio_postgres::Notification| {
        // The payload is the sender: this process knows of its own work.
        if notification.payload() != boot {
            due.pull_forward(Timestamp::EPOCH); // a notification carries no due time
        }
    };
    let deadline = Instant::now() + shared.options.outage_timeout;
    let session = shared.connector.connect_with(Purpose::Other, deadline, on_notification).await?;
    session.batch("LISTEN @channel@").await?;
    Ok(session)
}

/// Reconnects and locks again as needed, until the task is aborted.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        if let Err(error) = shared.listener.lock().await.keep(&shared, shared.registered_owner()).await {
            tracing::warn!(target: "redrive::store", %error, "no notifications of new work: this process polls for it");
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
