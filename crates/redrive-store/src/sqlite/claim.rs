//! The work queue: claims due work for free slots, claims and extends leased deliveries, moves deliveries to and from the backlog, and recovers claims of a dead process.
//!
//! Every condition repeats `status < 3`: SQLite uses a partial index only if the query contains the condition of the index. The index
//! begins with the status, so two ordered searches, for first attempts and for retries, are merged into one order by due time.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;
use rusqlite::{Connection, Row, ToSql, params};

use super::rows::Kind;
use super::{SqliteStore, clock_step, recover, rows, schema, settle, status};
use crate::due::Due;
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::store::{
    BacklogClaimed, BacklogRequest, CLEANUP_BATCH_ROWS, CLEANUP_INTERVAL, EventStore, Finished, Leases,
    MAX_CLAIM_ROWS, MAX_EXAMINED_ROWS, StoreFuture, WorkQueue, retention_cutoff,
};
use crate::work::{ClaimKey, ClaimSink, Claimed, DueHint, Recovered, Settlement, Slot, handled_before};

/// Interval at which to poll for events that another process stored in the file.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Selects the keys of due rows of one table, earliest first. Parameters: 1 now, 2 limit.
macro_rules! due {
    ($table:literal) => {
        concat!(
            "SELECT key FROM (SELECT due_at, key FROM ",
            $table,
            " WHERE status < 3 AND status = 0 AND due_at <= ?1 UNION ALL SELECT due_at, key FROM ",
            $table,
            " WHERE status < 3 AND status = 2 AND due_at <= ?1 ORDER BY due_at, key LIMIT ?2)"
        )
    };
}

/// Selects the keys of due crash suspects of one table, earliest first. Parameters: 1 now, 2 limit.
macro_rules! suspects {
    ($table:literal) => {
        concat!(
            "SELECT key FROM ",
            $table,
            " WHERE status < 3 AND status = -1 AND due_at <= ?1 ORDER BY due_at, key LIMIT ?2"
        )
    };
}

macro_rules! claim_events {
    ($keys:expr) => {
        concat!(
            "UPDATE event SET status = 1, updated_at = ?1 WHERE key IN (",
            $keys,
            ") RETURNING due_at, key, retry_count, first_at, id, type, payload, metadata, created_at, retry, owes, handled, last_error"
        )
    };
}

macro_rules! claim_deliveries {
    ($keys:expr) => {
        concat!(
            "UPDATE delivery SET status = 1, updated_at = ?1, leased_at = NULL WHERE key IN (",
            $keys,
            ") RETURNING due_at, key, retry_count, first_at, event_key, subscription, last_error, leased_at"
        )
    };
}

const CLAIM_EVENTS: &str = claim_events!(due!("event"));
const CLAIM_SUSPECT_EVENTS: &str = claim_events!(suspects!("event"));
const CLAIM_DELIVERIES: &str = claim_deliveries!(due!("delivery"));
const CLAIM_SUSPECT_DELIVERIES: &str = claim_deliveries!(suspects!("delivery"));

/// Claims deliveries whose leases have ended without an ack or a nack, earliest first.
const CLAIM_ENDED_LEASES: &str = "
    UPDATE delivery SET status = 1, updated_at = ?1 WHERE key IN
    (SELECT key FROM delivery WHERE status < 3 AND status = -2 AND due_at <= ?1 ORDER BY due_at, key LIMIT ?2)
    RETURNING due_at, key, retry_count, first_at, event_key, subscription, last_error, leased_at";

/// Claims the delivery 2 for its consumer, unless the lease 3 of one of the subscriptions 4 has ended.
const CLAIM_LEASED: &str = "
    UPDATE delivery SET status = 1, updated_at = ?1
    WHERE key = ?2 AND lease = ?3 AND subscription IN (SELECT value FROM json_each(?4)) AND status = -2 AND due_at > ?1
    RETURNING due_at, key, retry_count, first_at, event_key, subscription, last_error, leased_at";

/// Extends a lease of one of the subscriptions 4 to the time 5, unless it has ended.
const EXTEND_LEASE: &str = "
    UPDATE delivery SET due_at = ?5, updated_at = ?1
    WHERE key = ?2 AND lease = ?3 AND subscription IN (SELECT value FROM json_each(?4)) AND status = -2 AND due_at > ?1";

/// Examines only the deliveries that would be claimed next.
const DEFER_TO_BACKLOG: &str = concat!(
    "UPDATE delivery SET due_at = 9000000000000000, updated_at = ?1 WHERE key IN (",
    due!("delivery"),
    ") AND subscription IN (SELECT value FROM json_each(?3)) RETURNING subscription"
);

/// Claims from the backlog of subscription 3; the literal is that of the index.
const CLAIM_BACKLOG: &str = "
    UPDATE delivery SET status = 1, due_at = ?1, updated_at = ?1, leased_at = NULL WHERE key IN
    (SELECT key FROM delivery WHERE due_at = 9000000000000000 AND subscription = ?3 ORDER BY key LIMIT ?2)
    RETURNING due_at, key, retry_count, first_at, event_key, subscription, last_error, leased_at";

const READ_EVENT: &str = "
    SELECT id, type, payload, metadata, created_at, retry, status FROM event WHERE key = ?1";

/// The first claim of a redriven delivery ends the time in which its event is pending.
const START_DELIVERING: &str = "UPDATE event SET status = 5 WHERE key = ?1 AND status = 6";

/// Selects when the next work on disk is due.
const NEXT_DUE: &str = "
    SELECT min(due_at) FROM (
      SELECT min(due_at) AS due_at FROM event WHERE status < 3 AND status = 0
      UNION ALL SELECT min(due_at) FROM event WHERE status < 3 AND status = 2
      UNION ALL SELECT min(due_at) FROM delivery WHERE status < 3 AND status = 0
      UNION ALL SELECT min(due_at) FROM delivery WHERE status < 3 AND status = 2
      UNION ALL SELECT min(due_at) FROM delivery WHERE status < 3 AND status = -2)";

const HAS_SUSPECTS: &str = "
    SELECT 1 FROM event WHERE status < 3 AND status = -1 AND due_at <= ?1
    UNION ALL SELECT 1 FROM delivery WHERE status < 3 AND status = -1 AND due_at <= ?1 LIMIT 1";

impl WorkQueue for SqliteStore {
    fn attach(&self, sink: Option<ClaimSink>) {
        self.writer.attach(sink);
    }

    fn claim(&self, now: Timestamp) -> StoreFuture<'_, usize> {
        let (clock, offset_ms) = (self.clock.clone(), self.clock.offset_ms());
        Box::pin(self.writer.run_with(false, move |connection, pending| {
            // The clock may have been set while the command waited, and the due times have moved with it.
            let now = now.shifted(clock.offset_ms() - offset_ms);
            let before = pending.claimed.len();
            for (kind, statement) in [
                (Kind::Delivery, CLAIM_ENDED_LEASES),
                (Kind::Delivery, CLAIM_DELIVERIES),
                (Kind::Event, CLAIM_EVENTS),
            ] {
                let slots = take_slots(pending.sink.as_ref(), MAX_CLAIM_ROWS);
                claim_rows(connection, kind, statement, None, now, slots, &mut pending.claimed)?;
            }
            Ok(pending.claimed.len() - before)
        }))
    }

    fn claim_suspect(&self, now: Timestamp, sink: ClaimSink) -> StoreFuture<'_, Option<Claimed>> {
        let suspects = [(Kind::Event, CLAIM_SUSPECT_EVENTS), (Kind::Delivery, CLAIM_SUSPECT_DELIVERIES)];
        Box::pin(self.writer.run_unsynced(move |connection| {
            let mut claimed = Vec::new();
            for (kind, statement) in suspects {
                if claimed.is_empty() {
                    let slots = take_slots(Some(&sink), 1);
                    claim_rows(connection, kind, statement, None, now, slots, &mut claimed)?;
                }
            }
            Ok(claimed.pop())
        }))
    }

    fn has_suspects(&self, now: Timestamp) -> StoreFuture<'_, bool> {
        Box::pin(
            self.read(move |connection| {
                Ok(connection.prepare_cached(HAS_SUSPECTS)?.exists([now.as_millis()])?)
            }),
        )
    }

    fn due_hint(&self) -> Arc<DueHint> {
        self.writer.due_hint()
    }

    fn poll_interval(&self) -> Option<Duration> {
        (!schema::is_memory(&self.path)).then_some(POLL_INTERVAL)
    }

    fn refresh_due(&self) -> StoreFuture<'_, Option<Timestamp>> {
        Box::pin(async move {
            let next = |connection: &Connection| {
                Ok(connection.prepare_cached(NEXT_DUE)?.query_row([], |row| row.get::<_, Option<i64>>(0))?)
            };
            let due = self.read(next).await?.and_then(|due| Due::from_sql_millis(due).at());
            if let Some(at) = due {
                self.writer.due_hint().pull_forward(at);
            }
            Ok(due)
        })
    }

    fn defer_to_backlog(&self, names: Vec<SubscriptionName>, now: Timestamp) -> StoreFuture<'_, Vec<usize>> {
        Box::pin(self.writer.run_unsynced(move |connection| {
            let list = serde_json::to_string(&names).expect("names always serialise");
            let mut deferred = vec![0; names.len()];
            let mut defer = connection.prepare_cached(DEFER_TO_BACKLOG)?;
            let mut rows = defer.query(params![now.as_millis(), MAX_EXAMINED_ROWS, list])?;
            while let Some(row) = rows.next()? {
                let subscription = row.get_ref(0)?.as_str().unwrap_or_default();
                if let Some(index) = names.iter().position(|name| name.as_str() == subscription) {
                    deferred[index] += 1;
                }
            }
            Ok(deferred)
        }))
    }

    fn claim_backlog(
        &self,
        requests: Vec<BacklogRequest>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<BacklogClaimed>> {
        Box::pin(self.writer.run_with(false, move |connection, pending| {
            let claim = |BacklogRequest { name, limit }: &BacklogRequest| {
                let slots = take_slots(pending.sink.as_ref(), MAX_CLAIM_ROWS.min(*limit));
                let (free, before) = (slots.len(), pending.claimed.len());
                let (name, claimed) = (Some(name.as_str()), &mut pending.claimed);
                let found = claim_rows(connection, Kind::Delivery, CLAIM_BACKLOG, name, now, slots, claimed)?;
                Ok(BacklogClaimed { claimed: pending.claimed.len() - before, may_be_more: found == free })
            };
            requests.iter().map(claim).collect()
        }))
    }

    fn claim_leased(
        &self,
        leases: Leases,
        now: Timestamp,
        sink: ClaimSink,
    ) -> StoreFuture<'_, Vec<Option<Claimed>>> {
        let (clock, offset_ms) = (self.clock.clone(), self.clock.offset_ms());
        Box::pin(self.writer.run_unsynced(move |connection| {
            let now = now.shifted(clock.offset_ms() - offset_ms);
            claim_leased(connection, &leases, now, &sink)
        }))
    }

    fn extend_leases(&self, leases: Leases, now: Timestamp, until: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        let (clock, offset_ms) = (self.clock.clone(), self.clock.offset_ms());
        Box::pin(self.writer.run_with(false, move |connection, uncommitted| {
            let shift_ms = clock.offset_ms() - offset_ms;
            let (now, until) = (now.shifted(shift_ms).as_millis(), until.shifted(shift_ms).as_millis());
            let names = serde_json::to_string(&leases.names).expect("names always serialise");
            let mut extend = connection.prepare_cached(EXTEND_LEASE)?;
            let each = leases.tokens.iter().map(|token| {
                let lease = params![now, token.delivery, token.secret(), names, until];
                Ok(extend.execute(lease)? == 1)
            });
            let extended = each.collect();
            uncommitted.due(Timestamp::from_millis(until)); // a lease may end earlier than before
            extended
        }))
    }

    fn settle(&self, claimed: Claimed, settlement: Settlement) -> StoreFuture<'_, Finished> {
        Box::pin(self.writer.settle(claimed, Box::new(settlement)))
    }

    fn heartbeat(&self) -> StoreFuture<'_, Option<Duration>> {
        // The operating system releases the owner lock when the process dies, so no lease is needed.
        Box::pin(async move { if self.writer.is_closed() { Err(StoreError::Closed) } else { Ok(None) } })
    }

    fn recover(&self, now: Timestamp) -> StoreFuture<'_, Vec<Recovered>> {
        let clock = self.clock.clone();
        Box::pin(self.writer.run(move |connection| {
            clock_step::rewind(connection, clock.now())?;
            recover::recover(connection, now)
        }))
    }

    fn maintain(&self, now: Timestamp, retention: Option<Duration>) -> StoreFuture<'_, Duration> {
        Box::pin(async move {
            // In small batches, so that publishers are served in between.
            while let Some(retention) = retention {
                let purged = self.purge_done(retention_cutoff(now, retention), CLEANUP_BATCH_ROWS).await?;
                if purged < u64::from(CLEANUP_BATCH_ROWS) {
                    break;
                }
            }
            while self.reap_keys(CLEANUP_BATCH_ROWS as usize).await? >= CLEANUP_BATCH_ROWS as usize {}
            self.release_removed(now).await?;
            Ok(CLEANUP_INTERVAL)
        })
    }
}

/// Takes up to `max` of the free slots; none without a sink.
fn take_slots(sink: Option<&ClaimSink>, max: usize) -> Vec<Slot> {
    std::iter::from_fn(|| sink?.take()).take(max).collect()
}

/// Returns whether the error is about the content of one row and not about SQLite.
fn is_about_one_row(error: &StoreError) -> bool {
    match error {
        StoreError::Model(_) => true,
        StoreError::Engine(error) => error.sqlite_error_code().is_none(),
        _ => false,
    }
}

/// Runs a claim statement and returns how many rows it found; the claims are in the order of their due times.
///
/// The slots are taken before: every claimed row has one. Backlog claims name their subscription.
fn claim_rows(
    connection: &Connection,
    kind: Kind,
    statement: &str,
    subscription: Option<&str>,
    now: Timestamp,
    mut slots: Vec<Slot>,
    claimed: &mut Vec<Claimed>,
) -> Result<usize, StoreError> {
    if slots.is_empty() {
        return Ok(0);
    }
    let (mut taken, mut unreadable) = (Vec::new(), Vec::new());
    let mut update = connection.prepare_cached(statement)?;
    let limit = i64::try_from(slots.len()).unwrap_or(0);
    let now_ms = now.as_millis();
    let values: [&dyn ToSql; 3] = [&now_ms, &limit, &subscription];
    let values = &values[..update.parameter_count()];
    let mut found = update.query(values)?;
    while let (Some(row), Some(slot)) = (found.next()?, slots.pop()) {
        let order: (i64, i64) = (row.get(0)?, row.get(1)?);
        match read_claim(connection, kind, row, now, slot) {
            Ok(claimed) => taken.push((order, claimed)),
            // The row was changed by hand; the other rows must not wait for it.
            Err(error) if is_about_one_row(&error) => unreadable.push((order.1, error)),
            Err(error) => return Err(error),
        }
    }
    drop(found);
    let count = taken.len() + unreadable.len();
    for (key, error) in unreadable {
        settle::dead_letter_unreadable(connection, kind, key, now, &error)?;
    }
    // `RETURNING` has no defined order.
    taken.sort_unstable_by_key(|(order, _)| *order);
    claimed.extend(taken.into_iter().map(|(_, claimed)| claimed));
    Ok(count)
}

/// Claims leased deliveries for their consumers, in the order of the tokens.
fn claim_leased(
    connection: &Connection,
    leases: &Leases,
    now: Timestamp,
    sink: &ClaimSink,
) -> Result<Vec<Option<Claimed>>, StoreError> {
    let slots = take_slots(Some(sink), leases.tokens.len());
    if slots.len() < leases.tokens.len() {
        return Err(StoreError::Busy);
    }
    let names = serde_json::to_string(&leases.names).expect("names always serialise");
    let mut claim = connection.prepare_cached(CLAIM_LEASED)?;
    let mut claimed = Vec::with_capacity(slots.len());
    for (token, slot) in leases.tokens.iter().zip(slots) {
        let lease = params![now.as_millis(), token.delivery, token.secret(), names];
        let mut found = claim.query(lease)?;
        claimed.push(match found.next()? {
            Some(row) => Some(read_claim(connection, Kind::Delivery, row, now, slot)?),
            None => None,
        });
    }
    Ok(claimed)
}

/// Converts one row to a claim.
fn read_claim(
    connection: &Connection,
    kind: Kind,
    row: &Row<'_>,
    now: Timestamp,
    slot: Slot,
) -> Result<Claimed, StoreError> {
    let key = row.get(1)?;
    // Fails if the count is out of range: such a claim could not be settled.
    let retry_count = row.get(2)?;
    let first_at = row.get::<_, Option<i64>>(3)?.map(Timestamp::from_millis);
    if kind == Kind::Delivery {
        let event_key: i64 = row.get(4)?;
        let subscription = Some(rows::subscription(row, 5)?);
        let mut statement = connection.prepare_cached(READ_EVENT)?;
        let read = |row: &Row<'_>| Ok((rows::stored_event(row, 0), rows::status(row, 6)?));
        let (event, state) = statement.query_row([event_key], read)?;
        let event = Arc::new(event?);
        if state == status::REDRIVEN {
            connection.prepare_cached(START_DELIVERING)?.execute([event_key])?;
        }
        let key = ClaimKey::Delivery { delivery: key, event: event_key };
        let again = Claimed::again(event, subscription, now, retry_count, key, slot);
        let leased_at = row.get::<_, Option<i64>>(7)?.map(Timestamp::from_millis);
        let again = Claimed { started_at: first_at.or(leased_at).unwrap_or(now), ..again };
        return Ok(Claimed { errors: rows::errors_before(row, 6)?, leased_at, ..again });
    }
    let event = Arc::new(rows::stored_event(row, 4)?);
    let has_open_deliveries = row.get(10)?;
    let handled = rows::optional_text(row, 11)?;
    let (was_dispatched, handled) = (handled.is_some(), handled_before(handled.as_deref()));
    let claimed =
        Claimed::again(event, None, first_at.unwrap_or(now), retry_count, ClaimKey::Event(key), slot);
    let errors = rows::errors_before(row, 12)?;
    Ok(Claimed { has_open_deliveries, handled, was_dispatched, errors, ..claimed })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rusqlite::StatementStatus;
    use rusqlite::types::Value;

    use super::super::{Durability, schema};
    use super::*;

    /// A claim must not become slower with the number of finished events in the file.
    #[test]
    fn no_claim_looks_at_finished_work() {
        let connection = Connection::open_in_memory().unwrap();
        for script in schema::MIGRATIONS {
            connection.execute_batch(script).unwrap();
        }
        for query in [
            CLAIM_EVENTS,
            CLAIM_SUSPECT_EVENTS,
            CLAIM_DELIVERIES,
            CLAIM_SUSPECT_DELIVERIES,
            CLAIM_ENDED_LEASES,
            CLAIM_LEASED,
            EXTEND_LEASE,
            CLAIM_BACKLOG,
            NEXT_DUE,
            HAS_SUSPECTS,
            READ_EVENT,
            START_DELIVERING,
        ] {
            let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
            for parameter in 1..=explain.parameter_count() {
                explain.raw_bind_parameter(parameter, 1).unwrap();
            }
            let mut rows = explain.raw_query();
            while let Some(row) = rows.next().unwrap() {
                let step: String = row.get(3).unwrap();
                // A subquery, or the names that the caller passed, is no table of events.
                let is_table = !step.starts_with("SCAN (subquery") && !step.starts_with("SCAN json_each");
                let is_scan = step.starts_with("SCAN") && is_table;
                assert!(!is_scan && !step.contains("TEMP B-TREE"), "{query}: {step}");
            }
        }
    }

    /// Planning a claim takes longer than running it.
    #[test]
    fn claims_are_not_replanned_for_other_values() {
        let connection = schema::open_writer(Path::new(":memory:"), Durability::Full).unwrap();
        for query in [CLAIM_EVENTS, CLAIM_DELIVERIES, DEFER_TO_BACKLOG, CLAIM_BACKLOG] {
            let mut statement = connection.prepare(query).unwrap();
            for value in 1..=4 {
                for parameter in 1..=statement.parameter_count() {
                    let value = if parameter == 3 { Value::Text("[]".into()) } else { Value::Integer(value) };
                    statement.raw_bind_parameter(parameter, value).unwrap();
                }
                assert!(statement.raw_query().next().unwrap().is_none());
            }
            assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{query}");
        }
    }
}
