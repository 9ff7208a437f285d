//! Tracks in memory the claims that this process owns: claimed, and neither settled nor lost.
//!
//! The database is authoritative. This copy answers two questions that the database cannot answer cheaply: the oldest key
//! that this process may own (a takeover after its death starts there), and which claims in the database this process does
//! not know, because the answer to the claim was lost with a connection.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

use uuid::Uuid;

use super::lock;
use crate::work::{ClaimKey, Fence};

/// The claims on one table.
#[derive(Debug, Default)]
struct Table {
    /// Token of each owned claim, by key.
    owned: BTreeMap<i64, i64>,
    /// Lower bound of the keys that later events and deliveries get.
    seen: i64,
}

#[derive(Debug)]
struct State {
    /// The token of the next claim. Starts at random, so that two processes hardly ever use the same one.
    next_token: i64,
    /// Tokens of the claim statements in flight, with the smallest keys that they can claim.
    in_flight: HashMap<i64, Oldest>,
    /// Tokens of the claim statements whose answers were lost and that are not reconciled yet. They may own any key.
    lost: HashSet<i64>,
    events: Table,
    deliveries: Table,
}

/// Lower bounds of the keys that are owned or may be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Oldest {
    pub(super) event: i64,
    pub(super) delivery: i64,
}

/// The claim statements that were in flight or lost at one time.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Claims from this token on are later than the snapshot.
    next_token: i64,
    in_flight: Vec<i64>,
    lost: Vec<i64>,
}

impl Snapshot {
    /// The largest token whose answer was lost.
    pub(super) fn last_lost(&self) -> Option<i64> {
        self.lost.iter().max().copied()
    }
}

/// The claims that this process owns. A std mutex: held for a map operation.
#[derive(Debug)]
pub(super) struct OwnedClaims(Mutex<State>);

impl OwnedClaims {
    pub(super) fn new() -> Self {
        let random = i64::try_from(Uuid::new_v4().as_u128() >> 66).unwrap_or(0);
        OwnedClaims(Mutex::new(State {
            next_token: random.max(1),
            in_flight: HashMap::new(),
            lost: HashSet::new(),
            events: Table::default(),
            deliveries: Table::default(),
        }))
    }

    /// Forgets all claims after the process has registered under a new key: other processes have taken them over.
    pub(super) fn reset(&self, from: Oldest) {
        let mut state = lock(&self.0);
        state.events.owned.clear();
        state.deliveries.owned.clear();
        state.lost.clear();
        state.events.seen = from.event;
        state.deliveries.seen = from.delivery;
    }

    /// Lowers the key bounds after a possible crash of the server, which may issue the keys of undone transactions again.
    /// None is older than the bounds in this process's row, which the server has kept.
    pub(super) fn lower_floor(&self, to: Oldest) {
        let mut state = lock(&self.0);
        state.events.seen = state.events.seen.min(to.event);
        state.deliveries.seen = state.deliveries.seen.min(to.delivery);
        for from in state.in_flight.values_mut() {
            from.event = from.event.min(to.event);
            from.delivery = from.delivery.min(to.delivery);
        }
    }

    /// Records that a claim statement is sent. Returns its token.
    pub(super) fn begin_claim(&self) -> i64 {
        let mut state = lock(&self.0);
        let token = state.next_token;
        state.next_token += 1;
        let from = Oldest { event: state.events.seen, delivery: state.deliveries.seen };
        state.in_flight.insert(token, from);
        token
    }

    /// Records the answer to a claim statement.
    pub(super) fn finish_claim(&self, token: i64, claims: impl IntoIterator<Item = ClaimKey>) {
        let mut state = lock(&self.0);
        state.in_flight.remove(&token);
        for claim in claims {
            match claim {
                ClaimKey::Event(key) => state.events.insert(key, token),
                ClaimKey::Delivery { delivery, event } => {
                    state.deliveries.insert(delivery, token);
                    state.events.seen = state.events.seen.max(event);
                }
            }
        }
    }

    /// Records that the answer to a claim statement was lost.
    pub(super) fn lose_answer(&self, token: i64) {
        let mut state = lock(&self.0);
        if state.in_flight.remove(&token).is_some() {
            state.lost.insert(token);
        }
    }

    /// Whether there are claim statements with lost answers that are not reconciled.
    pub(super) fn has_lost_answers(&self) -> bool {
        !lock(&self.0).lost.is_empty()
    }

    /// Forgets the lost answers of a snapshot after they were reconciled.
    pub(super) fn forget_lost(&self, snapshot: &Snapshot) {
        let mut state = lock(&self.0);
        for token in &snapshot.lost {
            state.lost.remove(token);
        }
    }

    /// Removes a claim that was settled, or taken over by another process.
    pub(super) fn remove(&self, claim: ClaimKey, fence: Fence) {
        let mut state = lock(&self.0);
        let table = match claim {
            ClaimKey::Event(_) => &mut state.events,
            ClaimKey::Delivery { .. } => &mut state.deliveries,
        };
        if table.owned.get(&claim.row()) == Some(&fence.token) {
            table.owned.remove(&claim.row());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let state = lock(&self.0);
        let is_settled = state.events.owned.is_empty() && state.deliveries.owned.is_empty();
        is_settled && state.in_flight.is_empty() && state.lost.is_empty()
    }

    pub(super) fn oldest(&self) -> Oldest {
        let state = lock(&self.0);
        if !state.lost.is_empty() {
            return Oldest { event: 0, delivery: 0 };
        }
        let in_flight = || state.in_flight.values();
        Oldest {
            event: state.events.oldest(in_flight().map(|from| from.event)),
            delivery: state.deliveries.oldest(in_flight().map(|from| from.delivery)),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let state = lock(&self.0);
        let in_flight = state.in_flight.keys().copied().collect();
        Snapshot { next_token: state.next_token, in_flight, lost: state.lost.iter().copied().collect() }
    }

    /// Whether this process does not know a claim of its own in the database. Claims in flight at the snapshot, and later ones, are known.
    pub(super) fn is_unknown(&self, snapshot: &Snapshot, claim: ClaimKey, token: i64) -> bool {
        if token >= snapshot.next_token || snapshot.in_flight.contains(&token) {
            return false;
        }
        let state = lock(&self.0);
        let table = match claim {
            ClaimKey::Event(_) => &state.events,
            ClaimKey::Delivery { .. } => &state.deliveries,
        };
        table.owned.get(&claim.row()) != Some(&token)
    }
}

impl Table {
    fn insert(&mut self, key: i64, token: i64) {
        self.owned.insert(key, token);
        self.seen = self.seen.max(key);
    }

    fn oldest(&self, in_flight: impl Iterator<Item = i64>) -> i64 {
        let owned = self.owned.keys().next().copied();
        in_flight.chain(owned).min().unwrap_or(self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_key_is_a_lower_bound_of_all_claims() {
        let owned_claims = OwnedClaims::new();
        owned_claims.reset(Oldest { event: 100, delivery: 7 });
        assert_eq!(owned_claims.oldest(), Oldest { event: 100, delivery: 7 });
        let one = owned_claims.begin_claim();
        let two = owned_claims.begin_claim();
        owned_claims.finish_claim(two, [ClaimKey::Event(105)]);
        assert_eq!(owned_claims.oldest().event, 100, "a claim in flight may have an older key");
        owned_claims.finish_claim(one, [ClaimKey::Event(101), ClaimKey::Event(103)]);
        assert_eq!(owned_claims.oldest().event, 101);
        owned_claims.remove(ClaimKey::Event(101), Fence { owner: 1, token: one });
        assert_eq!(owned_claims.oldest().event, 103);
        owned_claims.remove(ClaimKey::Event(103), Fence { owner: 1, token: two });
        assert_eq!(owned_claims.oldest().event, 103, "another claim still owns it");
        owned_claims.remove(ClaimKey::Event(103), Fence { owner: 1, token: one });
        owned_claims.remove(ClaimKey::Event(105), Fence { owner: 1, token: two });
        assert!(owned_claims.is_empty());
        assert_eq!(owned_claims.oldest().event, 105, "later claims have larger keys");
    }

    #[test]
    fn a_lost_answer_may_own_any_key() {
        let owned_claims = OwnedClaims::new();
        owned_claims.reset(Oldest { event: 100, delivery: 7 });
        let before = owned_claims.snapshot();
        let token = owned_claims.begin_claim();
        owned_claims.lose_answer(token);
        assert!(owned_claims.has_lost_answers() && !owned_claims.is_empty());
        assert_eq!(owned_claims.oldest(), Oldest { event: 0, delivery: 0 });
        owned_claims.forget_lost(&before);
        assert!(owned_claims.has_lost_answers(), "it was lost after that snapshot");
        owned_claims.forget_lost(&owned_claims.snapshot());
        assert!(!owned_claims.has_lost_answers() && owned_claims.is_empty());
        assert_eq!(owned_claims.oldest(), Oldest { event: 100, delivery: 7 });
    }

    #[test]
    fn keys_issued_again_after_a_crash_lower_the_oldest_key() {
        let owned_claims = OwnedClaims::new();
        owned_claims.reset(Oldest { event: 100, delivery: 7 });
        let token = owned_claims.begin_claim();
        owned_claims.finish_claim(token, [ClaimKey::Event(150)]);
        owned_claims.remove(ClaimKey::Event(150), Fence { owner: 1, token });
        let token = owned_claims.begin_claim();
        assert_eq!(owned_claims.oldest().event, 150);
        owned_claims.lower_floor(Oldest { event: 120, delivery: 7 });
        assert_eq!(owned_claims.oldest().event, 120, "a claim in flight may get one of them");
        owned_claims.finish_claim(token, [ClaimKey::Event(130)]);
        assert_eq!(owned_claims.oldest().event, 130);
    }

    #[test]
    fn only_claims_that_should_have_been_answered_are_unknown() {
        let owned_claims = OwnedClaims::new();
        let (lost, slow, owned) =
            (owned_claims.begin_claim(), owned_claims.begin_claim(), owned_claims.begin_claim());
        owned_claims.lose_answer(lost);
        owned_claims.finish_claim(owned, [ClaimKey::Event(3)]);
        let snapshot = owned_claims.snapshot();
        assert_eq!(snapshot.last_lost(), Some(lost), "a claim that is only in flight is not void");
        let later = owned_claims.begin_claim();
        assert!(owned_claims.is_unknown(&snapshot, ClaimKey::Event(1), lost));
        assert!(!owned_claims.is_unknown(&snapshot, ClaimKey::Event(2), slow), "in flight");
        assert!(!owned_claims.is_unknown(&snapshot, ClaimKey::Event(3), owned), "owned");
        assert!(!owned_claims.is_unknown(&snapshot, ClaimKey::Event(4), later), "sent later");
    }
}
