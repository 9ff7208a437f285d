//! Lists, groups, redrives and purges dead letters.

use redrive_retry::Timestamp;
use redrive_retry::fault;
use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::session::Session;
use super::value::Value;
use super::{nul_escape, read, replay, rows, status};
use crate::dead_letter::{DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqPage, Redrive};
use crate::error::StoreError;
use crate::event::EventId;
use crate::sql::filter::{self, Dialect, Param};
use crate::sql::payload::Payload;
use crate::sql::redrive::{RedrivePlan, RedriveScope};
use crate::store::Replayed;

/// Returns the conditions of a filter over `dead_letter d`, each behind an `AND`, and adds their values.
fn conditions(filter: &DlqFilter, values: &mut Vec<Box<dyn Value>>) -> String {
    let mut conditions = String::new();
    for (condition, param) in filter::conditions(filter, &DIALECT) {
        values.push(match param {
            Param::Text(value) => Box::new(nul_escape::escape(value).into_owned()),
            Param::Millis(millis) => Box::new(millis),
        });
        conditions.push_str(" AND ");
        conditions.push_str(&condition.replace('?', &format!("${}", values.len())));
    }
    conditions
}

/// An index cannot hold a text of any length, so the fingerprint is found by its hash.
const DIALECT: Dialect = Dialect {
    any_error_contains: IN_ANY_ERROR,
    fingerprint: "md5(d.fingerprint) = md5(?) AND d.fingerprint = ?",
};

/// Searches every error. A value that was written by hand and is no JSON array counts as one error.
const IN_ANY_ERROR: &str = r#"EXISTS (
    SELECT 1 FROM redrive.event te
    LEFT JOIN redrive.delivery tv ON tv.event_key = te.key AND tv.subscription = d.subscription,
    LATERAL (SELECT CASE WHEN tv.key IS NULL THEN te.last_error ELSE tv.last_error END AS errors) t,
    json_array_elements_text(CASE WHEN errors IS NULL THEN '[]' WHEN errors LIKE '["%"]' THEN errors::json
                                  ELSE json_build_array(errors) END) AS one
    WHERE te.key = d.event_key AND strpos(one, ?) > 0)"#;

fn letters<P: Payload>() -> String {
    format!(
        "SELECT e.key, e.id, e.type, {}, p.metadata, e.created_at, d.subscription, d.dlq_at, d.reason,
                coalesce(v.retry_count, e.retry_count), CASE WHEN v.key IS NULL THEN e.last_error ELSE v.last_error END, d.key
         FROM redrive.dead_letter d JOIN redrive.event e ON e.key = d.event_key
         LEFT JOIN redrive.payload p ON p.event_key = d.event_key
         LEFT JOIN redrive.delivery v ON v.event_key = d.event_key AND v.subscription = d.subscription",
        P::select("p.payload")
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
    let found = session.query_once(&query, &borrowed(&values)).await?;
    found.iter().map(letter).collect()
}

/// Reads the dead letters of one event, with all their attempts.
pub(super) async fn get(session: &Session, id: EventId) -> Result<Vec<DeadLetter>, StoreError> {
    let event = read::event(session, id).await?;
    let query = format!("{} WHERE d.event_key = $1 ORDER BY d.key", letters::<Box<RawValue>>());
    let found = session.query_once(&query, &[&event.cursor]).await?;
    let mut list = found.iter().map(letter).collect::<Result<Vec<DeadLetter>, _>>()?;
    if list.is_empty() {
        return Err(StoreError::NotDead { id, status: event.status });
    }
    DeadLetter::add_attempts(&mut list, &event.attempts);
    Ok(list)
}

fn letter<P: Payload>(row: &Row) -> Result<DeadLetter<P>, StoreError> {
    Ok(DeadLetter {
        cursor: DlqCursor { created_at: row.get(5), event: row.get(0), entry: row.get(11) },
        id: rows::event_id(row, 1),
        event_type: rows::event_type(row, 2),
        payload: P::read(|| Ok(rows::payload(row, 3).into()))?,
        metadata: rows::metadata(row, 4),
        created_at: rows::timestamp(row, 5),
        subscription: rows::optional_subscription(row, 6),
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
        "SELECT g.target, g.fingerprint, g.count, g.first_at, g.last_at, g.types, x.error, e.id FROM (
           SELECT d.target, d.fingerprint, count(*) AS count, max(d.key) AS example, min(d.dlq_at) AS first_at,
                  max(d.dlq_at) AS last_at, array_agg(DISTINCT d.type) AS types
           FROM redrive.dead_letter d WHERE TRUE{conditions} GROUP BY d.target, d.fingerprint ORDER BY 3 DESC LIMIT 1000) g
         JOIN redrive.dead_letter x ON x.key = g.example JOIN redrive.event e ON e.key = x.event_key
         ORDER BY g.count DESC, g.fingerprint, g.target"
    );
    let found = session.query_once(&query, &borrowed(&values)).await?;
    let group = |row: &Row| DlqGroup {
        target: rows::optional_subscription(row, 0),
        fingerprint: nul_escape::unescape(row.get(1)),
        count: rows::count(row, 2),
        types: DlqGroup::types(row.get(5)),
        example: nul_escape::unescape(row.get(6)),
        example_id: rows::event_id(row, 7),
        first_at: rows::timestamp(row, 3),
        last_at: rows::timestamp(row, 4),
    };
    Ok(found.iter().map(group).collect())
}

const COUNT_DEAD: &str = "
    SELECT EXISTS (SELECT 1 FROM redrive.dead_letter WHERE event_key = $1 AND subscription IS NULL),
           count(*) FILTER (WHERE status = 4), count(*) FILTER (WHERE status < 3)
    FROM redrive.delivery WHERE event_key = $1";

const KEEP_ERRORS: &str = "
    INSERT INTO redrive.redriven (event_key, at, errors, payload)
    SELECT e.key, $2, (SELECT json_agg(a.error ORDER BY a.key)::text FROM redrive.attempt a
                       WHERE a.event_key = $1 AND NOT a.redriven AND a.class <> 'null'), CASE WHEN $3 THEN p.payload END
    FROM redrive.event e LEFT JOIN redrive.payload p ON p.event_key = e.key WHERE e.key = $1";

/// Excludes attempts of deliveries that stay open from a redrive of their event.
const START_OVER: &str = "
    UPDATE redrive.attempt a SET redriven = true WHERE a.event_key = $1 AND NOT a.redriven AND NOT (
      a.of_delivery AND EXISTS (SELECT 1 FROM redrive.delivery v WHERE v.event_key = $1 AND v.subscription = a.subscription AND v.status < 3))";

const RESET_DELIVERIES: &str = "
    UPDATE redrive.delivery SET status = 0, retry_count = 0, crashes = 0, first_at = NULL, last_error = NULL, due_at = $2,
    ready_at = greatest($2, 0), updated_at = $2 WHERE event_key = $1 AND status = 4";

/// Lists in `handled` the subscriptions that skip the event: each has handled this payload, or has an open delivery of its own. It is
/// never NULL, which marks an event that was not dispatched yet.
const RESET_EVENT: &str = "
    UPDATE redrive.event e SET status = $2, retry_count = 0, crashes = 0, first_at = NULL, last_error = NULL, due_at = $3,
    ready_at = CASE WHEN $3 IS NOT NULL THEN greatest($3, 0) END, updated_at = $4,
    owes = EXISTS (SELECT 1 FROM redrive.delivery WHERE event_key = $1 AND status < 3),
    handled = (
      SELECT coalesce(json_agg(h.name)::text, '[]') FROM (
        SELECT json_array_elements_text(e.handled::json) AS name WHERE NOT $5
        UNION
        SELECT v.subscription FROM redrive.delivery v WHERE v.event_key = $1 AND (v.status < 3 OR NOT EXISTS (
          SELECT 1 FROM redrive.redriven r WHERE r.event_key = $1 AND r.payload IS NOT NULL AND r.at >= v.updated_at))) h)
    WHERE key = $1";

const REPLACE_PAYLOAD: &str = "UPDATE redrive.payload SET payload = $2 WHERE event_key = $1";

const DELETE_DEAD_LETTERS: &str = "DELETE FROM redrive.dead_letter WHERE event_key = $1";

/// Redrives an event inside an open transaction: pending, without attempts and errors. Its history stays in `redriven` and
/// `attempt`.
pub(super) async fn redrive(session: &Session, id: EventId, redrive: &Redrive) -> Result<(), StoreError> {
    let (key, state) = replay::lock(session, id).await?;
    let found = session.query_first(COUNT_DEAD, &[&key]).await?;
    let (is_whole, dead_deliveries, open_deliveries): (bool, i64, i64) =
        found.map_or((false, 0, 0), |row| (row.get(0), row.get(1), row.get(2)));
    let at = redrive.at.as_millis();
    let plan = RedrivePlan::new(id, state, is_whole, dead_deliveries, open_deliveries, at)?;
    let is_edited = redrive.payload.is_some();
    session.query(KEEP_ERRORS, &[&key, &at, &is_edited]).await?;
    session.query(START_OVER, &[&key]).await?;
    session.query(RESET_DELIVERIES, &[&key, &at]).await?;
    session.query(RESET_EVENT, &[&key, &plan.status, &plan.due_at, &at, &is_edited]).await?;
    if let Some(payload) = &redrive.payload {
        session.query(REPLACE_PAYLOAD, &[&key, payload]).await?;
    }
    session.query(replay::REOPEN_MESSAGE, &[&key]).await?;
    session.execute(DELETE_DEAD_LETTERS, &[&key]).await
}

/// Redrives the dead letters of one event that match a filter, inside an open transaction. Dead deliveries are replayed to
/// their subscriptions.
pub(super) async fn redrive_matching(
    session: &Session,
    id: EventId,
    filter: &DlqFilter,
    at: Timestamp,
) -> Result<(), StoreError> {
    let (key, state) = replay::lock(session, id).await?;
    let mut values: Vec<Box<dyn Value>> = vec![Box::new(key)];
    let conditions = conditions(filter, &mut values);
    let query = format!(
        "SELECT d.subscription, coalesce(TRUE{conditions}, FALSE) FROM redrive.dead_letter d
         WHERE d.event_key = $1 ORDER BY d.key"
    );
    let found = session.query_once(&query, &borrowed(&values)).await?;
    let letters = found.iter().map(|row| (rows::optional_subscription(row, 0), row.get(1))).collect();
    let RedriveScope::Only(names) = RedriveScope::of(letters) else {
        return redrive(session, id, &Redrive { at, payload: None }).await;
    };
    let mut is_redriven = false;
    for name in names {
        is_redriven |= replay::replay(session, id, &name, at).await? == Replayed::Again;
    }
    if is_redriven { Ok(()) } else { Err(StoreError::NotDead { id, status: status::name(state) }) }
}

/// Deletes a limited number of events, so that no transaction is long.
const PURGE: &str = "
    WITH gone AS (
      DELETE FROM redrive.event WHERE key IN (
        SELECT e.key FROM redrive.dead_letter d JOIN redrive.event e ON e.key = d.event_key
        WHERE d.created_at <= $1 AND e.status = 4
        AND NOT EXISTS (SELECT 1 FROM redrive.delivery v WHERE v.event_key = e.key AND v.status < 3)
        ORDER BY d.created_at LIMIT 1000) AND status = 4 RETURNING key)
    SELECT count(*) FROM gone";

pub(super) async fn purge(session: &Session, published_until: Timestamp) -> Result<u64, StoreError> {
    let until = published_until.as_millis() + i64::from(fault!("purge-off-by-one"));
    Ok(session.count(PURGE, &[&until]).await?)
}
