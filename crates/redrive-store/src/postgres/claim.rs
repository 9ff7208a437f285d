//! Taking due work, as much as there is room for.

use std::sync::Arc;

use redrive_retry::Timestamp;
use tokio_postgres::Row;

use super::failure::{self, Fate};
use super::mark::Mark;
use super::session::Session;
use super::value::Value;
use super::{Shared, elsewhere, leader, rows};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::store::{Call, CalledUp};
use crate::work::{ClaimSink, Claimed, Fence, HELD, Slot, UnitKey, handled_before};

/// Never more than this of one kind in one transaction, so that nobody waits behind a large claim.
const MOST: usize = 512;

/// One short transaction. What others are about to claim is passed over. Who is not known any more, because it was declared
/// dead, takes nothing; and nobody is declared dead while it claims. Losing the claim with the power costs nothing, so it is not
/// waited for that it is on disk.
macro_rules! take {
    ($table:literal, $which:expr, $due:literal, $oldest:literal, $event:literal, $columns:literal, $joined:literal) => {
        concat!(
            "WITH me AS MATERIALIZED (
               SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR KEY SHARE),
             due AS MATERIALIZED (",
            $which,
            "), taken AS (
               UPDATE redrive.",
            $table,
            " u SET status = 1, owner = $1, token = $2, ready_at = NULL, updated_at = $3",
            $due,
            " FROM due WHERE u.key = due.key AND EXISTS (SELECT 1 FROM me) RETURNING u.*),
             floor AS (
               UPDATE redrive.process p SET ",
            $oldest,
            " = t.key FROM (SELECT min(key) AS key FROM taken) t
               WHERE p.key = $1 AND t.key < p.",
            $oldest,
            ")
             SELECT t.due_at, t.key, t.retry_count, t.first_at, ",
            $event,
            ".id, ",
            $event,
            ".type, b.payload, b.metadata, ",
            $event,
            ".created_at, b.retry, ",
            $columns,
            " FROM taken t ",
            $joined,
            " ORDER BY t.due_at, t.key"
        )
    };
}

/// What is due in one table. Suspects have a place of their own, and their time.
macro_rules! due {
    ($table:literal, $which:literal) => {
        concat!(
            "SELECT key FROM redrive.",
            $table,
            " WHERE ready_at BETWEEN $4 AND $5",
            $which,
            " AND (ready_at >= 0 OR coalesce(due_at, 0) <= $3)
              AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
              ORDER BY ready_at, key LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED"
        )
    };
}

const TAKE_EVENTS: &str = take!(
    "event",
    due!("event", ""),
    "",
    "oldest_event",
    "t",
    "t.owes, t.handled",
    "LEFT JOIN redrive.payload b ON b.event_key = t.key"
);

const TAKE_DELIVERIES: &str = take!(
    "delivery",
    due!("delivery", " AND subscription <> ALL($7::text[])"), // what is left to others
    "",
    "oldest_delivery",
    "e",
    "t.event_key, t.subscription",
    "JOIN redrive.event e ON e.key = t.event_key LEFT JOIN redrive.payload b ON b.event_key = t.event_key"
);

/// For each subscription so many; the literal is that of the index.
const TAKE_HELD: &str = take!(
    "delivery",
    "SELECT h.key FROM unnest($4::text[], $5::bigint[]) AS call(name, most), LATERAL (
       SELECT key FROM redrive.delivery WHERE ready_at = 9000000000000000 AND subscription = call.name
       AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
       ORDER BY key LIMIT call.most FOR NO KEY UPDATE SKIP LOCKED) h LIMIT $6",
    ", due_at = $3",
    "oldest_delivery",
    "e",
    "t.event_key, t.subscription",
    "JOIN redrive.event e ON e.key = t.event_key LEFT JOIN redrive.payload b ON b.event_key = t.event_key"
);

/// Only among those that would be claimed next, so that it never looks at everything. What another process claims meanwhile is left
/// to it. Losing it costs nothing.
const HOLD: &str = "
    UPDATE redrive.delivery u SET due_at = 9000000000000000, ready_at = 9000000000000000, updated_at = $1 FROM (
      SELECT key, subscription FROM redrive.delivery WHERE ready_at BETWEEN $2 AND $1
      AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL ORDER BY ready_at, key LIMIT $3) d
    WHERE u.key = d.key AND d.subscription = ANY($4::text[]) AND u.ready_at BETWEEN $2 AND $1 RETURNING u.subscription";

/// So much of what is due is looked at to put some of it off.
const AHEAD: i64 = 2048;

/// The earliest that waits in one table, if anything does.
const NEXT_EVENT: &str =
    "SELECT ready_at FROM redrive.event WHERE ready_at >= $1 ORDER BY ready_at, key LIMIT 1";
const NEXT_DELIVERY: &str =
    "SELECT ready_at FROM redrive.delivery WHERE ready_at >= $1 AND subscription <> ALL($2::text[])
     ORDER BY ready_at, key LIMIT 1";

/// Whether there are any, and whether there are some that only who has the subscription can run, and the leader has not.
const HAS_SUSPECTS: &str = "
    WITH owed AS MATERIALIZED (
      SELECT DISTINCT subscription FROM redrive.delivery
      WHERE ready_at = -1 AND coalesce(due_at, 0) <= $1 AND subscription <> ALL($2::text[]))
    SELECT EXISTS (SELECT 1 FROM redrive.event WHERE ready_at = -1 AND coalesce(due_at, 0) <= $1)
             OR EXISTS (SELECT 1 FROM owed),
           EXISTS (
             SELECT 1 FROM owed JOIN redrive.subscriber o ON o.boot = $3 AND o.name = owed.subscription
             WHERE NOT EXISTS (SELECT 1 FROM redrive.subscriber s JOIN redrive.leader l ON l.boot = s.boot
                               WHERE s.name = o.name))";

/// Where suspects are in the index: before everything else.
const SUSPECTS: i64 = -1;

/// Claims for whoever is attached, and says how much that was.
pub(super) async fn claim(shared: &Shared, now: Timestamp) -> Result<usize, StoreError> {
    // One at a time: places that one claim holds for what it may find are missing to another.
    let mut claimer = shared.claimer.lock().await;
    if shared.sink().is_none() {
        return Ok(0);
    }
    let mut total = 0;
    for is_second in [false, true] {
        let owner = shared.owner().await?;
        let left = elsewhere::look(shared).await?.left_to_others.to_vec();
        let session = shared.own_session(&mut claimer).await?;
        for kind in [&DELIVERIES, &EVENTS] {
            // With the sink that is attached now, and only if it still is.
            let (sink, slots) = shared.places(MOST);
            let (Some(sink), false) = (sink, slots.is_empty()) else { continue };
            let claimed = kind.take_due(shared, session, (owner, &left), now, slots).await?;
            total += claimed.len();
            shared.hand_over(&sink, claimed);
        }
        // Nothing to be found, or nothing for us?
        if total > 0 || is_second || shared.is_known(session, owner).await? {
            break;
        }
        shared.begin_anew(owner);
    }
    Ok(total)
}

/// One unit that was running when its process died, and again the next time: no longer there by accident.
pub(super) async fn claim_suspect(
    shared: &Shared,
    now: Timestamp,
    sink: &ClaimSink,
) -> Result<Option<Claimed>, StoreError> {
    let mut claimer = shared.claimer.lock().await;
    let owner = shared.owner().await?;
    let left = elsewhere::look(shared).await?.left_to_others.to_vec();
    let session = shared.own_session(&mut claimer).await?;
    for kind in [&EVENTS, &DELIVERIES] {
        let Some(slot) = sink.take() else { return Ok(None) };
        let mut claimed =
            kind.take_between(shared, session, (owner, &left), now, (SUSPECTS, SUSPECTS), vec![slot]).await?;
        if let Some((_, claimed)) = claimed.pop() {
            return Ok(Some(claimed));
        }
    }
    Ok(None)
}

/// Puts off what is due to these subscriptions.
pub(super) async fn hold(
    shared: &Shared,
    session: &Session,
    names: &[SubscriptionName],
    now: Timestamp,
) -> Result<Vec<usize>, StoreError> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let from = shared.delivery_mark.from().ready_at.max(0); // suspects are not put off
    let held = session.query(HOLD, &[&now.as_millis(), &from, &AHEAD, &names]).await;
    let held = held.map_err(failure::explain)?;
    let count = |name: &String| held.iter().filter(|row| row.get::<_, &str>(0) == name).count();
    Ok(names.iter().map(count).collect())
}

/// Takes what is held for subscriptions, oldest first. What another process is about to take is passed over.
pub(super) async fn call_up(
    shared: &Shared,
    calls: &[Call],
    now: Timestamp,
) -> Result<Vec<CalledUp>, StoreError> {
    let mut claimer = shared.claimer.lock().await;
    let mut answers = vec![CalledUp { claimed: 0, may_be_more: true }; calls.len()];
    for is_second in [false, true] {
        let owner = shared.owner().await?;
        let session = shared.own_session(&mut claimer).await?;
        let (sink, slots) = shared.places(calls.iter().map(|call| call.most).sum::<usize>().min(MOST));
        let (Some(sink), false) = (sink, slots.is_empty()) else { break };
        let names: Vec<String> = calls.iter().map(|call| call.name.to_string()).collect();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let most: Vec<i64> = calls.iter().map(|call| count(call.most)).collect();
        let places = count(slots.len());
        let taken =
            HELD_DELIVERIES.take(shared, session, owner, now, &[&names, &most, &places], slots).await?;
        let is_done = !taken.is_empty() || is_second || shared.is_known(session, owner).await?;
        // Who comes late may have found no place: only where there were more places than were needed is everything known.
        let is_cut = count(taken.len()) == places;
        for (answer, call) in answers.iter_mut().zip(calls) {
            let is_its_own = |(_, claimed): &&(i64, Claimed)| claimed.addressee.as_ref() == Some(&call.name);
            answer.claimed = taken.iter().filter(is_its_own).count();
            answer.may_be_more = is_cut || answer.claimed == call.most;
        }
        shared.hand_over(&sink, taken.into_iter().map(|(_, claimed)| claimed).collect());
        if is_done {
            break;
        }
        shared.begin_anew(owner);
    }
    Ok(answers)
}

/// Whether any are there for this process: the leader's, because whoever runs them takes up nothing else meanwhile, and that need
/// not be everybody; or those of a subscription that the leader does not have. They are where the index begins, so it is a look at
/// its first entries.
pub(super) async fn has_suspects(
    shared: &Shared,
    session: &Session,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let left = elsewhere::look(shared).await?.left_to_others.to_vec();
    let found = session.query(HAS_SUSPECTS, &[&now.as_millis(), &left, &shared.boot]).await;
    let found = found.map_err(failure::explain)?;
    let Some(row) = found.first().filter(|row| row.get(0)) else { return Ok(false) };
    Ok(row.get(1) || leader::leads(shared, session).await?)
}

/// One of the two tables.
struct Kind {
    statement: &'static str,
    make: fn(&Row, Timestamp, Slot) -> Claimed,
    mark: fn(&Shared) -> &Mark,
    /// Whether it can be left to others.
    is_owed_to_one: bool,
}

/// Who claims, and the subscriptions that it leaves to others.
type Who<'a> = (i64, &'a Vec<String>);

const EVENTS: Kind =
    Kind { statement: TAKE_EVENTS, make: event, mark: |shared| &shared.event_mark, is_owed_to_one: false };
const DELIVERIES: Kind = Kind {
    statement: TAKE_DELIVERIES,
    make: delivery,
    mark: |shared| &shared.delivery_mark,
    is_owed_to_one: true,
};
const HELD_DELIVERIES: Kind = Kind { statement: TAKE_HELD, ..DELIVERIES };

impl Kind {
    async fn take_due(
        &self,
        shared: &Shared,
        session: &Session,
        who: Who<'_>,
        now: Timestamp,
        slots: Vec<Slot>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let from = (self.mark)(shared).from();
        let range = (from.ready_at, now.as_millis());
        let taken = self.take_between(shared, session, who, now, range, slots).await?;
        if let Some((due_at, _)) = taken.last() {
            (self.mark)(shared).raise(from, *due_at);
        }
        Ok(taken.into_iter().map(|(_, claimed)| claimed).collect())
    }

    /// What has its place in the index between these two.
    async fn take_between(
        &self,
        shared: &Shared,
        session: &Session,
        (owner, left): Who<'_>,
        now: Timestamp,
        (from, until): (i64, i64),
        slots: Vec<Slot>,
    ) -> Result<Vec<(i64, Claimed)>, StoreError> {
        let limit = i64::try_from(slots.len()).unwrap_or(0);
        let which: [&dyn Value; 4] = [&from, &until, &limit, left];
        let which = if self.is_owed_to_one { &which[..] } else { &which[..3] };
        self.take(shared, session, owner, now, which, slots).await
    }

    /// With the time at which each was due, earliest first.
    async fn take(
        &self,
        shared: &Shared,
        session: &Session,
        owner: i64,
        now: Timestamp,
        which: &[&dyn Value],
        slots: Vec<Slot>,
    ) -> Result<Vec<(i64, Claimed)>, StoreError> {
        let fence = Fence { owner, token: shared.holdings.send() };
        let now_ms = now.as_millis();
        let mut values: Vec<&dyn Value> = vec![&owner, &fence.token, &now_ms];
        values.extend(which);
        let found = session.query(self.statement, &values).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                if failure::fate(&error) == Fate::Lost {
                    shared.holdings.lose(fence.token); // if it was done all the same, that is found out, and undone
                } else {
                    shared.holdings.receive(fence.token, []);
                }
                return Err(shared.explain(error));
            }
        };
        let mut taken = Vec::with_capacity(found.len());
        for (row, slot) in found.iter().zip(slots) {
            // Without a due time, somebody has changed it by hand: then it was due at once.
            let due_at: Option<i64> = row.get(0);
            taken.push((due_at.unwrap_or(0), Claimed { fence, ..(self.make)(row, now, slot) }));
        }
        shared.holdings.receive(fence.token, taken.iter().map(|(_, claimed)| claimed.unit));
        Ok(taken)
    }
}

fn event(row: &Row, now: Timestamp, slot: Slot) -> Claimed {
    let event = Arc::new(rows::stored_event(row, 4));
    let unit = UnitKey::Event(row.get(1));
    let again = Claimed::again(event, None, first_at(row, now), rows::small(row, 2), unit, slot);
    Claimed { owes: row.get(10), handled: handled_before(row.get(11)), ..again }
}

fn delivery(row: &Row, now: Timestamp, slot: Slot) -> Claimed {
    let event = Arc::new(rows::stored_event(row, 4));
    let unit = UnitKey::Delivery { delivery: row.get(1), event: row.get(10) };
    let addressee = rows::subscription(row, 11);
    Claimed::again(event, Some(addressee), first_at(row, now), rows::small(row, 2), unit, slot)
}

fn first_at(row: &Row, now: Timestamp) -> Timestamp {
    row.get::<_, Option<i64>>(3).map_or(now, Timestamp::from_millis)
}

/// The earliest instant at which anything is due.
pub(super) async fn next_due(shared: &Shared, session: &Session) -> Result<Option<Timestamp>, StoreError> {
    let (events, deliveries) = (shared.event_mark.from(), shared.delivery_mark.from());
    let left = elsewhere::look(shared).await?.left_to_others.to_vec();
    let (events, deliveries): ([&dyn Value; 1], [&dyn Value; 2]) =
        ([&events.ready_at], [&deliveries.ready_at, &left]);
    let (events, deliveries) =
        tokio::join!(session.query(NEXT_EVENT, &events), session.query(NEXT_DELIVERY, &deliveries));
    let earliest = |rows: Vec<Row>| rows.first().map(|row| row.get::<_, i64>(0));
    let event = earliest(events.map_err(failure::explain)?);
    let delivery = earliest(deliveries.map_err(failure::explain)?);
    Ok(event.into_iter().chain(delivery).min().map(Timestamp::from_millis).filter(|due| *due != HELD))
}
