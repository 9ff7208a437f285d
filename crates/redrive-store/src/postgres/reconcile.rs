//! Reconciles the claims in the database with those that this process knows: it releases claims whose answer was lost, and
//! claims that a crashed server has restored by losing their settlement.

use super::Shared;
use super::claims_page::{DELIVERIES, EVENTS};
use super::owned_claims::Oldest;
use super::process_state::DECLARED_DEAD;
use super::session::Session;
use crate::error::StoreError;

/// Voids the claim statements with lost answers: after this lock they are committed, or their tokens are void. Statements in
/// flight stay valid. One statement, so that a process that stops here does not keep its row locked. Returns the oldest keys
/// that this process may own, or nothing if it was declared dead.
const VOID_LOST_CLAIMS: &str = "
    WITH still AS MATERIALIZED (SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR UPDATE)
    UPDATE redrive.process p SET void_until = greatest(p.void_until, $3) FROM still WHERE p.key = still.key
    RETURNING p.oldest_event, p.oldest_delivery";

/// Undoes claims whose attempt never started. Crash suspects stay suspects, and leased deliveries stay leased.
macro_rules! release {
    ($table:literal, $leased_status:literal, $leased_ready_at:literal) => {
        concat!(
            "UPDATE redrive.",
            $table,
            " u SET status = CASE ",
            $leased_status,
            "WHEN u.crashes > 1 THEN -1 WHEN u.retry_count > 0 THEN 2 ELSE 0 END,
               ready_at = CASE ",
            $leased_ready_at,
            "WHEN u.crashes > 1 THEN -1 ELSE greatest(u.due_at, 0) END
             FROM unnest($1::bigint[], $2::bigint[]) AS m(key, token)
             WHERE u.key = m.key AND u.token = m.token AND u.status = 1 AND u.owner = $3"
        )
    };
}
const RELEASE_EVENTS: &str = release!("event", "", "");
const RELEASE_DELIVERIES: &str = release!(
    "delivery",
    "WHEN u.leased_at IS NOT NULL THEN -2 ",
    "WHEN u.leased_at IS NOT NULL THEN greatest(u.due_at, 0) "
);

/// Releases the claims that the database assigns to this process and that it does not know, or has settled.
pub(super) async fn reconcile(shared: &Shared, session: &Session) -> Result<(), StoreError> {
    let Some(owner) = shared.registered_owner() else { return Ok(()) };
    let snapshot = shared.owned_claims.snapshot();
    let last_lost = snapshot.last_lost().unwrap_or(0);
    let found = session.query_first(VOID_LOST_CLAIMS, &[&owner, &DECLARED_DEAD, &last_lost]).await?;
    // A process that was declared dead owns no claims any more.
    let Some(row) = found else { return Ok(()) };
    let oldest = Oldest { event: row.get(0), delivery: row.get(1) };
    // A crash may have set the key sequences back.
    shared.owned_claims.lower_floor(oldest);
    let mut released = 0;
    for (table, release, mut from) in
        [(&EVENTS, RELEASE_EVENTS, oldest.event), (&DELIVERIES, RELEASE_DELIVERIES, oldest.delivery)]
    {
        // Claims made meanwhile may precede the page; they are later than the snapshot and not judged.
        while let Some(page) = table.page(session, owner, from).await? {
            let owned = page.keys.into_iter().zip(page.tokens);
            let (keys, tokens): (Vec<i64>, Vec<i64>) = owned
                .filter(|(key, token)| {
                    shared.owned_claims.is_unknown(&snapshot, (table.claim_key)(*key), *token)
                })
                .unzip();
            if !keys.is_empty() {
                session.query(release, &[&keys, &tokens, &owner]).await?;
                released += keys.len();
                shared.note_released();
            }
            from = page.next;
        }
    }
    shared.owned_claims.forget_lost(&snapshot);
    if released > 0 {
        tracing::warn!(target: "redrive::store", released, "claims with lost answers or lost settlements were released");
    }
    Ok(())
}
