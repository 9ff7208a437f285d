//! The dead-letter queue.

use redrive_retry::Timestamp;
use redrive_retry::planted::Planted;
use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::payload::Payload;
use super::session::Session;
use super::value::Value;
use super::{failure, read, replay, rows, status, text};
use crate::dead_letter::{DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqPage, Meant, Redrive};
use crate::error::StoreError;
use crate::event::EventId;
use crate::query::AttemptRow;
use crate::store::Replayed;

/// The conditions of a filter over `dead_letter d`, and their values.
fn conditions(filter: &DlqFilter, values: &mut Vec<Box<dyn Value>>) -> String {
    let mut conditions = String::new();
    let mut add = |condition: &str, value: Box<dyn Value>| {
        values.push(value);
        conditions.push_str(" AND ");
        conditions.push_str(&condition.replace('?', &format!("${}", values.len())));
    };
    if let Some(event_type) = &filter.event_type {
        add("d.type = ?", Box::new(event_type.as_str().to_owned()));
    }
    if let Some(since) = filter.since {
        add("d.created_at >= ?", Box::new(since.as_millis()));
    }
    if let Some(until) = filter.until {
        add("d.created_at < ?", Box::new(until.as_millis()));
    }
    if let Some(reason) = &filter.reason {
        add("d.reason = ?", Box::new(text::stored(reason).into_owned()));
    }
    if let Some(searched) = &filter.text {
        add(IN_ANY_ERROR, Box::new(text::stored(searched).into_owned()));
    }
    if let Some(fingerprint) = &filter.fingerprint {
        // By the index, which cannot hold a text of any length.
        let condition = "md5(d.fingerprint) = md5(?) AND d.fingerprint = ?";
        add(condition, Box::new(text::stored(fingerprint).into_owned()));
    }
    if let Some(subscription) = &filter.subscription {
        add("d.subscription = ?", Box::new(subscription.as_str().to_owned()));
    }
    conditions
}

/// What somebody has written there by hand, and is no array of texts, is one error.
const IN_ANY_ERROR: &str = r#"EXISTS (
    SELECT 1 FROM redrive.event te
    LEFT JOIN redrive.delivery tv ON tv.event_key = te.key AND tv.subscription = d.subscription,
    LATERAL (SELECT coalesce(tv.last_error, te.last_error) AS errors) t,
    json_array_elements_text(CASE WHEN errors IS NULL THEN '[]' WHEN errors LIKE '["%"]' THEN errors::json
                                  ELSE json_build_array(errors) END) AS one
    WHERE te.key = d.event_key AND strpos(one, ?) > 0)"#;

fn letters<P: Payload>() -> String {
    format!(
        "SELECT e.key, e.id, e.type, {}, p.metadata, e.created_at, d.subscription, d.dlq_at, d.reason,
                coalesce(v.retry_count, e.retry_count), coalesce(v.last_error, e.last_error), d.key
         FROM redrive.dead_letter d JOIN redrive.event e ON e.key = d.event_key
         LEFT JOIN redrive.payload p ON p.event_key = d.event_key
         LEFT JOIN redrive.delivery v ON v.event_key = d.event_key AND v.subscription = d.subscription",
        P::COLUMN
    )
}

fn borrowed(values: &[Box<dyn Value>]) -> Vec<&dyn Value> {
    values.iter().map(|value| &**value).collect()
}

pub(super) async fn list<P: Payload>(
    session: &Session,
    filter: &DlqFilter,
    page: DlqPage,
) -> Result<Vec<DeadLetter<P>>, StoreError> {
    let after = page.after.unwrap_or(DlqCursor::START);
    let mut values: Vec<Box<dyn Value>> = vec![
        Box::new(after.created_at),
        Box::new(after.event),
        Box::new(after.entry),
        Box::new(i64::from(page.limit)),
        Box::new(i64::from(page.offset)),
    ];
    let conditions = conditions(filter, &mut values);
    let query = format!(
        "{} WHERE (d.created_at, d.event_key, d.key) < ($1, $2, $3){conditions}
         ORDER BY d.created_at DESC, d.event_key DESC, d.key DESC LIMIT $4 OFFSET $5",
        letters::<P>()
    );
    let found = session.query_once(&query, &borrowed(&values)).await.map_err(failure::explain)?;
    found.iter().map(letter).collect()
}

/// What was given up of one event, with all its attempts.
pub(super) async fn get(session: &Session, id: EventId) -> Result<Vec<DeadLetter>, StoreError> {
    let event = read::event(session, id).await?;
    let query = format!("{} WHERE d.event_key = $1 ORDER BY d.key", letters::<Box<RawValue>>());
    let found = session.query_once(&query, &[&event.cursor]).await.map_err(failure::explain)?;
    let mut list = found.iter().map(letter).collect::<Result<Vec<DeadLetter>, _>>()?;
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

fn letter<P: Payload>(row: &Row) -> Result<DeadLetter<P>, StoreError> {
    Ok(DeadLetter {
        cursor: DlqCursor { created_at: row.get(5), event: row.get(0), entry: row.get(11) },
        id: rows::event_id(row, 1),
        event_type: rows::event_type(row, 2),
        payload: P::read(row, 3)?,
        metadata: rows::metadata(row, 4),
        created_at: rows::timestamp(row, 5),
        subscription: rows::addressee(row, 6),
        dlq_at: rows::timestamp(row, 7),
        reason: row.get(8),
        retry_count: rows::small(row, 9),
        errors: rows::errors(row, 10),
        attempts: Vec::new(),
    })
}

pub(super) async fn groups(session: &Session, filter: &DlqFilter) -> Result<Vec<DlqGroup>, StoreError> {
    let mut values = Vec::new();
    let conditions = conditions(filter, &mut values);
    let query = format!(
        "SELECT g.fingerprint, g.count, x.error, g.first_at, g.last_at FROM (
           SELECT d.fingerprint, count(*) AS count, max(d.key) AS example, min(d.dlq_at) AS first_at,
                  max(d.dlq_at) AS last_at
           FROM redrive.dead_letter d WHERE TRUE{conditions} GROUP BY d.fingerprint ORDER BY 2 DESC LIMIT 1000) g
         JOIN redrive.dead_letter x ON x.key = g.example ORDER BY g.count DESC, g.fingerprint"
    );
    let found = session.query_once(&query, &borrowed(&values)).await.map_err(failure::explain)?;
    let group = |row: &Row| DlqGroup {
        fingerprint: text::read(row.get(0)),
        count: rows::count(row, 1),
        example: text::read(row.get(2)),
        first_at: rows::timestamp(row, 3),
        last_at: rows::timestamp(row, 4),
    };
    Ok(found.iter().map(group).collect())
}

/// Whoever comes second waits here, and finds that it is dead no more.
const FIND: &str = "SELECT key, status FROM redrive.event WHERE id = $1 FOR UPDATE";

const WHAT_DIED: &str = "
    SELECT EXISTS (SELECT 1 FROM redrive.dead_letter WHERE event_key = $1 AND subscription IS NULL),
           (SELECT count(*) FROM redrive.delivery WHERE event_key = $1 AND status = 4)";

const REMEMBER: &str = "
    INSERT INTO redrive.redriven (event_key, at, errors, payload)
    SELECT e.key, $2, e.last_error, CASE WHEN $3 THEN p.payload END
    FROM redrive.event e LEFT JOIN redrive.payload p ON p.event_key = e.key WHERE e.key = $1";

const DELIVERIES_BACK: &str = "
    UPDATE redrive.delivery SET status = 0, retry_count = 0, crashes = 0, first_at = NULL, last_error = NULL, due_at = $2,
    ready_at = greatest($2, 0), updated_at = $2 WHERE event_key = $1 AND status = 4";

/// Who has handled it, or is owed it or was given it by a delivery of its own, need not handle it again if that is what it wants.
/// Another payload is another thing to handle.
const EVENT_BACK: &str = "
    UPDATE redrive.event e SET status = $2, retry_count = 0, crashes = 0, first_at = NULL, last_error = NULL, due_at = $3,
    ready_at = CASE WHEN $3 IS NOT NULL THEN greatest($3, 0) END, updated_at = $4,
    owes = EXISTS (SELECT 1 FROM redrive.delivery WHERE event_key = $1 AND status < 3),
    handled = (
      SELECT json_agg(h.name)::text FROM (
        SELECT json_array_elements_text(e.handled::json) AS name WHERE NOT $5
        UNION
        SELECT v.subscription FROM redrive.delivery v WHERE v.event_key = $1 AND (v.status < 3 OR NOT EXISTS (
          SELECT 1 FROM redrive.redriven r WHERE r.event_key = $1 AND r.payload IS NOT NULL AND r.at >= v.updated_at))) h)
    WHERE key = $1";

const NEW_PAYLOAD: &str = "UPDATE redrive.payload SET payload = $2 WHERE event_key = $1";

const FORGET_LETTERS: &str = "DELETE FROM redrive.dead_letter WHERE event_key = $1";

/// Back to pending with a clean slate; what it had gone through stays in `redriven` and `attempt`.
pub(super) async fn redrive(session: &Session, id: EventId, redrive: &Redrive) -> Result<(), StoreError> {
    session.whole(redrive_in(session, id, redrive)).await
}

async fn redrive_in(session: &Session, id: EventId, redrive: &Redrive) -> Result<(), StoreError> {
    let found = session.query(FIND, &[id.as_uuid()]).await.map_err(failure::explain)?;
    let row = found.first().ok_or(StoreError::NoSuchEvent { id })?;
    let (key, state): (i64, i16) = (row.get(0), row.get(1));
    let found = session.query(WHAT_DIED, &[&key]).await.map_err(failure::explain)?;
    let (is_whole, dead_deliveries): (bool, i64) =
        found.first().map_or((false, 0), |row| (row.get(0), row.get(1)));
    // While some subscriptions are still at it, what others have given up can go back already.
    let is_partly_dead = state == status::DELIVERING && dead_deliveries > 0;
    if state != status::DEAD && !is_partly_dead {
        return Err(StoreError::NotDead { id, status: status::name(state) });
    }
    let at = redrive.at.as_millis();
    let is_edited = redrive.payload.is_some();
    session.query(REMEMBER, &[&key, &at, &is_edited]).await.map_err(failure::explain)?;
    session.query(DELIVERIES_BACK, &[&key, &at]).await.map_err(failure::explain)?;
    // An event that was given up as a whole goes back as a whole; what single subscriptions are owed beside it stays theirs,
    // because they may not be there. Else only what single subscriptions gave up goes back.
    let (state, due): (i16, Option<i64>) = if is_whole || dead_deliveries == 0 {
        (status::PENDING, Some(at))
    } else {
        (status::DELIVERING, None)
    };
    session.query(EVENT_BACK, &[&key, &state, &due, &at, &is_edited]).await.map_err(failure::explain)?;
    if let Some(payload) = &redrive.payload {
        session.query(NEW_PAYLOAD, &[&key, payload]).await.map_err(failure::explain)?;
    }
    session.query(FORGET_LETTERS, &[&key]).await.map(drop).map_err(failure::explain)
}

/// What single subscriptions gave up goes back to each of them like a replay.
pub(super) async fn redrive_matching(
    session: &Session,
    id: EventId,
    filter: &DlqFilter,
    at: Timestamp,
) -> Result<(), StoreError> {
    session.whole(redrive_matching_in(session, id, filter, at)).await
}

async fn redrive_matching_in(
    session: &Session,
    id: EventId,
    filter: &DlqFilter,
    at: Timestamp,
) -> Result<(), StoreError> {
    let found = session.query(FIND, &[id.as_uuid()]).await.map_err(failure::explain)?;
    let row = found.first().ok_or(StoreError::NoSuchEvent { id })?;
    let (key, state): (i64, i16) = (row.get(0), row.get(1));
    let mut values: Vec<Box<dyn Value>> = vec![Box::new(key)];
    let conditions = conditions(filter, &mut values);
    let query = format!(
        "SELECT d.subscription, coalesce(TRUE{conditions}, FALSE) FROM redrive.dead_letter d
         WHERE d.event_key = $1 ORDER BY d.key"
    );
    let found = session.query_once(&query, &borrowed(&values)).await.map_err(failure::explain)?;
    let letters = found.iter().map(|row| (rows::addressee(row, 0), row.get(1))).collect();
    let Meant::Only(names) = Meant::of(letters) else {
        return redrive_in(session, id, &Redrive { at, payload: None }).await;
    };
    let mut is_back = false;
    for name in names {
        is_back |= replay::replay_in(session, id, &name, at).await? == Replayed::Again;
    }
    if is_back { Ok(()) } else { Err(StoreError::NotDead { id, status: status::name(state) }) }
}

/// A few at a time, so that nobody waits for long.
const PURGE: &str = "
    WITH gone AS (
      DELETE FROM redrive.event WHERE key IN (
        SELECT e.key FROM redrive.dead_letter d JOIN redrive.event e ON e.key = d.event_key
        WHERE d.created_at <= $1 AND e.status = 4
        AND NOT EXISTS (SELECT 1 FROM redrive.delivery v WHERE v.event_key = e.key AND v.status < 3)
        ORDER BY d.created_at LIMIT 1000) AND status = 4 RETURNING key)
    SELECT count(*) FROM gone";

pub(super) async fn purge(session: &Session, published_until: Timestamp) -> Result<u64, StoreError> {
    let until = published_until.as_millis() + i64::from(Planted::PurgeOffByOne.is_here());
    let found = session.query(PURGE, &[&until]).await.map_err(failure::explain)?;
    Ok(found.first().map_or(0, |row| rows::count(row, 0)))
}
