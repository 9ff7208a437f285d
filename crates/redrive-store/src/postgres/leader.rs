//! Leader election: one of the processes that share the database runs the maintenance of all.
//!
//! The leader owns a lease in a row, by the database's clock. A row and not a session lock: it works behind a transaction
//! pooler, and a process that hangs loses the lease like a dead one.
//!
//! The lease is three seconds (or that of claims, if it is shorter), and every process checks it three times as often. So a
//! new leader takes over at most four seconds after the old one died, and one second after it was closed. Every change that a
//! leader makes is fenced: its transaction locks the row, so no other process becomes leader before it ends, and a process
//! that lost the lease changes nothing. If the leader stops inside a transaction, the server ends it after two seconds.

use std::time::Duration;

use tokio_postgres::Row;

use super::Shared;
use super::session::Session;
use super::value::{Value, millis};
use crate::error::StoreError;

const MAX_LEASE: Duration = Duration::from_secs(3);

/// Renews the lease. Returns for how long this process has led without a gap. A lease that ends later than a new one would
/// shows that the clock was set back: it counts as expired, and the leadership starts again.
const RENEW: &str = "
    UPDATE redrive.leader l SET until = t.now + $2,
      since = CASE WHEN l.until > t.now AND l.until <= t.now + $2 THEN l.since ELSE t.now END
    FROM (SELECT redrive.now_ms() AS now) t WHERE l.boot = $1 RETURNING t.now - l.since";

/// Acquires a lease that has expired, or ends later than any lease can (the clock was set back). Skips it while its leader works.
const ACQUIRE: &str = "
    UPDATE redrive.leader l SET boot = $1, since = free.now, until = free.now + $2
    FROM (SELECT single, redrive.now_ms() AS now FROM redrive.leader
          WHERE until <= redrive.now_ms() OR until > redrive.now_ms() + $3 FOR UPDATE SKIP LOCKED) free
    WHERE l.single = free.single RETURNING 0::bigint";

/// Returns a row if this process leads, and locks it until the transaction ends. The lock keeps other processes from
/// acquiring the lease, and lets this process renew it.
const FENCE: &str = "
    SELECT set_config('idle_in_transaction_session_timeout', '2000', true) FROM redrive.leader
    WHERE boot = $1 AND until > redrive.now_ms() AND until <= redrive.now_ms() + $2 FOR KEY SHARE";

const LEADS: &str = "SELECT 1 FROM redrive.leader WHERE boot = $1 AND until > redrive.now_ms()";

/// Ends the lease, so that another process can acquire it at once.
pub(super) const RESIGN: &str = "UPDATE redrive.leader SET until = 0 WHERE boot = $1";

/// The duration of the leader's lease.
fn lease(shared: &Shared) -> Duration {
    shared.options.lease.min(MAX_LEASE)
}

/// The interval between elections, and between renewals of the lease.
pub(super) fn election_interval(shared: &Shared) -> Duration {
    (lease(shared) / 3).max(Duration::from_millis(1))
}

/// Renews or acquires the lease. Returns for how long this process has led without a gap, or `None` if it does not lead.
pub(super) async fn elect(shared: &Shared, session: &Session) -> Result<Option<Duration>, StoreError> {
    let (boot, lease) = (&shared.boot, &millis(lease(shared)));
    let mut found = session.query_first(RENEW, &[boot, lease]).await?;
    if found.is_none() {
        found = session.query_first(ACQUIRE, &[boot, lease, &millis(MAX_LEASE)]).await?;
    }
    Ok(found.map(|row| Duration::from_millis(row.get::<_, i64>(0).unsigned_abs())))
}

/// Runs a statement in a fenced transaction. Returns `None` if this process does not lead.
pub(super) async fn as_leader(
    shared: &Shared,
    session: &Session,
    statement: &'static str,
    values: &[&dyn Value],
) -> Result<Option<Vec<Row>>, StoreError> {
    session.begin().await?;
    let work = async {
        if session.query(FENCE, &[&shared.boot, &millis(lease(shared))]).await?.is_empty() {
            return Ok(None);
        }
        session.query(statement, values).await.map(Some).map_err(StoreError::from)
    };
    match work.await {
        Ok(found) => {
            session.commit().await.map_err(|error| shared.explain(error))?;
            Ok(found)
        }
        Err(error) => {
            session.roll_back().await;
            Err(error)
        }
    }
}

/// Whether this process leads at present.
pub(super) async fn leads(shared: &Shared, session: &Session) -> Result<bool, StoreError> {
    Ok(session.query_first(LEADS, &[&shared.boot]).await?.is_some())
}
