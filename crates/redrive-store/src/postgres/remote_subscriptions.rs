//! Remote subscriptions: those of other processes that this process does not have. They occur while a new release is rolled
//! out, and where several programs share a database.
//!
//! They are read on demand and cached for [`CACHE_TTL`]. A process with a new subscription waits that long before it
//! goes on: then every other process has read it.
//!
//! The subscriptions on record are read only for events that no living process takes. They include those of living processes: a process
//! that has left since the remote subscriptions were read leaves no gap.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::{Shared, lock, rows};
use crate::error::StoreError;
use crate::query::RemoteSubscription;

const CACHE_TTL: Duration = Duration::from_millis(500);

/// Records a subscription of this process for other processes. Also deletes those of processes that have been gone for a week.
pub(super) const ANNOUNCE: &str = "
    WITH gone AS (
      DELETE FROM redrive.subscriber s WHERE at < redrive.now_ms() - 604800000
      AND NOT EXISTS (SELECT 1 FROM redrive.process p WHERE p.boot = s.boot) AND s.boot <> $1)
    INSERT INTO redrive.subscriber (boot, name, event_type, at) VALUES ($1, $2, $3, redrive.now_ms())
    ON CONFLICT (boot, name) DO UPDATE SET event_type = excluded.event_type, at = excluded.at";

/// Removes a subscription of this process.
pub(super) const WITHDRAW: &str = "DELETE FROM redrive.subscriber WHERE boot = $1 AND name = $2";

/// A subscription of this process with another pattern in another process counts as remote, too.
const SELECT_REMOTE: &str = "
    SELECT DISTINCT s.name, s.event_type, EXISTS (SELECT 1 FROM redrive.subscriber o WHERE o.boot = $1 AND o.name = s.name)
    FROM redrive.subscriber s JOIN redrive.process p ON p.boot = s.boot
    WHERE s.boot <> $1 AND NOT EXISTS (
      SELECT 1 FROM redrive.subscriber o WHERE o.boot = $1 AND o.name = s.name AND o.event_type = s.event_type)";

const SELECT_ON_RECORD: &str = "SELECT name, event_type FROM redrive.subscriptions";

const IS_NEW_TO_OTHERS: &str = "
    SELECT EXISTS (
      SELECT 1 FROM redrive.process p JOIN redrive.subscriber o ON o.boot = $1
      WHERE p.boot <> $1 AND NOT EXISTS (
        SELECT 1 FROM redrive.subscriber s WHERE s.boot = p.boot AND s.name = o.name AND s.event_type = o.event_type))";

/// Cache of the last answers. The std mutexes are held for a comparison, the other ones during a query.
#[derive(Debug, Default)]
pub(super) struct RemoteSubscriptions {
    cached: Mutex<Option<Cached>>,
    asking: tokio::sync::Mutex<()>,
    /// Subscriptions on record, and when their query was sent.
    on_record: tokio::sync::Mutex<Option<(Instant, Arc<[RemoteSubscription]>)>>,
}

#[derive(Clone, Debug)]
pub(super) struct Cached {
    /// When the query was sent.
    asked: Instant,
    pub(super) subscribed: Arc<[RemoteSubscription]>,
    /// Names that this process has not subscribed at all: it leaves their deliveries to other processes.
    pub(super) left_to_others: Arc<[String]>,
}

impl RemoteSubscriptions {
    fn fresh(&self) -> Option<Cached> {
        lock(&self.cached).as_ref().filter(|cached| cached.asked.elapsed() < CACHE_TTL).cloned()
    }
}

/// Returns the remote subscriptions, at most [`CACHE_TTL`] old.
pub(super) async fn current(shared: &Shared) -> Result<Cached, StoreError> {
    let cache = &shared.remote_subscriptions;
    if let Some(cached) = cache.fresh() {
        return Ok(cached);
    }
    let _one_at_a_time = cache.asking.lock().await;
    if let Some(cached) = cache.fresh() {
        return Ok(cached);
    }
    let session = shared.pool.get().await?;
    let asked = Instant::now();
    let found = session.query(SELECT_REMOTE, &[&shared.boot]).await?;
    let subscribed = found.iter().map(subscription).collect();
    let left_to_others =
        found.iter().filter(|row| !row.get::<_, bool>(2)).map(|row| row.get::<_, String>(0)).collect();
    let cached = Cached { asked, subscribed, left_to_others };
    *lock(&cache.cached) = Some(cached.clone());
    Ok(cached)
}

/// Returns the subscriptions on record, at most [`CACHE_TTL`] old.
pub(super) async fn on_record(shared: &Shared) -> Result<Arc<[RemoteSubscription]>, StoreError> {
    let mut cached = shared.remote_subscriptions.on_record.lock().await;
    if let Some((_, on_record)) = cached.as_ref().filter(|(asked, _)| asked.elapsed() < CACHE_TTL) {
        return Ok(Arc::clone(on_record));
    }
    let asked = Instant::now();
    let found = shared.pool.get().await?.query(SELECT_ON_RECORD, &[]).await?;
    let on_record: Arc<[RemoteSubscription]> = found.iter().map(subscription).collect();
    *cached = Some((asked, Arc::clone(&on_record)));
    Ok(on_record)
}

/// Reads all subscriptions again at the next call, because this process has removed one.
pub(super) async fn forget(shared: &Shared) {
    *shared.remote_subscriptions.on_record.lock().await = None;
    *lock(&shared.remote_subscriptions.cached) = None;
}

fn subscription(row: &Row) -> RemoteSubscription {
    RemoteSubscription { name: rows::subscription(row, 0), event_type: row.get(1) }
}

/// Waits until the caches of all other processes include the subscriptions of this one.
pub(super) async fn subscriptions_propagated(shared: Arc<Shared>) -> Result<(), StoreError> {
    let session = shared.pool.get().await?;
    let found = session.query_first(IS_NEW_TO_OTHERS, &[&shared.boot]).await?;
    drop(session);
    if found.is_some_and(|row| row.get(0)) {
        tokio::time::sleep(CACHE_TTL).await;
    }
    Ok(())
}
