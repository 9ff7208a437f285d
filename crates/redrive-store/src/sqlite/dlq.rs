//! The dead-letter queue on disk.

use std::borrow::Cow;

use redrive_retry::Timestamp;
use redrive_retry::planted::Planted;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter, types::Value};
use serde_json::value::RawValue;

use super::payload::Payload;
use super::{read, replay, rows, status};
use crate::dead_letter::{DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqPage, Meant, Redrive};
use crate::error::StoreError;
use crate::event::{EventId, SubscriptionName};
use crate::query::AttemptRow;
use crate::store::Replayed;

/// The conditions of a filter over `dead_letter d`.
fn conditions(filter: &DlqFilter) -> (String, Vec<Value>) {
    let mut parts = Vec::new();
    let mut values: Vec<Value> = Vec::new();
    let mut add = |part: &'static str, value: Value| {
        parts.push(part);
        values.push(value);
    };
    if let Some(event_type) = &filter.event_type {
        add("d.type = ?", event_type.as_str().to_owned().into());
    }
    if let Some(since) = filter.since {
        add("d.created_at >= ?", since.as_millis().into());
    }
    if let Some(until) = filter.until {
        add("d.created_at < ?", until.as_millis().into());
    }
    if let Some(reason) = &filter.reason {
        add("d.reason = ?", reason.clone().into());
    }
    if let Some(text) = &filter.text {
        add(IN_ANY_ERROR, text.clone().into());
    }
    if let Some(fingerprint) = &filter.fingerprint {
        add("d.fingerprint = ?", fingerprint.clone().into());
    }
    if let Some(subscription) = &filter.subscription {
        add("d.subscription = ?", subscription.as_str().to_owned().into());
    }
    let text = if parts.is_empty() { String::new() } else { format!(" AND {}", parts.join(" AND ")) };
    (text, values)
}

const IN_ANY_ERROR: &str = "EXISTS (
    SELECT 1 FROM event te LEFT JOIN delivery tv ON tv.event_key = te.key AND tv.subscription = d.subscription,
    json_each(iif(json_valid(coalesce(tv.last_error, te.last_error)), coalesce(tv.last_error, te.last_error),
    json_array(CAST(coalesce(tv.last_error, te.last_error, '') AS TEXT)))) one WHERE te.key = d.event_key AND instr(one.value, ?) > 0)";

const COLUMNS: &str = "e.key, e.id, e.type, e.metadata, e.created_at, d.subscription, d.dlq_at, d.reason,
    coalesce(v.retry_count, e.retry_count), coalesce(v.last_error, e.last_error), d.key";

const JOINED: &str = "dead_letter d JOIN event e ON e.key = d.event_key
    LEFT JOIN delivery v ON v.event_key = d.event_key AND v.subscription = d.subscription";

/// The payload is behind all other columns.
fn letters<P: Payload>() -> String {
    format!("SELECT {COLUMNS}, {} FROM {JOINED}", P::COLUMN)
}

pub(super) fn list<P: Payload>(
    connection: &Connection,
    filter: &DlqFilter,
    page: DlqPage,
) -> Result<Vec<DeadLetter<P>>, StoreError> {
    let (conditions, filters) = conditions(filter);
    let after = page.after.unwrap_or(DlqCursor::START);
    let mut values = vec![after.created_at.into(), after.event.into(), after.entry.into()];
    values.extend(filters);
    values.extend([i64::from(page.limit).into(), i64::from(page.offset).into()]);
    let query = format!(
        "{} WHERE (d.created_at, d.event_key, d.key) < (?, ?, ?){conditions}
         ORDER BY d.created_at DESC, d.event_key DESC, d.key DESC LIMIT ? OFFSET ?",
        letters::<P>()
    );
    read_all(connection, &query, values)
}

/// What was given up of one event, with all its attempts.
pub(super) fn get(connection: &Connection, id: EventId) -> Result<Vec<DeadLetter>, StoreError> {
    let event = read::event(connection, id)?;
    let query = format!("{} WHERE d.event_key = ? ORDER BY d.key", letters::<Box<RawValue>>());
    let mut list: Vec<DeadLetter> = read_all(connection, &query, vec![Value::from(event.cursor)])?;
    if list.is_empty() {
        return Err(StoreError::NotDead { id, status: event.status });
    }
    for dead in &mut list {
        let is_its_own = |attempt: &&AttemptRow| {
            dead.subscription.as_ref().is_none_or(|name| name.as_str() == attempt.subscription)
        };
        dead.attempts = event.attempts.iter().filter(is_its_own).cloned().collect();
    }
    Ok(list)
}

fn read_all<P: Payload>(
    connection: &Connection,
    query: &str,
    values: Vec<Value>,
) -> Result<Vec<DeadLetter<P>>, StoreError> {
    let mut list = Vec::new();
    let mut statement = connection.prepare_cached(query)?;
    let mut found = statement.query(params_from_iter(values))?;
    while let Some(row) = found.next()? {
        list.extend(read::or_skip(dead_letter(row)));
    }
    Ok(list)
}

fn dead_letter<P: Payload>(row: &Row<'_>) -> Result<DeadLetter<P>, StoreError> {
    Ok(DeadLetter {
        cursor: DlqCursor { created_at: row.get(4)?, event: row.get(0)?, entry: row.get(10)? },
        id: rows::event_id(row, 1)?,
        event_type: rows::event_type(row, 2)?,
        payload: P::read(row, 11)?,
        metadata: rows::metadata(row, 3)?,
        created_at: rows::timestamp(row, 4)?,
        subscription: subscription(row, 5)?,
        dlq_at: rows::timestamp(row, 6)?,
        reason: rows::text(row, 7)?.into_owned(),
        retry_count: rows::count(row, 8)?,
        errors: rows::errors(row, 9)?,
        attempts: Vec::new(),
    })
}

/// Who gave up, if it was one who is tracked on its own.
fn subscription(row: &Row<'_>, column: usize) -> Result<Option<SubscriptionName>, StoreError> {
    Ok(rows::optional_text(row, column)?.map(|name| SubscriptionName::stored(&name)))
}

pub(super) fn groups(connection: &Connection, filter: &DlqFilter) -> Result<Vec<DlqGroup>, StoreError> {
    let (conditions, values) = conditions(filter);
    let query = format!(
        "SELECT d.fingerprint, count(*), max(d.key), min(d.dlq_at), max(d.dlq_at) FROM dead_letter d
         WHERE TRUE{conditions} GROUP BY d.fingerprint ORDER BY 2 DESC LIMIT 1000"
    );
    let mut statement = connection.prepare_cached(&query)?;
    let mut found = statement.query(params_from_iter(values))?;
    let mut list = Vec::new();
    while let Some(row) = found.next()? {
        let example: i64 = row.get(2)?;
        list.push(DlqGroup {
            fingerprint: rows::text(row, 0)?.into_owned(),
            count: row.get::<_, i64>(1)?.unsigned_abs(),
            example: connection
                .prepare_cached("SELECT error FROM dead_letter WHERE key = ?1")?
                .query_row([example], |row| Ok(rows::text(row, 0).map(Cow::into_owned)))??,
            first_at: rows::timestamp(row, 3)?,
            last_at: rows::timestamp(row, 4)?,
        });
    }
    Ok(list)
}

/// Back to pending with a clean slate; what it had gone through stays in `redriven` and `attempt`.
pub(super) fn redrive(connection: &Connection, id: EventId, redrive: &Redrive) -> Result<(), StoreError> {
    let found: Option<(i64, i64)> = connection
        .prepare_cached("SELECT key, status FROM event WHERE id = ?1")?
        .query_row([id.as_uuid().as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (key, state) = found.ok_or(StoreError::NoSuchEvent { id })?;
    let (is_whole, dead_deliveries): (bool, i64) = connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM dead_letter WHERE event_key = ?1 AND subscription IS NULL),
             (SELECT count(*) FROM delivery WHERE event_key = ?1 AND status = 4)",
        )?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))?;
    // While some subscriptions are still at it, what others have given up can go back already.
    let is_partly_dead = state == status::DELIVERING && dead_deliveries > 0;
    if state != status::DEAD && !is_partly_dead {
        return Err(StoreError::NotDead { id, status: status::name(state) });
    }
    let at = redrive.at.as_millis();
    connection
        .prepare_cached(
            "INSERT INTO redriven (event_key, at, errors, payload)
             SELECT key, ?2, last_error, CASE WHEN ?3 THEN payload END FROM event WHERE key = ?1",
        )?
        .execute(params![key, at, redrive.payload.is_some()])?;
    connection
        .prepare_cached(
            "UPDATE delivery SET status = 0, retry_count = 0, crashes = 0, first_at = NULL, last_error = NULL, due_at = ?2,
             updated_at = ?2 WHERE event_key = ?1 AND status = 4",
        )?
        .execute(params![key, at])?;
    // An event that was given up as a whole goes back as a whole; what single subscriptions are owed beside it stays theirs,
    // because they may not be there. Else only what single subscriptions gave up goes back.
    let (state, due) = if is_whole || dead_deliveries == 0 {
        (status::PENDING, Some(at))
    } else {
        (status::DELIVERING, None)
    };
    // Who has handled it, or is owed it or was given it by a delivery of its own, need not handle it again if that is what it
    // wants. Another payload is another thing to handle.
    connection
        .prepare_cached(
            "UPDATE event SET status = ?2, retry_count = 0, crashes = 0, first_at = NULL, last_error = NULL, due_at = ?3,
             owes = EXISTS (SELECT 1 FROM delivery WHERE event_key = ?1 AND status < 3), updated_at = ?4,
             payload = coalesce(?5, payload), handled = (
               SELECT nullif(json_group_array(name), '[]') FROM (
                 SELECT value AS name FROM json_each(iif(?5 IS NULL AND json_valid(handled), handled, '[]'))
                 UNION
                 SELECT subscription FROM delivery v WHERE v.event_key = ?1 AND (v.status < 3 OR NOT EXISTS (
                   SELECT 1 FROM redriven r WHERE r.event_key = ?1 AND r.payload IS NOT NULL AND r.at >= v.updated_at))))
             WHERE key = ?1",
        )?
        .execute(params![key, state, due, at, redrive.payload])?;
    connection.prepare_cached("DELETE FROM dead_letter WHERE event_key = ?1")?.execute([key])?;
    Ok(())
}

/// What single subscriptions gave up goes back to each of them like a replay.
pub(super) fn redrive_matching(
    connection: &Connection,
    id: EventId,
    filter: &DlqFilter,
    at: Timestamp,
) -> Result<(), StoreError> {
    let (conditions, mut values) = conditions(filter);
    values.push(id.as_uuid().as_bytes().to_vec().into());
    let query = format!(
        "SELECT d.subscription, coalesce(TRUE{conditions}, FALSE), e.status FROM dead_letter d
         JOIN event e ON e.key = d.event_key WHERE e.id = ? ORDER BY d.key"
    );
    let (mut letters, mut state) = (Vec::new(), status::DEAD);
    let mut statement = connection.prepare_cached(&query)?;
    let mut found = statement.query(params_from_iter(values))?;
    while let Some(row) = found.next()? {
        letters.push((subscription(row, 0)?, row.get(1)?));
        state = row.get(2)?;
    }
    let Meant::Only(names) = Meant::of(letters) else {
        return redrive(connection, id, &Redrive { at, payload: None });
    };
    let mut is_back = false;
    for name in names {
        is_back |= replay::replay(connection, id, &name, at)? == Replayed::Again;
    }
    if is_back { Ok(()) } else { Err(StoreError::NotDead { id, status: status::name(state) }) }
}

pub(super) fn purge(connection: &Connection, published_until: Timestamp) -> Result<u64, StoreError> {
    let mut purge = connection.prepare_cached(
        "DELETE FROM event WHERE key IN (
           SELECT e.key FROM dead_letter d JOIN event e ON e.key = d.event_key
           WHERE d.created_at <= ?1 AND e.status = 4
           AND NOT EXISTS (SELECT 1 FROM delivery v WHERE v.event_key = e.key AND v.status < 3)
           ORDER BY d.created_at LIMIT 1000)",
    )?;
    let until = published_until.as_millis() + i64::from(Planted::PurgeOffByOne.is_here());
    Ok(purge.execute([until])? as u64)
}
