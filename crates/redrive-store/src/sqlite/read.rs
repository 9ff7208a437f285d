//! Looks events and attempts up.

use rusqlite::{Connection, Row, params, params_from_iter, types::Value};

use super::{rows, status};
use crate::error::StoreError;
use crate::event::{EventId, EventStatus, SubscriptionName};
use crate::query::{AttemptRow, DeliveryRow, EventDetail, EventFilter, EventPage, SubscriptionAttempt};
use crate::sql::payload::Payload;

const COLUMNS: &str =
    "key, id, type, metadata, status, retry_count, last_error, created_at, updated_at, due_at";

pub(super) fn event(connection: &Connection, id: EventId) -> Result<EventDetail, StoreError> {
    let query = format!("SELECT {COLUMNS}, payload FROM event WHERE id = ?1");
    let mut statement = connection.prepare_cached(&query)?;
    let mut found = statement.query([id.as_uuid().as_bytes()])?;
    let row = found.next()?.ok_or(StoreError::NoSuchEvent { id })?;
    let mut event = detail(row)?;
    event.deliveries = deliveries(connection, event.cursor)?;
    event.attempts = attempts(connection, event.cursor)?;
    Ok(event)
}

pub(super) fn events<P: Payload>(
    connection: &Connection,
    filter: &EventFilter,
    page: EventPage,
) -> Result<Vec<EventDetail<P>>, StoreError> {
    let mut conditions = vec!["key < ?"];
    let mut values = vec![Value::from(page.after.unwrap_or(i64::MAX))];
    match filter.status {
        None => {}
        Some(EventStatus::Pending) => conditions.push("status < 3 AND status <= 0"),
        Some(EventStatus::Processing) => conditions.push("status IN (1, 2, 5)"),
        Some(EventStatus::Done) => conditions.push("status = 3"),
        Some(EventStatus::Dlq) => conditions.push("status = 4"),
    }
    if let Some(event_type) = &filter.event_type {
        conditions.push("type = ?");
        values.push(event_type.as_str().to_owned().into());
    }
    values.push(i64::from(page.limit).into());
    let query = format!(
        "SELECT {COLUMNS}, {} FROM event WHERE {} ORDER BY key DESC LIMIT ?",
        P::select("payload"),
        conditions.join(" AND ")
    );
    readable(connection, &query, values, detail)
}

/// Runs a query and leaves rows that cannot be read out of the list.
pub(super) fn readable<T>(
    connection: &Connection,
    query: &str,
    values: Vec<Value>,
    read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let log = |error: &StoreError| tracing::error!(target: "redrive::store", %error, "left out a row that cannot be read");
    let list =
        rows::all(connection, query, params_from_iter(values), |row| Ok(read(row).inspect_err(log).ok()))?;
    Ok(list.into_iter().flatten().collect())
}

fn detail<P: Payload>(row: &Row<'_>) -> Result<EventDetail<P>, StoreError> {
    Ok(EventDetail {
        cursor: row.get(0)?,
        id: rows::event_id(row, 1)?,
        event_type: rows::event_type(row, 2)?,
        payload: P::read(|| rows::text(row, 10))?,
        metadata: rows::metadata(row, 3)?,
        status: status::name(rows::status(row, 4)?),
        retry_count: rows::count(row, 5)?,
        errors: rows::errors(row, 6)?,
        created_at: rows::timestamp(row, 7)?,
        updated_at: rows::timestamp(row, 8)?,
        due_at: rows::due_at(row, 9, rows::status(row, 4)?)?,
        deliveries: Vec::new(),
        attempts: Vec::new(),
    })
}

fn deliveries(connection: &Connection, event: i64) -> Result<Vec<DeliveryRow>, StoreError> {
    let query = "SELECT subscription, status, retry_count, due_at, last_error FROM delivery WHERE event_key = ?1 ORDER BY key";
    rows::all(connection, query, [event], |row| {
        Ok(DeliveryRow {
            subscription: rows::subscription(row, 0)?,
            status: status::name(rows::status(row, 1)?),
            retry_count: rows::count(row, 2)?,
            due_at: rows::due_at(row, 3, rows::status(row, 1)?)?,
            errors: rows::errors(row, 4)?,
        })
    })
}

pub(super) fn attempts(connection: &Connection, event: i64) -> Result<Vec<AttemptRow>, StoreError> {
    let query =
        "SELECT attempt, subscription, started_at, duration_ms, class, delay_ms, error, record, detail
         FROM attempt WHERE event_key = ?1 ORDER BY key";
    rows::all(connection, query, [event], |row| rows::attempt(row, 0))
}

pub(super) fn attempts_of(
    connection: &Connection,
    name: &SubscriptionName,
    page: EventPage,
) -> Result<Vec<SubscriptionAttempt>, StoreError> {
    let query = "SELECT a.key, e.id, e.type, a.attempt, a.subscription, a.started_at, a.duration_ms, a.class, a.delay_ms, a.error,
         a.record, a.detail FROM attempt a JOIN event e ON e.key = a.event_key
         WHERE a.subscription = ?1 AND a.key < ?2 ORDER BY a.key DESC LIMIT ?3";
    let values = params![name.as_str(), page.after.unwrap_or(i64::MAX), i64::from(page.limit)];
    rows::all(connection, query, values, |row| {
        Ok(SubscriptionAttempt {
            cursor: row.get(0)?,
            event_id: rows::event_id(row, 1)?,
            event_type: rows::event_type(row, 2)?,
            attempt: rows::attempt(row, 3)?,
        })
    })
}
