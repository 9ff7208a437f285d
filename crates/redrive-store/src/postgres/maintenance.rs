//! Retention of finished events, and counts of the stored work.

use redrive_retry::Timestamp;
use tokio_postgres::Row;

use super::session::Session;
use super::{rows, status};
use crate::error::StoreError;
use crate::query::{Depth, Stats, WaitingDeliveries, WaitingWork};

/// Number of consecutive events that are too young at which the search ends. One publisher with a fast clock does not end it.
const MAX_YOUNG_EVENTS: u32 = 1000;

/// The number of events that one query reads.
const PAGE_ROWS: i64 = 1000;

const OLDEST: &str = "
    SELECT key, status, updated_at, created_at FROM redrive.event WHERE key > $1 ORDER BY key LIMIT $2";

pub(super) const PURGE: &str = "
    WITH gone AS (DELETE FROM redrive.event WHERE key = ANY($1::bigint[]) AND status = 3 RETURNING key)
    SELECT count(*) FROM gone";

/// Deletes handled events that were finished before an instant, oldest first. Returns their number.
pub(super) async fn purge_done(session: &Session, before: Timestamp, limit: u32) -> Result<u64, StoreError> {
    let page = finished(session, before, limit, i64::MIN).await?;
    if page.keys.is_empty() {
        return Ok(0);
    }
    Ok(session.count(PURGE, &[&page.keys]).await?)
}

/// A page of finished events.
#[derive(Debug)]
pub(super) struct FinishedPage {
    pub(super) keys: Vec<i64>,
    /// The key after which the next search continues; `i64::MIN` if this one reached the end.
    pub(super) after: i64,
}

/// Finds handled events after a key that were finished before an instant, oldest first. Keys are roughly in order of
/// publishing, so the search ends where events are younger; an index over finished events would slow down every publish. The
/// next search continues where this one ended, and so skips rows that are deleted but not vacuumed.
pub(super) async fn finished(
    session: &Session,
    before: Timestamp,
    limit: u32,
    mut after: i64,
) -> Result<FinishedPage, StoreError> {
    if limit == 0 {
        return Ok(FinishedPage { keys: Vec::new(), after });
    }
    let before = before.as_millis();
    let (mut keys, mut too_young) = (Vec::new(), 0);
    loop {
        let page = session.query(OLDEST, &[&after, &PAGE_ROWS]).await?;
        for row in &page {
            too_young = if row.get::<_, i64>(3) >= before { too_young + 1 } else { 0 };
            if too_young >= MAX_YOUNG_EVENTS {
                return Ok(FinishedPage { keys, after: i64::MIN });
            }
            after = row.get(0);
            if row.get::<_, i16>(1) == status::DONE && row.get::<_, i64>(2) < before {
                keys.push(after);
            }
            if keys.len() >= limit as usize {
                return Ok(FinishedPage { keys, after });
            }
        }
        if page.is_empty() {
            return Ok(FinishedPage { keys, after: i64::MIN });
        }
    }
}

/// Counts waiting work by its index, and running work from the oldest key of any process. Skips older finished events.
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

/// The size of all tables of the schema, with their indexes.
const SIZE: &str = "
    SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
    WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'";

pub(super) async fn depth(session: &Session, schema: &str) -> Result<Depth, StoreError> {
    let found = session.query_first(DEPTH, &[]).await?;
    let count = |column: usize| found.as_ref().map_or(0, |row| rows::count(row, column));
    Ok(Depth {
        pending: count(0),
        waiting: count(1),
        running: count(2),
        open_deliveries: count(3) + count(4),
        file_bytes: session.count(SIZE, &[&schema]).await?,
        // The WAL belongs to the whole server.
        wal_bytes: 0,
    })
}

pub(super) async fn stats(session: &Session, schema: &str) -> Result<Stats, StoreError> {
    let mut stats = Stats::default();
    for row in &session.query(COUNT, &[]).await? {
        status::count(&mut stats, row.get(0), rows::count(row, 1));
    }
    stats.open_deliveries = session.count(COUNT_OPEN, &[]).await?;
    stats.file_bytes = session.count(SIZE, &[&schema]).await?;
    Ok(stats)
}

const OVERDUE: &str = "
    SELECT (SELECT count(*) FROM redrive.event WHERE ready_at IS NOT NULL AND due_at < $1)
         + (SELECT count(*) FROM redrive.delivery WHERE ready_at IS NOT NULL AND due_at < $1)";

/// Keys follow the order of publishing closely, so the smallest key is the oldest event. A leased delivery does not wait until its lease ends.
const WAITING: &str = "
    SELECT subscription, subscription IN (SELECT name FROM redrive.subscriptions), due, parked, retrying, backlogged,
      (SELECT created_at FROM redrive.event WHERE key = oldest_parked),
      (SELECT created_at FROM redrive.event WHERE key = oldest_backlogged)
    FROM (
      SELECT subscription, count(*) AS waiting,
        count(*) FILTER (WHERE due_at <= $1) AS due,
        count(*) FILTER (WHERE status <= 0 AND due_at > $1 AND due_at < 9000000000000000) AS parked,
        count(*) FILTER (WHERE status = 2 AND due_at > $1 AND due_at < 9000000000000000) AS retrying,
        count(*) FILTER (WHERE due_at = 9000000000000000) AS backlogged,
        min(event_key) FILTER (WHERE status <= 0 AND due_at > $1 AND due_at < 9000000000000000) AS oldest_parked,
        min(event_key) FILTER (WHERE due_at = 9000000000000000) AS oldest_backlogged
      FROM redrive.delivery WHERE ready_at IS NOT NULL AND (status <> -2 OR due_at <= $1) GROUP BY subscription) AS of_one
    ORDER BY waiting DESC, subscription LIMIT 100";

/// Counts the work that waits, by subscription, and the part that has been due since before `overdue_before`.
pub(super) async fn waiting(
    session: &Session,
    now: Timestamp,
    overdue_before: Timestamp,
) -> Result<WaitingWork, StoreError> {
    let time = |row: &Row, column| row.get::<_, Option<i64>>(column).map(Timestamp::from_millis);
    let of_one = |row: &Row| WaitingDeliveries {
        subscription: row.get(0),
        is_on_record: row.get(1),
        due: rows::count(row, 2),
        parked: rows::count(row, 3),
        oldest_parked_at: time(row, 6),
        retrying: rows::count(row, 4),
        backlogged: rows::count(row, 5),
        oldest_backlogged_at: time(row, 7),
    };
    Ok(WaitingWork {
        overdue: session.count(OVERDUE, &[&overdue_before.as_millis()]).await?,
        subscriptions: session.query(WAITING, &[&now.as_millis()]).await?.iter().map(of_one).collect(),
    })
}
