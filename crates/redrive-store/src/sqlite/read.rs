//! Appends events and looks them up with their deliveries and attempts.

use std::sync::Arc;

use redrive_retry::Timestamp;
use rusqlite::{Connection, Row, params, params_from_iter, types::Value};

use super::batch::Command;
use super::{SqliteStore, append, maintenance, rows, status};
use crate::error::StoreError;
use crate::event::{EventContent, EventId, EventStatus, NewEvent, SubscriptionName};
use crate::query::{
    AttemptFilter, AuditLine, DeliveryRow, Depth, EventDetail, EventFilter, EventPage, PayloadOmitted, Stats,
    SubscriptionAttempt, WaitingWork,
};
use crate::sql::payload::Payload;
use crate::store::{Appended, EventStore, StoreFuture};

/// The errors are those of all failed attempts since the last redrive, of the event and of its deliveries.
const COLUMNS: &str = "key, id, type, metadata, status, (
    SELECT json_group_array(error) FROM (
      SELECT a.error FROM attempt a WHERE a.event_key = event.key AND a.redriven = 0 AND a.class <> 'null' ORDER BY a.key)),
    created_at, updated_at, due_at";

const DELIVERIES: &str = "
    SELECT subscription, status, retry_count, due_at, last_error FROM delivery WHERE event_key = ?1 ORDER BY key";

const ATTEMPTS: &str = "
    SELECT attempt, subscription, started_at, duration_ms, class, delay_ms, error, record, detail
    FROM attempt WHERE event_key = ?1 ORDER BY key";

const ATTEMPTS_OF: &str = "
    SELECT a.key, e.id, e.type, a.attempt, a.subscription, a.started_at, a.duration_ms, a.class, a.delay_ms, a.error,
    a.record, a.detail FROM attempt a JOIN event e ON e.key = a.event_key
    WHERE a.subscription = ?1 AND a.key < ?2 AND (NOT ?3 OR a.class <> 'null') ORDER BY a.key DESC LIMIT ?4";

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

    fn taken_ids(&self, wanted: Vec<EventContent>) -> StoreFuture<'_, Vec<EventId>> {
        Box::pin(self.read(move |connection| {
            let mut taken = Vec::new();
            for EventContent { id, event_type, payload } in &wanted {
                if append::is_taken(connection, *id, event_type, payload)? {
                    taken.push(*id);
                }
            }
            Ok(taken)
        }))
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
        filter: AttemptFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>> {
        Box::pin(self.read(move |connection| {
            let values = params![name.as_str(), page.after.unwrap_or(i64::MAX), filter.failed, page.limit];
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

    fn audit_lines(&self, after: Option<i64>, limit: u32) -> StoreFuture<'_, Vec<AuditLine>> {
        Box::pin(SqliteStore::audit_lines(self, after, limit))
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
    let (conditions, mut values) = conditions(filter);
    values.insert(0, page.after.unwrap_or(i64::MAX).into());
    values.push(i64::from(page.limit).into());
    let query = format!(
        "SELECT {COLUMNS}, {} FROM event WHERE key < ?{conditions} ORDER BY key DESC LIMIT ?",
        P::select("payload")
    );
    readable(connection, &query, values, detail)
}

/// The keys of open events, from the partial indexes over open work.
const PENDING: &str = " AND key IN (
    SELECT key FROM event WHERE status < 3 AND status <= 0
    UNION ALL SELECT event_key FROM delivery WHERE status < 3 AND status <= 0) AND status IN (-1, 0, 6)";
const PROCESSING: &str = " AND key IN (
    SELECT key FROM event WHERE status < 3 AND status IN (1, 2)
    UNION ALL SELECT event_key FROM delivery WHERE status < 3) AND status IN (1, 2, 5)";

/// The keys of dead events. Few events are dead, but most are done: an index over those would make every publish slower.
const DEAD: &str = " AND key IN (SELECT event_key FROM dead_letter) AND status = 4";
const DEAD_OF_TYPE: &str = " AND key IN (SELECT event_key FROM dead_letter WHERE type = ?) AND status = 4";

/// Returns the conditions of a filter, each behind an `AND`, and their values.
fn conditions(filter: &EventFilter) -> (String, Vec<Value>) {
    let (status, has_type) = match filter.status {
        None => ("", false),
        Some(EventStatus::Pending) => (PENDING, false),
        Some(EventStatus::Processing) => (PROCESSING, false),
        Some(EventStatus::Done) => (" AND status = 3", false),
        Some(EventStatus::Dlq) if filter.event_type.is_some() => (DEAD_OF_TYPE, true),
        Some(EventStatus::Dlq) => (DEAD, false),
    };
    let (mut conditions, mut values) = (status.to_owned(), Vec::new());
    if let Some(event_type) = &filter.event_type {
        values.push(event_type.as_str().to_owned().into());
        if !has_type {
            conditions.push_str(" AND type = ?");
        }
    }
    (conditions, values)
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
    let errors = rows::errors(row, 5)?;
    Ok(EventDetail {
        cursor: row.get(0)?,
        id: rows::event_id(row, 1)?,
        event_type: rows::event_type(row, 2)?,
        payload: P::read(|| rows::text(row, 9))?,
        metadata: rows::metadata(row, 3)?,
        status: status::name(rows::status(row, 4)?),
        retry_count: u32::try_from(errors.len()).unwrap_or(u32::MAX),
        errors,
        created_at: rows::timestamp(row, 6)?,
        updated_at: rows::timestamp(row, 7)?,
        due_at: rows::due_at(row, 8, rows::status(row, 4)?)?,
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
        is_running: rows::status(row, 1)? == status::RUNNING,
        is_leased: rows::status(row, 1)? == status::LEASED,
        errors: rows::errors(row, 4)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::schema;
    use super::*;
    use crate::event::EventType;

    fn plan(status: EventStatus, event_type: Option<&str>) -> String {
        let connection = Connection::open_in_memory().unwrap();
        for script in schema::MIGRATIONS {
            connection.execute_batch(script).unwrap();
        }
        let event_type = event_type.map(|name| EventType::new(name).unwrap());
        let (conditions, _) = conditions(&EventFilter { status: Some(status), event_type });
        let query = format!(
            "EXPLAIN QUERY PLAN SELECT {COLUMNS} FROM event WHERE key < ?{conditions} ORDER BY key DESC LIMIT ?"
        );
        let mut explain = connection.prepare(&query).unwrap();
        for parameter in 1..=explain.parameter_count() {
            explain.raw_bind_parameter(parameter, 1).unwrap();
        }
        let mut steps = explain.raw_query();
        let mut plan = String::new();
        while let Some(step) = steps.next().unwrap() {
            plan.push_str(&step.get::<_, String>(3).unwrap());
            plan.push('\n');
        }
        plan
    }

    #[test]
    fn open_events_are_listed_by_the_indexes_over_open_work() {
        for status in [EventStatus::Pending, EventStatus::Processing] {
            let plan = plan(status, None);
            assert!(plan.contains("idx_events_status") && plan.contains("idx_delivery_status"), "{plan}");
            assert!(!plan.contains("SCAN event") && !plan.contains("SCAN delivery"), "{plan}");
        }
    }

    #[test]
    fn dead_events_are_listed_by_the_indexes_over_dead_letters() {
        let all = plan(EventStatus::Dlq, None);
        assert!(all.contains("idx_dead_letter") && !all.contains("SCAN event"), "{all}");
        let of_type = plan(EventStatus::Dlq, Some("order.created"));
        assert!(of_type.contains("idx_events_type") && !of_type.contains("SCAN event"), "{of_type}");
    }
}
