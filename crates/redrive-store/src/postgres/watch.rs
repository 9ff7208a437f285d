//! One connection that is held as long as the store is open: it listens for news, and holds a lock that says that this process
//! lives. The server lets it go with the connection, however the process ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_retry::Timestamp;

use super::connector::Purpose;
use super::session::Session;
use super::{Shared, failure};
use crate::error::StoreError;

/// How often to look whether the connection is still there, and the lock ours.
const LOOK: Duration = Duration::from_millis(500);

/// Not waited for: if somebody has it, it is a connection of ours of which the server does not know yet that it is gone.
const LOCK: &str = "
    SELECT pg_try_advisory_lock(to_regnamespace($1)::oid::integer, ($2 % 2147483647)::integer)";

#[derive(Debug, Default)]
pub(super) struct Watch {
    held: tokio::sync::Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    session: Option<Session>,
    /// The process whose lock this connection holds.
    lock: Option<i64>,
}

impl Watch {
    /// Holds the lock of a process from now on.
    pub(super) async fn hold(&self, shared: &Shared, process: i64) -> Result<(), StoreError> {
        self.held.lock().await.keep(shared, Some(process)).await
    }

    /// Lets everything go.
    pub(super) async fn close(&self) {
        *self.held.lock().await = Held::default();
    }
}

impl Held {
    async fn keep(&mut self, shared: &Shared, process: Option<i64>) -> Result<(), StoreError> {
        if !self.session.as_ref().is_some_and(Session::is_usable) {
            let is_first = self.session.is_none();
            self.lock = None;
            self.session = Some(listen(shared).await?);
            if !is_first {
                // What was said meanwhile was not heard.
                shared.is_due();
            }
        }
        if let (Some(process), Some(session)) = (process, &self.session)
            && self.lock != Some(process)
        {
            let found = session.query(LOCK, &[&shared.names.schema(), &process]).await;
            let is_held = found.map_err(failure::explain)?.first().is_some_and(|row| row.get(0));
            self.lock = is_held.then_some(process);
        }
        Ok(())
    }
}

async fn listen(shared: &Shared) -> Result<Session, StoreError> {
    let (due, boot) = (Arc::clone(&shared.due), shared.boot.to_string());
    let heard = move |notification: tokio_postgres::Notification| {
        // Whoever said it itself knows it already.
        if notification.payload() != boot {
            due.pull_forward(Timestamp::EPOCH); // nobody says since when
        }
    };
    let deadline = Instant::now() + shared.options.patience;
    let session = shared.connector.connect_with(Purpose::Other, deadline, heard).await?;
    session.batch("LISTEN @channel@").await.map_err(failure::explain)?;
    Ok(session)
}

/// Keeps the connection. Ended by whoever has started it.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        if let Err(error) = shared.watch.held.lock().await.keep(&shared, shared.known_owner()).await {
            tracing::warn!(target: "redrive::store", %error, "nobody tells this process of new work; it looks by itself");
        }
        tokio::time::sleep(LOOK).await;
    }
}
