//! Reads events with their deliveries and attempts.

use tokio_postgres::Row;

use super::session::Session;
use super::value::Value;
use super::{rows, status};
use crate::error::StoreError;
use crate::event::{EventId, EventStatus, SubscriptionName};
use crate::query::{DeliveryRow, EventDetail, EventFilter, EventPage, SubscriptionAttempt};
use crate::sql::payload::Payload;

macro_rules! events {
    ($payload:literal) => {
        concat!(
            "SELECT e.key, e.id, e.type, ",
            $payload,
            ", p.metadata, e.status, e.retry_count, e.last_error, e.created_at, e.updated_at,
             e.due_at FROM redrive.event e LEFT JOIN redrive.payload p ON p.event_key = e.key"
        )
    };
}

const EVENT: &str = concat!(events!("p.payload"), " WHERE e.id = $1");

const DELIVERIES: &str = "
    SELECT subscription, status, retry_count, due_at, last_error FROM redrive.delivery WHERE event_key = $1 ORDER BY key";

const ATTEMPTS: &str = "
    SELECT attempt, subscription, started_at, duration_ms, class, delay_ms, error, record, detail
    FROM redrive.attempt WHERE event_key = $1 ORDER BY key";

const ATTEMPTS_OF: &str = "
    SELECT a.key, e.id, e.type, a.attempt, a.subscription, a.started_at, a.duration_ms, a.class, a.delay_ms, a.error, a.record,
           a.detail
    FROM redrive.attempt a JOIN redrive.event e ON e.key = a.event_key
    WHERE a.subscription = $1 AND a.key < $2 ORDER BY a.key DESC LIMIT $3";

pub(super) async fn attempts_of(
    session: &Session,
    name: &SubscriptionName,
    page: EventPage,
) -> Result<Vec<SubscriptionAttempt>, StoreError> {
    let (after, limit) = (page.after.unwrap_or(i64::MAX), i64::from(page.limit));
    let found = session.query(ATTEMPTS_OF, &[&name.as_str(), &after, &limit]).await?;
    let one = |row: &Row| SubscriptionAttempt {
        cursor: row.get(0),
        event_id: rows::event_id(row, 1),
        event_type: rows::event_type(row, 2),
        attempt: rows::attempt(row, 3),
    };
    Ok(found.iter().map(one).collect())
}

pub(super) async fn event(session: &Session, id: EventId) -> Result<EventDetail, StoreError> {
    let found = session.query(EVENT, &[id.as_uuid()]).await?;
    let mut event = detail(found.first().ok_or(StoreError::NoSuchEvent { id })?)?;
    let key: [&dyn Value; 1] = [&event.cursor];
    let (deliveries, attempts) = tokio::join!(session.query(DELIVERIES, &key), session.query(ATTEMPTS, &key));
    event.deliveries = deliveries?.iter().map(delivery).collect();
    event.attempts = attempts?.iter().map(|row| rows::attempt(row, 0)).collect();
    Ok(event)
}

pub(super) async fn events<P: Payload>(
    session: &Session,
    filter: &EventFilter,
    page: EventPage,
) -> Result<Vec<EventDetail<P>>, StoreError> {
    let after = page.after.unwrap_or(i64::MAX);
    let limit = i64::from(page.limit);
    let states: Vec<i16> = match filter.status {
        None => Vec::new(),
        Some(EventStatus::Pending) => vec![status::SUSPECT, status::PENDING],
        Some(EventStatus::Processing) => vec![status::RUNNING, status::WAITING, status::DELIVERING],
        Some(EventStatus::Done) => vec![status::DONE],
        Some(EventStatus::Dlq) => vec![status::DEAD],
    };
    let event_type = filter.event_type.as_ref().map(|event_type| event_type.as_str());
    let mut query = format!(events!("{}"), P::select("p.payload"));
    query.push_str(" WHERE e.key < $1");
    let mut values: Vec<&dyn Value> = vec![&after, &limit];
    if filter.status.is_some() {
        values.push(&states);
        query.push_str(" AND e.status = ANY($3::smallint[])");
    }
    if event_type.is_some() {
        values.push(&event_type);
        query.push_str(&format!(" AND e.type = ${}", values.len()));
    }
    query.push_str(" ORDER BY e.key DESC LIMIT $2");
    let found = session.query_once(&query, &values).await?;
    found.iter().map(detail).collect()
}

fn detail<P: Payload>(row: &Row) -> Result<EventDetail<P>, StoreError> {
    Ok(EventDetail {
        cursor: row.get(0),
        id: rows::event_id(row, 1),
        event_type: rows::event_type(row, 2),
        payload: P::read(|| Ok(rows::payload(row, 3).into()))?,
        metadata: rows::metadata(row, 4),
        status: status::name(row.get(5)),
        retry_count: rows::small(row, 6),
        errors: rows::errors(row, 7),
        created_at: rows::timestamp(row, 8),
        updated_at: rows::timestamp(row, 9),
        due_at: rows::due_at(row, 10, row.get(5)),
        deliveries: Vec::new(),
        attempts: Vec::new(),
    })
}

fn delivery(row: &Row) -> DeliveryRow {
    DeliveryRow {
        subscription: rows::subscription(row, 0),
        status: status::name(row.get(1)),
        retry_count: rows::small(row, 2),
        due_at: rows::due_at(row, 3, row.get(1)),
        is_running: row.get::<_, i16>(1) == status::RUNNING,
        errors: rows::errors(row, 4),
    }
}
