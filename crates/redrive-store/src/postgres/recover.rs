//! Taking back what a dead process held, and what this one holds without knowing.
//!
//! A process is dead when its lease has run out, by the database's clock. One that has come back on the same machine need not
//! wait for that: the lock of its former life is free.

use std::path::Path;

use redrive_retry::{FailureClass, Timestamp};
use tokio_postgres::Row;

use super::session::Session;
use super::{Shared, failure, leader, rows, text};
use crate::error::StoreError;
use crate::work::{Recovered, UnitKey};

/// What stands in the errors of an event whose process died.
const CRASHED: &str = "process ended during the attempt";

/// One at a time: two that charge for one death would charge twice. Released with the transaction.
const ONE_AT_A_TIME: &str = "SELECT pg_try_advisory_xact_lock(to_regnamespace($1)::oid::integer, -1)";
const WAIT_FOR_TURN: &str =
    "SELECT true FROM (SELECT pg_advisory_xact_lock(to_regnamespace($1)::oid::integer, -1)) l";

const CANDIDATES: &str = "
    SELECT key, pid, beats_at + lease_ms <= redrive.now_ms(), instance = $2 AND has_lock
    FROM redrive.process WHERE key <> $1";

/// Holding the row keeps the process from claiming anything, and waits for what it is about to claim.
const DECLARE_DEAD: &str = "
    SELECT key, oldest_event, oldest_delivery FROM redrive.process
    WHERE key = ANY($1::bigint[]) AND (beats_at + lease_ms <= redrive.now_ms() OR (key = ANY($2::bigint[])
      AND pg_try_advisory_xact_lock(to_regnamespace($3)::oid::integer, (key % 2147483647)::integer)))
    ORDER BY key FOR UPDATE";

/// Nobody holds anything whom nobody knows; but if that fails, by a defect or by hand, the work must not wait for ever. Looks at
/// everything.
pub(super) const UNKNOWN_OWNERS: &str = "
    SELECT DISTINCT owner FROM (
      SELECT owner FROM redrive.event WHERE status = 1
      UNION ALL SELECT owner FROM redrive.delivery WHERE status = 1) u
    WHERE owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM redrive.process p WHERE p.key = u.owner)";

/// Keys are never used twice: who is unknown stays so.
const DECLARE_UNKNOWN: &str = "SELECT owner, 0::bigint, 0::bigint FROM unnest($1::bigint[]) AS u(owner)";

const BURY: &str = "DELETE FROM redrive.process WHERE key = ANY($1::bigint[])";

/// Charges the attempt and makes it due now: pending, in its old place in the order. What was running at the death before as
/// well is a suspect. No number that somebody has written there by hand is too large: it would hold all others up.
macro_rules! take_back {
    ($table:literal, $event_key:literal, $subscription:literal, $id:literal, $joined:literal) => {
        concat!(
            "WITH held AS MATERIALIZED (
               SELECT u.* FROM redrive.", $table, " u
               JOIN unnest($1::bigint[], $2::bigint[]) AS d(owner, oldest) ON u.owner = d.owner AND u.key >= d.oldest
               WHERE u.status = 1 FOR UPDATE OF u),
             charged AS (
               INSERT INTO redrive.attempt
                 (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error)
               SELECT ", $event_key, ", ", $subscription, ", least(retry_count, 2147483646) + 1, updated_at,
                      greatest(0, $3 - greatest(updated_at, 0)), $4, 0, $5 FROM held),
             back AS (
               UPDATE redrive.", $table, " u SET status = CASE WHEN u.crashes = 0 THEN 0 ELSE -1 END,
                 due_at = least(u.due_at, $3), updated_at = $3, owner = NULL,
                 ready_at = CASE WHEN u.crashes = 0 THEN greatest(least(u.due_at, $3), 0) ELSE -1 END,
                 first_at = coalesce(u.first_at, u.updated_at),
                 retry_count = least(u.retry_count, 2147483646) + 1, crashes = least(u.crashes, 2147483646) + 1,
                 last_error = CASE WHEN u.last_error IS NULL THEN '[' || $6 || ']'
                                   ELSE left(u.last_error, -1) || ',' || $6 || ']' END
               FROM held WHERE u.key = held.key)
             SELECT ", $id, ".id, ", $id, ".type, nullif(", $subscription, ", ''), least(h.retry_count, 2147483646) + 1, h.due_at
             FROM held h ", $joined
        )
    };
}

const TAKE_EVENTS_BACK: &str = take_back!("event", "key", "''", "h", "");
const TAKE_DELIVERIES_BACK: &str =
    take_back!("delivery", "event_key", "subscription", "e", "JOIN redrive.event e ON e.key = h.event_key");

/// Everything of ours that was lost on its way is there now, or void. What is only on its way is not: who claims finds what is
/// there, and does not look again.
const HOLD_STILL: &str =
    "SELECT oldest_event, oldest_delivery FROM redrive.process WHERE key = $1 FOR UPDATE";
const MAKE_VOID: &str = "UPDATE redrive.process SET void_until = greatest(void_until, $2) WHERE key = $1";
const WHAT_IS_OURS: &str = "
    SELECT true, key, token, 0::bigint FROM redrive.event WHERE key >= $2 AND status = 1 AND owner = $1
    UNION ALL
    SELECT false, key, token, event_key FROM redrive.delivery WHERE key >= $3 AND status = 1 AND owner = $1";

/// As if it had never been claimed: nobody has begun with it. What is to run alone still is.
macro_rules! release {
    ($table:literal) => {
        concat!(
            "UPDATE redrive.",
            $table,
            " u SET status = CASE WHEN u.crashes > 1 THEN -1 WHEN u.retry_count > 0 THEN 2 ELSE 0 END,
               ready_at = CASE WHEN u.crashes > 1 THEN -1 ELSE greatest(u.due_at, 0) END
             FROM unnest($1::bigint[], $2::bigint[]) AS m(key, token)
             WHERE u.key = m.key AND u.token = m.token AND u.status = 1 AND u.owner = $3"
        )
    };
}
const RELEASE_EVENTS: &str = release!("event");
const RELEASE_DELIVERIES: &str = release!("delivery");

/// Who may be declared dead.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Search<'a> {
    /// At the start: also this process's own former life.
    AtTheStart,
    /// As the leader: only by the lease, and only if nobody else is at it.
    AsLeader,
    /// As the leader: those of whom nobody knows anything, though there is work in their hands.
    Unknown(&'a [i64]),
}

/// Takes back what dead processes held.
pub(super) async fn recover(
    shared: &Shared,
    now: Timestamp,
    search: Search<'_>,
) -> Result<Vec<Recovered>, StoreError> {
    let mut keeper = shared.keeper.lock().await;
    let session = shared.keeper_session(&mut keeper).await?;
    session.begin().await.map_err(failure::explain)?;
    let recovered = match recover_in(shared, session, now, search).await {
        Ok(recovered) => recovered,
        Err(error) => {
            session.roll_back().await;
            return Err(error);
        }
    };
    session.commit().await.map_err(failure::explain)?;
    if !recovered.is_empty() {
        shared.event_mark.forget();
        shared.delivery_mark.forget();
        shared.is_due();
        shared.herald.say();
    }
    Ok(recovered)
}

async fn recover_in(
    shared: &Shared,
    session: &Session,
    now: Timestamp,
    search: Search<'_>,
) -> Result<Vec<Recovered>, StoreError> {
    if search != Search::AtTheStart && !leader::fence(shared, session).await? {
        return Ok(Vec::new());
    }
    let turn = if search == Search::AtTheStart { WAIT_FOR_TURN } else { ONE_AT_A_TIME };
    let found = session.query(turn, &[&shared.names.schema()]).await.map_err(failure::explain)?;
    if !found.first().is_some_and(|row| row.get(0)) {
        return Ok(Vec::new());
    }
    let dead = match search {
        Search::Unknown(owners) => {
            session.query(DECLARE_UNKNOWN, &[&owners.to_vec()]).await.map_err(failure::explain)?
        }
        Search::AtTheStart | Search::AsLeader => declare_dead(shared, session, search).await?,
    };
    let column = |column: usize| -> Vec<i64> { dead.iter().map(|row| row.get(column)).collect() };
    let (keys, events, deliveries) = (column(0), column(1), column(2));
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let class = serde_json::to_string(&FailureClass::Crashed).expect("a class always serialises");
    let entry = text::json_entry(CRASHED);
    let mut recovered = Vec::new();
    for (statement, oldest) in [(TAKE_EVENTS_BACK, &events), (TAKE_DELIVERIES_BACK, &deliveries)] {
        let found = session
            .query(statement, &[&keys, oldest, &now.as_millis(), &class.as_str(), &CRASHED, &entry.as_str()])
            .await
            .map_err(failure::explain)?;
        for row in &found {
            recovered.push(taken_back(row));
        }
    }
    session.query(BURY, &[&keys]).await.map_err(failure::explain)?;
    Ok(recovered)
}

/// Who is dead, each with the oldest keys that it may hold.
async fn declare_dead(
    shared: &Shared,
    session: &Session,
    search: Search<'_>,
) -> Result<Vec<Row>, StoreError> {
    let own = shared.known_owner().unwrap_or(0);
    let instance = shared.options.instance.as_str();
    let found = session.query(CANDIDATES, &[&own, &instance]).await.map_err(failure::explain)?;
    let (mut candidates, mut by_lock) = (Vec::new(), Vec::new());
    for row in &found {
        let (key, pid): (i64, i64) = (row.get(0), row.get(1));
        if row.get(2) {
            candidates.push(key);
        } else if search == Search::AtTheStart && row.get(3) && is_gone(pid) {
            candidates.push(key);
            by_lock.push(key);
        }
    }
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let schema = shared.names.schema();
    session.query(DECLARE_DEAD, &[&candidates, &by_lock, &schema]).await.map_err(failure::explain)
}

fn taken_back(row: &Row) -> Recovered {
    Recovered {
        id: rows::event_id(row, 0),
        event_type: rows::event_type(row, 1),
        addressee: rows::addressee(row, 2),
        attempt: rows::small(row, 3),
        error: CRASHED.to_owned(),
    }
}

/// Whether a process of this machine is there no more, as far as that can be known. The own number was somebody's before: in a
/// container it is always the same.
fn is_gone(pid: i64) -> bool {
    let processes = Path::new("/proc");
    pid == i64::from(std::process::id())
        || (processes.join("self").exists() && !processes.join(pid.to_string()).exists())
}

/// After a connection was lost: what the database thinks that we hold, and we have never heard of, or have settled, goes back.
pub(super) async fn reconcile(shared: &Shared, session: &Session) -> Result<usize, StoreError> {
    let Some(owner) = shared.known_owner() else { return Ok(0) };
    let horizon = shared.holdings.horizon();
    session.begin().await.map_err(failure::explain)?;
    let ours = async {
        let held = session.query(HOLD_STILL, &[&owner]).await?;
        let Some(row) = held.first() else { return Ok(Vec::new()) };
        if let Some(last) = horizon.last_lost() {
            session.query(MAKE_VOID, &[&owner, &last]).await?;
        }
        session.query(WHAT_IS_OURS, &[&owner, &row.get::<_, i64>(0), &row.get::<_, i64>(1)]).await
    };
    let ours = match ours.await {
        Ok(ours) => ours,
        Err(error) => {
            session.roll_back().await;
            return Err(failure::explain(error));
        }
    };
    session.commit().await.map_err(failure::explain)?;
    let (mut events, mut deliveries) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for row in &ours {
        let (key, token): (i64, i64) = (row.get(1), row.get(2));
        let is_event: bool = row.get(0);
        let unit = if is_event {
            UnitKey::Event(key)
        } else {
            UnitKey::Delivery { delivery: key, event: row.get(3) }
        };
        if shared.holdings.has_missed(&horizon, unit, token) {
            let missed = if is_event { &mut events } else { &mut deliveries };
            missed.0.push(key);
            missed.1.push(token);
        }
    }
    let mut released = 0;
    for (statement, (keys, tokens)) in [(RELEASE_EVENTS, events), (RELEASE_DELIVERIES, deliveries)] {
        if !keys.is_empty() {
            released += keys.len();
            session.query(statement, &[&keys, &tokens, &owner]).await.map_err(failure::explain)?;
        }
    }
    shared.holdings.found(&horizon);
    if released > 0 {
        tracing::warn!(target: "redrive::store", released, "claims whose answer was lost go back");
        shared.event_mark.forget();
        shared.delivery_mark.forget();
        shared.is_due();
        shared.herald.say();
    }
    Ok(released)
}
