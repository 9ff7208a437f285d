//! Ending a claim.
//!
//! However many wait: one statement for the frequent end, an event that was handled; one for every other end of an event; and a
//! transaction of a few for deliveries, all sent at once. Each is fenced by the owner and the token of its claim: who lost it
//! changes nothing.
//!
//! It is not waited for that a settlement is on disk. If the server crashes before it is, the claim stands there again as if it
//! were still held; whoever held it sees that its connections are gone, finds the claim among those that it knows nothing of,
//! and gives it back (see `reconcile`): one redelivery, and nothing else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::LazyLock;

use redrive_retry::planted::Planted;
use redrive_retry::{DeadReason, FailureClass, Timestamp};
use tokio_postgres::{Error, Row};

use super::session::Session;
use super::value::Value;
use super::{rows, status, text};
use crate::dead_letter::fingerprint;
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::store::Finished;
use crate::work::{Claimed, FailedAttempt, Settlement, UnitKey, Verdict};

const DONE: &str = "
    UPDATE redrive.event e SET status = 3, due_at = NULL, updated_at = u.at
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS u(key, owner, token, at)
    WHERE e.key = u.key AND e.status = 1 AND e.owner = u.owner AND e.token = u.token
    AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
    RETURNING e.key, e.token";

/// The rows of events whose deliveries are settled, in the order of their keys: who settles the last delivery of an event must
/// see what all others have settled.
const LOCK_EVENTS: &str =
    "SELECT key FROM redrive.event WHERE key = ANY($1::bigint[]) ORDER BY key FOR NO KEY UPDATE";

/// What was tried before the circuit opened counts on: a parked delivery goes on where the event stood. Only if the event is over
/// without it does it begin anew. What is to run alone and was not tried still is; and so is what is parked of it, because who was
/// not asked may be what kills the process.
const SETTLE: &str = "
    WITH u AS (
      SELECT * FROM unnest(
        $1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::bigint[], $6::bigint[], $7::integer[], $8::text[],
        $9::text[], $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[], $15::text[], $16::text[],
        $17::text[], $18::text[], $19::text[], $20::text[], $21::bigint[], $27::text[], $28::text[], $36::boolean[])
      AS u(key, owner, token, status, due_at, at, attempt, error_json, error, failed, started_at, duration_ms, class,
           delay_ms, record, reason, fingerprint, last_error, addressee, type, created_at, handled, detail, put_off)),
    changed AS (
      UPDATE redrive.@table e SET due_at = u.due_at, updated_at = u.at,
        status = CASE WHEN u.put_off AND e.crashes > 1 THEN -1 ELSE u.status END,
        ready_at = CASE WHEN u.put_off AND e.crashes > 1 AND u.due_at < 9000000000000000 THEN -1
                        WHEN u.status IN (0, 2) THEN greatest(u.due_at, 0) END,
        retry_count = least(e.retry_count, 2147483646) + (u.error IS NOT NULL)::integer, first_at = coalesce(e.first_at, u.started_at),
        last_error = CASE WHEN u.error_json IS NULL THEN e.last_error
                          WHEN e.last_error IS NULL THEN '[' || u.error_json || ']'
                          ELSE left(e.last_error, -1) || ',' || u.error_json || ']' END@handled
      FROM u WHERE e.key = u.key AND e.status = 1 AND e.owner = u.owner AND e.token = u.token
      AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
      RETURNING e.key, e.token, e.@event_key AS event_key, e.status, e.retry_count, e.last_error, e.first_at,
        e.crashes),
    attempts AS (
      INSERT INTO redrive.attempt
        (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, record, detail)
      SELECT c.event_key, u.failed, u.attempt, u.started_at, u.duration_ms, u.class, u.delay_ms, u.error, u.record, u.detail
      FROM changed c JOIN u ON u.key = c.key AND u.token = c.token WHERE u.error IS NOT NULL
      UNION ALL
      SELECT c.event_key, s.subscription, s.attempt, s.started_at, s.duration_ms, 'null', 0, '', NULL, s.detail
      FROM changed c JOIN unnest($29::bigint[], $30::bigint[], $31::text[], $32::integer[], $33::bigint[], $34::bigint[], $35::text[])
           AS s(key, token, subscription, attempt, started_at, duration_ms, detail) ON s.key = c.key AND s.token = c.token),
    letters AS (
      INSERT INTO redrive.dead_letter (event_key, subscription, type, created_at, dlq_at, reason, fingerprint, error)
      SELECT c.event_key, u.addressee, u.type, u.created_at, u.at, u.reason, u.fingerprint, u.last_error
      FROM changed c JOIN u ON u.key = c.key AND u.token = c.token WHERE u.reason IS NOT NULL),
    parked AS (
      INSERT INTO redrive.delivery
        (event_key, subscription, status, due_at, ready_at, crashes, updated_at, retry_count, last_error, first_at)
      SELECT c.event_key, p.subscription, CASE WHEN c.crashes > 1 THEN -1 ELSE 0 END, p.until,
             CASE WHEN c.crashes > 1 THEN -1 ELSE greatest(p.until, 0) END, c.crashes, p.at,
             CASE WHEN c.status = 5 THEN c.retry_count ELSE 0 END, CASE WHEN c.status = 5 THEN c.last_error END,
             CASE WHEN c.status = 5 THEN c.first_at END
      FROM changed c JOIN unnest($22::bigint[], $23::bigint[], $24::text[], $25::bigint[], $26::bigint[]) WITH ORDINALITY
           AS p(key, token, subscription, until, at, place) ON p.key = c.key AND p.token = c.token
      ORDER BY p.place
      ON CONFLICT (event_key, subscription) DO UPDATE SET status = excluded.status, due_at = excluded.due_at,
        ready_at = excluded.ready_at, crashes = excluded.crashes, updated_at = excluded.updated_at, retry_count = excluded.retry_count,
        last_error = excluded.last_error, first_at = excluded.first_at WHERE delivery.status = 3)
    SELECT key, token FROM changed";

/// Of an event that goes to all who match; what one subscription is owed ends with its handler.
const HANDLED: &str = ", handled = coalesce(u.handled, e.handled)";

static SETTLE_EVENTS: LazyLock<String> = LazyLock::new(|| {
    fenced(SETTLE).replace("@table", "event").replace("@event_key", "key").replace("@handled", HANDLED)
});
static SETTLE_DELIVERIES: LazyLock<String> = LazyLock::new(|| {
    fenced(SETTLE).replace("@table", "delivery").replace("@event_key", "event_key").replace("@handled", "")
});
static SETTLE_DONE: LazyLock<String> = LazyLock::new(|| fenced(DONE));

/// The statement as it is, unless the harness has taken the fence away.
fn fenced(statement: &str) -> String {
    let fence = "AND e.status = 1 AND e.owner = u.owner AND e.token = u.token";
    statement.replace(fence, if Planted::SettleWithoutFenceOnServer.is_here() { "" } else { fence })
}

/// The event ends with the last of its deliveries.
const FINISH: &str = "
    UPDATE redrive.event e SET status = CASE WHEN o.dead > 0 THEN 4 ELSE 3 END, updated_at = u.at
    FROM unnest($1::bigint[], $2::bigint[]) AS u(key, at), LATERAL (
      SELECT count(*) FILTER (WHERE d.status < 3) AS open, count(*) FILTER (WHERE d.status = 4) AS dead,
             coalesce(bool_or(d.retry_count > CASE WHEN d.status = 4 THEN 1 ELSE 0 END), false) AS retried
      FROM redrive.delivery d WHERE d.event_key = u.key) o
    WHERE e.key = u.key AND e.status = 5 AND o.open = 0
    RETURNING e.key, e.status, o.retried OR e.retry_count > 0";

const LAST_ERRORS: &str = "
    SELECT key, token, last_error FROM redrive.event WHERE key = ANY($1::bigint[])
    UNION ALL
    SELECT -key, token, last_error FROM redrive.delivery WHERE key = ANY($2::bigint[])";

const HOW_EVENT_ENDED: &str =
    "SELECT status FROM redrive.event WHERE key = $1 AND owner = $2 AND token = $3 AND status IN (3, 4)";
const HOW_DELIVERY_ENDED: &str = "
    SELECT e.status FROM redrive.delivery d JOIN redrive.event e ON e.key = d.event_key AND e.status IN (3, 4)
    WHERE d.key = $1 AND d.owner = $2 AND d.token = $3 AND d.status IN (3, 4)";

/// A claim and how it ended.
pub(super) type Ended<'a> = (&'a Claimed, &'a Settlement);

/// Whether the end of a claim is the frequent one: an event was handled, and there is nothing more to say.
fn is_plain((claimed, settlement): &Ended<'_>) -> bool {
    matches!(claimed.unit, UnitKey::Event(_)) && !claimed.owes && settlement.is_plain()
}

/// When something of it is due again, if it is.
pub(super) fn due_again(settlement: &Settlement) -> Option<Timestamp> {
    let own = settlement.verdict.due_again();
    settlement.parked.iter().map(|(_, until)| *until).chain(own).min()
}

/// Settles all of them, or none, and says what became of each event.
pub(super) async fn settle(session: &Session, ends: &[Ended<'_>]) -> Result<Vec<Finished>, Error> {
    let plain: Vec<Ended<'_>> = ends.iter().filter(|end| is_plain(end)).copied().collect();
    let (events, deliveries): (Vec<Ended<'_>>, Vec<Ended<'_>>) =
        ends.iter().filter(|end| !is_plain(end)).partition(|(claimed, _)| event_of(claimed).is_none());
    let last_errors = last_errors(session, &events, &deliveries).await?;
    let plain_columns = Plain::new(&plain);
    let event_columns = Columns::new(&events, &last_errors);
    let delivery_columns = Columns::new(&deliveries, &last_errors);
    let finishing = Finishing::new(&events, &deliveries);

    // A statement is a transaction by itself; only several need one.
    let steps = [!plain.is_empty(), !events.is_empty(), !deliveries.is_empty(), !finishing.keys.is_empty()];
    let is_transaction = steps.iter().filter(|is_there| **is_there).count() > 1;
    let plain_values = plain_columns.values();
    let (event_values, delivery_values) = (event_columns.values(), delivery_columns.values());
    let lock_values: [&dyn Value; 1] = [&finishing.locked];
    let finish_values: [&dyn Value; 2] = [&finishing.keys, &finishing.at];
    let step =
        |is_there: bool, statement: &'static str, values| Step { session, is_there, statement, values };
    let done = step(steps[0], &SETTLE_DONE, &plain_values);
    let lock = step(!finishing.locked.is_empty(), LOCK_EVENTS, &lock_values);
    let settle_events = step(steps[1], &SETTLE_EVENTS, &event_values);
    let settle_deliveries = step(steps[2], &SETTLE_DELIVERIES, &delivery_values);
    let finish = step(steps[3], FINISH, &finish_values);
    for step in [&done, &lock, &settle_events, &settle_deliveries, &finish] {
        step.prepare().await?;
    }
    // All of it is sent before the first answer comes: one round trip, however many there are.
    let (begun, done, locked, events_settled, deliveries_settled, finished, committed) = tokio::join!(
        biased; // in the order in which they are to be carried out
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
    let mut finished: HashMap<i64, Finished> = finished
        .iter()
        .map(|row| {
            let retried = row.get(2);
            let is_dead = row.get::<_, i16>(1) == status::DEAD;
            (row.get(0), if is_dead { Finished::Dead { retried } } else { Finished::Done { retried } })
        })
        .collect();
    // Of several deliveries of one event that end together, the last one ends the event.
    let mut answers: Vec<Finished> = ends
        .iter()
        .rev()
        .map(|(claimed, settlement)| {
            let name = (claimed.unit.key(), claimed.fence.token);
            match claimed.unit {
                UnitKey::Event(key) if changed_events.contains(&name) => match settlement.verdict {
                    Verdict::Done if settlement.parked.is_empty() && !claimed.owes => claimed.done(),
                    Verdict::Done => finished.remove(&key).unwrap_or(Finished::NotYet),
                    Verdict::Dead(_) => Finished::Dead { retried: claimed.attempt > 1 },
                    Verdict::Retry(_) | Verdict::Defer(_) => Finished::NotYet,
                },
                UnitKey::Delivery { event, .. } if changed_deliveries.contains(&name) => {
                    match settlement.verdict {
                        Verdict::Done | Verdict::Dead(_) => {
                            finished.remove(&event).unwrap_or(Finished::NotYet)
                        }
                        Verdict::Retry(_) | Verdict::Defer(_) => Finished::NotYet,
                    }
                }
                _ => Finished::NotYet,
            }
        })
        .collect();
    answers.reverse();
    Ok(answers)
}

/// Instead of an end that the server refuses for its values, which it always will: into the dead-letter queue, with the reason, where
/// somebody sees it. With all that can be kept; if that is refused, too, with nothing of it.
pub(super) fn refused(settlement: Settlement, why: &StoreError, keeps: bool) -> Settlement {
    let error = format!("the end of the attempt could not be written down: {why}");
    let own = settlement.failure.as_ref().filter(|_| keeps);
    let failure = FailedAttempt {
        subscription: own.map_or_else(
            || SubscriptionName::new("(store)").expect("a valid name"),
            |own| own.subscription.clone(),
        ),
        started_at: settlement.at,
        duration_ms: 0,
        class: FailureClass::Permanent,
        delay_ms: 0,
        error: own.map_or(error.clone(), |own| format!("{error}; it was: {}", own.error)),
        record: None,
        detail: None,
    };
    Settlement {
        at: settlement.at,
        verdict: Verdict::Dead(DeadReason::Permanent),
        failure: Some(failure),
        parked: if keeps { settlement.parked } else { Vec::new() },
        handled: if keeps { settlement.handled } else { Vec::new() },
        succeeded: if keeps { settlement.succeeded } else { Vec::new() },
    }
}

/// After an answer was lost: whether it was this claim that ended it.
pub(super) async fn how_it_ended(session: &Session, claimed: &Claimed) -> Result<Finished, Error> {
    let statement = match claimed.unit {
        UnitKey::Event(_) => HOW_EVENT_ENDED,
        UnitKey::Delivery { .. } => HOW_DELIVERY_ENDED,
    };
    let fence = claimed.fence;
    let found = session.query(statement, &[&claimed.unit.key(), &fence.owner, &fence.token]).await?;
    let retried = claimed.attempt > 1;
    Ok(match found.first().map(|row| row.get::<_, i16>(0)) {
        Some(status::DONE) => Finished::Done { retried },
        Some(_) => Finished::Dead { retried },
        None => Finished::NotYet,
    })
}

/// A statement that may not be needed.
struct Step<'a> {
    session: &'a Session,
    is_there: bool,
    statement: &'static str,
    values: &'a [&'a dyn Value],
}

impl Step<'_> {
    async fn prepare(&self) -> Result<(), Error> {
        if self.is_there { self.session.prepare(self.statement, self.values).await } else { Ok(()) }
    }

    async fn run(&self) -> Result<Vec<Row>, Error> {
        if self.is_there { self.session.query(self.statement, self.values).await } else { Ok(Vec::new()) }
    }
}

/// Whose end may be the end of an event, and which events to hold while that is found out.
struct Finishing {
    keys: Vec<i64>,
    at: Vec<i64>,
    locked: Vec<i64>,
}

impl Finishing {
    fn new(events: &[Ended<'_>], deliveries: &[Ended<'_>]) -> Self {
        let mut latest: BTreeMap<i64, i64> = BTreeMap::new();
        let ended = events.iter().chain(deliveries).filter_map(|(claimed, settlement)| {
            match (claimed.unit, &settlement.verdict) {
                // Also if something was parked: who has given up meanwhile is owed nothing more.
                (UnitKey::Event(key), Verdict::Done) => Some((key, settlement.at)),
                (UnitKey::Delivery { event, .. }, Verdict::Done | Verdict::Dead(_)) => {
                    Some((event, settlement.at))
                }
                _ => None,
            }
        });
        for (key, at) in ended {
            let latest = latest.entry(key).or_insert(i64::MIN);
            *latest = at.as_millis().max(*latest);
        }
        // An event without deliveries beside it is not in their hands.
        let owing: HashSet<i64> =
            events.iter().filter(|(claimed, _)| claimed.owes).map(|(c, _)| c.unit.key()).collect();
        let locked: HashSet<i64> = deliveries.iter().filter_map(|(claimed, _)| event_of(claimed)).collect();
        latest.retain(|key, _| owing.contains(key) || locked.contains(key));
        let (keys, at) = latest.into_iter().unzip();
        Finishing { keys, at, locked: locked.into_iter().collect() }
    }
}

fn event_of(claimed: &Claimed) -> Option<i64> {
    match claimed.unit {
        UnitKey::Event(_) => None,
        UnitKey::Delivery { event, .. } => Some(event),
    }
}

/// The columns of plain ends.
struct Plain {
    keys: Vec<i64>,
    owners: Vec<i64>,
    tokens: Vec<i64>,
    at: Vec<i64>,
}

impl Plain {
    fn new(ends: &[Ended<'_>]) -> Self {
        Plain {
            keys: ends.iter().map(|(claimed, _)| claimed.unit.key()).collect(),
            owners: ends.iter().map(|(claimed, _)| claimed.fence.owner).collect(),
            tokens: ends.iter().map(|(claimed, _)| claimed.fence.token).collect(),
            at: ends.iter().map(|(_, settlement)| settlement.at.as_millis()).collect(),
        }
    }

    fn values(&self) -> [&dyn Value; 4] {
        [&self.keys, &self.owners, &self.tokens, &self.at]
    }
}

/// The last errors of what is given up without one of its own: events by their keys, deliveries by theirs.
type LastErrors = HashMap<UnitKeyAndToken, String>;
type UnitKeyAndToken = (bool, i64, i64);

fn name_of(claimed: &Claimed) -> UnitKeyAndToken {
    (matches!(claimed.unit, UnitKey::Event(_)), claimed.unit.key(), claimed.fence.token)
}

async fn last_errors(
    session: &Session,
    events: &[Ended<'_>],
    deliveries: &[Ended<'_>],
) -> Result<LastErrors, Error> {
    let silent = |ends: &[Ended<'_>]| -> Vec<i64> {
        ends.iter()
            .filter(|(_, end)| matches!(end.verdict, Verdict::Dead(_)) && end.failure.is_none())
            .map(|(claimed, _)| claimed.unit.key())
            .collect()
    };
    let (events, deliveries) = (silent(events), silent(deliveries));
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

/// JSON has no character that a server cannot keep; what is none, because somebody has not written JSON, is kept as far as it can be.
fn storable(json: &str) -> String {
    text::stored(json).into_owned()
}

/// The columns of every other end.
#[derive(Default)]
struct Columns {
    keys: Vec<i64>,
    owners: Vec<i64>,
    tokens: Vec<i64>,
    status: Vec<i16>,
    due_at: Vec<Option<i64>>,
    at: Vec<i64>,
    attempt: Vec<i32>,
    error_json: Vec<Option<String>>,
    error: Vec<Option<String>>,
    failed: Vec<Option<String>>,
    started_at: Vec<Option<i64>>,
    duration_ms: Vec<Option<i64>>,
    class: Vec<Option<String>>,
    delay_ms: Vec<Option<i64>>,
    record: Vec<Option<String>>,
    reason: Vec<Option<String>>,
    fingerprint: Vec<Option<String>>,
    last_error: Vec<Option<String>>,
    addressee: Vec<Option<String>>,
    event_type: Vec<String>,
    created_at: Vec<i64>,
    parked_keys: Vec<i64>,
    parked_tokens: Vec<i64>,
    parked_for: Vec<String>,
    parked_until: Vec<i64>,
    parked_at: Vec<i64>,
    handled: Vec<Option<String>>,
    detail: Vec<Option<String>>,
    put_off: Vec<bool>,
    succeeded_keys: Vec<i64>,
    succeeded_tokens: Vec<i64>,
    succeeded_for: Vec<String>,
    succeeded_attempt: Vec<i32>,
    succeeded_started_at: Vec<i64>,
    succeeded_duration_ms: Vec<i64>,
    succeeded_detail: Vec<String>,
}

impl Columns {
    fn new(ends: &[Ended<'_>], last_errors: &LastErrors) -> Self {
        let mut columns = Columns::default();
        for (claimed, settlement) in ends {
            columns.add(claimed, settlement, last_errors);
        }
        columns
    }

    fn add(&mut self, claimed: &Claimed, settlement: &Settlement, last_errors: &LastErrors) {
        let state = match settlement.verdict {
            Verdict::Done if settlement.parked.is_empty() && !claimed.owes => status::DONE,
            Verdict::Done => status::DELIVERING,
            Verdict::Retry(_) => status::WAITING,
            Verdict::Defer(_) if claimed.attempt > 1 => status::WAITING,
            Verdict::Defer(_) => status::PENDING,
            Verdict::Dead(_) => status::DEAD,
        };
        let attempt = i32::try_from(claimed.attempt).unwrap_or(i32::MAX);
        let millis = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (key, token) = (claimed.unit.key(), claimed.fence.token);
        self.keys.push(key);
        self.owners.push(claimed.fence.owner);
        self.tokens.push(token);
        self.status.push(state);
        self.due_at.push(settlement.verdict.due_again().map(Timestamp::as_millis));
        self.at.push(settlement.at.as_millis());
        self.attempt.push(attempt);
        self.put_off.push(matches!(settlement.verdict, Verdict::Defer(_)));

        let failure = settlement.failure.as_ref();
        self.error_json.push(failure.map(|failure| text::json_entry(&failure.error)));
        self.error.push(failure.map(|failure| text::stored(&failure.error).into_owned()));
        self.failed.push(failure.map(|failure| failure.subscription.as_str().to_owned()));
        self.started_at.push(failure.map(|failure| failure.started_at.as_millis()));
        self.duration_ms.push(failure.map(|failure| millis(failure.duration_ms)));
        self.class.push(
            failure.map(|failure| serde_json::to_string(&failure.class).expect("a class always serialises")),
        );
        self.delay_ms.push(failure.map(|failure| millis(failure.delay_ms)));
        self.record.push(failure.and_then(|failure| failure.record.clone()));
        self.detail.push(failure.and_then(|failure| failure.detail.as_deref()).map(storable));

        let (mut reason, mut last) = (None, None);
        if let Verdict::Dead(why) = settlement.verdict {
            let name = serde_json::to_value(why).ok().and_then(|value| value.as_str().map(str::to_owned));
            reason = Some(name.unwrap_or_default());
            let own = failure.map(|failure| failure.error.clone());
            last =
                own.or_else(|| last_errors.get(&name_of(claimed)).cloned()).or_else(|| Some(String::new()));
        }
        self.reason.push(reason);
        self.fingerprint.push(last.as_deref().map(|last| text::stored(&fingerprint(last)).into_owned()));
        self.last_error.push(last.as_deref().map(|last| text::stored(last).into_owned()));
        self.addressee.push(claimed.addressee.as_ref().map(|name| name.as_str().to_owned()));
        self.event_type.push(claimed.event.event_type.as_str().to_owned());
        self.created_at.push(claimed.event.created_at.as_millis());
        self.handled.push(claimed.handled_by_now(settlement));

        // Named twice is owed once; the earlier time holds. In the order in which they are named: what is due at the same time
        // is claimed in the order of its keys.
        let mut parked: Vec<(&str, i64)> = Vec::with_capacity(settlement.parked.len());
        for (name, until) in &settlement.parked {
            let until = until.as_millis();
            match parked.iter_mut().find(|(named, _)| *named == name.as_str()) {
                Some((_, earliest)) => *earliest = until.min(*earliest),
                None => parked.push((name.as_str(), until)),
            }
        }
        for (name, until) in parked {
            self.parked_keys.push(key);
            self.parked_tokens.push(token);
            self.parked_for.push(name.to_owned());
            self.parked_until.push(until);
            self.parked_at.push(settlement.at.as_millis());
        }
        for succeeded in &settlement.succeeded {
            self.succeeded_keys.push(key);
            self.succeeded_tokens.push(token);
            self.succeeded_for.push(succeeded.subscription.as_str().to_owned());
            self.succeeded_attempt.push(attempt);
            self.succeeded_started_at.push(succeeded.started_at.as_millis());
            self.succeeded_duration_ms.push(millis(succeeded.duration_ms));
            self.succeeded_detail.push(storable(&succeeded.detail));
        }
    }

    fn values(&self) -> [&dyn Value; 36] {
        [
            &self.keys,
            &self.owners,
            &self.tokens,
            &self.status,
            &self.due_at,
            &self.at,
            &self.attempt,
            &self.error_json,
            &self.error,
            &self.failed,
            &self.started_at,
            &self.duration_ms,
            &self.class,
            &self.delay_ms,
            &self.record,
            &self.reason,
            &self.fingerprint,
            &self.last_error,
            &self.addressee,
            &self.event_type,
            &self.created_at,
            &self.parked_keys,
            &self.parked_tokens,
            &self.parked_for,
            &self.parked_until,
            &self.parked_at,
            &self.handled,
            &self.detail,
            &self.succeeded_keys,
            &self.succeeded_tokens,
            &self.succeeded_for,
            &self.succeeded_attempt,
            &self.succeeded_started_at,
            &self.succeeded_duration_ms,
            &self.succeeded_detail,
            &self.put_off,
        ]
    }
}
