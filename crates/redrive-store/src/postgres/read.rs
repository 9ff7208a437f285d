//! Reads events with their deliveries and attempts.

use tokio_postgres::{Error, Row};
use uuid::Uuid;

use super::session::Session;
use super::value::Value;
use super::{rows, status};
use crate::error::StoreError;
use crate::event::{EventContent, EventId, EventStatus, SubscriptionName};
use crate::query::{AttemptFilter, DeliveryRow, EventDetail, EventFilter, EventPage, SubscriptionAttempt};
use crate::sql::payload::Payload;

/// Selects events with the errors of all failed attempts since the last redrive, of the event and of its deliveries.
macro_rules! events {
    ($payload:literal) => {
        concat!(
            "SELECT e.key, e.id, e.type, ",
            $payload,
            ", p.metadata, e.status, (
               SELECT json_agg(a.error ORDER BY a.key)::text FROM redrive.attempt a
               WHERE a.event_key = e.key AND NOT a.redriven AND a.class <> 'null'), e.created_at, e.updated_at, e.due_at FROM redrive.event e LEFT JOIN redrive.payload p ON p.event_key = e.key"
        )
    };
}

const EVENT: &str = concat!(events!("p.payload"), " WHERE e.id = $1");

pub(super) const TAKEN_IDS: &str = "
    SELECT e.id FROM unnest($1::uuid[], $2::text[], $3::text[]) AS u(id, type, payload)
    JOIN redrive.event e ON e.id = u.id LEFT JOIN redrive.payload p ON p.event_key = e.key
    WHERE e.type <> u.type OR p.payload IS DISTINCT FROM u.payload";

const DELIVERIES: &str = "
    SELECT subscription, status, retry_count, due_at, last_error FROM redrive.delivery WHERE event_key = $1 ORDER BY key";

const ATTEMPTS: &str = "
    SELECT attempt, subscription, started_at, duration_ms, class, delay_ms, error, record, detail
    FROM redrive.attempt WHERE event_key = $1 ORDER BY key";

const ATTEMPTS_OF: &str = "
    SELECT a.key, e.id, e.type, a.attempt, a.subscription, a.started_at, a.duration_ms, a.class, a.delay_ms, a.error, a.record,
           a.detail
    FROM redrive.attempt a JOIN redrive.event e ON e.key = a.event_key
    WHERE a.subscription = $1 AND a.key < $2 AND (NOT $3 OR a.class <> 'null') ORDER BY a.key DESC LIMIT $4";

pub(super) async fn attempts_of(
    session: &Session,
    name: &SubscriptionName,
    filter: AttemptFilter,
    page: EventPage,
) -> Result<Vec<SubscriptionAttempt>, StoreError> {
    let (after, limit) = (page.after.unwrap_or(i64::MAX), i64::from(page.limit));
    let found = session.query(ATTEMPTS_OF, &[&name.as_str(), &after, &filter.failed, &limit]).await?;
    let one = |row: &Row| SubscriptionAttempt {
        cursor: row.get(0),
        event_id: rows::event_id(row, 1),
        event_type: rows::event_type(row, 2),
        attempt: rows::attempt(row, 3),
    };
    Ok(found.iter().map(one).collect())
}

/// Returns the ids under which another type or payload is stored.
pub(super) async fn taken_ids(
    session: &Session,
    wanted: &[EventContent],
) -> Result<Vec<EventId>, StoreError> {
    let contents = wanted.iter().map(|one| (one.id, one.event_type.as_str(), &*one.payload));
    Ok(taken_among(session, contents).await?)
}

/// Returns those of these ids, with type and payload, under which another type or payload is stored.
pub(super) async fn taken_among(
    session: &Session,
    contents: impl Iterator<Item = (EventId, &str, &str)>,
) -> Result<Vec<EventId>, Error> {
    let (mut ids, mut types, mut payloads): (Vec<Uuid>, Vec<&str>, Vec<&str>) = Default::default();
    for (id, event_type, payload) in contents {
        ids.push(*id.as_uuid());
        types.push(event_type);
        payloads.push(payload);
    }
    let found = session.query(TAKEN_IDS, &[&ids, &types, &payloads]).await?;
    Ok(found.iter().map(|row| rows::event_id(row, 0)).collect())
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

/// The keys of open events, from the partial indexes over waiting work and from the oldest claim of any process on.
const PENDING: &str = " AND e.key IN (
    SELECT key FROM redrive.event WHERE ready_at IS NOT NULL AND status IN (-1, 0)
    UNION ALL SELECT event_key FROM redrive.delivery WHERE ready_at IS NOT NULL) AND e.status IN (-1, 0, 6)";
const PROCESSING: &str = " AND e.key IN (
    SELECT key FROM redrive.event WHERE ready_at IS NOT NULL AND status = 2
    UNION ALL SELECT key FROM redrive.event WHERE key >= (SELECT min(oldest_event) FROM redrive.process) AND status = 1
    UNION ALL SELECT event_key FROM redrive.delivery WHERE ready_at IS NOT NULL
    UNION ALL SELECT event_key FROM redrive.delivery
    WHERE key >= (SELECT min(oldest_delivery) FROM redrive.process) AND status = 1) AND e.status IN (1, 2, 5)";

/// The keys of dead events. Few events are dead, but most are done: an index over those would make every publish slower.
const DEAD: &str = " AND e.key IN (SELECT event_key FROM redrive.dead_letter) AND e.status = 4";
const DEAD_OF_TYPE: &str =
    " AND e.key IN (SELECT event_key FROM redrive.dead_letter WHERE type = $3) AND e.status = 4";

/// Returns the query of a list. Parameters: 1 cursor, 2 limit, and 3 the type if the filter has one.
fn list_query<P: Payload>(filter: &EventFilter) -> String {
    let has_type = filter.event_type.is_some();
    let (status, of_type) = match filter.status {
        None => ("", " AND e.type = $3"),
        Some(EventStatus::Pending) => (PENDING, " AND e.type = $3"),
        Some(EventStatus::Processing) => (PROCESSING, " AND e.type = $3"),
        Some(EventStatus::Done) => (" AND e.status = 3", " AND e.type = $3"),
        Some(EventStatus::Dlq) if has_type => (DEAD_OF_TYPE, ""),
        Some(EventStatus::Dlq) => (DEAD, ""),
    };
    let of_type = if has_type { of_type } else { "" };
    let columns = format!(events!("{}"), P::select("p.payload"));
    format!("{columns} WHERE e.key < $1{status}{of_type} ORDER BY e.key DESC LIMIT $2")
}

pub(super) async fn events<P: Payload>(
    session: &Session,
    filter: &EventFilter,
    page: EventPage,
) -> Result<Vec<EventDetail<P>>, StoreError> {
    let after = page.after.unwrap_or(i64::MAX);
    let limit = i64::from(page.limit);
    let event_type = filter.event_type.as_ref().map(|event_type| event_type.as_str());
    let query = list_query::<P>(filter);
    let mut values: Vec<&dyn Value> = vec![&after, &limit];
    if event_type.is_some() {
        values.push(&event_type);
    }
    let found = session.query_once(&query, &values).await?;
    found.iter().map(detail).collect()
}

fn detail<P: Payload>(row: &Row) -> Result<EventDetail<P>, StoreError> {
    let errors = rows::errors(row, 6);
    Ok(EventDetail {
        cursor: row.get(0),
        id: rows::event_id(row, 1),
        event_type: rows::event_type(row, 2),
        payload: P::read(|| Ok(rows::payload(row, 3).into()))?,
        metadata: rows::metadata(row, 4),
        status: status::name(row.get(5)),
        retry_count: u32::try_from(errors.len()).unwrap_or(u32::MAX),
        errors,
        created_at: rows::timestamp(row, 7),
        updated_at: rows::timestamp(row, 8),
        due_at: rows::due_at(row, 9, row.get(5)),
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
        is_leased: row.get::<_, i16>(1) == status::LEASED,
        errors: rows::errors(row, 4),
    }
}
