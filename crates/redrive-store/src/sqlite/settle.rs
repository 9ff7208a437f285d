//! Settles claims: records the attempt and moves the row to its next status.

use std::borrow::Cow;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, Timestamp, fault};
use rusqlite::{Connection, params};

use super::rows::Kind;
use super::status;
use super::transaction::{Uncommitted, is_rolled_back, savepoint, unless_rolled_back};
use crate::dead_letter::fingerprint;
use crate::due::Due;
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::store::Finished;
use crate::work::{ClaimKey, Claimed, Settlement, Verdict};

const EVENT_DONE: &str = "
    UPDATE event SET status = 3, due_at = NULL, updated_at = ?2
    WHERE key = ?1 AND status = 1 AND retry_count = ?3";

const DELIVERY_DONE: &str = "
    UPDATE delivery SET status = 3, due_at = NULL, updated_at = ?2
    WHERE key = ?1 AND status = 1 AND retry_count = ?3";

/// Finishes an event whose deliveries are all done, the frequent case. No `RETURNING`: SQLite would build a table each time.
const FINISH_IF_ALL_DONE: &str = "
    UPDATE event SET status = 3, updated_at = ?2
    WHERE key = ?1 AND status > 4 AND NOT EXISTS (SELECT 1 FROM delivery WHERE event_key = ?1 AND status <> 3)";

/// Selects whether the event or one of its deliveries needed more than one attempt.
const WAS_RETRIED: &str = "
    SELECT retry_count > 0 OR EXISTS (SELECT 1 FROM delivery WHERE event_key = ?1 AND retry_count > 0) FROM event WHERE key = ?1";

const HAS_OPEN_DELIVERY: &str = "SELECT 1 FROM delivery WHERE event_key = ?1 AND status < 3";

const EVENTS_DONE: &str = "
    UPDATE event SET status = 3, due_at = NULL, updated_at = ?3
    WHERE key BETWEEN ?1 AND ?2 AND status = 1 AND retry_count = ?4";

const INSERT_ATTEMPT: &str = "
    INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, record, detail, of_delivery)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

/// A success has no failure class, no delay and no error.
const INSERT_SUCCESS: &str = "
    INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, detail, of_delivery)
    VALUES (?1, ?2, ?3, ?4, ?5, 'null', 0, '', ?6, ?7)";

const INSERT_DEAD: &str = "
    INSERT INTO dead_letter (event_key, subscription, type, created_at, dlq_at, reason, fingerprint, error, target)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

/// Stores a delivery that is split off from its event. It inherits the attempts of the event, unless the event has ended without it. A
/// delivery that is open or dead stays as it is. A delivery split off from a crash suspect is a suspect as well: its handler may be the
/// one that ends the process.
const SPLIT_OFF: &str = "
    INSERT INTO delivery (event_key, subscription, status, due_at, updated_at, retry_count, last_error, first_at, crashes)
    SELECT key, ?2, iif(crashes > 1, -1, 0), ?3, ?4, iif(status = 5, retry_count, 0), iif(status = 5, last_error, NULL),
    iif(status = 5, first_at, NULL), crashes FROM event WHERE key = ?1
    ON CONFLICT (event_key, subscription) DO UPDATE SET status = excluded.status, due_at = excluded.due_at, crashes = excluded.crashes,
    updated_at = excluded.updated_at, retry_count = excluded.retry_count, last_error = excluded.last_error,
    first_at = excluded.first_at WHERE delivery.status = 3";

const SET_LEASE: &str = "UPDATE delivery SET lease = ?2, leased_at = ?3 WHERE key = ?1";

const SET_HANDLED: &str = "UPDATE event SET handled = ?2 WHERE key = ?1";

/// Appends the error ?2 to the JSON array of errors. Text that was changed by hand and is no array becomes its first element.
pub(super) const APPEND_ERROR: &str = "json_insert(CASE WHEN last_error IS NULL THEN '[]' WHEN json_valid(last_error)
    AND json_type(last_error) = 'array' THEN last_error ELSE json_array(CAST(last_error AS TEXT)) END, '$[#]', ?2)";

/// Largest retry count that the store counts up from; a larger one was written by hand.
pub(super) const MAX_RETRY_COUNT: u32 = u32::MAX - 1;

/// A claim with its settlement.
type Settled<'a> = (&'a Claimed, &'a Settlement);

/// Settles claims of one kind together and returns the result of each.
pub(super) type SettleMany =
    fn(&Connection, &[Settled<'_>], &mut Uncommitted) -> Vec<Result<Finished, StoreError>>;

/// Settles bare successes in the order of their keys. One statement settles a run of consecutive keys.
pub(super) fn settle_bare_successes(
    connection: &Connection,
    claims: &[Settled<'_>],
    _: &mut Uncommitted,
) -> Vec<Result<Finished, StoreError>> {
    let mut answers = Vec::with_capacity(claims.len());
    let is_next = |(one, settled): &Settled<'_>, (next, then): &Settled<'_>| {
        next.key.row() == one.key.row() + 1 && next.attempt == one.attempt && then.at == settled.at
    };
    for run in claims.chunk_by(is_next) {
        let together = (run.len() > 1).then(|| settle_run(connection, run));
        if let Some(Ok(())) = together {
            answers.extend(run.iter().map(|(claimed, _)| Ok(claimed.done())));
            continue;
        }
        let mut failure = together.and_then(Result::err).filter(|_| is_rolled_back(connection));
        answers.extend(run.iter().map(|(claimed, settlement)| {
            unless_rolled_back(connection, &mut failure, || settle_one(connection, claimed, settlement.at))
        }));
    }
    answers
}

/// Settles a run of claims, all or none. If a claim was lost, the caller settles them one by one.
fn settle_run(connection: &Connection, run: &[Settled<'_>]) -> Result<(), StoreError> {
    let (Some((first, _)), Some((last, settlement))) = (run.first(), run.last()) else { return Ok(()) };
    savepoint(connection, |connection| {
        let changed = connection.prepare_cached(EVENTS_DONE)?.execute(params![
            first.key.row(),
            last.key.row(),
            settlement.at.as_millis(),
            first.attempt - 1
        ])?;
        if changed == run.len() { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(changed).into()) }
    })
}

fn settle_one(connection: &Connection, claimed: &Claimed, at: Timestamp) -> Result<Finished, StoreError> {
    let changed = connection.prepare_cached(&fenced(EVENT_DONE.into()))?.execute(params![
        claimed.key.row(),
        at.as_millis(),
        claimed.attempt - 1
    ])?;
    Ok(if changed == 1 { claimed.done() } else { Finished::Fenced })
}

/// Returns whether a delivery to one subscription succeeded, with nothing else to record than its details.
pub(super) fn is_delivered(claimed: &Claimed, settlement: &Settlement) -> bool {
    matches!(claimed.key, ClaimKey::Delivery { .. })
        && settlement.verdict == Verdict::Done
        && settlement.failure.is_none()
        && settlement.split_off.is_empty()
}

/// Settles successful deliveries under one savepoint, which is faster than one for each; if that fails, one by one.
pub(super) fn settle_delivered(
    connection: &Connection,
    claims: &[Settled<'_>],
    pending: &mut Uncommitted,
) -> Vec<Result<Finished, StoreError>> {
    if claims.is_empty() {
        return Vec::new();
    }
    let together = savepoint(connection, |connection| {
        claims.iter().map(|(claimed, settlement)| deliver(connection, claimed, settlement)).collect()
    });
    let mut failure = match together {
        Ok(finished) => return Vec::into_iter(finished).map(Ok).collect(),
        Err(error) => Some(error),
    };
    let each = claims.iter().map(|(claimed, settlement)| {
        unless_rolled_back(connection, &mut failure, || {
            savepoint(connection, |connection| settle(connection, claimed, settlement, pending))
        })
    });
    each.collect()
}

fn deliver(
    connection: &Connection,
    claimed: &Claimed,
    settlement: &Settlement,
) -> Result<Finished, StoreError> {
    let ClaimKey::Delivery { delivery, event } = claimed.key else { return Ok(Finished::NotYet) };
    let now = settlement.at.as_millis();
    let changed = connection.prepare_cached(&fenced(DELIVERY_DONE.into()))?.execute(params![
        delivery,
        now,
        claimed.attempt - 1
    ])?;
    if changed == 0 {
        return Ok(Finished::Fenced);
    }
    record_attempts(connection, event, claimed, settlement)?;
    finish_event(connection, event, now)
}

/// Returns the statement with its fence, unless the fault harness removes it.
fn fenced(statement: Cow<'_, str>) -> Cow<'_, str> {
    fault!("settle-without-fence" => return statement.replace("status = 1 AND retry_count =", "-1 <").into());
    statement
}

/// Settles one claim of any kind, inside a savepoint of the caller.
pub(super) fn settle(
    connection: &Connection,
    claimed: &Claimed,
    settlement: &Settlement,
    pending: &mut Uncommitted,
) -> Result<Finished, StoreError> {
    let (table, event_key) = match claimed.key {
        ClaimKey::Event(key) => ("event", key),
        ClaimKey::Delivery { event, .. } => ("delivery", event),
    };
    let key = claimed.key.row();
    let now = settlement.at.as_millis();
    let state = status::after(claimed, settlement);
    let charged = u32::from(settlement.failure.is_some());
    let error = settlement.failure.as_ref().map(|failure| failure.error.as_str());
    // Fenced by status and retry count: a claim that was lost changes nothing.
    let changed = connection
        .prepare_cached(&fenced(
            format!(
            "UPDATE {table} SET status = iif(?9 AND crashes > 1, -1, ?6), due_at = ?3, updated_at = ?4, retry_count = retry_count + ?5,
             first_at = coalesce(first_at, ?8), last_error = CASE WHEN ?2 IS NULL THEN last_error
                          ELSE {APPEND_ERROR} END
             WHERE key = ?1 AND status = 1 AND retry_count = ?7"
        )
            .into(),
        ))?
        .execute(params![
            key,
            error,
            settlement.verdict.due_again().map(Due::to_sql_millis),
            now,
            charged,
            state,
            claimed.attempt - 1,
            settlement.failure.as_ref().map(|failure| failure.started_at.as_millis()),
            // A crash suspect that was deferred stays one.
            matches!(settlement.verdict, Verdict::Defer(_))
        ])?;
    if changed == 0 {
        return Ok(Finished::Fenced);
    }
    record_attempts(connection, event_key, claimed, settlement)?;
    if let (ClaimKey::Event(_), Some(handled)) = (claimed.key, claimed.handled_by_now(settlement)) {
        connection.prepare_cached(SET_HANDLED)?.execute(params![key, handled])?;
    }
    if let (ClaimKey::Delivery { delivery, .. }, Verdict::Lease { token, .. }) =
        (claimed.key, &settlement.verdict)
    {
        connection.prepare_cached(SET_LEASE)?.execute(params![delivery, token.secret(), now])?;
    }
    for (subscription, until) in &settlement.split_off {
        let row = params![event_key, subscription.as_str(), until.to_sql_millis(), now];
        connection.prepare_cached(SPLIT_OFF)?.execute(row)?;
    }
    if let Some(at) = settlement.due_again() {
        pending.due(at);
    }
    if let Verdict::Dead(reason) = settlement.verdict {
        insert_dead_letter(connection, table, event_key, claimed, settlement, reason)?;
    }
    match (claimed.key, &settlement.verdict) {
        (ClaimKey::Event(_), Verdict::Done)
            if settlement.split_off.is_empty() && !claimed.has_open_deliveries =>
        {
            Ok(claimed.done())
        }
        // Also with deliveries split off: they may be dead already.
        (ClaimKey::Event(event), Verdict::Done) => finish_event(connection, event, now),
        (ClaimKey::Event(_), Verdict::Dead(_)) => Ok(Finished::Dead { retried: claimed.attempt > 1 }),
        (ClaimKey::Delivery { event, .. }, Verdict::Done | Verdict::Dead(_)) => {
            finish_event(connection, event, now)
        }
        _ => Ok(Finished::NotYet),
    }
}

fn insert_dead_letter(
    connection: &Connection,
    table: &str,
    event_key: i64,
    claimed: &Claimed,
    settlement: &Settlement,
    reason: DeadReason,
) -> Result<(), StoreError> {
    fault!("dead-letter-in-two-transactions" =>
        connection.execute_batch("COMMIT; BEGIN IMMEDIATE; SAVEPOINT command")?);
    let reason = serde_json::to_value(reason).ok().and_then(|value| value.as_str().map(str::to_owned));
    let last = match &settlement.failure {
        Some(failure) => failure.error.clone(),
        None => {
            let query = format!(
                "SELECT CASE json_valid(last_error) WHEN 1 THEN coalesce(json_extract(last_error, '$[#-1]'), '')
                 ELSE coalesce(last_error, '') END FROM {table} WHERE key = ?1"
            );
            connection.prepare_cached(&query)?.query_row([claimed.key.row()], |row| row.get(0))?
        }
    };
    connection.prepare_cached(INSERT_DEAD)?.execute(params![
        event_key,
        claimed.subscription.as_ref().map(|name| name.as_str()),
        claimed.event.event_type.as_str(),
        claimed.event.created_at.as_millis(),
        settlement.at.as_millis(),
        reason.unwrap_or_default(),
        fingerprint(&last),
        last,
        settlement.target(claimed).map(SubscriptionName::as_str)
    ])?;
    Ok(())
}

/// Records the attempts of a settlement: the failed one, and the successes with a detail.
fn record_attempts(
    connection: &Connection,
    event: i64,
    claimed: &Claimed,
    settlement: &Settlement,
) -> Result<(), StoreError> {
    let (number, of_delivery) = (claimed.attempt, matches!(claimed.key, ClaimKey::Delivery { .. }));
    let millis = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    if let Some(failed) = &settlement.failure {
        connection.prepare_cached(INSERT_ATTEMPT)?.execute(params![
            event,
            failed.subscription.as_str(),
            number,
            failed.started_at.as_millis(),
            millis(failed.duration_ms),
            serde_json::to_string(&failed.class).expect("a class always serialises"),
            millis(failed.delay_ms),
            failed.error,
            failed.record,
            failed.detail,
            of_delivery
        ])?;
    }
    for done in &settlement.succeeded {
        let (name, started_at) = (done.subscription.as_str(), done.started_at.as_millis());
        let row =
            params![event, name, number, started_at, millis(done.duration_ms), done.detail, of_delivery];
        connection.prepare_cached(INSERT_SUCCESS)?.execute(row)?;
    }
    Ok(())
}

/// Moves a row that was changed by hand and cannot be read to the dead-letter queue.
pub(super) fn dead_letter_unreadable(
    connection: &Connection,
    kind: Kind,
    key: i64,
    now: Timestamp,
    why: &StoreError,
) -> Result<(), StoreError> {
    let (table, event, subscription, of_delivery) = match kind {
        Kind::Event => ("event", "key", "NULL", false),
        Kind::Delivery => ("delivery", "event_key", "subscription", true),
    };
    let error = format!("this row of the table {table} was changed by hand and cannot be read: {why}");
    tracing::error!(target: "redrive::store", table, key, %error, "moved an unreadable row to the dead-letter queue");
    let class = serde_json::to_string(&FailureClass::Permanent).expect("a class always serialises");
    connection
        .prepare_cached(&format!(
            "INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, of_delivery)
             SELECT {event}, coalesce({subscription}, ''), max(0, min(retry_count, {MAX_RETRY_COUNT})) + 1, ?1, 0, ?2, 0, ?3, ?4
             FROM {table} WHERE key = ?5"
        ))?
        .execute(params![now.as_millis(), class, error, of_delivery, key])?;
    connection
        .prepare_cached(&format!(
            "UPDATE {table} SET status = 4, due_at = NULL, updated_at = ?1, retry_count = max(0, min(retry_count, {MAX_RETRY_COUNT})) + 1,
             last_error = json_array(?2) WHERE key = ?3"
        ))?
        .execute(params![now.as_millis(), error, key])?;
    connection
        .prepare_cached(&format!(
            "INSERT INTO dead_letter (event_key, subscription, type, created_at, dlq_at, reason, fingerprint, error, target)
             SELECT e.key, {subscription}, e.type, e.created_at, ?1, 'permanent', ?2, ?3, {subscription}
             FROM {table} u JOIN event e ON e.key = u.{event} WHERE u.key = ?4"
        ))?
        .execute(params![now.as_millis(), fingerprint(&error), error, key])?;
    if kind == Kind::Delivery {
        let event = connection
            .prepare_cached("SELECT event_key FROM delivery WHERE key = ?1")?
            .query_row([key], |row| row.get(0))?;
        finish_event(connection, event, now.as_millis())?;
    }
    Ok(())
}

/// Finishes the event if none of its deliveries is open.
fn finish_event(connection: &Connection, event: i64, now: i64) -> Result<Finished, StoreError> {
    if connection.prepare_cached(FINISH_IF_ALL_DONE)?.execute([event, now])? == 1 {
        let retried = connection.prepare_cached(WAS_RETRIED)?.query_row([event], |row| row.get(0))?;
        return Ok(Finished::Done { retried });
    }
    if connection.prepare_cached(HAS_OPEN_DELIVERY)?.exists([event])? {
        return Ok(Finished::NotYet);
    }
    let mut count = connection.prepare_cached(
        "SELECT count(*) FILTER (WHERE status = 4),
         coalesce(max(retry_count > iif(status = 4, 1, 0)), FALSE) OR (SELECT retry_count > 0 FROM event WHERE key = ?1)
         FROM delivery WHERE event_key = ?1",
    )?;
    let (dead, retried): (i64, bool) = count.query_row([event], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let end = if dead > 0 { status::DEAD } else { status::DONE };
    let changed = connection
        .prepare_cached("UPDATE event SET status = ?2, updated_at = ?3 WHERE key = ?1 AND status > 4")?
        .execute(params![event, end, now])?;
    Ok(match (changed, dead) {
        (0, _) => Finished::NotYet,
        (_, 0) => Finished::Done { retried },
        _ => Finished::Dead { retried },
    })
}
