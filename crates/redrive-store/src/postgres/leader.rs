//! Which of the processes that share the database does what one does for all of them.
//!
//! It is the one whose name stands in a row, until its lease there runs out by the database's clock. A row and not a lock: it
//! works behind a transaction pooler, and a process that hangs loses it like one that is dead.
//!
//! The lease is three seconds (or that of claims, if it is shorter) and everybody looks three times as often. So there is a new
//! leader four seconds after the old one died, at most, and one second after it was closed. Whatever a leader changes, it
//! changes in a transaction that holds the row: nobody else can become leader before it has ended, and who is not leader any
//! more changes nothing. If it stops in the middle of one, the server ends it after two seconds more.

use std::time::Duration;

use tokio_postgres::Row;

use super::process::millis;
use super::session::Session;
use super::value::Value;
use super::{Shared, failure};
use crate::error::StoreError;

const LONGEST_LEASE: Duration = Duration::from_secs(3);

/// Renews the lease, and says for how long it has been held without a gap. If it was made later than now, the clock was set back:
/// then it has run out like any other, and it is counted anew.
const RENEW: &str = "
    UPDATE redrive.leader l SET until = t.now + $2,
      since = CASE WHEN l.until > t.now AND l.until <= t.now + $2 THEN l.since ELSE t.now END
    FROM (SELECT redrive.now_ms() AS now) t WHERE l.boot = $1 RETURNING t.now - l.since";

/// Takes the lease if it has run out, or is longer than any: then the clock was set back. Waits for nobody: if a leader is at
/// something, it holds the row, and leads.
const TAKE: &str = "
    UPDATE redrive.leader l SET boot = $1, since = free.now, until = free.now + $2
    FROM (SELECT single, redrive.now_ms() AS now FROM redrive.leader
          WHERE until <= redrive.now_ms() OR until > redrive.now_ms() + $3 FOR UPDATE SKIP LOCKED) free
    WHERE l.single = free.single RETURNING 0::bigint";

/// Empty if this process does not lead. Keeps the row until the transaction ends: nobody else can take the lease meanwhile, and
/// this process itself can renew it, which needs no lock that is in the way of this one.
const FENCE: &str = "
    SELECT set_config('idle_in_transaction_session_timeout', '2000', true) FROM redrive.leader
    WHERE boot = $1 AND until > redrive.now_ms() AND until <= redrive.now_ms() + $2 FOR KEY SHARE";

const LEADS: &str = "SELECT 1 FROM redrive.leader WHERE boot = $1 AND until > redrive.now_ms()";

const RESIGN: &str = "UPDATE redrive.leader SET until = 0 WHERE boot = $1";

/// How long a leader leads after its last sign of life.
fn lease(shared: &Shared) -> Duration {
    shared.options.lease.min(LONGEST_LEASE)
}

/// How often to look who leads.
pub(super) fn look_every(shared: &Shared) -> Duration {
    (lease(shared) / 3).max(Duration::from_millis(1))
}

/// Whether this process leads from now on, or still does, and for how long without a gap.
pub(super) async fn elect(shared: &Shared, session: &Session) -> Result<Option<Duration>, StoreError> {
    let (boot, lease) = (&shared.boot, &millis(lease(shared)));
    let mut found = session.query(RENEW, &[boot, lease]).await.map_err(failure::explain)?;
    if found.is_empty() {
        let longest = &millis(LONGEST_LEASE);
        found = session.query(TAKE, &[boot, lease, longest]).await.map_err(failure::explain)?;
    }
    Ok(found.first().map(|row| Duration::from_millis(row.get::<_, i64>(0).unsigned_abs())))
}

/// Whether this process leads until the transaction ends, which must have begun.
async fn fence(shared: &Shared, session: &Session) -> Result<bool, StoreError> {
    let values: [&dyn Value; 2] = [&shared.boot, &millis(lease(shared))];
    let found = session.query(FENCE, &values).await.map_err(failure::explain)?;
    Ok(!found.is_empty())
}

/// Runs a statement as the leader; `None` if this process is not.
pub(super) async fn as_leader(
    shared: &Shared,
    session: &Session,
    statement: &'static str,
    values: &[&dyn Value],
) -> Result<Option<Vec<Row>>, StoreError> {
    session.begin().await.map_err(failure::explain)?;
    let work = async {
        if !fence(shared, session).await? {
            return Ok(None);
        }
        session.query(statement, values).await.map(Some).map_err(failure::explain)
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

/// Whether this process leads now.
pub(super) async fn leads(shared: &Shared, session: &Session) -> Result<bool, StoreError> {
    let found = session.query(LEADS, &[&shared.boot]).await.map_err(failure::explain)?;
    Ok(!found.is_empty())
}

/// Somebody else may lead at once.
pub(super) async fn resign(shared: &Shared, session: &Session) -> Result<(), StoreError> {
    session.query(RESIGN, &[&shared.boot]).await.map(drop).map_err(failure::explain)
}
