//! Claims due events and deliveries for the free slots of the dispatcher's sink.

use std::sync::{Arc, LazyLock};

use redrive_retry::Timestamp;
use tokio_postgres::Row;

use super::failure::{self, ErrorClass};
use super::low_water_mark::LowWaterMark;
use super::session::Session;
use super::value::Value;
use super::{Shared, leader, remote_subscriptions, rows, status};
use crate::due::Due;
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::store::{BacklogClaimed, BacklogRequest, MAX_CLAIM_ROWS, MAX_EXAMINED_ROWS};
use crate::work::{ClaimKey, ClaimSink, Claimed, Fence, Slot, handled_before};

/// Claims rows in one short transaction, and skips rows that other processes are claiming. A process that was declared dead
/// claims nothing, and the lock on its row keeps it from being declared dead during the claim. Commits asynchronously: a
/// crash that undoes a claim does no harm.
const CLAIM: &str = "
    WITH me AS MATERIALIZED (
      SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR KEY SHARE),
    due AS MATERIALIZED (@due),
    taken AS (
      UPDATE redrive.@table u SET status = 1, owner = $1, token = $2, ready_at = NULL, updated_at = $3@set
      FROM due WHERE u.key = due.key AND EXISTS (SELECT 1 FROM me) RETURNING u.*),
    floor AS (
      UPDATE redrive.process p SET oldest_@table = t.key FROM (SELECT min(key) AS key FROM taken) t
      WHERE p.key = $1 AND t.key < p.oldest_@table)
    SELECT t.due_at, t.key, t.retry_count, t.first_at, @event.id, @event.type, b.payload, b.metadata, @event.created_at,
           b.retry, @columns
    FROM taken t @joined ORDER BY t.due_at, t.key";

/// Selects the due rows of one table. Crash suspects have a ready time of -1 and are due by `due_at`.
const SELECT_DUE: &str = "
    SELECT key FROM redrive.@table WHERE ready_at BETWEEN $4 AND $5@not_remote
    AND (ready_at >= 0 OR coalesce(due_at, 0) <= $3)
    AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
    ORDER BY @order, key LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED";

/// Selects the deliveries of some subscriptions that consumers hold under these leases. Waits for a concurrent extension.
const SELECT_LEASED: &str = "
    SELECT d.key FROM redrive.delivery d JOIN unnest($4::bigint[], $5::text[]) AS held(key, lease)
      ON d.key = held.key AND d.lease = held.lease
    WHERE d.subscription = ANY($6::text[]) AND d.status = -2 AND d.due_at > $3
    AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
    ORDER BY d.key FOR NO KEY UPDATE OF d";

/// A claim of a leased delivery keeps the time at which the lease began.
const KEEP_LEASED_AT: &str = ", leased_at = CASE WHEN u.status = -2 THEN u.leased_at END";

/// The order of work that is claimed as usual: that of the index.
const BY_READY_TIME: &str = "ready_at";

/// The order of crash suspects, whose ready times are equal. They are few, so the sort is cheap.
const BY_DUE_TIME: &str = "coalesce(due_at, 0)";

/// Selects backlog deliveries, up to a number for each subscription. The literal is that of the partial index.
const SELECT_BACKLOG: &str = "
    SELECT h.key FROM unnest($4::text[], $5::bigint[]) AS request(name, max), LATERAL (
      SELECT key FROM redrive.delivery WHERE ready_at = 9000000000000000 AND subscription = request.name
      AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
      ORDER BY key LIMIT request.max FOR NO KEY UPDATE SKIP LOCKED) h LIMIT $6";

static CLAIM_EVENTS: LazyLock<String> = LazyLock::new(|| claim_events(BY_READY_TIME));
static CLAIM_SUSPECT_EVENTS: LazyLock<String> = LazyLock::new(|| claim_events(BY_DUE_TIME));
static CLAIM_DELIVERIES: LazyLock<String> = LazyLock::new(|| claim_due_deliveries(BY_READY_TIME));
static CLAIM_SUSPECT_DELIVERIES: LazyLock<String> = LazyLock::new(|| claim_due_deliveries(BY_DUE_TIME));
static CLAIM_LEASED: LazyLock<String> = LazyLock::new(|| claim_deliveries(SELECT_LEASED, ""));
static CLAIM_BACKLOG: LazyLock<String> = LazyLock::new(|| claim_deliveries(SELECT_BACKLOG, ", due_at = $3"));

fn claim_events(order: &str) -> String {
    let due = SELECT_DUE.replace("@not_remote", "").replace("@order", order);
    let claim = CLAIM.replace("@due", &due).replace("@set", "");
    let claim = claim
        .replace("@table", "event")
        .replace("@event", "t")
        .replace("@columns", "t.last_error, t.owes, t.handled");
    claim.replace("@joined", "LEFT JOIN redrive.payload b ON b.event_key = t.key")
}

fn claim_due_deliveries(order: &str) -> String {
    let due = SELECT_DUE.replace("@not_remote", " AND subscription <> ALL($7::text[])");
    claim_deliveries(&due.replace("@order", order), "")
}

fn claim_deliveries(due: &str, set: &str) -> String {
    let set = format!("{set}{KEEP_LEASED_AT}");
    let claim = CLAIM.replace("@due", due).replace("@set", &set).replace("@table", "delivery");
    let joined = "JOIN redrive.event e ON e.key = t.event_key LEFT JOIN redrive.payload b ON b.event_key = t.event_key";
    claim
        .replace("@event", "e")
        .replace("@columns", "t.last_error, t.event_key, t.subscription, e.status, t.leased_at")
        .replace("@joined", joined)
}

/// The first claim of a redriven delivery ends the time in which its event is pending.
const START_DELIVERING: &str =
    "UPDATE redrive.event SET status = 5 WHERE key = ANY($1::bigint[]) AND status = 6";

/// Defers due deliveries of some subscriptions to the backlog. Scans only the deliveries that would be claimed next, and
/// skips those that another process claims meanwhile. Commits asynchronously.
const DEFER_TO_BACKLOG: &str = "
    UPDATE redrive.delivery u SET due_at = 9000000000000000, ready_at = 9000000000000000, updated_at = $1 FROM (
      SELECT key, subscription FROM redrive.delivery WHERE ready_at BETWEEN $2 AND $1 AND status <> -2
      AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL ORDER BY ready_at, key LIMIT $3) d
    WHERE u.key = d.key AND d.subscription = ANY($4::text[]) AND u.ready_at BETWEEN $2 AND $1 AND u.status <> -2
    RETURNING u.subscription";

/// Selects the earliest ready time of one table.
const NEXT_EVENT: &str =
    "SELECT ready_at FROM redrive.event WHERE ready_at >= $1 ORDER BY ready_at, key LIMIT 1";
const NEXT_DELIVERY: &str =
    "SELECT ready_at FROM redrive.delivery WHERE ready_at >= $1 AND subscription <> ALL($2::text[])
     ORDER BY ready_at, key LIMIT 1";

/// Selects whether suspects are due, and whether one is of a subscription that this process has and the leader does not.
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

/// The ready time of crash suspects, before all others in the index.
const SUSPECT_READY_AT: i64 = -1;

/// Claims due work for the attached sink. Returns the number of claims.
pub(super) async fn claim(shared: &Shared, now: Timestamp) -> Result<usize, StoreError> {
    // One claim at a time: a second one would find the slots taken.
    let mut claim_session = shared.claim_session.lock().await;
    if shared.sink().is_none() {
        return Ok(0);
    }
    let mut total = 0;
    for is_retry in [false, true] {
        let owner = shared.owner().await?;
        let remote = remote_subscriptions::current(shared).await?.left_to_others.to_vec();
        let session = shared.dedicated_session(&mut claim_session).await?;
        for kind in [&DELIVERIES, &EVENTS] {
            // The sink may have been detached or replaced.
            let (sink, slots) = shared.take_slots(MAX_CLAIM_ROWS);
            let (Some(sink), false) = (sink, slots.is_empty()) else { continue };
            let claimed = kind.take_due(&Claimant { shared, session, owner, now }, &remote, slots).await?;
            total += claimed.len();
            shared.hand_over(&sink, claimed);
        }
        // An empty claim may mean that this process was declared dead.
        if total > 0 || is_retry || shared.is_registered(session, owner).await? {
            break;
        }
        shared.rejoin(owner);
    }
    Ok(total)
}

/// Claims one crash suspect: an event or delivery that was running at more than one crash.
pub(super) async fn claim_suspect(
    shared: &Shared,
    now: Timestamp,
    sink: &ClaimSink,
) -> Result<Option<Claimed>, StoreError> {
    let mut claim_session = shared.claim_session.lock().await;
    let owner = shared.owner().await?;
    let remote = remote_subscriptions::current(shared).await?.left_to_others.to_vec();
    let session = shared.dedicated_session(&mut claim_session).await?;
    let claimant = Claimant { shared, session, owner, now };
    let range = (SUSPECT_READY_AT, SUSPECT_READY_AT);
    for kind in [&SUSPECT_EVENTS, &SUSPECT_DELIVERIES] {
        let Some(slot) = sink.take() else { return Ok(None) };
        let mut claimed = kind.take_between(&claimant, &remote, range, vec![slot]).await?;
        if let Some((_, claimed)) = claimed.pop() {
            return Ok(Some(claimed));
        }
    }
    Ok(None)
}

/// Defers due deliveries of these subscriptions to the backlog. Returns the number for each.
pub(super) async fn defer_to_backlog(
    shared: &Shared,
    session: &Session,
    names: &[SubscriptionName],
    now: Timestamp,
) -> Result<Vec<usize>, StoreError> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let from = shared.delivery_low_water.scan_start().ready_at.max(0); // not the suspects
    let deferred =
        session.query(DEFER_TO_BACKLOG, &[&now.as_millis(), &from, &MAX_EXAMINED_ROWS, &names]).await?;
    let count = |name: &String| deferred.iter().filter(|row| row.get::<_, &str>(0) == name).count();
    Ok(names.iter().map(count).collect())
}

/// Claims backlog deliveries of subscriptions, oldest first. Skips those that another process is claiming.
pub(super) async fn claim_backlog(
    shared: &Shared,
    requests: &[BacklogRequest],
    now: Timestamp,
) -> Result<Vec<BacklogClaimed>, StoreError> {
    let mut claim_session = shared.claim_session.lock().await;
    let mut answers = vec![BacklogClaimed { claimed: 0, may_be_more: true }; requests.len()];
    for is_retry in [false, true] {
        let owner = shared.owner().await?;
        let session = shared.dedicated_session(&mut claim_session).await?;
        let limits = requests.iter().map(|request| request.limit);
        let (sink, slots) = shared.take_slots(limits.sum::<usize>().min(MAX_CLAIM_ROWS));
        let (Some(sink), false) = (sink, slots.is_empty()) else { break };
        let names: Vec<String> = requests.iter().map(|request| request.name.to_string()).collect();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let limits: Vec<i64> = requests.iter().map(|request| count(request.limit)).collect();
        let free = count(slots.len());
        let claimant = Claimant { shared, session, owner, now };
        let taken = BACKLOG_DELIVERIES.take(&claimant, &[&names, &limits, &free], slots).await?;
        let is_done = !taken.is_empty() || is_retry || shared.is_registered(session, owner).await?;
        // If all slots were used, later requests may have been cut short.
        let is_cut = count(taken.len()) == free;
        for (answer, request) in answers.iter_mut().zip(requests) {
            let is_its_own =
                |(_, claimed): &&(i64, Claimed)| claimed.subscription.as_ref() == Some(&request.name);
            answer.claimed = taken.iter().filter(is_its_own).count();
            answer.may_be_more = is_cut || answer.claimed == request.limit;
        }
        shared.hand_over(&sink, taken.into_iter().map(|(_, claimed)| claimed).collect());
        if is_done {
            break;
        }
        shared.rejoin(owner);
    }
    Ok(answers)
}

/// Whether this process has to run crash suspects. The leader runs them, because a process that runs a suspect claims nothing
/// else meanwhile; other processes run only those of subscriptions that the leader does not have. Suspects are the first
/// entries of the index, so the query is cheap.
pub(super) async fn has_suspects(
    shared: &Shared,
    session: &Session,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let remote = remote_subscriptions::current(shared).await?.left_to_others.to_vec();
    let found = session.query_first(HAS_SUSPECTS, &[&now.as_millis(), &remote, &shared.boot]).await?;
    let Some(row) = found.filter(|row| row.get(0)) else { return Ok(false) };
    Ok(row.get(1) || leader::leads(shared, session).await?)
}

/// The table to claim from.
pub(super) struct Kind {
    statement: fn() -> &'static str,
    /// Reads a claimed row.
    read: fn(&Row, Timestamp, Slot) -> Claimed,
    low_water: fn(&Shared) -> &LowWaterMark,
    /// Whether the statement excludes remote subscriptions.
    excludes_remote: bool,
    /// The events of the claimed rows that are pending since a redrive.
    redriven: fn(&[Row]) -> Vec<i64>,
}

/// The claiming process, its connection and the time of the claim.
pub(super) struct Claimant<'a> {
    pub(super) shared: &'a Shared,
    pub(super) session: &'a Session,
    pub(super) owner: i64,
    pub(super) now: Timestamp,
}

const EVENTS: Kind = Kind {
    statement: || &CLAIM_EVENTS,
    read: event,
    low_water: |shared| &shared.event_low_water,
    excludes_remote: false,
    redriven: |_| Vec::new(),
};
const DELIVERIES: Kind = Kind {
    statement: || &CLAIM_DELIVERIES,
    read: delivery,
    low_water: |shared| &shared.delivery_low_water,
    excludes_remote: true,
    redriven: |rows| {
        let is_redriven = |row: &&Row| row.get::<_, i16>(13) == status::REDRIVEN;
        rows.iter().filter(is_redriven).map(|row| row.get(11)).collect()
    },
};
const SUSPECT_EVENTS: Kind = Kind { statement: || &CLAIM_SUSPECT_EVENTS, ..EVENTS };
const SUSPECT_DELIVERIES: Kind = Kind { statement: || &CLAIM_SUSPECT_DELIVERIES, ..DELIVERIES };
pub(super) const LEASED_DELIVERIES: Kind = Kind { statement: || &CLAIM_LEASED, ..DELIVERIES };
const BACKLOG_DELIVERIES: Kind = Kind { statement: || &CLAIM_BACKLOG, ..DELIVERIES };

impl Kind {
    /// Claims due rows, except the deliveries of `remote` subscriptions, which are left to other processes.
    async fn take_due(
        &self,
        claimant: &Claimant<'_>,
        remote: &Vec<String>,
        slots: Vec<Slot>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let mark = (self.low_water)(claimant.shared);
        let from = mark.scan_start();
        let range = (from.ready_at, claimant.now.as_millis());
        let taken = self.take_between(claimant, remote, range, slots).await?;
        if let Some((due_at, _)) = taken.last() {
            mark.raise(from, *due_at);
        }
        Ok(taken.into_iter().map(|(_, claimed)| claimed).collect())
    }

    /// Claims rows whose ready time is in a range.
    async fn take_between(
        &self,
        claimant: &Claimant<'_>,
        remote: &Vec<String>,
        (from, until): (i64, i64),
        slots: Vec<Slot>,
    ) -> Result<Vec<(i64, Claimed)>, StoreError> {
        let limit = i64::try_from(slots.len()).unwrap_or(0);
        let which: [&dyn Value; 4] = [&from, &until, &limit, remote];
        let which = if self.excludes_remote { &which[..] } else { &which[..3] };
        self.take(claimant, which, slots).await
    }

    /// Runs the claim statement. Returns the claims with their due times, earliest first.
    pub(super) async fn take(
        &self,
        claimant: &Claimant<'_>,
        which: &[&dyn Value],
        slots: Vec<Slot>,
    ) -> Result<Vec<(i64, Claimed)>, StoreError> {
        let Claimant { shared, session, owner, now } = *claimant;
        let fence = Fence { owner, token: shared.owned_claims.begin_claim() };
        let now_ms = now.as_millis();
        let mut values: Vec<&dyn Value> = vec![&owner, &fence.token, &now_ms];
        values.extend(which);
        let found = match session.query((self.statement)(), &values).await {
            Ok(found) => found,
            Err(error) => {
                if failure::classify(&error) == ErrorClass::ConnectionLost {
                    shared.owned_claims.lose_answer(fence.token); // reconciliation releases what it claimed
                } else {
                    shared.owned_claims.finish_claim(fence.token, []);
                }
                return Err(shared.explain(error));
            }
        };
        let redriven = (self.redriven)(&found);
        let mut taken = Vec::with_capacity(found.len());
        for (row, slot) in found.iter().zip(slots) {
            // A due time that was deleted by hand counts as due at once.
            let due_at: Option<i64> = row.get(0);
            taken.push((due_at.unwrap_or(0), Claimed { fence, ..(self.read)(row, now, slot) }));
        }
        shared.owned_claims.finish_claim(fence.token, taken.iter().map(|(_, claimed)| claimed.key));
        // The claim holds whether this succeeds or not.
        if !redriven.is_empty()
            && let Err(error) = session.query(START_DELIVERING, &[&redriven]).await
        {
            tracing::warn!(target: "redrive::store", %error, "redriven events are still shown as pending");
        }
        Ok(taken)
    }
}

fn event(row: &Row, now: Timestamp, slot: Slot) -> Claimed {
    let event = Arc::new(rows::stored_event(row, 4));
    let key = ClaimKey::Event(row.get(1));
    let again = Claimed::again(event, None, first_at(row, now), rows::small(row, 2), key, slot);
    let (errors, handled) = (rows::errors_before(row, 10), row.get::<_, Option<&str>>(12));
    let (was_dispatched, handled) = (handled.is_some(), handled_before(handled));
    Claimed { has_open_deliveries: row.get(11), handled, was_dispatched, errors, ..again }
}

fn delivery(row: &Row, now: Timestamp, slot: Slot) -> Claimed {
    let event = Arc::new(rows::stored_event(row, 4));
    let key = ClaimKey::Delivery { delivery: row.get(1), event: row.get(11) };
    let subscription = rows::subscription(row, 12);
    let leased_at = row.get::<_, Option<i64>>(14).map(Timestamp::from_millis);
    let started_at = first_at(row, leased_at.unwrap_or(now));
    let again = Claimed::again(event, Some(subscription), started_at, rows::small(row, 2), key, slot);
    Claimed { errors: rows::errors_before(row, 10), leased_at, ..again }
}

fn first_at(row: &Row, now: Timestamp) -> Timestamp {
    row.get::<_, Option<i64>>(3).map_or(now, Timestamp::from_millis)
}

/// Reads the earliest due time of all work that this process can claim.
pub(super) async fn next_due(shared: &Shared, session: &Session) -> Result<Option<Timestamp>, StoreError> {
    let (events, deliveries) = (shared.event_low_water.scan_start(), shared.delivery_low_water.scan_start());
    let remote = remote_subscriptions::current(shared).await?.left_to_others.to_vec();
    let (events, deliveries): ([&dyn Value; 1], [&dyn Value; 2]) =
        ([&events.ready_at], [&deliveries.ready_at, &remote]);
    let (events, deliveries) = tokio::join!(
        session.query_first(NEXT_EVENT, &events),
        session.query_first(NEXT_DELIVERY, &deliveries)
    );
    let earliest = events?.into_iter().chain(deliveries?).map(|row| row.get::<_, i64>(0)).min();
    Ok(earliest.and_then(|due| Due::from_sql_millis(due).at()))
}
