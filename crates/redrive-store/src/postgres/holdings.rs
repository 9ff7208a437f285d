//! What this process holds, as far as it knows: the claims that it has neither settled nor lost.
//!
//! The database is the truth. This is kept for two questions that it cannot answer cheaply: which is the oldest key that we
//! may hold (so that whoever takes over after our death need not look at older ones), and which of the claims that the
//! database thinks we hold have we never heard of (because the answer was lost with a connection).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::work::{Fence, UnitKey};

/// Of one table.
#[derive(Debug, Default)]
struct Table {
    /// Key and token of what is held.
    held: BTreeMap<i64, i64>,
    /// No key that is given out from now on is smaller.
    seen: i64,
}

#[derive(Debug)]
struct State {
    /// The number of the next claim. Begins anywhere, so that two processes hardly ever use the same.
    next_token: i64,
    /// Claims on their way, and the smallest keys that they can bring.
    on_their_way: HashMap<i64, Oldest>,
    /// Claims whose answer was lost: they may have brought anything, and that is not looked up yet.
    lost: HashSet<i64>,
    events: Table,
    deliveries: Table,
}

/// The oldest keys that are held, or may be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Oldest {
    pub(super) event: i64,
    pub(super) delivery: i64,
}

/// What was on its way at some time.
#[derive(Debug)]
pub(super) struct Horizon {
    /// Claims from this number on were made later.
    next_token: i64,
    on_their_way: Vec<i64>,
    lost: Vec<i64>,
}

impl Horizon {
    /// The last of the claims whose answer was lost.
    pub(super) fn last_lost(&self) -> Option<i64> {
        self.lost.iter().max().copied()
    }
}

/// See above. A std mutex: held for a map operation.
#[derive(Debug)]
pub(super) struct Holdings(Mutex<State>);

impl Holdings {
    pub(super) fn new() -> Self {
        let random = i64::try_from(Uuid::new_v4().as_u128() >> 66).unwrap_or(0);
        Holdings(Mutex::new(State {
            next_token: random.max(1),
            on_their_way: HashMap::new(),
            lost: HashSet::new(),
            events: Table::default(),
            deliveries: Table::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new life begins: everything that was held is somebody else's now.
    pub(super) fn begin_anew(&self, from: Oldest) {
        let mut state = self.lock();
        state.events.held.clear();
        state.deliveries.held.clear();
        state.lost.clear();
        state.events.seen = from.event;
        state.deliveries.seen = from.delivery;
    }

    /// The server may have crashed, and give out keys again that it gave out to transactions that are forgotten. It has
    /// forgotten nothing that came before what it still knows, so none is older than what stands in this process's row.
    pub(super) fn go_back(&self, to: Oldest) {
        let mut state = self.lock();
        state.events.seen = state.events.seen.min(to.event);
        state.deliveries.seen = state.deliveries.seen.min(to.delivery);
        for from in state.on_their_way.values_mut() {
            from.event = from.event.min(to.event);
            from.delivery = from.delivery.min(to.delivery);
        }
    }

    /// A claim is sent, under the number that is returned.
    pub(super) fn send(&self) -> i64 {
        let mut state = self.lock();
        let token = state.next_token;
        state.next_token += 1;
        let from = Oldest { event: state.events.seen, delivery: state.deliveries.seen };
        state.on_their_way.insert(token, from);
        token
    }

    /// The claim has come back with these units, or with nothing.
    pub(super) fn receive(&self, token: i64, units: impl IntoIterator<Item = UnitKey>) {
        let mut state = self.lock();
        state.on_their_way.remove(&token);
        for unit in units {
            match unit {
                UnitKey::Event(key) => state.events.take(key, token),
                UnitKey::Delivery { delivery, event } => {
                    state.deliveries.take(delivery, token);
                    state.events.seen = state.events.seen.max(event);
                }
            }
        }
    }

    /// The claim was sent, and nobody knows what it has brought.
    pub(super) fn lose(&self, token: i64) {
        let mut state = self.lock();
        if state.on_their_way.remove(&token).is_some() {
            state.lost.insert(token);
        }
    }

    /// Whether there are claims of which nobody knows what they have brought.
    pub(super) fn has_lost(&self) -> bool {
        !self.lock().lost.is_empty()
    }

    /// What was lost by then was looked up, and has gone back.
    pub(super) fn found(&self, horizon: &Horizon) {
        let mut state = self.lock();
        for token in &horizon.lost {
            state.lost.remove(token);
        }
    }

    /// A unit was settled, or lost to somebody else.
    pub(super) fn give_up(&self, unit: UnitKey, fence: Fence) {
        let mut state = self.lock();
        let table = match unit {
            UnitKey::Event(_) => &mut state.events,
            UnitKey::Delivery { .. } => &mut state.deliveries,
        };
        if table.held.get(&unit.key()) == Some(&fence.token) {
            table.held.remove(&unit.key());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        let is_settled = state.events.held.is_empty() && state.deliveries.held.is_empty();
        is_settled && state.on_their_way.is_empty() && state.lost.is_empty()
    }

    pub(super) fn oldest(&self) -> Oldest {
        let state = self.lock();
        if !state.lost.is_empty() {
            return Oldest { event: 0, delivery: 0 };
        }
        let on_their_way = || state.on_their_way.values();
        Oldest {
            event: state.events.oldest(on_their_way().map(|from| from.event)),
            delivery: state.deliveries.oldest(on_their_way().map(|from| from.delivery)),
        }
    }

    pub(super) fn horizon(&self) -> Horizon {
        let state = self.lock();
        let on_their_way = state.on_their_way.keys().copied().collect();
        Horizon { next_token: state.next_token, on_their_way, lost: state.lost.iter().copied().collect() }
    }

    /// Whether the database thinks that we hold something of which we know nothing.
    pub(super) fn has_missed(&self, horizon: &Horizon, unit: UnitKey, token: i64) -> bool {
        if token >= horizon.next_token || horizon.on_their_way.contains(&token) {
            return false;
        }
        let state = self.lock();
        let table = match unit {
            UnitKey::Event(_) => &state.events,
            UnitKey::Delivery { .. } => &state.deliveries,
        };
        table.held.get(&unit.key()) != Some(&token)
    }
}

impl Table {
    fn take(&mut self, key: i64, token: i64) {
        self.held.insert(key, token);
        self.seen = self.seen.max(key);
    }

    fn oldest(&self, on_their_way: impl Iterator<Item = i64>) -> i64 {
        let held = self.held.keys().next().copied();
        on_their_way.chain(held).min().unwrap_or(self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_key_is_never_later_than_what_may_be_held() {
        let holdings = Holdings::new();
        holdings.begin_anew(Oldest { event: 100, delivery: 7 });
        assert_eq!(holdings.oldest(), Oldest { event: 100, delivery: 7 });
        let one = holdings.send();
        let two = holdings.send();
        holdings.receive(two, [UnitKey::Event(105)]);
        assert_eq!(holdings.oldest().event, 100, "what is on its way may have an older key");
        holdings.receive(one, [UnitKey::Event(101), UnitKey::Event(103)]);
        assert_eq!(holdings.oldest().event, 101);
        holdings.give_up(UnitKey::Event(101), Fence { owner: 1, token: one });
        assert_eq!(holdings.oldest().event, 103);
        holdings.give_up(UnitKey::Event(103), Fence { owner: 1, token: two });
        assert_eq!(holdings.oldest().event, 103, "by another claim of it, it is still held");
        holdings.give_up(UnitKey::Event(103), Fence { owner: 1, token: one });
        holdings.give_up(UnitKey::Event(105), Fence { owner: 1, token: two });
        assert!(holdings.is_empty());
        assert_eq!(holdings.oldest().event, 105, "whatever comes is later");
    }

    #[test]
    fn while_an_answer_is_lost_anything_may_be_held() {
        let holdings = Holdings::new();
        holdings.begin_anew(Oldest { event: 100, delivery: 7 });
        let before = holdings.horizon();
        let token = holdings.send();
        holdings.lose(token);
        assert!(holdings.has_lost() && !holdings.is_empty());
        assert_eq!(holdings.oldest(), Oldest { event: 0, delivery: 0 });
        holdings.found(&before);
        assert!(holdings.has_lost(), "it was lost after that look");
        holdings.found(&holdings.horizon());
        assert!(!holdings.has_lost() && holdings.is_empty());
        assert_eq!(holdings.oldest(), Oldest { event: 100, delivery: 7 });
    }

    #[test]
    fn keys_that_are_given_out_again_are_not_too_young() {
        let holdings = Holdings::new();
        holdings.begin_anew(Oldest { event: 100, delivery: 7 });
        let token = holdings.send();
        holdings.receive(token, [UnitKey::Event(150)]);
        holdings.give_up(UnitKey::Event(150), Fence { owner: 1, token });
        let token = holdings.send();
        assert_eq!(holdings.oldest().event, 150);
        holdings.go_back(Oldest { event: 120, delivery: 7 });
        assert_eq!(holdings.oldest().event, 120, "what is on its way may bring one of them");
        holdings.receive(token, [UnitKey::Event(130)]);
        assert_eq!(holdings.oldest().event, 130);
    }

    #[test]
    fn only_what_should_have_arrived_is_missed() {
        let holdings = Holdings::new();
        let (lost, slow, held) = (holdings.send(), holdings.send(), holdings.send());
        holdings.lose(lost);
        holdings.receive(held, [UnitKey::Event(3)]);
        let horizon = holdings.horizon();
        assert_eq!(horizon.last_lost(), Some(lost), "nothing that is only on its way is void");
        let later = holdings.send();
        assert!(holdings.has_missed(&horizon, UnitKey::Event(1), lost));
        assert!(!holdings.has_missed(&horizon, UnitKey::Event(2), slow), "on its way");
        assert!(!holdings.has_missed(&horizon, UnitKey::Event(3), held), "held");
        assert!(!holdings.has_missed(&horizon, UnitKey::Event(4), later), "sent later");
    }
}
