//! Taking due work, as much as there is room for.
//!
//! Every condition says `status < 3`, too: the engine uses a partial index only where its own condition stands in the query.

use std::sync::Arc;

use redrive_retry::Timestamp;
use rusqlite::{Connection, Row, ToSql, params};

use super::batch::Pending;
use super::{rows, settle, status};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::store::{Call, CalledUp};
use crate::work::{ClaimSink, Claimed, HELD, Slot, UnitKey, handled_before};

/// Never more than this of one kind in one transaction, so that publishers do not wait behind a large claim.
const MOST: usize = 512;

/// So much of what is due is looked at to put some of it off.
const AHEAD: i64 = 2048;

const TAKE_EVENTS: &str = "
    UPDATE event SET status = 1, updated_at = ?2 WHERE key IN
    (SELECT key FROM event WHERE status < 3 AND status = ?1 AND due_at <= ?2 ORDER BY due_at, key LIMIT ?3)
    RETURNING due_at, key, retry_count, first_at, id, type, payload, metadata, created_at, retry, owes, handled";

const TAKE_DELIVERIES: &str = "
    UPDATE delivery SET status = 1, updated_at = ?2 WHERE key IN
    (SELECT key FROM delivery WHERE status < 3 AND status = ?1 AND due_at <= ?2 ORDER BY due_at, key LIMIT ?3)
    RETURNING due_at, key, retry_count, first_at, event_key, subscription";

/// Only among those that would be claimed next, so that it never looks at everything.
const HOLD: &str = "
    UPDATE delivery SET due_at = 9000000000000000, updated_at = ?2 WHERE key IN
    (SELECT key FROM delivery WHERE status < 3 AND status = ?1 AND due_at <= ?2 ORDER BY due_at, key LIMIT ?3)
    AND subscription IN (SELECT value FROM json_each(?4)) RETURNING subscription";

/// Takes what is held; the literal is that of the index. It is not due at that instant any more.
const TAKE_HELD: &str = "
    UPDATE delivery SET status = 1, due_at = ?2, updated_at = ?2 WHERE key IN
    (SELECT key FROM delivery WHERE due_at = 9000000000000000 AND subscription = ?1 ORDER BY key LIMIT ?3)
    RETURNING due_at, key, retry_count, first_at, event_key, subscription";

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
        for kind in [Kind::Delivery, Kind::Event] {
            let slots = places(sink, MOST);
            take(connection, kind, kind.take_due(), &state, now, slots, &mut pending.claimed)?;
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
    let mut claimed = Vec::new();
    for kind in [Kind::Event, Kind::Delivery] {
        if claimed.is_empty() {
            let slots = places(sink, 1);
            take(connection, kind, kind.take_due(), &status::SUSPECT, now, slots, &mut claimed)?;
        }
    }
    Ok(claimed.pop())
}

/// Whether there is one whose time has come.
pub(super) fn has_suspects(connection: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    Ok(connection.prepare_cached(HAS_SUSPECTS)?.exists([now.as_millis()])?)
}

/// Puts off what is due to these subscriptions.
pub(super) fn hold(
    connection: &Connection,
    names: &[SubscriptionName],
    now: Timestamp,
) -> Result<Vec<usize>, StoreError> {
    let list = serde_json::to_string(names).expect("names always serialise");
    let mut held = vec![0; names.len()];
    for state in [status::WAITING, status::PENDING] {
        let mut hold = connection.prepare_cached(HOLD)?;
        let mut rows = hold.query(params![state, now.as_millis(), AHEAD, list])?;
        while let Some(row) = rows.next()? {
            let whose = row.get_ref(0)?.as_str().unwrap_or_default();
            if let Some(place) = names.iter().position(|name| name.as_str() == whose) {
                held[place] += 1;
            }
        }
    }
    Ok(held)
}

/// Takes what is held for a subscription, oldest first.
pub(super) fn call_up(
    connection: &Connection,
    call: &Call,
    now: Timestamp,
    sink: Option<&ClaimSink>,
    pending: &mut Pending,
) -> Result<CalledUp, StoreError> {
    let slots = sink.map(|sink| places(sink, call.most.min(MOST))).unwrap_or_default();
    let (places, before) = (slots.len(), pending.claimed.len());
    let claimed = &mut pending.claimed;
    let found = take(connection, Kind::Delivery, TAKE_HELD, &call.name.as_str(), now, slots, claimed)?;
    Ok(CalledUp { claimed: pending.claimed.len() - before, may_be_more: found == places })
}

/// As many as there are, up to so many.
fn places(sink: &ClaimSink, most: usize) -> Vec<Slot> {
    std::iter::from_fn(|| sink.take()).take(most).collect()
}

/// What can be claimed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Event,
    Delivery,
}

impl Kind {
    fn take_due(self) -> &'static str {
        match self {
            Kind::Event => TAKE_EVENTS,
            Kind::Delivery => TAKE_DELIVERIES,
        }
    }
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

/// Takes by one of the statements above, whose first parameter says of which state or subscription, oldest first, and says how many
/// were found. The places are there before: what is taken must have one.
fn take(
    connection: &Connection,
    kind: Kind,
    statement: &str,
    of: &dyn ToSql,
    now: Timestamp,
    mut slots: Vec<Slot>,
    claimed: &mut Vec<Claimed>,
) -> Result<usize, StoreError> {
    if slots.is_empty() {
        return Ok(0);
    }
    let make: Make = match kind {
        Kind::Event => event,
        Kind::Delivery => delivery,
    };
    let (mut taken, mut unreadable) = (Vec::new(), Vec::new());
    let mut update = connection.prepare_cached(statement)?;
    let limit = i64::try_from(slots.len()).unwrap_or(0);
    let mut found = update.query(params![of, now.as_millis(), limit])?;
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
    let count = taken.len() + unreadable.len();
    for (key, error) in unreadable {
        settle::give_up_unreadable(connection, kind, key, now, &error)?;
    }
    // The engine returns them in whatever order it changed them.
    taken.sort_unstable_by_key(|(order, _)| *order);
    claimed.extend(taken.into_iter().map(|(_, claimed)| claimed));
    Ok(count)
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
    use std::path::Path;

    use rusqlite::StatementStatus;
    use rusqlite::types::Value;

    use super::super::{Durability, schema};
    use super::*;

    /// A claim that looks at every event in the file is the end of a bus with many of them.
    #[test]
    fn no_claim_looks_at_finished_work() {
        let connection = Connection::open_in_memory().unwrap();
        for script in schema::MIGRATIONS {
            connection.execute_batch(script).unwrap();
        }
        for query in
            [TAKE_EVENTS, TAKE_DELIVERIES, NEXT_EVENT, NEXT_DELIVERY, HAS_SUSPECTS, READ_EVENT, TAKE_HELD]
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

    /// Planning takes longer than claiming.
    #[test]
    fn no_claim_is_planned_anew_for_other_values() {
        let connection = schema::open_writer(Path::new(":memory:"), Durability::Full).unwrap();
        for query in [TAKE_EVENTS, TAKE_DELIVERIES, HOLD, TAKE_HELD] {
            let mut statement = connection.prepare(query).unwrap();
            for value in 1..=4 {
                for parameter in 1..=statement.parameter_count() {
                    let value = if parameter == 4 { Value::Text("[]".into()) } else { Value::Integer(value) };
                    statement.raw_bind_parameter(parameter, value).unwrap();
                }
                assert!(statement.raw_query().next().unwrap().is_none());
            }
            assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{query}");
        }
    }
}
