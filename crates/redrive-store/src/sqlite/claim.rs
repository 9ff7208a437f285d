//! Taking due work, as much as there is room for.

use std::sync::Arc;

use redrive_retry::Timestamp;
use rusqlite::{Connection, params};

use super::batch::Pending;
use super::{rows, status};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::work::{ClaimSink, Claimed, Slot, UnitKey};

/// Never more than this in one transaction, so that publishers do not wait behind a large claim.
const MOST: usize = 512;

const DUE_EVENTS: &str = "
    SELECT key FROM event WHERE status = ?1 AND due_at <= ?2 ORDER BY due_at LIMIT ?3";

const DUE_DELIVERIES: &str = "
    SELECT key FROM delivery WHERE status = ?1 AND due_at <= ?2 ORDER BY due_at LIMIT ?3";

const TAKE_EVENT: &str = "
    UPDATE event SET status = 1, updated_at = ?2 WHERE key = ?1
    RETURNING retry_count, id, type, payload, metadata, created_at, retry";

const TAKE_DELIVERY: &str = "
    UPDATE delivery SET status = 1, updated_at = ?2 WHERE key = ?1 RETURNING retry_count, event_key, subscription";

const READ_EVENT: &str = "
    SELECT id, type, payload, metadata, created_at, retry FROM event WHERE key = ?1";

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
        for key in due(connection, DUE_DELIVERIES, state, now, sink.room().min(MOST))? {
            let Some(slot) = sink.take() else { break };
            pending.claimed.extend(take_delivery(connection, key, now, slot)?);
        }
        for key in due(connection, DUE_EVENTS, state, now, sink.room().min(MOST))? {
            let Some(slot) = sink.take() else { break };
            pending.claimed.extend(take_event(connection, key, now, slot)?);
        }
    }
    Ok(pending.claimed.len() - before)
}

/// One unit that was running when the process died, and again the next time: no longer there by accident.
pub(super) fn claim_suspect(
    connection: &Connection,
    now: Timestamp,
    sink: &ClaimSink,
) -> Result<Option<Claimed>, StoreError> {
    if let Some(key) = due(connection, DUE_EVENTS, status::SUSPECT, now, 1)?.pop() {
        let Some(slot) = sink.take() else { return Ok(None) };
        return take_event(connection, key, now, slot);
    }
    let Some(key) = due(connection, DUE_DELIVERIES, status::SUSPECT, now, 1)?.pop() else { return Ok(None) };
    let Some(slot) = sink.take() else { return Ok(None) };
    take_delivery(connection, key, now, slot)
}

fn take_event(
    connection: &Connection,
    key: i64,
    now: Timestamp,
    slot: Slot,
) -> Result<Option<Claimed>, StoreError> {
    let mut take = connection.prepare_cached(TAKE_EVENT)?;
    let mut taken = take.query(params![key, now.as_millis()])?;
    let Some(row) = taken.next()? else { return Ok(None) };
    let event = Arc::new(rows::stored_event(row, 1)?);
    Ok(Some(Claimed::again(event, None, row.get(0)?, UnitKey::Event(key), slot)))
}

fn take_delivery(
    connection: &Connection,
    key: i64,
    now: Timestamp,
    slot: Slot,
) -> Result<Option<Claimed>, StoreError> {
    let mut take = connection.prepare_cached(TAKE_DELIVERY)?;
    let (retry_count, event_key, subscription) = take.query_row(params![key, now.as_millis()], |row| {
        Ok((row.get::<_, u32>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?))
    })?;
    let mut read = connection.prepare_cached(READ_EVENT)?;
    let mut found = read.query([event_key])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let event = Arc::new(rows::stored_event(row, 0)?);
    let unit = UnitKey::Delivery { delivery: key, event: event_key };
    Ok(Some(Claimed::again(event, Some(SubscriptionName::new(subscription)?), retry_count, unit, slot)))
}

fn due(
    connection: &Connection,
    query: &str,
    state: i64,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<i64>, StoreError> {
    let mut statement = connection.prepare_cached(query)?;
    let keys = statement
        .query_map(params![state, now.as_millis(), i64::try_from(limit).unwrap_or(0)], |row| row.get(0))?;
    Ok(keys.collect::<Result<_, _>>()?)
}

/// The earliest instant at which anything on disk is due.
pub(super) fn next_due(connection: &Connection) -> Result<Option<Timestamp>, StoreError> {
    let mut earliest: Option<i64> = None;
    for table in ["event", "delivery"] {
        for state in [status::PENDING, status::WAITING] {
            let query = format!("SELECT min(due_at) FROM {table} WHERE status = {state}");
            let due: Option<i64> = connection.prepare_cached(&query)?.query_row([], |row| row.get(0))?;
            earliest = earliest.into_iter().chain(due).min();
        }
    }
    Ok(earliest.map(Timestamp::from_millis))
}
