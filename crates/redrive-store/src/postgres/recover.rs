//! Takeover: releases the claims of dead processes and charges their attempts.
//!
//! A process is dead when its lease has expired by the database's clock; the leader searches for those. A process that restarts on
//! the same machine need not wait: the liveness lock of its previous run is free. A closed process has marked its row.
//!
//! A process that was declared dead claims nothing any more, even if it wakes up, because every claim checks its row. So its
//! claims only decrease, and the takeover can release them page by page, each page in its own transaction. The transaction
//! also raises the oldest key in the process's row: an interrupted takeover resumes there, and never charges a claim twice,
//! because a released row is no longer running under that owner. The dead process can still settle a claim before its page
//! is released. The takeover deletes the process's row last.

use std::path::Path;

use redrive_retry::{FailureClass, Timestamp};
use tokio_postgres::Row;

use super::claims_page::{DELIVERIES, EVENTS, Page, Table};
use super::process_state::{DECLARED_DEAD, lease_expired};
use super::session::Session;
use super::value::Value;
use super::{Shared, leader, nul_escape, rows};
use crate::error::StoreError;
use crate::work::Recovered;

/// The error that a takeover records for an attempt.
const CRASHED: &str = "process ended during the attempt";

/// Selects for each other process: whether it has left, was declared dead, has an expired lease, or has this process's
/// instance name and a liveness lock.
const OTHERS: &str = concat!(
    "SELECT key, pid, beats_at = 0, void_until = $3, ",
    lease_expired!(),
    ", instance = $2 AND has_lock FROM redrive.process WHERE key <> $1 ORDER BY key"
);

/// Declares a process dead under a lock that excludes its claims. The lock waits for a claim in flight, or skips the process.
macro_rules! declare_dead {
    ($wait:literal) => {
        concat!(
            "WITH dead AS MATERIALIZED (
               SELECT key FROM redrive.process WHERE key = $1 AND (void_until = $2 OR beats_at = 0 OR ($3 AND ",
            lease_expired!(),
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

/// Finds claims of unregistered processes, by a full scan. There are none unless a defect or a manual change made them.
pub(super) const UNKNOWN_OWNERS: &str = "
    SELECT DISTINCT owner FROM (
      SELECT owner FROM redrive.event WHERE status = 1
      UNION ALL SELECT owner FROM redrive.delivery WHERE status = 1) u
    WHERE owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM redrive.process p WHERE p.key = u.owner)";

/// Registers unknown owners as dead processes, so that a takeover releases their claims. Keys are never reused.
pub(super) const REGISTER_AS_DEAD: &str = "
    INSERT INTO redrive.process (key, boot, instance, pid, has_lock, started_at, beats_at, lease_ms, void_until,
                                 oldest_event, oldest_delivery)
    SELECT owner, gen_random_uuid(), 'unknown', 0, false, 0, 0, 0, $2, 0, 0 FROM unnest($1::bigint[]) AS u(owner)
    ON CONFLICT (key) DO NOTHING";

const DELETE_PROCESS: &str = "DELETE FROM redrive.process WHERE key = $1 AND void_until = $2";

/// Charges the attempts of one page and makes its rows due now, in their old order. A row that was running at an earlier crash, too,
/// becomes a crash suspect. Counters saturate: an overflow of a value that was written by hand would block the takeover.
macro_rules! take_over {
    ($table:literal, $oldest:literal, $event_key:literal, $subscription:literal, $id:literal, $joined:literal) => {
        concat!(
            "WITH owned AS MATERIALIZED (
               SELECT u.* FROM redrive.", $table, " u
               WHERE u.key = ANY($2::bigint[]) AND u.owner = $1 AND u.status = 1
               AND (SELECT set_config('lock_timeout', $8, true)) IS NOT NULL ORDER BY u.key FOR UPDATE),
             page AS (UPDATE redrive.process SET ", $oldest, " = $7 WHERE key = $1 AND ", $oldest, " < $7),
             charged AS (
               INSERT INTO redrive.attempt
                 (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, of_delivery)
               SELECT ", $event_key, ", ", $subscription, ", least(retry_count, 2147483646) + 1, updated_at,
                      greatest(0, $3 - greatest(updated_at, 0)), $4, 0, $5, ", $subscription, " <> '' FROM owned),
             back AS (
               UPDATE redrive.", $table, " u SET status = CASE WHEN u.crashes = 0 THEN 0 ELSE -1 END,
                 due_at = least(u.due_at, $3), updated_at = $3, owner = NULL,
                 ready_at = CASE WHEN u.crashes = 0 THEN greatest(least(u.due_at, $3), 0) ELSE -1 END,
                 first_at = coalesce(u.first_at, u.updated_at),
                 retry_count = least(u.retry_count, 2147483646) + 1, crashes = least(u.crashes, 2147483646) + 1,
                 last_error = CASE WHEN u.last_error IS NULL THEN '[' || $6 || ']'
                                   ELSE left(u.last_error, -1) || ',' || $6 || ']' END
               FROM owned WHERE u.key = owned.key)
             SELECT ", $id, ".id, ", $id, ".type, nullif(", $subscription, ", ''), least(h.retry_count, 2147483646) + 1, h.due_at,
                    (SELECT p.retry FROM redrive.payload p WHERE p.event_key = h.", $event_key, ")
             FROM owned h ", $joined
        )
    };
}

const TAKE_OVER_EVENTS: &str = take_over!("event", "oldest_event", "key", "''", "h", "");
const TAKE_OVER_DELIVERIES: &str = take_over!(
    "delivery",
    "oldest_delivery",
    "event_key",
    "subscription",
    "e",
    "JOIN redrive.event e ON e.key = h.event_key"
);

/// Which processes may be declared dead, besides those that have left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// At the start: the previous run of this process. Expired leases are left to the leader: after an outage of the server
    /// all leases have expired, and a starting process cannot tell.
    AtTheStart,
    /// As the leader: processes with an expired lease, and those declared dead by an interrupted takeover.
    AsLeader,
}

/// Takes over the claims of dead processes, one process after the other. Returns the released claims.
pub(super) async fn recover(
    shared: &Shared,
    now: Timestamp,
    search: Search,
) -> Result<Vec<Recovered>, StoreError> {
    let mut leader_session = shared.leader_session.lock().await;
    let session = shared.dedicated_session(&mut leader_session).await?;
    let (own, instance) = (shared.registered_owner().unwrap_or(0), shared.options.instance.as_str());
    let others = session.query(OTHERS, &[&own, &instance, &DECLARED_DEAD]).await?;
    let takeover = Takeover { shared, session, search };
    let (mut recovered, mut failed) = (Vec::new(), None);
    for row in &others {
        let (has_left, is_declared_dead, has_expired): (bool, bool, bool) =
            (row.get(2), row.get(3), row.get(4));
        let is_candidate = match search {
            Search::AtTheStart => has_left || (row.get(5) && is_gone(row.get(1))),
            Search::AsLeader => has_left || is_declared_dead || has_expired,
        };
        // A takeover that fails does not stop the others.
        if is_candidate && let Err(error) = takeover.run(row.get(0), now, &mut recovered).await {
            failed = Some(error);
            if !session.is_usable() {
                break;
            }
        }
    }
    failed.map_or(Ok(recovered), Err)
}

struct Takeover<'a> {
    shared: &'a Shared,
    session: &'a Session,
    search: Search,
}

impl Takeover<'_> {
    /// Takes over the claims of one process if it is dead. Stops if this process loses the leadership.
    async fn run(&self, dead: i64, now: Timestamp, recovered: &mut Vec<Recovered>) -> Result<(), StoreError> {
        let schema = self.shared.connector.names.schema();
        let (statement, by_lease, by_lock) = match self.search {
            Search::AtTheStart => (DECLARE_DEAD, false, true),
            Search::AsLeader => {
                let led_for = leader::elect(self.shared, self.session).await?;
                // After an outage all leases have expired. A new leader waits until living processes have renewed theirs.
                let has_waited = led_for.is_some_and(|led_for| led_for >= self.shared.heartbeat_interval());
                (DECLARE_DEAD_IF_FREE, has_waited, false)
            }
        };
        let declared = self.change(statement, &[&dead, &DECLARED_DEAD, &by_lease, &by_lock, &schema]).await?;
        let Some(row) = declared.as_ref().and_then(|rows| rows.first()) else { return Ok(()) };
        for (table, take_over, oldest) in
            [(&EVENTS, TAKE_OVER_EVENTS, row.get(0)), (&DELIVERIES, TAKE_OVER_DELIVERIES, row.get(1))]
        {
            if !self.release((table, take_over), dead, oldest, now, recovered).await? {
                return Ok(());
            }
        }
        self.change(DELETE_PROCESS, &[&dead, &DECLARED_DEAD]).await.map(drop)
    }

    /// Releases the claims on one table with its statement. Returns whether it came to the end.
    async fn release(
        &self,
        (table, take_over): (&Table, &'static str),
        dead: i64,
        mut from: i64,
        now: Timestamp,
        recovered: &mut Vec<Recovered>,
    ) -> Result<bool, StoreError> {
        let class = serde_json::to_string(&FailureClass::Crashed).expect("a failure class always serialises");
        let entry = nul_escape::json_string(CRASHED);
        // A leader that waits for a row lock would lose its lease: it comes back later. A starting process can wait.
        let lock_timeout = match self.search {
            Search::AsLeader => leader::election_interval(self.shared).as_millis().to_string(),
            Search::AtTheStart => "0".to_owned(), // up to the statement timeout
        };
        while let Some(page) = table.page(self.session, dead, from).await? {
            let Page { keys, next, .. } = page;
            let now = now.as_millis();
            let values: [&dyn Value; 8] =
                [&dead, &keys, &now, &class.as_str(), &CRASHED, &entry.as_str(), &next, &lock_timeout];
            let Some(found) = self.change(take_over, &values).await? else { return Ok(false) };
            if !found.is_empty() {
                self.shared.note_released();
            }
            for claim in found.iter().map(recovered_claim) {
                if self.search == Search::AsLeader {
                    tracing::warn!(
                        target: "redrive::store", id = %claim.id, attempt = claim.attempt,
                        "taken over from a dead process"
                    );
                }
                recovered.push(claim);
            }
            from = next;
        }
        Ok(true)
    }

    /// Runs one transaction; `None` if this process lost the leadership. A leader renews its lease, which a takeover can outlast.
    async fn change(
        &self,
        statement: &'static str,
        values: &[&dyn Value],
    ) -> Result<Option<Vec<Row>>, StoreError> {
        if self.search == Search::AtTheStart {
            return self.session.query(statement, values).await.map(Some).map_err(StoreError::from);
        }
        match leader::elect(self.shared, self.session).await? {
            Some(_) => leader::as_leader(self.shared, self.session, statement, values).await,
            None => Ok(None),
        }
    }
}

fn recovered_claim(row: &Row) -> Recovered {
    Recovered {
        id: rows::event_id(row, 0),
        event_type: rows::event_type(row, 1),
        subscription: rows::optional_subscription(row, 2),
        attempt: rows::small(row, 3),
        retry: rows::retry_override(row, 5),
        error: CRASHED.to_owned(),
    }
}

/// Whether a process of this machine has ended. An id equal to this process's is its previous run: a container reuses the id.
fn is_gone(pid: i64) -> bool {
    let processes = Path::new("/proc");
    pid == i64::from(std::process::id())
        || (processes.join("self").exists() && !processes.join(pid.to_string()).exists())
}
