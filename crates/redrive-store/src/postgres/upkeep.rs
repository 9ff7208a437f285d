//! What one process does for all: it takes over from the dead, deletes what was kept long enough, and counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive_retry::Timestamp;
use tokio::sync::Notify;

use super::recover::{self, Search};
use super::session::Session;
use super::{Shared, budget, circuit, failure, idempotency, leader, maintenance, rows};
use crate::error::StoreError;
use crate::query::Stats;
use crate::store::{CLEAN_UP_BATCH, CLEAN_UP_EVERY, kept_since};

/// To look at everything may not take more than this part of the time.
const PART_OF_TIME: u32 = 20;

const KEEP: &str = "
    INSERT INTO redrive.statistics (at, stats) VALUES (redrive.now_ms(), $1)
    ON CONFLICT (single) DO UPDATE SET at = excluded.at, stats = excluded.stats";

const KEPT: &str = "SELECT at, stats FROM redrive.statistics";

/// When what is to be done next. A std mutex: held for a comparison.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    next: Mutex<Next>,
    /// Whether this process has ever wanted to lead, and so may have something to resign from.
    has_stood: AtomicBool,
}

#[derive(Copy, Clone, Debug, Default)]
struct Next {
    clean: Due,
    count: Due,
    /// Where the search for what was kept long enough goes on, unless it begins anew.
    clean_after: Option<i64>,
}

/// When something is to be done, and when that was decided: before that, the clock was set back, and it is not waited for.
#[derive(Copy, Clone, Debug, Default)]
struct Due {
    since: Timestamp,
    at: Timestamp,
}

impl Due {
    fn after(now: Timestamp, pause: Duration) -> Self {
        Due { since: now, at: now + pause }
    }

    fn is_now(self, now: Timestamp) -> bool {
        self.at <= now || now < self.since
    }
}

impl Upkeep {
    pub(super) fn has_stood(&self) -> bool {
        self.has_stood.load(Ordering::Acquire)
    }

    fn next(&self) -> Next {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Next)) {
        change(&mut self.next.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Does what is to be done now, if this process leads, and says when to come again.
pub(super) async fn maintain(
    shared: &Shared,
    now: Timestamp,
    retention: Option<Duration>,
) -> Result<Duration, StoreError> {
    let again = leader::look_every(shared);
    if !lead(shared, now).await? {
        return Ok(again);
    }
    // However long the chores take, the lease is renewed and the dead are found meanwhile. Nothing is broken off: half a
    // takeover would cost a connection.
    let is_done = Notify::new();
    let chores = async {
        let has_more = chores(shared, now, retention).await;
        is_done.notify_one();
        has_more
    };
    let lead_on = async {
        loop {
            tokio::select! {
                () = is_done.notified() => return Ok(()),
                () = tokio::time::sleep(again) => {}
            }
            if !lead(shared, now).await? {
                return Ok(()); // the chores find out by themselves
            }
        }
    };
    let (has_more, led_on) = tokio::join!(chores, lead_on);
    let has_more = led_on.and(has_more)?;
    Ok(if has_more { Duration::from_millis(1) } else { again })
}

/// Says whether this process leads. If it does, it takes over from the dead.
async fn lead(shared: &Shared, now: Timestamp) -> Result<bool, StoreError> {
    let leads = {
        let mut steward = shared.steward.lock().await;
        let session = shared.own_session(&mut steward).await?;
        shared.upkeep.has_stood.store(true, Ordering::Release); // before: the answer may be lost
        leader::elect(shared, session).await?.is_some()
    };
    if leads {
        recover::recover(shared, now, Search::AsLeader).await?;
    }
    Ok(leads)
}

/// Says whether there is more.
async fn chores(shared: &Shared, now: Timestamp, retention: Option<Duration>) -> Result<bool, StoreError> {
    let next = shared.upkeep.next();
    if next.clean.is_now(now) && clean_up(shared, now, retention).await? {
        return Ok(true);
    }
    if next.count.is_now(now) {
        look_at_everything(shared, now).await?;
    }
    Ok(false)
}

/// Says whether there is more.
async fn clean_up(shared: &Shared, now: Timestamp, retention: Option<Duration>) -> Result<bool, StoreError> {
    let session = shared.pool.get().await?;
    let (abandoned_after, limit) = (idempotency::abandoned_after(), i64::from(CLEAN_UP_BATCH));
    let reaped = leader::as_leader(shared, &session, idempotency::REAP, &[&abandoned_after, &limit]).await?;
    let reaped = reaped.and_then(|found| found.first().map(|row| rows::count(row, 0)));
    let mut most = reaped.unwrap_or(0);
    leader::as_leader(shared, &session, circuit::PRUNE, &[]).await?;
    leader::as_leader(shared, &session, budget::PRUNE, &[]).await?;
    if let Some(retention) = retention {
        let (before, after) = (kept_since(now, retention), shared.upkeep.next().clean_after);
        let page = maintenance::finished(&session, before, CLEAN_UP_BATCH, after.unwrap_or(i64::MIN)).await?;
        if !page.keys.is_empty() {
            leader::as_leader(shared, &session, maintenance::PURGE, &[&page.keys]).await?;
        }
        shared.upkeep.change(|next| next.clean_after = Some(page.after));
        most = most.max(page.keys.len() as u64);
    }
    let has_more = most >= u64::from(CLEAN_UP_BATCH);
    if !has_more {
        shared.upkeep.change(|next| next.clean = Due::after(now, CLEAN_UP_EVERY));
    }
    Ok(has_more)
}

/// Counts, and finds what has no owner.
async fn look_at_everything(shared: &Shared, now: Timestamp) -> Result<(), StoreError> {
    // Also if it fails: on a table that is too large to be counted, it is not tried all the time.
    shared.upkeep.change(|next| next.count = Due::after(now, CLEAN_UP_EVERY));
    let began = Instant::now();
    let session = shared.pool.get().await?;
    let unknown = session.query(recover::UNKNOWN_OWNERS, &[]).await.map_err(failure::explain)?;
    if !unknown.is_empty() {
        let owners: Vec<i64> = unknown.iter().map(|row| row.get(0)).collect();
        tracing::error!(target: "redrive::store", ?owners, "work in the hands of processes that nobody knows goes back");
        recover::make_known(shared, &session, &owners).await?;
        recover::recover(shared, now, Search::AsLeader).await?;
    }
    let stats = maintenance::stats(&session, shared.names.schema()).await?;
    let pause = (began.elapsed() * PART_OF_TIME).max(CLEAN_UP_EVERY);
    let stats =
        serde_json::to_string(&stats).map_err(|error| StoreError::Stopped { why: error.to_string() })?;
    leader::as_leader(shared, &session, KEEP, &[&stats]).await?;
    shared.upkeep.change(|next| next.count = Due::after(now, pause));
    Ok(())
}

/// What was counted last, and when.
pub(super) async fn last_stats(session: &Session) -> Result<Option<(Timestamp, Stats)>, StoreError> {
    let found = session.query(KEPT, &[]).await.map_err(failure::explain)?;
    Ok(found.first().and_then(|row| Some((rows::timestamp(row, 0), serde_json::from_str(row.get(1)).ok()?))))
}
