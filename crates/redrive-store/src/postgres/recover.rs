//! Taking back what dead processes held.
//!
//! A process is dead when its lease has run out, by the database's clock; the leader looks for those. One that has come back on
//! the same machine need not wait for that: the lock of its former life is free. And one that was closed has said so itself.
//!
//! Whoever is declared dead can claim nothing any more, also if it wakes: that stands in its row, and every claim looks there. So
//! what it holds only becomes less, and can be taken back page by page, each in a transaction of its own, however much it is. Each
//! page raises the oldest key in that row, in the same transaction. Whoever goes on with a takeover that was cut off begins there,
//! and finds nothing that is back already: it is not running any more, or not in these hands. What the dead one settles before its
//! page comes is settled. It is buried last: as long as its row is there, something may be left.

use std::path::Path;

use redrive_retry::{FailureClass, Timestamp};
use tokio_postgres::Row;

use super::estate::{DELIVERIES, EVENTS, Page, Table};
use super::process::{DEAD, has_run_out};
use super::session::Session;
use super::value::Value;
use super::{Shared, failure, leader, rows, text};
use crate::error::StoreError;
use crate::work::Recovered;

/// What stands in the errors of an event whose process died.
const CRASHED: &str = "process ended during the attempt";

/// Of all others: who has left its work to whoever comes, who was declared dead, whose lease has run out, and who was called
/// as we are.
const OTHERS: &str = concat!(
    "SELECT key, pid, beats_at = 0, void_until = $3, ",
    has_run_out!(),
    ", instance = $2 AND has_lock FROM redrive.process WHERE key <> $1 ORDER BY key"
);

/// Locks the row against claims, and waits for what is being claimed at the moment, or comes again later. From then on the
/// process claims nothing, under this key.
macro_rules! declare_dead {
    ($wait:literal) => {
        concat!(
            "WITH dead AS MATERIALIZED (
               SELECT key FROM redrive.process WHERE key = $1 AND (void_until = $2 OR beats_at = 0 OR ($3 AND ",
            has_run_out!(),
            ") OR ($4 AND pg_try_advisory_xact_lock(to_regnamespace($5)::oid::integer, (key % 2147483647)::integer)))
               FOR UPDATE",
            $wait,
            ")
             UPDATE redrive.process p SET void_until = $2 FROM dead WHERE p.key = dead.key
             RETURNING p.oldest_event, p.oldest_delivery"
        )
    };
}
const DECLARE_DEAD: &str = declare_dead!("");
const DECLARE_DEAD_IF_FREE: &str = declare_dead!(" SKIP LOCKED");

/// Nobody holds anything whom nobody knows; but if that fails, by a defect or by hand, the work must not wait for ever. Looks at
/// everything.
pub(super) const UNKNOWN_OWNERS: &str = "
    SELECT DISTINCT owner FROM (
      SELECT owner FROM redrive.event WHERE status = 1
      UNION ALL SELECT owner FROM redrive.delivery WHERE status = 1) u
    WHERE owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM redrive.process p WHERE p.key = u.owner)";

/// Known as dead, and then buried like anybody else. Keys are never used twice: who is unknown stays so.
const KNOWN_AS_DEAD: &str = "
    INSERT INTO redrive.process (key, boot, instance, pid, has_lock, started_at, beats_at, lease_ms, void_until,
                                 oldest_event, oldest_delivery)
    SELECT owner, gen_random_uuid(), 'nobody knows', 0, false, 0, 0, 0, $2, 0, 0 FROM unnest($1::bigint[]) AS u(owner)
    ON CONFLICT (key) DO NOTHING";

const BURY: &str = "DELETE FROM redrive.process WHERE key = $1 AND void_until = $2";

/// Charges the attempt and makes it due now: pending, in its old place in the order. What was running at the death before as
/// well is a suspect. No number that somebody has written there by hand is too large: it would hold all others up.
macro_rules! take_back {
    ($table:literal, $oldest:literal, $event_key:literal, $subscription:literal, $id:literal, $joined:literal) => {
        concat!(
            "WITH held AS MATERIALIZED (
               SELECT u.* FROM redrive.", $table, " u
               WHERE u.key = ANY($2::bigint[]) AND u.owner = $1 AND u.status = 1
               AND (SELECT set_config('lock_timeout', $8, true)) IS NOT NULL ORDER BY u.key FOR UPDATE),
             page AS (UPDATE redrive.process SET ", $oldest, " = $7 WHERE key = $1 AND ", $oldest, " < $7),
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

pub(super) const TAKE_EVENTS_BACK: &str = take_back!("event", "oldest_event", "key", "''", "h", "");
pub(super) const TAKE_DELIVERIES_BACK: &str = take_back!(
    "delivery",
    "oldest_delivery",
    "event_key",
    "subscription",
    "e",
    "JOIN redrive.event e ON e.key = h.event_key"
);

/// Who may be declared dead. Always: who has left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// At the start: this process's own former life. Whose lease has run out is the leader's matter: after an outage of the
    /// server that is everybody, and who only comes knows nothing of it.
    AtTheStart,
    /// As the leader: also who was declared dead before, and whose lease has run out.
    AsLeader,
}

/// Takes back what dead processes held, one after the other.
pub(super) async fn recover(
    shared: &Shared,
    now: Timestamp,
    search: Search,
) -> Result<Vec<Recovered>, StoreError> {
    let mut steward = shared.steward.lock().await;
    let session = shared.own_session(&mut steward).await?;
    let (own, instance) = (shared.known_owner().unwrap_or(0), shared.options.instance.as_str());
    let others = session.query(OTHERS, &[&own, &instance, &DEAD]).await.map_err(failure::explain)?;
    let takeover = Takeover { shared, session, search };
    let (mut recovered, mut failed) = (Vec::new(), None);
    for row in &others {
        let (has_left, is_declared, has_run_out): (bool, bool, bool) = (row.get(2), row.get(3), row.get(4));
        let is_candidate = match search {
            Search::AtTheStart => has_left || (row.get(5) && is_gone(row.get(1))),
            Search::AsLeader => has_left || is_declared || has_run_out,
        };
        // One that does not get on holds up none of the others.
        if is_candidate && let Err(error) = takeover.run(row.get(0), now, &mut recovered).await {
            failed = Some(error);
            if !session.is_usable() {
                break;
            }
        }
    }
    failed.map_or(Ok(recovered), Err)
}

/// Makes processes known that nobody knows, so that what is in their hands is taken over.
pub(super) async fn make_known(
    shared: &Shared,
    session: &Session,
    owners: &Vec<i64>,
) -> Result<(), StoreError> {
    leader::as_leader(shared, session, KNOWN_AS_DEAD, &[owners, &DEAD]).await.map(drop)
}

struct Takeover<'a> {
    shared: &'a Shared,
    session: &'a Session,
    search: Search,
}

impl Takeover<'_> {
    /// Of one process, if it is dead, and as long as this one may.
    async fn run(&self, dead: i64, now: Timestamp, recovered: &mut Vec<Recovered>) -> Result<(), StoreError> {
        let schema = self.shared.names.schema();
        let (statement, by_lease, by_lock) = match self.search {
            Search::AtTheStart => (DECLARE_DEAD, false, true),
            Search::AsLeader => {
                let led_for = leader::elect(self.shared, self.session).await?;
                // After the server was away everybody is late. Who lives has said so before a new leader looks.
                let has_waited = led_for.is_some_and(|led_for| led_for >= self.shared.beat_every());
                (DECLARE_DEAD_IF_FREE, has_waited, false)
            }
        };
        let declared = self.change(statement, &[&dead, &DEAD, &by_lease, &by_lock, &schema]).await?;
        let Some(row) = declared.as_ref().and_then(|rows| rows.first()) else { return Ok(()) };
        for (table, oldest) in [(&EVENTS, row.get(0)), (&DELIVERIES, row.get(1))] {
            if !self.take_back(table, dead, oldest, now, recovered).await? {
                return Ok(());
            }
        }
        self.change(BURY, &[&dead, &DEAD]).await.map(drop)
    }

    /// Says whether it came to the end.
    async fn take_back(
        &self,
        table: &Table,
        dead: i64,
        mut from: i64,
        now: Timestamp,
        recovered: &mut Vec<Recovered>,
    ) -> Result<bool, StoreError> {
        let class = serde_json::to_string(&FailureClass::Crashed).expect("a class always serialises");
        let entry = text::json_entry(CRASHED);
        // Who leads has others to look after, loses its lease over it, and comes again; who starts has nothing else to do.
        let patience = match self.search {
            Search::AsLeader => leader::look_every(self.shared).as_millis().to_string(),
            Search::AtTheStart => "0".to_owned(), // for ever, as far as a statement may take
        };
        while let Some(page) = table.page(self.session, dead, from).await.map_err(failure::explain)? {
            let Page { keys, next, .. } = page;
            let now = now.as_millis();
            let values: [&dyn Value; 8] =
                [&dead, &keys, &now, &class.as_str(), &CRASHED, &entry.as_str(), &next, &patience];
            let Some(found) = self.change(table.take_back, &values).await? else { return Ok(false) };
            if !found.is_empty() {
                self.shared.is_back();
            }
            for unit in found.iter().map(taken_back) {
                if self.search == Search::AsLeader {
                    tracing::warn!(
                        target: "redrive::store", id = %unit.id, attempt = unit.attempt,
                        "taken over from a dead process"
                    );
                }
                recovered.push(unit);
            }
            from = next;
        }
        Ok(true)
    }

    /// One transaction; `None` if this process may not any more. Who leads says so on the way: its lease is shorter than a
    /// takeover may be.
    async fn change(
        &self,
        statement: &'static str,
        values: &[&dyn Value],
    ) -> Result<Option<Vec<Row>>, StoreError> {
        if self.search == Search::AtTheStart {
            return self.session.query(statement, values).await.map(Some).map_err(failure::explain);
        }
        match leader::elect(self.shared, self.session).await? {
            Some(_) => leader::as_leader(self.shared, self.session, statement, values).await,
            None => Ok(None),
        }
    }
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
