//! Appends events and looks them up with their deliveries and attempts.

use std::sync::Arc;

use redrive_retry::Timestamp;
use rusqlite::{Connection, Row, params, params_from_iter, types::Value};

use super::batch::Command;
use super::{SqliteStore, append, maintenance, rows, status};
use crate::error::StoreError;
use crate::event::{EventId, NewEvent, SubscriptionName};
use crate::query::{
    DeliveryRow, Depth, EventDetail, EventFilter, EventPage, PayloadOmitted, Stats, SubscriptionAttempt,
    WaitingWork,
};
use crate::sql::payload::Payload;
use crate::store::{Appended, EventStore, StoreFuture};

const COLUMNS: &str =
    "key, id, type, metadata, status, retry_count, last_error, created_at, updated_at, due_at";

const DELIVERIES: &str = "
    SELECT subscription, status, retry_count, due_at, last_error FROM delivery WHERE event_key = ?1 ORDER BY key";

const ATTEMPTS: &str = "
    SELECT attempt, subscription, started_at, duration_ms, class, delay_ms, error, record, detail
    FROM attempt WHERE event_key = ?1 ORDER BY key";

const ATTEMPTS_OF: &str = "
    SELECT a.key, e.id, e.type, a.attempt, a.subscription, a.started_at, a.duration_ms, a.class, a.delay_ms, a.error,
    a.record, a.detail FROM attempt a JOIN event e ON e.key = a.event_key
    WHERE a.subscription = ?1 AND a.key < ?2 ORDER BY a.key DESC LIMIT ?3";

impl EventStore for SqliteStore {
    fn append(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Appended>> {
        let limit = self.max_payload;
        Box::pin(async move {
            NewEvent::check_all(&events, limit)?;
            let mut rows: Vec<append::Row> = events.into_iter().map(append::Row::from).collect();
            match rows.pop() {
                None => Ok(Vec::new()),
                Some(row) if rows.is_empty() && row.to.subscriptions().is_empty() => {
                    // Kept until the reply, so that this thread frees the memory and not the writer.
                    let _event = Arc::clone(&row.event);
                    let appended = self.writer.call(|reply| Command::AppendOne { row, reply }).await?;
                    Ok(vec![appended])
                }
                Some(row) => {
                    rows.push(row);
                    self.writer
                        .run_with(true, move |connection, pending| append::append(connection, &rows, pending))
                        .await
                }
            }
        })
    }

    fn event(&self, id: EventId) -> StoreFuture<'_, EventDetail> {
        Box::pin(self.read(move |connection| event(connection, id)))
    }

    fn events(&self, filter: EventFilter, page: EventPage) -> StoreFuture<'_, Vec<EventDetail>> {
        Box::pin(self.read(move |connection| events(connection, &filter, page)))
    }

    fn event_summaries(
        &self,
        filter: EventFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<EventDetail<PayloadOmitted>>> {
        Box::pin(self.read(move |connection| events(connection, &filter, page)))
    }

    fn attempts_of(
        &self,
        name: SubscriptionName,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>> {
        Box::pin(self.read(move |connection| {
            let values = params![name.as_str(), page.after.unwrap_or(i64::MAX), page.limit];
            rows::all(connection, ATTEMPTS_OF, values, |row| {
                Ok(SubscriptionAttempt {
                    cursor: row.get(0)?,
                    event_id: rows::event_id(row, 1)?,
                    event_type: rows::event_type(row, 2)?,
                    attempt: rows::attempt(row, 3)?,
                })
            })
        }))
    }

    fn depth(&self) -> StoreFuture<'_, Depth> {
        let path = self.path.clone();
        Box::pin(self.read(move |connection| maintenance::depth(connection, &path)))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        let path = self.path.clone();
        Box::pin(self.read(move |connection| maintenance::stats(connection, &path)))
    }

    fn waiting(&self, now: Timestamp, overdue_before: Timestamp) -> StoreFuture<'_, WaitingWork> {
        Box::pin(self.read(move |connection| maintenance::waiting(connection, now, overdue_before)))
    }

    fn purge_done(&self, finished_before: Timestamp, limit: u32) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            // A reader searches; the writer only deletes.
            let search =
                move |connection: &Connection| maintenance::finished(connection, finished_before, limit);
            let keys = self.read(search).await?;
            if keys.is_empty() {
                return Ok(0);
            }
            let purge = move |connection: &Connection| {
                let mut purge =
                    connection.prepare_cached("DELETE FROM event WHERE key = ?1 AND status = ?2")?;
                let purged = keys.iter().map(|key| purge.execute(params![key, status::DONE]));
                Ok(purged.sum::<Result<usize, _>>()? as u64)
            };
            self.writer.run(purge).await
        })
    }
}

pub(super) fn event(connection: &Connection, id: EventId) -> Result<EventDetail, StoreError> {
    let query = format!("SELECT {COLUMNS}, payload FROM event WHERE id = ?1");
    let mut statement = connection.prepare_cached(&query)?;
    let mut found = statement.query([id.as_uuid().as_bytes()])?;
    let row = found.next()?.ok_or(StoreError::NoSuchEvent { id })?;
    let mut event = detail(row)?;
    event.deliveries = rows::all(connection, DELIVERIES, [event.cursor], delivery)?;
    event.attempts = rows::all(connection, ATTEMPTS, [event.cursor], |row| rows::attempt(row, 0))?;
    Ok(event)
}

fn events<P: Payload>(
    connection: &Connection,
    filter: &EventFilter,
    page: EventPage,
) -> Result<Vec<EventDetail<P>>, StoreError> {
    let mut conditions = vec!["key < ?".to_owned()];
    let mut values = vec![Value::from(page.after.unwrap_or(i64::MAX))];
    if let Some(codes) = filter.status.map(status::codes) {
        let list: Vec<String> = codes.iter().map(ToString::to_string).collect();
        conditions.push(format!("status IN ({})", list.join(", ")));
        if codes.iter().all(|code| *code < status::DONE) {
            conditions.push("status < 3".to_owned()); // the condition of the partial index
        }
    }
    if let Some(event_type) = &filter.event_type {
        conditions.push("type = ?".to_owned());
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

fn delivery(row: &Row<'_>) -> Result<DeliveryRow, StoreError> {
    Ok(DeliveryRow {
        subscription: rows::subscription(row, 0)?,
        status: status::name(rows::status(row, 1)?),
        retry_count: rows::count(row, 2)?,
        due_at: rows::due_at(row, 3, rows::status(row, 1)?)?,
        errors: rows::errors(row, 4)?,
    })
}
