//! Lists, groups, redrives, replays and purges dead letters.

use redrive_retry::Timestamp;
use redrive_retry::fault;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter, types::Value};
use serde_json::value::RawValue;

use super::{SqliteStore, read, rows, status};
use crate::dead_letter::{DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqPage, Redrive};
use crate::error::StoreError;
use crate::event::{EventId, SubscriptionName};
use crate::query::PayloadOmitted;
use crate::sql::filter::{self, Dialect, Param};
use crate::sql::payload::Payload;
use crate::sql::redrive::{RedrivePlan, RedriveScope};
use crate::store::{DeadLetters, Replayed, StoreFuture};

/// Deletes a limited number of events, so that publishers are served in between.
const PURGE: &str = "
    DELETE FROM event WHERE key IN (
      SELECT e.key FROM dead_letter d JOIN event e ON e.key = d.event_key
      WHERE d.created_at <= ?1 AND e.status = 4
      AND NOT EXISTS (SELECT 1 FROM delivery v WHERE v.event_key = e.key AND v.status < 3)
      ORDER BY d.created_at LIMIT 1000)";

impl DeadLetters for SqliteStore {
    fn dead_letters(&self, filter: DlqFilter, page: DlqPage) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(self.read(move |connection| list(connection, &filter, page)))
    }

    fn dead_letter_summaries(
        &self,
        filter: DlqFilter,
        page: DlqPage,
    ) -> StoreFuture<'_, Vec<DeadLetter<PayloadOmitted>>> {
        Box::pin(self.read(move |connection| list(connection, &filter, page)))
    }

    fn dead_letter(&self, id: EventId) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(self.read(move |connection| {
            let event = read::event(connection, id)?;
            let query = format!("{} WHERE d.event_key = ? ORDER BY d.key", letters::<Box<RawValue>>());
            let mut list = read::readable(connection, &query, vec![event.cursor.into()], dead_letter)?;
            if list.is_empty() {
                return Err(StoreError::NotDead { id, status: event.status });
            }
            DeadLetter::add_attempts(&mut list, &event.attempts);
            Ok(list)
        }))
    }

    fn dead_groups(&self, filter: DlqFilter) -> StoreFuture<'_, Vec<DlqGroup>> {
        Box::pin(self.read(move |connection| groups(connection, &filter)))
    }

    fn redrive(&self, id: EventId, options: Redrive) -> StoreFuture<'_, ()> {
        let limit = self.max_payload;
        Box::pin(async move {
            if let Some(bytes) = options.payload.as_ref().map(String::len).filter(|bytes| *bytes > limit) {
                return Err(StoreError::PayloadTooLarge { bytes, limit });
            }
            self.make_due(options.at, move |connection| redrive(connection, id, &options)).await
        })
    }

    fn redrive_matching(&self, id: EventId, filter: DlqFilter, at: Timestamp) -> StoreFuture<'_, ()> {
        Box::pin(self.make_due(at, move |connection| redrive_matching(connection, id, &filter, at)))
    }

    fn replay(&self, id: EventId, to: SubscriptionName, at: Timestamp) -> StoreFuture<'_, Replayed> {
        Box::pin(self.make_due(at, move |connection| replay(connection, id, &to, at)))
    }

    fn purge_dead(&self, published_until: Timestamp) -> StoreFuture<'_, u64> {
        let until = published_until.as_millis() + i64::from(fault!("purge-off-by-one"));
        Box::pin(async move {
            let mut purged = 0;
            loop {
                let part = self
                    .writer
                    .run(move |connection| Ok(connection.prepare_cached(PURGE)?.execute([until])?));
                match part.await? {
                    0 => return Ok(purged),
                    part => purged += part as u64,
                }
            }
        })
    }
}

impl SqliteStore {
    /// Runs a closure in a synced transaction, then wakes the dispatcher for the work that it has made due.
    async fn make_due<T: Send + 'static>(
        &self,
        at: Timestamp,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let result = self.writer.run(work).await?;
        self.writer.due_hint().pull_forward(at);
        Ok(result)
    }
}

/// Returns the conditions of a filter over `dead_letter d`, each behind an `AND`, and their values.
fn conditions(filter: &DlqFilter) -> (String, Vec<Value>) {
    let (mut text, mut values) = (String::new(), Vec::new());
    for (condition, param) in filter::conditions(filter, &DIALECT) {
        text.push_str(" AND ");
        text.push_str(condition);
        values.push(match param {
            Param::Text(text) => text.to_owned().into(),
            Param::Millis(millis) => millis.into(),
        });
    }
    (text, values)
}

const DIALECT: Dialect = Dialect { any_error_contains: IN_ANY_ERROR, fingerprint: "d.fingerprint = ?" };

const IN_ANY_ERROR: &str = "EXISTS (
    SELECT 1 FROM (
      SELECT iif(tv.key IS NULL, te.last_error, tv.last_error) AS errors
      FROM event te LEFT JOIN delivery tv ON tv.event_key = te.key AND tv.subscription = d.subscription WHERE te.key = d.event_key),
    json_each(iif(json_valid(errors), errors, json_array(CAST(coalesce(errors, '') AS TEXT)))) one WHERE instr(one.value, ?) > 0)";

const COLUMNS: &str = "e.key, e.id, e.type, e.metadata, e.created_at, d.subscription, d.dlq_at, d.reason,
    coalesce(v.retry_count, e.retry_count), iif(v.key IS NULL, e.last_error, v.last_error), d.key";

const JOINED: &str = "dead_letter d JOIN event e ON e.key = d.event_key
    LEFT JOIN delivery v ON v.event_key = d.event_key AND v.subscription = d.subscription";

/// Selects dead letters, with the payload as the last column.
fn letters<P: Payload>() -> String {
    format!("SELECT {COLUMNS}, {} FROM {JOINED}", P::select("payload"))
}

fn list<P: Payload>(
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
    read::readable(connection, &query, values, dead_letter)
}

fn dead_letter<P: Payload>(row: &Row<'_>) -> Result<DeadLetter<P>, StoreError> {
    Ok(DeadLetter {
        cursor: DlqCursor { created_at: row.get(4)?, event: row.get(0)?, entry: row.get(10)? },
        id: rows::event_id(row, 1)?,
        event_type: rows::event_type(row, 2)?,
        payload: P::read(|| rows::text(row, 11))?,
        metadata: rows::metadata(row, 3)?,
        created_at: rows::timestamp(row, 4)?,
        subscription: rows::optional_subscription(row, 5)?,
        dlq_at: rows::timestamp(row, 6)?,
        reason: rows::text(row, 7)?.into_owned(),
        retry_count: rows::count(row, 8)?,
        errors: rows::errors(row, 9)?,
        attempts: Vec::new(),
    })
}

fn groups(connection: &Connection, filter: &DlqFilter) -> Result<Vec<DlqGroup>, StoreError> {
    let (conditions, values) = conditions(filter);
    let query = format!(
        "SELECT g.target, g.fingerprint, g.count, g.first_at, g.last_at, g.types, x.error, e.id FROM (
           SELECT d.target, d.fingerprint, count(*) AS count, max(d.key) AS example, min(d.dlq_at) AS first_at,
             max(d.dlq_at) AS last_at, json_group_array(DISTINCT d.type) AS types
           FROM dead_letter d JOIN event e ON e.key = d.event_key
           WHERE typeof(e.id) = 'blob' AND length(e.id) = 16{conditions} GROUP BY d.target, d.fingerprint ORDER BY 3 DESC LIMIT 1000) g
         JOIN dead_letter x ON x.key = g.example JOIN event e ON e.key = x.event_key
         ORDER BY g.count DESC, g.fingerprint, g.target"
    );
    rows::all(connection, &query, params_from_iter(values), |row| {
        let types: Vec<String> = serde_json::from_str(&rows::text(row, 5)?).unwrap_or_default();
        Ok(DlqGroup {
            target: rows::optional_subscription(row, 0)?,
            fingerprint: rows::text(row, 1)?.into_owned(),
            count: row.get::<_, i64>(2)?.unsigned_abs(),
            types: DlqGroup::types(types),
            example: rows::text(row, 6)?.into_owned(),
            example_id: rows::event_id(row, 7)?,
            first_at: rows::timestamp(row, 3)?,
            last_at: rows::timestamp(row, 4)?,
        })
    })
}

/// Excludes attempts of deliveries that stay open from a redrive of their event.
const START_OVER: &str = "
    UPDATE attempt SET redriven = 1 WHERE event_key = ?1 AND redriven = 0 AND NOT (of_delivery AND subscription IN
    (SELECT subscription FROM delivery WHERE event_key = ?1 AND status < 3))";

const START_DELIVERY_OVER: &str = "
    UPDATE attempt SET redriven = 1 WHERE event_key = ?1 AND subscription = ?2 AND redriven = 0 AND of_delivery";

/// Resets a dead event to pending. Its errors and attempts stay in `redriven` and `attempt`.
fn redrive(connection: &Connection, id: EventId, redrive: &Redrive) -> Result<(), StoreError> {
    let found: Option<(i64, i16)> = connection
        .prepare_cached("SELECT key, status FROM event WHERE id = ?1")?
        .query_row([id.as_uuid().as_bytes()], |row| Ok((row.get(0)?, rows::status(row, 1)?)))
        .optional()?;
    let (key, state) = found.ok_or(StoreError::NoSuchEvent { id })?;
    let (is_whole, dead_deliveries, open_deliveries): (bool, i64, i64) = connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM dead_letter WHERE event_key = ?1 AND subscription IS NULL),
             count(*) FILTER (WHERE status = 4), count(*) FILTER (WHERE status < 3) FROM delivery WHERE event_key = ?1",
        )?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let at = redrive.at.as_millis();
    let plan = RedrivePlan::new(id, state, is_whole, dead_deliveries, open_deliveries, at)?;
    connection
        .prepare_cached(
            "INSERT INTO redriven (event_key, at, errors, payload)
             SELECT key, ?2, (SELECT nullif(json_group_array(error), '[]') FROM (
               SELECT a.error FROM attempt a WHERE a.event_key = ?1 AND a.redriven = 0 AND a.class <> 'null' ORDER BY a.key)),
             CASE WHEN ?3 THEN payload END FROM event WHERE key = ?1",
        )?
        .execute(params![key, at, redrive.payload.is_some()])?;
    connection.prepare_cached(START_OVER)?.execute([key])?;
    connection
        .prepare_cached(
            "UPDATE delivery SET status = 0, retry_count = 0, crashes = 0, first_at = NULL, last_error = NULL, due_at = ?2,
             updated_at = ?2 WHERE event_key = ?1 AND status = 4",
        )?
        .execute(params![key, at])?;
    // `handled` lists the subscriptions that skip the event: each has handled this payload, or has an open delivery of its own. It is
    // never NULL, which marks an event that was not dispatched yet.
    connection
        .prepare_cached(
            "UPDATE event SET status = ?2, retry_count = 0, crashes = 0, first_at = NULL, last_error = NULL, due_at = ?3,
             owes = EXISTS (SELECT 1 FROM delivery WHERE event_key = ?1 AND status < 3), updated_at = ?4,
             payload = coalesce(?5, payload), handled = (
               SELECT json_group_array(name) FROM (
                 SELECT value AS name FROM json_each(iif(?5 IS NULL AND json_valid(handled), handled, '[]'))
                 UNION
                 SELECT subscription FROM delivery v WHERE v.event_key = ?1 AND (v.status < 3 OR NOT EXISTS (
                   SELECT 1 FROM redriven r WHERE r.event_key = ?1 AND r.payload IS NOT NULL AND r.at >= v.updated_at))))
             WHERE key = ?1",
        )?
        .execute(params![key, plan.status, plan.due_at, at, redrive.payload])?;
    connection.prepare_cached("DELETE FROM dead_letter WHERE event_key = ?1")?.execute([key])?;
    Ok(())
}

/// Redrives the matching dead letters of one event; those of single subscriptions by a replay.
fn redrive_matching(
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
        letters.push((rows::optional_subscription(row, 0)?, row.get(1)?));
        state = rows::status(row, 2)?;
    }
    let RedriveScope::Only(names) = RedriveScope::of(letters) else {
        return redrive(connection, id, &Redrive { at, payload: None });
    };
    let mut is_redriven = false;
    for name in names {
        is_redriven |= replay(connection, id, &name, at)? == Replayed::Again;
    }
    if is_redriven { Ok(()) } else { Err(StoreError::NotDead { id, status: status::name(state) }) }
}

const FIND_REPLAYED: &str = "
    SELECT e.key, e.status, v.status, EXISTS (SELECT 1 FROM dead_letter WHERE event_key = e.key AND subscription IS NULL)
    FROM event e LEFT JOIN delivery v ON v.event_key = e.key AND v.subscription = ?2 WHERE e.id = ?1";

const KEEP_ERRORS: &str = "
    INSERT INTO redriven (event_key, at, errors)
    SELECT event_key, ?3, last_error FROM delivery WHERE event_key = ?1 AND subscription = ?2";

const ADD_DELIVERY: &str = "
    INSERT INTO delivery (event_key, subscription, status, due_at, updated_at) VALUES (?1, ?2, 0, ?3, ?3)
    ON CONFLICT (event_key, subscription) DO UPDATE SET status = 0, retry_count = 0, crashes = 0, first_at = NULL,
    last_error = NULL, due_at = excluded.due_at, updated_at = excluded.updated_at";

const DELETE_DEAD_LETTER: &str = "DELETE FROM dead_letter WHERE event_key = ?1 AND subscription = ?2";

/// An event with other open deliveries stays in processing.
const REOPEN_EVENT: &str =
    "UPDATE event SET status = CASE status WHEN 5 THEN 5 ELSE 6 END, updated_at = ?2 WHERE key = ?1";

/// Makes a delivery of the event to the subscription due. Earlier errors and attempts stay in `redriven` and `attempt`.
fn replay(
    connection: &Connection,
    id: EventId,
    to: &SubscriptionName,
    at: Timestamp,
) -> Result<Replayed, StoreError> {
    let found: Option<(i64, i16, Option<i64>, bool)> = connection
        .prepare_cached(FIND_REPLAYED)?
        .query_row(params![id.as_uuid().as_bytes(), to.as_str()], |row| {
            Ok((row.get(0)?, rows::status(row, 1)?, row.get(2)?, row.get(3)?))
        })
        .optional()?;
    let (key, state, delivery, died_as_a_whole) = found.ok_or(StoreError::NoSuchEvent { id })?;
    // An open event is still delivered to every matching subscription, so also to this one.
    let is_open = state < status::DONE || delivery.is_some_and(|delivery| delivery < status::DONE.into());
    if is_open {
        return Ok(Replayed::Open);
    }
    let at = at.as_millis();
    connection.prepare_cached(KEEP_ERRORS)?.execute(params![key, to.as_str(), at])?;
    connection.prepare_cached(START_DELIVERY_OVER)?.execute(params![key, to.as_str()])?;
    connection.prepare_cached(ADD_DELIVERY)?.execute(params![key, to.as_str(), at])?;
    connection.prepare_cached(DELETE_DEAD_LETTER)?.execute(params![key, to.as_str()])?;
    // An event that is dead as a whole stays dead: the replay concerns one subscription.
    if !died_as_a_whole {
        connection.prepare_cached(REOPEN_EVENT)?.execute(params![key, at])?;
    }
    Ok(Replayed::Again)
}
