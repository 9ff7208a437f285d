//! Settles a batch of claims: done, retry, deferred or dead.
//!
//! A batch takes one statement for bare successes (an event is done, with nothing else to record), one for every other settlement
//! of an event, and a short pipelined transaction for deliveries. Each statement is fenced by the owner and the token of the claim: a
//! process that lost its claim changes nothing.
//!
//! Settlements commit asynchronously. If the server crashes before a settlement is on disk, the claim is restored as running.
//! Its process notices the lost connection and releases every claim that it does not own any more (see `reconcile`). The cost is
//! one redelivery.

mod columns;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::LazyLock;

use redrive_retry::FailureClass;
use redrive_retry::decision::DeadReason;
use redrive_retry::fault;
use tokio_postgres::{Error, Row};

use self::columns::{BareSuccesses, Columns, LastErrors};
use super::session::Session;
use super::value::Value;
use super::{rows, status};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::store::Finished;
use crate::work::{ClaimKey, Claimed, FailedAttempt, Settlement, Verdict};

const DONE: &str = "
    UPDATE redrive.event e SET status = 3, due_at = NULL, updated_at = u.at
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS u(key, owner, token, at)
    WHERE e.key = u.key AND e.status = 1 AND e.owner = u.owner AND e.token = u.token
    AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
    RETURNING e.key, e.token";

/// Locks the events of the settled deliveries in key order, so that the settlement of the last delivery sees all the others. A batch
/// that finishes no delivery leaves them open and needs no lock.
const LOCK_EVENTS: &str =
    "SELECT key FROM redrive.event WHERE key = ANY($1::bigint[]) ORDER BY key FOR NO KEY UPDATE";

/// Writes any settlement but a bare success. A delivery that is split off keeps the attempts of its event, unless the event ends
/// without it: then it starts at zero. A deferred crash suspect stays a suspect, and so do the deliveries split off from it, because
/// a handler that did not run may be the one that crashes the process.
const SETTLE: &str = "
    WITH u AS (
      SELECT * FROM unnest(
        $1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::bigint[], $6::bigint[], $7::integer[], $8::text[],
        $9::text[], $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[], $15::text[], $16::text[],
        $17::text[], $18::text[], $19::text[], $20::text[], $21::bigint[], $27::text[], $28::text[], $36::boolean[], $37::text[])
      AS u(key, owner, token, status, due_at, at, attempt, error_json, error, failed, started_at, duration_ms, class,
           delay_ms, record, reason, fingerprint, last_error, subscription, type, created_at, handled, detail, deferred, lease)),
    changed AS (
      UPDATE redrive.@table e SET due_at = u.due_at, updated_at = u.at,
        status = CASE WHEN u.deferred AND e.crashes > 1 THEN -1 ELSE u.status END,
        ready_at = CASE WHEN u.deferred AND e.crashes > 1 AND u.due_at < 9000000000000000 THEN -1
                        WHEN u.status IN (-2, 0, 2) THEN greatest(u.due_at, 0) END,
        retry_count = least(e.retry_count, 2147483646) + (u.error IS NOT NULL)::integer, first_at = coalesce(e.first_at, u.started_at),
        last_error = CASE WHEN u.error_json IS NULL THEN e.last_error
                          WHEN e.last_error IS NULL THEN '[' || u.error_json || ']'
                          ELSE left(e.last_error, -1) || ',' || u.error_json || ']' END@own
      FROM u WHERE e.key = u.key AND e.status = 1 AND e.owner = u.owner AND e.token = u.token
      AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
      RETURNING e.key, e.token, e.@event_key AS event_key, e.status, e.retry_count, e.last_error, e.first_at,
        e.crashes),
    attempts AS (
      INSERT INTO redrive.attempt
        (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, record, detail, of_delivery)
      SELECT c.event_key, u.failed, u.attempt, u.started_at, u.duration_ms, u.class, u.delay_ms, u.error, u.record, u.detail, @of_delivery
      FROM changed c JOIN u ON u.key = c.key AND u.token = c.token WHERE u.error IS NOT NULL
      UNION ALL
      SELECT c.event_key, s.subscription, s.attempt, s.started_at, s.duration_ms, 'null', 0, '', NULL, s.detail, @of_delivery
      FROM changed c JOIN unnest($29::bigint[], $30::bigint[], $31::text[], $32::integer[], $33::bigint[], $34::bigint[], $35::text[])
           AS s(key, token, subscription, attempt, started_at, duration_ms, detail) ON s.key = c.key AND s.token = c.token),
    letters AS (
      INSERT INTO redrive.dead_letter (event_key, subscription, type, created_at, dlq_at, reason, fingerprint, error, target)
      SELECT c.event_key, u.subscription, u.type, u.created_at, u.at, u.reason, u.fingerprint, u.last_error,
             coalesce(u.subscription, u.failed)
      FROM changed c JOIN u ON u.key = c.key AND u.token = c.token WHERE u.reason IS NOT NULL),
    split_off AS (
      INSERT INTO redrive.delivery
        (event_key, subscription, status, due_at, ready_at, crashes, updated_at, retry_count, last_error, first_at)
      SELECT c.event_key, p.subscription, CASE WHEN c.crashes > 1 THEN -1 ELSE 0 END, p.until,
             CASE WHEN c.crashes > 1 AND p.until < 9000000000000000 THEN -1 ELSE greatest(p.until, 0) END, c.crashes, p.at,
             CASE WHEN c.status = 5 THEN c.retry_count ELSE 0 END, CASE WHEN c.status = 5 THEN c.last_error END,
             CASE WHEN c.status = 5 THEN c.first_at END
      FROM changed c JOIN unnest($22::bigint[], $23::bigint[], $24::text[], $25::bigint[], $26::bigint[]) WITH ORDINALITY
           AS p(key, token, subscription, until, at, place) ON p.key = c.key AND p.token = c.token
      ORDER BY p.place
      ON CONFLICT (event_key, subscription) DO UPDATE SET status = excluded.status, due_at = excluded.due_at,
        ready_at = excluded.ready_at, crashes = excluded.crashes, updated_at = excluded.updated_at, retry_count = excluded.retry_count,
        last_error = excluded.last_error, first_at = excluded.first_at WHERE delivery.status = 3)
    SELECT key, token FROM changed";

/// Only events record which subscriptions have handled them; a delivery has one subscription.
const HANDLED: &str = ", handled = coalesce(u.handled, e.handled)";

/// Only deliveries are leased.
const LEASED: &str = ", lease = u.lease, leased_at = CASE WHEN u.lease IS NOT NULL THEN u.at END";

static SETTLE_EVENTS: LazyLock<String> = LazyLock::new(|| {
    fenced(SETTLE)
        .replace("@table", "event")
        .replace("@event_key", "key")
        .replace("@own", HANDLED)
        .replace("@of_delivery", "false")
});
static SETTLE_DELIVERIES: LazyLock<String> = LazyLock::new(|| {
    fenced(SETTLE)
        .replace("@table", "delivery")
        .replace("@event_key", "event_key")
        .replace("@own", LEASED)
        .replace("@of_delivery", "true")
});
static SETTLE_DONE: LazyLock<String> = LazyLock::new(|| fenced(DONE));

/// Returns the fenced statement. The fault harness can remove the fence.
fn fenced(statement: &str) -> String {
    fault!("settle-without-fence-on-server" =>
        return statement.replace("AND e.status = 1 AND e.owner = u.owner AND e.token = u.token", ""));
    statement.to_owned()
}

/// Finishes the events whose last open delivery was settled, and their messages in the retry queue: in the order in which inserts of
/// tasks lock them, because the next failure of a message may arrive at the same time.
const FINISH: &str = "
    WITH finished AS (
      UPDATE redrive.event e SET status = CASE WHEN o.dead > 0 THEN 4 ELSE 3 END, updated_at = u.at
      FROM unnest($1::bigint[], $2::bigint[]) AS u(key, at), LATERAL (
        SELECT count(*) FILTER (WHERE d.status < 3) AS open, count(*) FILTER (WHERE d.status = 4) AS dead,
               coalesce(bool_or(d.retry_count > CASE WHEN d.status = 4 THEN 1 ELSE 0 END), false) AS retried
        FROM redrive.delivery d WHERE d.event_key = u.key) o
      WHERE e.key = u.key AND e.status > 4 AND o.open = 0
      RETURNING e.key, e.status, o.retried OR e.retry_count > 0 AS retried),
    queue AS (
      UPDATE redrive.retry_message m SET status = CASE WHEN f.status = 4 OR m.discarded THEN 'failed' ELSE 'retried' END
      FROM (SELECT key, f.status FROM finished f JOIN redrive.retry_message ON event_key = key
            ORDER BY message_id, original_queue) f
      WHERE m.event_key = f.key)
    SELECT key, status, retried FROM finished";

const LAST_ERRORS: &str = "
    SELECT key, token, last_error FROM redrive.event WHERE key = ANY($1::bigint[])
    UNION ALL
    SELECT -key, token, last_error FROM redrive.delivery WHERE key = ANY($2::bigint[])";

/// The status of the event after this claim was settled. A settled row keeps the owner and the token of its last claim.
const HOW_EVENT_ENDED: &str =
    "SELECT status FROM redrive.event WHERE key = $1 AND owner = $2 AND token = $3 AND status <> 1";
const HOW_DELIVERY_ENDED: &str = "
    SELECT CASE WHEN d.status IN (3, 4) THEN e.status ELSE d.status END
    FROM redrive.delivery d JOIN redrive.event e ON e.key = d.event_key
    WHERE d.key = $1 AND d.owner = $2 AND d.token = $3 AND d.status <> 1";

/// A claim and its settlement.
pub(super) type Ended<'a> = (&'a Claimed, &'a Settlement);

/// Settles all claims, or none. Returns what became of each event.
pub(super) async fn settle(session: &Session, ends: &[Ended<'_>]) -> Result<Vec<Finished>, Error> {
    let (successes, others): (Vec<Ended<'_>>, Vec<Ended<'_>>) =
        ends.iter().partition(|(claimed, settlement)| claimed.is_bare_success(settlement));
    let (events, deliveries): (Vec<Ended<'_>>, Vec<Ended<'_>>) =
        others.into_iter().partition(|(claimed, _)| event_of(claimed).is_none());
    let last_errors = last_errors(session, &events, &deliveries).await?;
    let success_columns = BareSuccesses::new(&successes);
    let event_columns = Columns::new(&events, &last_errors);
    let delivery_columns = Columns::new(&deliveries, &last_errors);
    let finishing = Finishing::new(&events, &deliveries);

    // A single statement is a transaction by itself; several need an explicit one.
    let steps =
        [!successes.is_empty(), !events.is_empty(), !deliveries.is_empty(), !finishing.keys.is_empty()];
    let is_transaction = steps.iter().filter(|has_rows| **has_rows).count() > 1;
    let success_values = success_columns.values();
    let (event_values, delivery_values) = (event_columns.values(), delivery_columns.values());
    let lock_values: [&dyn Value; 1] = [&finishing.locked];
    let finish_values: [&dyn Value; 2] = [&finishing.keys, &finishing.at];
    let step =
        |has_rows: bool, statement: &'static str, values| Step { session, has_rows, statement, values };
    let done = step(steps[0], &SETTLE_DONE, &success_values);
    let finishes_deliveries = !finishing.keys.is_empty() && !finishing.locked.is_empty();
    let lock = step(finishes_deliveries, LOCK_EVENTS, &lock_values);
    let settle_events = step(steps[1], &SETTLE_EVENTS, &event_values);
    let settle_deliveries = step(steps[2], &SETTLE_DELIVERIES, &delivery_values);
    let finish = step(steps[3], FINISH, &finish_values);
    for step in [&done, &lock, &settle_events, &settle_deliveries, &finish] {
        step.prepare().await?;
    }
    // Pipelined: all statements are sent before the first answer arrives, so the batch takes one round trip.
    let (begun, done, locked, events_settled, deliveries_settled, finished, committed) = tokio::join!(
        biased; // sends the statements in this order
        async { if is_transaction { session.begin().await } else { Ok(()) } },
        done.run(),
        lock.run(),
        settle_events.run(),
        settle_deliveries.run(),
        finish.run(),
        async { if is_transaction { session.commit().await } else { Ok(()) } },
    );
    begun?;
    locked?;
    let (done, events_settled, deliveries_settled, finished) =
        (done?, events_settled?, deliveries_settled?, finished?);
    committed?;
    let changed =
        |rows: Vec<Row>| -> HashSet<(i64, i64)> { rows.iter().map(|row| (row.get(0), row.get(1))).collect() };
    let (mut changed_events, changed_deliveries) = (changed(done), changed(deliveries_settled));
    changed_events.extend(changed(events_settled));
    Ok(outcomes(ends, &changed_events, &changed_deliveries, &finished))
}

/// Maps the changed rows, by key and token, and the answer to [`FINISH`] to one outcome for each claim.
fn outcomes(
    ends: &[Ended<'_>],
    changed_events: &HashSet<(i64, i64)>,
    changed_deliveries: &HashSet<(i64, i64)>,
    finished: &[Row],
) -> Vec<Finished> {
    let mut finished: HashMap<i64, Finished> = finished
        .iter()
        .map(|row| {
            let retried = row.get(2);
            let is_dead = row.get::<_, i16>(1) == status::DEAD;
            (row.get(0), if is_dead { Finished::Dead { retried } } else { Finished::Done { retried } })
        })
        .collect();
    // Of several deliveries of one event that are settled together, the last one reports the end of the event.
    let mut answers: Vec<Finished> = ends
        .iter()
        .rev()
        .map(|(claimed, settlement)| {
            let row = (claimed.key.row(), claimed.fence.token);
            match claimed.key {
                ClaimKey::Event(key) if changed_events.contains(&row) => match settlement.verdict {
                    Verdict::Done if settlement.split_off.is_empty() && !claimed.has_open_deliveries => {
                        claimed.done()
                    }
                    Verdict::Done => finished.remove(&key).unwrap_or(Finished::NotYet),
                    Verdict::Dead(_) => Finished::Dead { retried: claimed.attempt > 1 },
                    Verdict::Retry(_)
                    | Verdict::Defer(_)
                    | Verdict::Lease { .. }
                    | Verdict::ReleaseSuspect(_) => Finished::NotYet,
                },
                ClaimKey::Delivery { event, .. } if changed_deliveries.contains(&row) => {
                    match settlement.verdict {
                        Verdict::Done | Verdict::Dead(_) => {
                            finished.remove(&event).unwrap_or(Finished::NotYet)
                        }
                        Verdict::Retry(_)
                        | Verdict::Defer(_)
                        | Verdict::Lease { .. }
                        | Verdict::ReleaseSuspect(_) => Finished::NotYet,
                    }
                }
                _ => Finished::Fenced,
            }
        })
        .collect();
    answers.reverse();
    answers
}

/// Replaces a settlement whose values the server rejects by a dead letter that names the error. `keeps` says whether the
/// original error, the deliveries split off and handled subscriptions are kept; the caller drops them if they are rejected as well.
pub(super) fn as_dead_letter(settlement: Settlement, why: &StoreError, keeps: bool) -> Settlement {
    let error = format!("the result of the attempt could not be stored: {why}");
    let own = settlement.failure.as_ref().filter(|_| keeps);
    let failure = FailedAttempt {
        subscription: own.map_or_else(
            || SubscriptionName::new("(store)").expect("the literal is a valid subscription name"),
            |own| own.subscription.clone(),
        ),
        started_at: settlement.at,
        duration_ms: 0,
        class: FailureClass::Permanent,
        delay_ms: 0,
        error: own.map_or(error.clone(), |own| format!("{error}; the attempt's error was: {}", own.error)),
        record: None,
        detail: None,
    };
    Settlement {
        at: settlement.at,
        verdict: Verdict::Dead(DeadReason::Permanent),
        failure: Some(failure),
        split_off: if keeps { settlement.split_off } else { Vec::new() },
        handled: if keeps { settlement.handled } else { Vec::new() },
        succeeded: if keeps { settlement.succeeded } else { Vec::new() },
    }
}

/// Reads what became of the event after an answer was lost: `Fenced` unless this claim has settled it.
pub(super) async fn how_it_ended(session: &Session, claimed: &Claimed) -> Result<Finished, Error> {
    let statement = match claimed.key {
        ClaimKey::Event(_) => HOW_EVENT_ENDED,
        ClaimKey::Delivery { .. } => HOW_DELIVERY_ENDED,
    };
    let fence = claimed.fence;
    let found = session.query_first(statement, &[&claimed.key.row(), &fence.owner, &fence.token]).await?;
    let retried = claimed.attempt > 1;
    Ok(match found.map(|row| row.get::<_, i16>(0)) {
        Some(status::DONE) => Finished::Done { retried },
        Some(status::DEAD) => Finished::Dead { retried },
        Some(_) => Finished::NotYet,
        None => Finished::Fenced,
    })
}

/// A statement of the batch, skipped if it has no rows.
struct Step<'a> {
    session: &'a Session,
    has_rows: bool,
    statement: &'static str,
    values: &'a [&'a dyn Value],
}

impl Step<'_> {
    async fn prepare(&self) -> Result<(), Error> {
        if self.has_rows { self.session.prepare(self.statement, self.values).await } else { Ok(()) }
    }

    async fn run(&self) -> Result<Vec<Row>, Error> {
        if self.has_rows { self.session.query(self.statement, self.values).await } else { Ok(Vec::new()) }
    }
}

/// The events that the batch may finish, and the events to lock while [`FINISH`] checks that.
struct Finishing {
    keys: Vec<i64>,
    at: Vec<i64>,
    locked: Vec<i64>,
}

impl Finishing {
    fn new(events: &[Ended<'_>], deliveries: &[Ended<'_>]) -> Self {
        let mut latest: BTreeMap<i64, i64> = BTreeMap::new();
        let ended = events.iter().chain(deliveries).filter_map(|(claimed, settlement)| {
            match (claimed.key, &settlement.verdict) {
                // Also with deliveries split off: a subscription may have settled its delivery already.
                (ClaimKey::Event(key), Verdict::Done) => Some((key, settlement.at)),
                (ClaimKey::Delivery { event, .. }, Verdict::Done | Verdict::Dead(_)) => {
                    Some((event, settlement.at))
                }
                _ => None,
            }
        });
        for (key, at) in ended {
            let latest = latest.entry(key).or_insert(i64::MIN);
            *latest = at.as_millis().max(*latest);
        }
        // An event without deliveries is finished by its own settlement.
        let owing: HashSet<i64> = events
            .iter()
            .filter(|(claimed, _)| claimed.has_open_deliveries)
            .map(|(c, _)| c.key.row())
            .collect();
        let locked: HashSet<i64> = deliveries.iter().filter_map(|(claimed, _)| event_of(claimed)).collect();
        latest.retain(|key, _| owing.contains(key) || locked.contains(key));
        let (keys, at) = latest.into_iter().unzip();
        Finishing { keys, at, locked: locked.into_iter().collect() }
    }
}

fn event_of(claimed: &Claimed) -> Option<i64> {
    match claimed.key {
        ClaimKey::Event(_) => None,
        ClaimKey::Delivery { event, .. } => Some(event),
    }
}

async fn last_errors(
    session: &Session,
    events: &[Ended<'_>],
    deliveries: &[Ended<'_>],
) -> Result<LastErrors, Error> {
    let without_error = |ends: &[Ended<'_>]| -> Vec<i64> {
        ends.iter()
            .filter(|(_, end)| matches!(end.verdict, Verdict::Dead(_)) && end.failure.is_none())
            .map(|(claimed, _)| claimed.key.row())
            .collect()
    };
    let (events, deliveries) = (without_error(events), without_error(deliveries));
    if events.is_empty() && deliveries.is_empty() {
        return Ok(LastErrors::new());
    }
    let found = session.query(LAST_ERRORS, &[&events, &deliveries]).await?;
    let entry = |row: &Row| {
        let (key, token): (i64, i64) = (row.get(0), row.get(1));
        ((key >= 0, key.abs(), token), rows::errors(row, 2).pop().unwrap_or_default())
    };
    Ok(found.iter().map(entry).collect())
}
