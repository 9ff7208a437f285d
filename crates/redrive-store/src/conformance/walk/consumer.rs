//! Operations of a pull consumer in the random walk: it claims leased deliveries and extends leases, also long after their end.

use super::Walk;
use crate::conformance::scene::{at, done, name};
use crate::conformance::walk_model::State;
use crate::error::StoreError;
use crate::event::EventId;
use crate::lease::LeaseToken;
use crate::store::{Leases, Store};
use crate::work::{Settlement, Verdict};

impl Walk {
    /// Leases a claimed delivery until this time.
    pub(super) fn lease(
        &mut self,
        id: EventId,
        subscription: Option<&str>,
        token: LeaseToken,
        until: i64,
    ) -> Settlement {
        self.leases.push((id, subscription.unwrap_or_default().to_owned(), token));
        Settlement { verdict: Verdict::Lease { token, until: at(until) }, ..done(self.now) }
    }

    pub(super) async fn consume(&mut self, store: &dyn Store) {
        if self.leases.is_empty() {
            return;
        }
        let place = self.random.index(self.leases.len());
        let (id, subscription, token) = self.leases[place].clone();
        let (place, now, until) = (self.place(), self.now, self.now + 1 + self.random.millis(400));
        let is_extended = self.random.below(3) == 0;
        let row = self.events.get_mut(&id).map(|modelled| modelled.row(Some(&subscription)));
        let held = row
            .filter(|row| row.state == State::Leased && row.lease == Some(token))
            .filter(|row| row.due > now);
        let leases = Leases { names: vec![name(&subscription)], tokens: vec![token] };
        if is_extended {
            let extended = store.extend_leases(leases, at(now), at(until)).await.unwrap();
            assert_eq!(extended, [held.is_some()], "{place}: {held:?}");
            if let Some(row) = held {
                row.due = until;
            }
            return;
        }
        let (has_slot, sink) = (self.worker.sink.free_slots() > 0, self.worker.sink.clone());
        match store.claim_leased(leases, at(now), sink).await {
            Ok(mut claimed) => {
                let claimed = claimed.remove(0);
                assert_eq!(claimed.is_some(), held.is_some(), "{place}: {held:?}");
                if let Some(claimed) = claimed {
                    self.took(claimed, State::Leased);
                }
            }
            Err(error) => assert!(!has_slot && matches!(error, StoreError::Busy), "{place}: {error}"),
        }
    }
}
