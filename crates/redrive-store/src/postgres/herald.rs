//! Tells other processes that there is something to do.
//!
//! A notification takes a lock of the whole database while its transaction commits, so none is ever part of a transaction that
//! stores something: it is sent afterwards, by itself, and not more often than every few milliseconds however much is stored.
//! It is a hint. If it is lost, whoever waits looks again soon.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::Shared;

/// Not more often than this.
const PAUSE: Duration = Duration::from_millis(5);

/// It need not be on disk: who hears it hears it now.
const NOTIFY: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('@channel@', $1)";

#[derive(Debug, Default)]
pub(super) struct Herald {
    has_news: Notify,
}

impl Herald {
    /// There is something to do.
    pub(super) fn say(&self) {
        self.has_news.notify_one();
    }
}

/// Ended by whoever has started it.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        shared.herald.has_news.notified().await;
        let told = async {
            let session = shared.pool.get().await?;
            session.query(NOTIFY, &[&shared.boot.to_string()]).await.map_err(super::failure::explain)
        };
        if let Err(error) = told.await {
            tracing::debug!(target: "redrive::store", %error, "nobody was told that there is work");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
