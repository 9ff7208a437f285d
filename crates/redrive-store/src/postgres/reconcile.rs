//! What this process holds without knowing: claims whose answer was lost, and settlements that a server has forgotten that crashed.

use super::estate::{DELIVERIES, EVENTS, Table};
use super::holdings::{Horizon, Oldest};
use super::process::DEAD;
use super::session::Session;
use super::{Shared, failure};
use crate::error::StoreError;

/// Everything of ours that was lost on its way is there after this, or void. What is only on its way is not: who claims finds what
/// is there, and does not look again. One statement, so that a process that is stopped here does not keep its row from its heirs.
const HOLD_STILL: &str = "
    WITH still AS MATERIALIZED (SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR UPDATE)
    UPDATE redrive.process p SET void_until = greatest(p.void_until, $3) FROM still WHERE p.key = still.key
    RETURNING p.oldest_event, p.oldest_delivery";

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
pub(super) const RELEASE_EVENTS: &str = release!("event");
pub(super) const RELEASE_DELIVERIES: &str = release!("delivery");

/// What the database thinks that we hold, and we have never heard of, or have settled, goes back.
pub(super) async fn reconcile(shared: &Shared, session: &Session) -> Result<(), StoreError> {
    let Some(owner) = shared.known_owner() else { return Ok(()) };
    let horizon = shared.holdings.horizon();
    // Who was declared dead holds nothing of its own any more.
    let Some(oldest) = hold_still(session, owner, &horizon).await? else { return Ok(()) };
    // Also the keys may have gone back with the crash: what comes is as old as anything that was ever written down here.
    shared.holdings.go_back(oldest);
    let released = release(shared, session, owner, &horizon, &EVENTS, oldest.event).await?
        + release(shared, session, owner, &horizon, &DELIVERIES, oldest.delivery).await?;
    shared.holdings.found(&horizon);
    if released > 0 {
        tracing::warn!(target: "redrive::store", released, "claims whose answer was lost go back");
    }
    Ok(())
}

/// The oldest keys that we may hold.
async fn hold_still(session: &Session, owner: i64, horizon: &Horizon) -> Result<Option<Oldest>, StoreError> {
    let last_lost = horizon.last_lost().unwrap_or(0);
    let found = session.query(HOLD_STILL, &[&owner, &DEAD, &last_lost]).await.map_err(failure::explain)?;
    Ok(found.first().map(|row| Oldest { event: row.get(0), delivery: row.get(1) }))
}

/// Says how much went back.
async fn release(
    shared: &Shared,
    session: &Session,
    owner: i64,
    horizon: &Horizon,
    table: &Table,
    mut from: i64,
) -> Result<usize, StoreError> {
    let mut released = 0;
    // What is claimed meanwhile may lie before the page; it is not looked for.
    while let Some(page) = table.page(session, owner, from).await.map_err(failure::explain)? {
        let held = page.keys.into_iter().zip(page.tokens);
        let (keys, tokens): (Vec<i64>, Vec<i64>) = held
            .filter(|(key, token)| shared.holdings.has_missed(horizon, (table.unit)(*key), *token))
            .unzip();
        if !keys.is_empty() {
            session.query(table.release, &[&keys, &tokens, &owner]).await.map_err(failure::explain)?;
            released += keys.len();
            shared.is_back();
        }
        from = page.next;
    }
    Ok(released)
}
