//! Tasks of the leader: it takes over the work of dead processes, enforces retention, and collects statistics.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redrive_retry::Timestamp;
use tokio::sync::Notify;

use super::process_state::DECLARED_DEAD;
use super::recover::{self, Search};
use super::session::Session;
use super::value::Value;
use super::{Shared, clock_step, cluster, idempotency, leader, lock, maintenance, rows};
use crate::error::StoreError;
use crate::query::Stats;
use crate::store::{CLEANUP_BATCH_ROWS, CLEANUP_INTERVAL, retention_cutoff};

/// Full counts take at most one part in this many of the leader's time.
const COUNT_TIME_DIVISOR: u32 = 20;

const WRITE_STATS: &str = "
    INSERT INTO redrive.statistics (at, stats) VALUES (redrive.now_ms(), $1)
    ON CONFLICT (single) DO UPDATE SET at = excluded.at, stats = excluded.stats";

const READ_STATS: &str = "SELECT at, stats FROM redrive.statistics";

/// Schedule of the leader's tasks. A std mutex: held for a comparison.
#[derive(Debug, Default)]
pub(super) struct LeaderTasks {
    pub(super) next: Mutex<Schedule>,
    /// Whether this process has ever stood for election, so that it may have to resign.
    pub(super) has_been_candidate: AtomicBool,
}

#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Schedule {
    clean: NextRun,
    count: NextRun,
    pub(super) rewound: clock_step::Rewound,
    /// The key after which the next search for expired events continues.
    clean_after: Option<i64>,
}

/// The time of the next run, and when it was scheduled. A clock before `since` was set back: then the task runs at once.
#[derive(Copy, Clone, Debug, Default)]
struct NextRun {
    since: Timestamp,
    at: Timestamp,
}

impl NextRun {
    fn after(now: Timestamp, pause: Duration) -> Self {
        NextRun { since: now, at: now + pause }
    }

    fn is_now(self, now: Timestamp) -> bool {
        self.at <= now || now < self.since
    }
}

/// Runs the due tasks if this process leads. Returns the delay until the next call.
pub(super) async fn maintain(
    shared: &Shared,
    now: Timestamp,
    retention: Option<Duration>,
) -> Result<Duration, StoreError> {
    let again = leader::election_interval(shared);
    let Some(led_for) = lead(shared, now).await? else { return Ok(again) };
    // Meanwhile a second loop leads and takes over. Neither is cancelled: a cancelled takeover would cost its connection.
    let is_done = Notify::new();
    let tasks = async {
        let has_more = run_tasks(shared, now, retention, led_for).await;
        is_done.notify_one();
        has_more
    };
    let keep_leading = async {
        loop {
            tokio::select! {
                () = is_done.notified() => return Ok(()),
                () = tokio::time::sleep(again) => {}
            }
            if lead(shared, now).await?.is_none() {
                return Ok(()); // the tasks fail at their fence
            }
        }
    };
    let (has_more, led) = tokio::join!(tasks, keep_leading);
    let has_more = led.and(has_more)?;
    Ok(if has_more { Duration::from_millis(1) } else { again })
}

/// Stands for election and, as the leader, takes over from dead processes. Returns for how long this process has led, if it leads.
async fn lead(shared: &Shared, now: Timestamp) -> Result<Option<Duration>, StoreError> {
    let led_for = {
        let mut leader_session = shared.leader_session.lock().await;
        let session = shared.dedicated_session(&mut leader_session).await?;
        shared.leader_tasks.has_been_candidate.store(true, Ordering::Release); // before: the answer may be lost
        leader::elect(shared, session).await?
    };
    if led_for.is_some() {
        recover::recover(shared, now, Search::AsLeader).await?;
    }
    Ok(led_for)
}

/// Runs the due tasks. Returns whether there is more to clean up.
async fn run_tasks(
    shared: &Shared,
    now: Timestamp,
    retention: Option<Duration>,
    led_for: Duration,
) -> Result<bool, StoreError> {
    clock_step::rewind(shared, led_for).await?;
    let next = *lock(&shared.leader_tasks.next);
    if next.clean.is_now(now) && clean_up(shared, now, retention).await? {
        return Ok(true);
    }
    if next.count.is_now(now) {
        count_and_check_owners(shared, now).await?;
    }
    Ok(false)
}

/// Deletes expired idempotency keys, stale reports and events past their retention, and makes the backlogs of removed subscriptions
/// due. Returns whether there is more to delete.
async fn clean_up(shared: &Shared, now: Timestamp, retention: Option<Duration>) -> Result<bool, StoreError> {
    let session = shared.pool.get().await?;
    let (abandoned_after, limit) = (idempotency::abandoned_after(), i64::from(CLEANUP_BATCH_ROWS));
    let reaped = leader::as_leader(shared, &session, idempotency::REAP, &[&abandoned_after, &limit]).await?;
    let reaped = reaped.and_then(|found| found.first().map(|row| rows::count(row, 0)));
    let mut most = reaped.unwrap_or(0);
    for prune in cluster::PRUNE_REPORTS {
        leader::as_leader(shared, &session, prune, &[]).await?;
    }
    let released = leader::as_leader(shared, &session, cluster::RELEASE_REMOVED, &[&now.as_millis()]).await?;
    if released.is_some_and(|found| found.iter().any(|row| rows::count(row, 0) > 0)) {
        shared.note_due(now);
        shared.notify_requested.notify_one();
    }
    if let Some(retention) = retention {
        let (before, after) = (retention_cutoff(now, retention), lock(&shared.leader_tasks.next).clean_after);
        let page =
            maintenance::finished(&session, before, CLEANUP_BATCH_ROWS, after.unwrap_or(i64::MIN)).await?;
        if !page.keys.is_empty() {
            leader::as_leader(shared, &session, maintenance::PURGE, &[&page.keys]).await?;
        }
        lock(&shared.leader_tasks.next).clean_after = Some(page.after);
        most = most.max(page.keys.len() as u64);
    }
    let has_more = most >= u64::from(CLEANUP_BATCH_ROWS);
    if !has_more {
        lock(&shared.leader_tasks.next).clean = NextRun::after(now, CLEANUP_INTERVAL);
    }
    Ok(has_more)
}

/// Scans everything: counts events for the statistics, and takes over claims whose owner is not registered.
async fn count_and_check_owners(shared: &Shared, now: Timestamp) -> Result<(), StoreError> {
    // Scheduled first: a count that fails, for example by the statement timeout, is not repeated at once.
    lock(&shared.leader_tasks.next).count = NextRun::after(now, CLEANUP_INTERVAL);
    let began = Instant::now();
    let session = shared.pool.get().await?;
    let unknown = session.query(recover::UNKNOWN_OWNERS, &[]).await?;
    if !unknown.is_empty() {
        let owners: Vec<i64> = unknown.iter().map(|row| row.get(0)).collect();
        tracing::error!(target: "redrive::store", ?owners, "claims of unregistered processes are taken over");
        let values: [&dyn Value; 2] = [&owners, &DECLARED_DEAD];
        leader::as_leader(shared, &session, recover::REGISTER_AS_DEAD, &values).await?;
        recover::recover(shared, now, Search::AsLeader).await?;
    }
    let stats = maintenance::stats(&session, shared.connector.names.schema()).await?;
    let pause = (began.elapsed() * COUNT_TIME_DIVISOR).max(CLEANUP_INTERVAL);
    let stats =
        serde_json::to_string(&stats).map_err(|error| StoreError::Stopped { why: error.to_string() })?;
    leader::as_leader(shared, &session, WRITE_STATS, &[&stats]).await?;
    lock(&shared.leader_tasks.next).count = NextRun::after(now, pause);
    Ok(())
}

/// Reads the last statistics and their time.
pub(super) async fn last_stats(session: &Session) -> Result<Option<(Timestamp, Stats)>, StoreError> {
    let found = session.query_first(READ_STATS, &[]).await?;
    Ok(found.and_then(|row| Some((rows::timestamp(&row, 0), serde_json::from_str(row.get(1)).ok()?))))
}
