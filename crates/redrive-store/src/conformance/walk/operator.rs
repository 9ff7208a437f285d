//! Operations of an operator in the random walk: redrive and purge.

use super::Walk;
use crate::conformance::scene::at;
use crate::conformance::walk_model::{ModelRow, Modelled, State};
use crate::dead_letter::Redrive;
use crate::error::StoreError;
use crate::store::Store;

impl Walk {
    pub(super) async fn redrive(&mut self, store: &dyn Store) {
        if self.events.is_empty() {
            return;
        }
        let (now, place) = (self.now, self.place());
        let due = now + self.random.millis(100);
        let modelled = self.any_event();
        if modelled.whole.state == State::Dead && modelled.owes() > 0 {
            return; // covered by another promise
        }
        let result = store.redrive(modelled.new.id, Redrive { at: at(due), payload: None }).await;
        let is_partly_dead = matches!(modelled.whole.state, State::Delivering | State::Redriven)
            && !modelled.letters.is_empty();
        if modelled.whole.state != State::Dead && !is_partly_dead {
            let expected = modelled.whole.state.shown();
            assert!(
                matches!(result, Err(StoreError::NotDead { status, .. }) if status == expected),
                "{place}: {result:?} for {modelled:?}"
            );
            return;
        }
        assert!(result.is_ok(), "{place}: {result:?} for {modelled:?}");
        let id = modelled.new.id;
        let is_whole = modelled.letters.contains(&None);
        modelled.forget_failures();
        let state = match (is_whole, modelled.owes()) {
            (true, _) => State::Pending,
            (false, 0) => State::Redriven,
            (false, _) => State::Delivering,
        };
        for row in modelled.deliveries.values_mut().filter(|row| row.state == State::Dead) {
            *row = ModelRow::new(State::Pending, due);
        }
        modelled.whole = ModelRow::new(state, due);
        modelled.letters.clear();
        modelled.updated = due;
        self.late.retain(|claimed| claimed.event.id != id);
    }

    /// Returns a random instant, or one right at the boundary of an event in this state.
    fn boundary(&mut self, end: State, edge: fn(&Modelled) -> i64) -> i64 {
        let edges: Vec<i64> =
            self.events.values().filter(|modelled| modelled.whole.state == end).map(edge).collect();
        if edges.is_empty() || self.random.below(3) == 0 {
            return self.now - self.random.millis(4000);
        }
        edges[self.random.index(edges.len())] - self.random.millis(2)
    }

    pub(super) async fn purge_dead(&mut self, store: &dyn Store) {
        let until = self.boundary(State::Dead, |modelled| modelled.created);
        let purged = store.purge_dead(at(until)).await.unwrap();
        let before = self.events.len();
        self.events.retain(|_, modelled| {
            let is_dead = modelled.whole.state == State::Dead && modelled.owes() == 0;
            !(is_dead && modelled.created <= until)
        });
        assert_eq!(purged, (before - self.events.len()) as u64, "{}", self.place());
    }

    pub(super) async fn purge_done(&mut self, store: &dyn Store) {
        let until = self.boundary(State::Done, |modelled| modelled.updated + 1);
        let purged = store.purge_done(at(until), 1_000_000).await.unwrap();
        let before = self.events.len();
        self.events.retain(|_, modelled| !(modelled.whole.state == State::Done && modelled.updated < until));
        assert_eq!(purged, (before - self.events.len()) as u64, "{}", self.place());
    }
}
