//! Ending a claim, and taking back what a dead process held.

use std::borrow::Cow;

use redrive_retry::planted::Planted;
use redrive_retry::{FailureClass, Timestamp};
use rusqlite::{Connection, params};

use super::batch::{Pending, is_rolled_back, savepoint};
use super::claim::Kind;
use super::{rows, status};
use crate::dead_letter::fingerprint;
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::store::Finished;
use crate::work::{Claimed, FailedAttempt, Recovered, Settlement, SucceededAttempt, UnitKey, Verdict};

const EVENT_DONE: &str = "
    UPDATE event SET status = 3, due_at = NULL, updated_at = ?2
    WHERE key = ?1 AND status = 1 AND retry_count = ?3";

const DELIVERED: &str = "
    UPDATE delivery SET status = 3, due_at = NULL, updated_at = ?2
    WHERE key = ?1 AND status = 1 AND retry_count = ?3";

/// The frequent end: everybody has handled it. Returns nothing: the engine would make a table for it each time.
const ALL_DELIVERED: &str = "
    UPDATE event SET status = 3, updated_at = ?2
    WHERE key = ?1 AND status = 5 AND NOT EXISTS (SELECT 1 FROM delivery WHERE event_key = ?1 AND status <> 3)";

/// Whether anybody needed more than one attempt.
const WAS_RETRIED: &str = "
    SELECT retry_count > 0 OR EXISTS (SELECT 1 FROM delivery WHERE event_key = ?1 AND retry_count > 0) FROM event WHERE key = ?1";

const IS_OWED: &str = "SELECT 1 FROM delivery WHERE event_key = ?1 AND status < 3";

const RUN_DONE: &str = "
    UPDATE event SET status = 3, due_at = NULL, updated_at = ?3
    WHERE key BETWEEN ?1 AND ?2 AND status = 1 AND retry_count = ?4";

const INSERT_ATTEMPT: &str = "
    INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, record, detail)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

const INSERT_DEAD: &str = "
    INSERT INTO dead_letter (event_key, subscription, type, created_at, dlq_at, reason, fingerprint, error)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// What was tried before the circuit opened counts on: the parked delivery goes on where the event stood. Only if the event
/// is over without it does it begin anew. What is owed already, or is in the dead-letter queue, stays as it is. Of a suspect, who
/// was not asked may be what kills the process: it is one, too.
const PARK: &str = "
    INSERT INTO delivery (event_key, subscription, status, due_at, updated_at, retry_count, last_error, first_at, crashes)
    SELECT key, ?2, iif(crashes > 1, -1, 0), ?3, ?4, iif(status = 5, retry_count, 0), iif(status = 5, last_error, NULL),
    iif(status = 5, first_at, NULL), crashes FROM event WHERE key = ?1
    ON CONFLICT (event_key, subscription) DO UPDATE SET status = excluded.status, due_at = excluded.due_at, crashes = excluded.crashes,
    updated_at = excluded.updated_at, retry_count = excluded.retry_count, last_error = excluded.last_error,
    first_at = excluded.first_at WHERE delivery.status = 3";

const KEEP_HANDLED: &str = "UPDATE event SET handled = ?2 WHERE key = ?1";

/// The errors so far and one more. What somebody has made no JSON of stays as text: nothing is lost for it.
const AND_ERROR_6: &str = "json_insert(CASE WHEN last_error IS NULL THEN '[]' WHEN json_valid(last_error)
    AND json_type(last_error) = 'array' THEN last_error ELSE json_array(CAST(last_error AS TEXT)) END, '$[#]', ?6)";
const AND_ERROR_2: &str = "json_insert(CASE WHEN last_error IS NULL THEN '[]' WHEN json_valid(last_error)
    AND json_type(last_error) = 'array' THEN last_error ELSE json_array(CAST(last_error AS TEXT)) END, '$[#]', ?2)";

/// What stands in the errors of an event whose process died.
pub(super) const CRASHED: &str = "process ended during the attempt";

/// Whether the end of a claim is the frequent one: an event was handled, and there is nothing more to say.
pub(super) fn is_plain(claimed: &Claimed, settlement: &Settlement) -> bool {
    matches!(claimed.unit, UnitKey::Event(_)) && !claimed.owes && settlement.is_plain()
}

/// Settles plain claims, which come in order of their keys. Neighbours are settled by one statement.
pub(super) fn settle_plain(
    connection: &Connection,
    claims: &[(&Claimed, Timestamp)],
) -> Vec<Result<Finished, StoreError>> {
    let mut answers = Vec::with_capacity(claims.len());
    let is_next = |(one, at): &(&Claimed, Timestamp), (next, then): &(&Claimed, Timestamp)| {
        next.unit.key() == one.unit.key() + 1 && next.attempt == one.attempt && then == at
    };
    for run in claims.chunk_by(is_next) {
        if is_rolled_back(connection) {
            answers.extend(run.iter().map(|_| Err(StoreError::DiskFull)));
            continue;
        }
        let together = if run.len() > 1 { Some(settle_run(connection, run)) } else { None };
        match together {
            Some(Ok(())) => answers.extend(run.iter().map(|(claimed, _)| Ok(claimed.done()))),
            // Said once, so that the reason is known; the others share its fate.
            Some(Err(error)) if is_rolled_back(connection) => {
                answers.push(Err(error));
                answers.extend(run.iter().skip(1).map(|_| Err(StoreError::DiskFull)));
            }
            _ => answers.extend(run.iter().map(|(claimed, at)| settle_one(connection, claimed, *at))),
        }
    }
    answers
}

/// All or none: who lost its claim is found when each is settled by itself.
fn settle_run(connection: &Connection, run: &[(&Claimed, Timestamp)]) -> Result<(), StoreError> {
    let (Some((first, _)), Some((last, at))) = (run.first(), run.last()) else { return Ok(()) };
    savepoint(connection, |connection| {
        let changed = connection.prepare_cached(RUN_DONE)?.execute(params![
            first.unit.key(),
            last.unit.key(),
            at.as_millis(),
            first.attempt - 1
        ])?;
        if changed == run.len() { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(changed).into()) }
    })
}

fn settle_one(connection: &Connection, claimed: &Claimed, at: Timestamp) -> Result<Finished, StoreError> {
    if is_rolled_back(connection) {
        return Err(StoreError::DiskFull);
    }
    let changed = connection.prepare_cached(&fenced(EVENT_DONE.into()))?.execute(params![
        claimed.unit.key(),
        at.as_millis(),
        claimed.attempt - 1
    ])?;
    Ok(if changed == 1 { claimed.done() } else { Finished::NotYet })
}

/// Whether one subscription has handled what it was owed, and there is nothing more to say than what it told.
pub(super) fn is_delivered(claimed: &Claimed, settlement: &Settlement) -> bool {
    matches!(claimed.unit, UnitKey::Delivery { .. })
        && settlement.verdict == Verdict::Done
        && settlement.failure.is_none()
        && settlement.parked.is_empty()
}

/// Settles such claims. All of them or none at first: a mark to go back to for each is a good part of the work.
pub(super) fn settle_delivered(
    connection: &Connection,
    claims: &[(&Claimed, &Settlement)],
    pending: &mut Pending,
) -> Vec<Result<Finished, StoreError>> {
    if claims.is_empty() {
        return Vec::new();
    }
    let together = savepoint(connection, |connection| {
        claims.iter().map(|(claimed, settlement)| deliver(connection, claimed, settlement)).collect()
    });
    let mut error = match together {
        Ok(finished) => return Vec::into_iter(finished).map(Ok).collect(),
        Err(error) => Some(error),
    };
    let each = claims.iter().map(|(claimed, settlement)| {
        if is_rolled_back(connection) {
            // Said once, so that the reason is known; the others share its fate.
            return Err(error.take().unwrap_or(StoreError::DiskFull));
        }
        settle(connection, claimed, settlement, pending)
    });
    each.collect()
}

fn deliver(
    connection: &Connection,
    claimed: &Claimed,
    settlement: &Settlement,
) -> Result<Finished, StoreError> {
    let UnitKey::Delivery { delivery, event } = claimed.unit else { return Ok(Finished::NotYet) };
    let now = settlement.at.as_millis();
    let changed = connection.prepare_cached(&fenced(DELIVERED.into()))?.execute(params![
        delivery,
        now,
        claimed.attempt - 1
    ])?;
    if changed == 0 {
        return Ok(Finished::NotYet);
    }
    for attempt in &settlement.succeeded {
        record_success(connection, event, claimed.attempt, attempt)?;
    }
    finish_event(connection, event, now)
}

/// The statement as it is, unless the harness has taken the fence away.
fn fenced(statement: Cow<'_, str>) -> Cow<'_, str> {
    if Planted::SettleWithoutFence.is_here() {
        return statement.replace("status = 1 AND retry_count =", "-1 <").into();
    }
    statement
}

/// Ends a claim, whatever is to be said about it.
pub(super) fn settle(
    connection: &Connection,
    claimed: &Claimed,
    settlement: &Settlement,
    pending: &mut Pending,
) -> Result<Finished, StoreError> {
    savepoint(connection, |connection| settle_in_full(connection, claimed, settlement, pending))
}

fn settle_in_full(
    connection: &Connection,
    claimed: &Claimed,
    settlement: &Settlement,
    pending: &mut Pending,
) -> Result<Finished, StoreError> {
    let (table, event_key) = match claimed.unit {
        UnitKey::Event(key) => ("event", key),
        UnitKey::Delivery { event, .. } => ("delivery", event),
    };
    let key = claimed.unit.key();
    let now = settlement.at.as_millis();
    let state = match settlement.verdict {
        Verdict::Done if settlement.parked.is_empty() && !claimed.owes => status::DONE,
        Verdict::Done => status::DELIVERING,
        Verdict::Retry(_) => status::WAITING,
        Verdict::Defer(_) if claimed.attempt > 1 => status::WAITING,
        Verdict::Defer(_) => status::PENDING,
        Verdict::Dead(_) => status::DEAD,
    };
    let charged = u32::from(settlement.failure.is_some());
    let error = settlement.failure.as_ref().map(|failure| failure.error.as_str());
    // Fenced by the state and the count: who lost its claim changes nothing.
    let changed = connection
        .prepare_cached(&fenced(
            format!(
            "UPDATE {table} SET status = iif(?9 AND crashes > 1, -1, ?2), due_at = ?3, updated_at = ?4, retry_count = retry_count + ?5,
             first_at = coalesce(first_at, ?8), last_error = CASE WHEN ?6 IS NULL THEN last_error
                          ELSE {AND_ERROR_6} END
             WHERE key = ?1 AND status = 1 AND retry_count = ?7"
        )
            .into(),
        ))?
        .execute(params![
            key,
            state,
            settlement.verdict.due_again().map(Timestamp::as_millis),
            now,
            charged,
            error,
            claimed.attempt - 1,
            settlement.failure.as_ref().map(|failure| failure.started_at.as_millis()),
            // What is to run alone and was not tried still is.
            matches!(settlement.verdict, Verdict::Defer(_))
        ])?;
    if changed == 0 {
        return Ok(Finished::NotYet);
    }
    if let Some(failure) = &settlement.failure {
        record_attempt(connection, event_key, claimed.attempt, failure)?;
    }
    for attempt in &settlement.succeeded {
        record_success(connection, event_key, claimed.attempt, attempt)?;
    }
    if let (UnitKey::Event(_), Some(handled)) = (claimed.unit, claimed.handled_by_now(settlement)) {
        connection.prepare_cached(KEEP_HANDLED)?.execute(params![key, handled])?;
    }
    for (subscription, until) in &settlement.parked {
        connection.prepare_cached(PARK)?.execute(params![
            event_key,
            subscription.as_str(),
            until.as_millis(),
            now
        ])?;
        pending.due(*until);
    }
    if let Some(at) = settlement.verdict.due_again() {
        pending.due(at);
    }
    if let Verdict::Dead(reason) = settlement.verdict {
        if Planted::DeadLetterInTwoTransactions.is_here() {
            connection.execute_batch("COMMIT; BEGIN IMMEDIATE; SAVEPOINT command")?;
        }
        let reason = serde_json::to_value(reason).ok().and_then(|value| value.as_str().map(str::to_owned));
        let last = match &settlement.failure {
            Some(failure) => failure.error.clone(),
            None => last_error(connection, table, key)?,
        };
        connection.prepare_cached(INSERT_DEAD)?.execute(params![
            event_key,
            claimed.addressee.as_ref().map(|name| name.as_str()),
            claimed.event.event_type.as_str(),
            claimed.event.created_at.as_millis(),
            now,
            reason.unwrap_or_default(),
            fingerprint(&last),
            last
        ])?;
    }
    match (claimed.unit, &settlement.verdict) {
        (UnitKey::Event(_), Verdict::Done) if settlement.parked.is_empty() && !claimed.owes => {
            Ok(claimed.done())
        }
        // Also if something was parked: who has given up meanwhile is owed nothing more.
        (UnitKey::Event(event), Verdict::Done) => finish_event(connection, event, now),
        (UnitKey::Event(_), Verdict::Dead(_)) => Ok(Finished::Dead { retried: claimed.attempt > 1 }),
        (UnitKey::Delivery { event, .. }, Verdict::Done | Verdict::Dead(_)) => {
            finish_event(connection, event, now)
        }
        _ => Ok(Finished::NotYet),
    }
}

fn last_error(connection: &Connection, table: &str, key: i64) -> Result<String, StoreError> {
    let query = format!(
        "SELECT CASE json_valid(last_error) WHEN 1 THEN coalesce(json_extract(last_error, '$[#-1]'), '')
         ELSE coalesce(last_error, '') END FROM {table} WHERE key = ?1"
    );
    Ok(connection.prepare_cached(&query)?.query_row([key], |row| row.get(0))?)
}

fn record_attempt(
    connection: &Connection,
    event: i64,
    number: u32,
    attempt: &FailedAttempt,
) -> Result<(), StoreError> {
    let class = serde_json::to_string(&attempt.class).expect("a class always serialises");
    let millis = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    connection.prepare_cached(INSERT_ATTEMPT)?.execute(params![
        event,
        attempt.subscription.as_str(),
        number,
        attempt.started_at.as_millis(),
        millis(attempt.duration_ms),
        class,
        millis(attempt.delay_ms),
        attempt.error,
        attempt.record,
        attempt.detail
    ])?;
    Ok(())
}

fn record_success(
    connection: &Connection,
    event: i64,
    number: u32,
    attempt: &SucceededAttempt,
) -> Result<(), StoreError> {
    connection.prepare_cached(INSERT_ATTEMPT)?.execute(params![
        event,
        attempt.subscription.as_str(),
        number,
        attempt.started_at.as_millis(),
        i64::try_from(attempt.duration_ms).unwrap_or(i64::MAX),
        "null", // no class of failure
        0,
        "",
        None::<&str>,
        attempt.detail
    ])?;
    Ok(())
}

/// Into the dead-letter queue with what somebody has changed by hand so that it cannot be read.
pub(super) fn give_up_unreadable(
    connection: &Connection,
    kind: Kind,
    key: i64,
    now: Timestamp,
    why: &StoreError,
) -> Result<(), StoreError> {
    let (table, event, subscription) = match kind {
        Kind::Event => ("event", "key", "NULL"),
        Kind::Delivery => ("delivery", "event_key", "subscription"),
    };
    let error = format!("this row of the table {table} was changed by hand and cannot be read: {why}");
    tracing::error!(target: "redrive::store", table, key, %error, "given up");
    connection
        .prepare_cached(&format!(
            "UPDATE {table} SET status = 4, due_at = NULL, updated_at = ?1, retry_count = max(0, min(retry_count, {MOST})),
             last_error = json_array(?2) WHERE key = ?3"
        ))?
        .execute(params![now.as_millis(), error, key])?;
    connection
        .prepare_cached(&format!(
            "INSERT INTO dead_letter (event_key, subscription, type, created_at, dlq_at, reason, fingerprint, error)
             SELECT e.key, {subscription}, e.type, e.created_at, ?1, 'permanent', ?2, ?3
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

/// The event ends with the last of its deliveries.
fn finish_event(connection: &Connection, event: i64, now: i64) -> Result<Finished, StoreError> {
    if connection.prepare_cached(ALL_DELIVERED)?.execute([event, now])? == 1 {
        let retried = connection.prepare_cached(WAS_RETRIED)?.query_row([event], |row| row.get(0))?;
        return Ok(Finished::Done { retried });
    }
    if connection.prepare_cached(IS_OWED)?.exists([event])? {
        return Ok(Finished::NotYet);
    }
    let mut count = connection.prepare_cached(
        "SELECT count(*) FILTER (WHERE status < 3), count(*) FILTER (WHERE status = 4),
         coalesce(max(retry_count > iif(status = 4, 1, 0)), FALSE) OR (SELECT retry_count > 0 FROM event WHERE key = ?1)
         FROM delivery WHERE event_key = ?1",
    )?;
    let (open, dead, retried): (i64, i64, bool) =
        count.query_row([event], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if open > 0 {
        return Ok(Finished::NotYet);
    }
    let end = if dead > 0 { status::DEAD } else { status::DONE };
    let changed = connection
        .prepare_cached("UPDATE event SET status = ?2, updated_at = ?3 WHERE key = ?1 AND status = 5")?
        .execute(params![event, end, now])?;
    Ok(match (changed, dead) {
        (0, _) => Finished::NotYet,
        (_, 0) => Finished::Done { retried },
        _ => Finished::Dead { retried },
    })
}

/// More attempts than this are none that were made.
const MOST: u32 = u32::MAX - 1;

/// Charges the attempt to everything that was running, and makes it due now: pending, in its old place in the order. What
/// was running at the death before as well is a suspect.
pub(super) fn recover(connection: &Connection, now: Timestamp) -> Result<Vec<Recovered>, StoreError> {
    let class = serde_json::to_string(&FailureClass::Crashed).expect("a class always serialises");
    let recovered = running(connection)?;
    if Planted::RecoverySkipsWaiting.is_here() {
        let forget = "UPDATE event SET due_at = NULL WHERE status < 3 AND status = 2";
        connection.prepare_cached(forget)?.execute([])?;
    }
    for (table, event_key, subscription) in
        [("event", "key", "''"), ("delivery", "event_key", "subscription")]
    {
        connection
            .prepare_cached(&format!(
                "INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error)
                 SELECT {event_key}, {subscription}, min(retry_count, {MOST}) + 1, updated_at,
                 CAST(min(max(0, ?1 - updated_at), {MOST}) AS INTEGER), ?2, 0, ?3
                 FROM {table} WHERE status < 3 AND status = 1"
            ))?
            .execute(params![now.as_millis(), class, CRASHED])?;
        connection
            .prepare_cached(&format!(
                "UPDATE {table} SET status = CASE crashes WHEN 0 THEN ?3 ELSE ?4 END, updated_at = ?1,
                 due_at = min(due_at, ?1), first_at = coalesce(first_at, updated_at), retry_count = min(retry_count, {MOST}) + 1,
                 crashes = min(crashes, {MOST}) + 1, last_error = {AND_ERROR_2} WHERE status < 3 AND status = 1"
            ))?
            .execute(params![now.as_millis(), CRASHED, status::PENDING, status::SUSPECT])?;
    }
    Ok(recovered)
}

fn running(connection: &Connection) -> Result<Vec<Recovered>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT id, type, NULL, min(retry_count, 4294967294) + 1 FROM event WHERE status < 3 AND status = 1
         UNION ALL
         SELECT e.id, e.type, v.subscription, min(v.retry_count, 4294967294) + 1 FROM delivery v JOIN event e ON e.key = v.event_key
         WHERE v.status < 3 AND v.status = 1",
    )?;
    let mut found = statement.query([])?;
    let mut list = Vec::new();
    while let Some(row) = found.next()? {
        // Who has no id cannot be told of; it goes on like the others.
        let Ok(id) = rows::event_id(row, 0) else { continue };
        list.push(Recovered {
            id,
            event_type: rows::event_type(row, 1)?,
            addressee: rows::optional_text(row, 2)?.map(|name| SubscriptionName::stored(&name)),
            attempt: rows::count(row, 3)?,
            error: CRASHED.to_owned(),
        });
    }
    Ok(list)
}
