//! Taking due work, as much as there is room for.
//!
//! Every condition says `status < 3`, too: the engine uses a partial index only where its own condition stands in the query.

use std::sync::Arc;

use redrive_retry::Timestamp;
use rusqlite::{Connection, Row, params};

use super::batch::Pending;
use super::{rows, settle, status};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::work::{ClaimSink, Claimed, HELD, Slot, UnitKey, handled_before};

/// Never more than this of one kind in one transaction, so that publishers do not wait behind a large claim.
const MOST: usize = 512;

const TAKE_EVENTS: &str = "
    UPDATE event SET status = 1, updated_at = ?2 WHERE key IN
    (SELECT key FROM event WHERE status < 3 AND status = ?1 AND due_at <= ?2 ORDER BY due_at, key LIMIT ?3)
    RETURNING due_at, key, retry_count, first_at, id, type, payload, metadata, created_at, retry, owes, handled";

const TAKE_DELIVERIES: &str = "
    UPDATE delivery SET status = 1, updated_at = ?2 WHERE key IN
    (SELECT key FROM delivery WHERE status < 3 AND status = ?1 AND due_at <= ?2 ORDER BY due_at, key LIMIT ?3)
    RETURNING due_at, key, retry_count, first_at, event_key, subscription";

/// Makes due what is held; the literal is that of the index.
const CALL_UP: &str = "
    UPDATE delivery SET due_at = ?2, updated_at = ?2 WHERE key IN
    (SELECT key FROM delivery WHERE due_at = 9000000000000000 AND subscription = ?1 ORDER BY key LIMIT ?3)";

const READ_EVENT: &str = "
    SELECT id, type, payload, metadata, created_at, retry FROM event WHERE key = ?1";

const NEXT_EVENT: &str = "SELECT min(due_at) FROM event WHERE status < 3 AND status = ?1";
const NEXT_DELIVERY: &str = "SELECT min(due_at) FROM delivery WHERE status < 3 AND status = ?1";

const HAS_SUSPECTS: &str = "
    SELECT 1 FROM event WHERE status < 3 AND status = -1 AND due_at <= ?1
    UNION ALL SELECT 1 FROM delivery WHERE status < 3 AND status = -1 AND due_at <= ?1 LIMIT 1";

pub(super) fn claim(
    connection: &Connection,
    now: Timestamp,
    sink: Option<&ClaimSink>,
    pending: &mut Pending,
) -> Result<usize, StoreError> {
    let Some(sink) = sink else { return Ok(0) };
    let before = pending.claimed.len();
    // What has waited for its backoff first: it is older than anything new.
    for state in [status::WAITING, status::PENDING] {
        take(connection, Kind::Delivery, state, now, sink, MOST, &mut pending.claimed)?;
        take(connection, Kind::Event, state, now, sink, MOST, &mut pending.claimed)?;
    }
    Ok(pending.claimed.len() - before)
}

/// One unit that was running when the process died, and again the next time: no longer there by accident.
pub(super) fn claim_suspect(
    connection: &Connection,
    now: Timestamp,
    sink: &ClaimSink,
) -> Result<Option<Claimed>, StoreError> {
    let mut claimed = Vec::new();
    take(connection, Kind::Event, status::SUSPECT, now, sink, 1, &mut claimed)?;
    if claimed.is_empty() {
        take(connection, Kind::Delivery, status::SUSPECT, now, sink, 1, &mut claimed)?;
    }
    Ok(claimed.pop())
}

/// Whether there is one whose time has come.
pub(super) fn has_suspects(connection: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    Ok(connection.prepare_cached(HAS_SUSPECTS)?.exists([now.as_millis()])?)
}

/// Makes due what is held for a subscription.
pub(super) fn call_up(
    connection: &Connection,
    name: &SubscriptionName,
    most: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut call = connection.prepare_cached(CALL_UP)?;
    Ok(call.execute(params![name.as_str(), now.as_millis(), most])?)
}

/// What can be claimed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Event,
    Delivery,
}

/// What one row of a claim becomes.
type Make = fn(&Connection, &Row<'_>, Timestamp, Slot) -> Result<Claimed, StoreError>;

/// The engine works; what it has found in one row is not what belongs there.
fn is_about_one_row(error: &StoreError) -> bool {
    match error {
        StoreError::Model(_) => true,
        StoreError::Engine(error) => error.sqlite_error_code().is_none(),
        _ => false,
    }
}

/// Takes what is due of one kind and state, oldest first, as much as there is room for.
fn take(
    connection: &Connection,
    kind: Kind,
    state: i64,
    now: Timestamp,
    sink: &ClaimSink,
    most: usize,
    claimed: &mut Vec<Claimed>,
) -> Result<(), StoreError> {
    let (statement, make): (&str, Make) = match kind {
        Kind::Event => (TAKE_EVENTS, event),
        Kind::Delivery => (TAKE_DELIVERIES, delivery),
    };
    // The places first: what is taken must have one.
    let mut slots: Vec<Slot> = std::iter::from_fn(|| sink.take()).take(most).collect();
    if slots.is_empty() {
        return Ok(());
    }
    let (mut taken, mut unreadable) = (Vec::new(), Vec::new());
    let mut update = connection.prepare_cached(statement)?;
    let limit = i64::try_from(slots.len()).unwrap_or(0);
    let mut found = update.query(params![state, now.as_millis(), limit])?;
    while let (Some(row), Some(slot)) = (found.next()?, slots.pop()) {
        let order: (i64, i64) = (row.get(0)?, row.get(1)?);
        match make(connection, row, now, slot) {
            Ok(claimed) => taken.push((order, claimed)),
            // Somebody has changed it by hand. The others must not wait for it.
            Err(error) if is_about_one_row(&error) => unreadable.push((order.1, error)),
            Err(error) => return Err(error),
        }
    }
    drop(found);
    for (key, error) in unreadable {
        settle::give_up_unreadable(connection, kind, key, now, &error)?;
    }
    // The engine returns them in whatever order it changed them.
    taken.sort_unstable_by_key(|(order, _)| *order);
    claimed.extend(taken.into_iter().map(|(_, claimed)| claimed));
    Ok(())
}

fn event(_: &Connection, row: &Row<'_>, now: Timestamp, slot: Slot) -> Result<Claimed, StoreError> {
    let event = Arc::new(rows::stored_event(row, 4)?);
    let unit = UnitKey::Event(row.get(1)?);
    let owes = row.get(10)?;
    let handled = handled_before(rows::optional_text(row, 11)?.as_deref());
    Ok(Claimed {
        owes,
        handled,
        ..Claimed::again(event, None, first_at(row, now)?, retry_count(row)?, unit, slot)
    })
}

/// Not what cannot be counted on: it could not be settled.
fn retry_count(row: &Row<'_>) -> Result<u32, StoreError> {
    Ok(row.get(2)?)
}

fn first_at(row: &Row<'_>, now: Timestamp) -> Result<Timestamp, StoreError> {
    Ok(row.get::<_, Option<i64>>(3)?.map_or(now, Timestamp::from_millis))
}

fn delivery(
    connection: &Connection,
    row: &Row<'_>,
    now: Timestamp,
    slot: Slot,
) -> Result<Claimed, StoreError> {
    let event_key: i64 = row.get(4)?;
    let unit = UnitKey::Delivery { delivery: row.get(1)?, event: event_key };
    let addressee = rows::subscription(row, 5)?;
    let mut read = connection.prepare_cached(READ_EVENT)?;
    let event = read.query_row([event_key], |row| Ok(rows::stored_event(row, 0)))??;
    Ok(Claimed::again(Arc::new(event), Some(addressee), first_at(row, now)?, retry_count(row)?, unit, slot))
}

/// The earliest instant at which anything on disk is due.
pub(super) fn next_due(connection: &Connection) -> Result<Option<Timestamp>, StoreError> {
    let mut earliest: Option<i64> = None;
    for query in [NEXT_EVENT, NEXT_DELIVERY] {
        for state in [status::PENDING, status::WAITING] {
            let due: Option<i64> = connection.prepare_cached(query)?.query_row([state], |row| row.get(0))?;
            earliest = earliest.into_iter().chain(due).min();
        }
    }
    Ok(earliest.map(Timestamp::from_millis).filter(|due| *due != HELD))
}

#[cfg(test)]
mod tests {
    use super::super::schema;
    use super::*;

    /// A claim that looks at every event in the file is the end of a bus with many of them.
    #[test]
    fn no_claim_looks_at_finished_work() {
        let connection = Connection::open_in_memory().unwrap();
        for script in schema::MIGRATIONS {
            connection.execute_batch(script).unwrap();
        }
        for query in
            [TAKE_EVENTS, TAKE_DELIVERIES, NEXT_EVENT, NEXT_DELIVERY, HAS_SUSPECTS, READ_EVENT, CALL_UP]
        {
            let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
            for parameter in 1..=explain.parameter_count() {
                explain.raw_bind_parameter(parameter, 1).unwrap();
            }
            let mut rows = explain.raw_query();
            while let Some(row) = rows.next().unwrap() {
                let step: String = row.get(3).unwrap();
                assert!(!step.starts_with("SCAN") && !step.contains("TEMP B-TREE"), "{query}: {step}");
            }
        }
    }
}
