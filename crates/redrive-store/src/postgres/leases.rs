//! Claims leased deliveries for their consumers, and extends leases.

use std::collections::HashMap;

use redrive_retry::Timestamp;

use super::Shared;
use super::claim::{Claimant, LEASED_DELIVERIES};
use super::session::Session;
use super::value::Value;
use crate::error::StoreError;
use crate::lease::LeaseToken;
use crate::store::Leases;
use crate::work::{ClaimSink, Claimed, Slot};

/// Extends leases of some subscriptions that have not ended, locked in the order of the claims. Commits asynchronously.
const EXTEND_LEASES: &str = "
    WITH held AS MATERIALIZED (
      SELECT d.key FROM redrive.delivery d JOIN unnest($3::bigint[], $4::text[]) AS named(key, lease)
        ON d.key = named.key AND d.lease = named.lease
      WHERE d.subscription = ANY($5::text[]) AND d.status = -2 AND d.due_at > $1
      AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
      ORDER BY d.key FOR NO KEY UPDATE OF d)
    UPDATE redrive.delivery d SET due_at = $2, ready_at = $2, updated_at = $1
    FROM held WHERE d.key = held.key RETURNING d.key, d.lease";

/// Claims leased deliveries for their consumers, in the order of the tokens.
pub(super) async fn claim_leased(
    shared: &Shared,
    leases: &Leases,
    now: Timestamp,
    sink: &ClaimSink,
) -> Result<Vec<Option<Claimed>>, StoreError> {
    let names: Vec<String> = leases.names.iter().map(ToString::to_string).collect();
    let mut claimed: Vec<Option<Claimed>> = leases.tokens.iter().map(|_| None).collect();
    for round in rounds(&leases.tokens) {
        let tokens: Vec<LeaseToken> = round.iter().map(|index| leases.tokens[*index]).collect();
        for taken in claim_round(shared, &names, &tokens, now, sink).await? {
            let its = round.iter().find(|index| leases.tokens[**index].delivery == taken.key.row());
            if let Some(index) = its {
                claimed[*index] = Some(taken);
            }
        }
    }
    Ok(claimed)
}

/// Splits tokens, given by their index, so that each part names a delivery once: the answer to a claim has deliveries, not tokens.
fn rounds(tokens: &[LeaseToken]) -> Vec<Vec<usize>> {
    let mut seen: HashMap<i64, usize> = HashMap::new();
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let before = seen.entry(token.delivery).or_default();
        if rounds.len() == *before {
            rounds.push(Vec::new());
        }
        rounds[*before].push(index);
        *before += 1;
    }
    rounds
}

/// Claims leased deliveries, each of them once.
async fn claim_round(
    shared: &Shared,
    names: &Vec<String>,
    tokens: &[LeaseToken],
    now: Timestamp,
    sink: &ClaimSink,
) -> Result<Vec<Claimed>, StoreError> {
    let (keys, secrets) = columns(tokens);
    for is_retry in [false, true] {
        let owner = shared.owner().await?;
        let session = shared.pool.get().await?;
        let slots: Vec<Slot> = tokens.iter().map_while(|_| sink.take()).collect();
        if slots.len() < tokens.len() {
            return Err(StoreError::Busy);
        }
        let claimant = Claimant { shared, session: &session, owner, now };
        let which: [&dyn Value; 3] = [&keys, &secrets, names];
        let taken = LEASED_DELIVERIES.take(&claimant, &which, slots).await?;
        // An empty claim may mean that this process was declared dead.
        if !taken.is_empty() || is_retry || shared.is_registered(&session, owner).await? {
            return Ok(taken.into_iter().map(|(_, claimed)| claimed).collect());
        }
        shared.rejoin(owner);
    }
    Ok(Vec::new())
}

/// Extends leases. Returns for each token whether its lease was extended.
pub(super) async fn extend_leases(
    session: &Session,
    leases: &Leases,
    now: Timestamp,
    until: Timestamp,
) -> Result<Vec<bool>, StoreError> {
    let (keys, secrets) = columns(&leases.tokens);
    let names: Vec<String> = leases.names.iter().map(ToString::to_string).collect();
    let values: [&dyn Value; 5] = [&now.as_millis(), &until.as_millis(), &keys, &secrets, &names];
    let extended = session.query(EXTEND_LEASES, &values).await?;
    let is_extended = |token: &LeaseToken| {
        let secret = token.secret();
        extended.iter().any(|row| row.get::<_, i64>(0) == token.delivery && row.get::<_, &str>(1) == secret)
    };
    Ok(leases.tokens.iter().map(is_extended).collect())
}

/// Keys and secrets of tokens, each as one array.
fn columns(tokens: &[LeaseToken]) -> (Vec<i64>, Vec<String>) {
    tokens.iter().map(|token| (token.delivery, token.secret())).unzip()
}
