//! Retention and counts.

use redrive_retry::Timestamp;

use super::session::Session;
use super::{failure, rows, status};
use crate::error::StoreError;
use crate::event::EventStatus;
use crate::query::{Depth, Stats};

/// So many events in a row that were published too late to be meant end the search: one clock that is ahead does not.
const ENOUGH: u32 = 1000;

/// So many are looked at by one query.
const PAGE: i64 = 1000;

const OLDEST: &str = "
    SELECT key, status, updated_at, created_at FROM redrive.event WHERE key > $1 ORDER BY key LIMIT $2";

pub(super) const PURGE: &str = "
    WITH gone AS (DELETE FROM redrive.event WHERE key = ANY($1::bigint[]) AND status = 3 RETURNING key)
    SELECT count(*) FROM gone";

/// Deletes handled events that were finished before this instant, oldest first.
pub(super) async fn purge_done(session: &Session, before: Timestamp, limit: u32) -> Result<u64, StoreError> {
    let page = finished(session, before, limit, i64::MIN).await?;
    if page.keys.is_empty() {
        return Ok(0);
    }
    let found = session.query(PURGE, &[&page.keys]).await.map_err(failure::explain)?;
    Ok(found.first().map_or(0, |row| rows::count(row, 0)))
}

/// What was found, and where to go on.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) keys: Vec<i64>,
    /// The end of what was looked at; from the beginning again if that was everything.
    pub(super) after: i64,
}

/// The keys of handled events that were finished before this instant, oldest first, after this one. Keys are about in order of
/// publishing, so the search ends where events are younger than that; an index over finished events would cost every publish. Who
/// wants more goes on where it ended: what was deleted lies there until the server has cleaned up.
pub(super) async fn finished(
    session: &Session,
    before: Timestamp,
    limit: u32,
    mut after: i64,
) -> Result<Finished, StoreError> {
    if limit == 0 {
        return Ok(Finished { keys: Vec::new(), after });
    }
    let before = before.as_millis();
    let (mut keys, mut too_young) = (Vec::new(), 0);
    loop {
        let page = session.query(OLDEST, &[&after, &PAGE]).await.map_err(failure::explain)?;
        for row in &page {
            too_young = if row.get::<_, i64>(3) >= before { too_young + 1 } else { 0 };
            if too_young >= ENOUGH {
                return Ok(Finished { keys, after: i64::MIN });
            }
            after = row.get(0);
            if row.get::<_, i16>(1) == status::DONE && row.get::<_, i64>(2) < before {
                keys.push(after);
            }
            if keys.len() >= limit as usize {
                return Ok(Finished { keys, after });
            }
        }
        if page.is_empty() {
            return Ok(Finished { keys, after: i64::MIN });
        }
    }
}

/// What waits is in an index, and what is running is not far from the end: finished events are not looked at.
const DEPTH: &str = "
    SELECT
      (SELECT count(*) FROM redrive.event WHERE ready_at IS NOT NULL AND status <= 0),
      (SELECT count(*) FROM redrive.event WHERE ready_at IS NOT NULL AND status = 2),
      (SELECT count(*) FROM redrive.event
       WHERE key >= (SELECT min(oldest_event) FROM redrive.process) AND status = 1),
      (SELECT count(*) FROM redrive.delivery WHERE ready_at IS NOT NULL),
      (SELECT count(*) FROM redrive.delivery
       WHERE key >= (SELECT min(oldest_delivery) FROM redrive.process) AND status = 1)";

const COUNT: &str = "SELECT status, count(*) FROM redrive.event GROUP BY status";
const COUNT_OPEN: &str = "SELECT count(*) FROM redrive.delivery WHERE status < 3";

/// Of all that is ours, indexes included.
const SIZE: &str = "
    SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
    WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'";

pub(super) async fn depth(session: &Session, schema: &str) -> Result<Depth, StoreError> {
    let found = session.query(DEPTH, &[]).await.map_err(failure::explain)?;
    let count = |column: usize| found.first().map_or(0, |row| rows::count(row, column));
    Ok(Depth {
        pending: count(0),
        waiting: count(1),
        running: count(2),
        open_deliveries: count(3) + count(4),
        file_bytes: size(session, schema).await?,
        // The server's log is everybody's.
        wal_bytes: 0,
    })
}

pub(super) async fn stats(session: &Session, schema: &str) -> Result<Stats, StoreError> {
    let mut stats = Stats::default();
    for row in &session.query(COUNT, &[]).await.map_err(failure::explain)? {
        let count = rows::count(row, 1);
        match status::name(row.get(0)) {
            EventStatus::Pending => stats.pending += count,
            EventStatus::Processing => stats.processing += count,
            EventStatus::Done => stats.done += count,
            EventStatus::Dlq => stats.dlq += count,
        }
    }
    let found = session.query(COUNT_OPEN, &[]).await.map_err(failure::explain)?;
    stats.open_deliveries = found.first().map_or(0, |row| rows::count(row, 0));
    stats.file_bytes = size(session, schema).await?;
    Ok(stats)
}

async fn size(session: &Session, schema: &str) -> Result<u64, StoreError> {
    let found = session.query(SIZE, &[&schema]).await.map_err(failure::explain)?;
    Ok(found.first().map_or(0, |row| rows::count(row, 0)))
}
