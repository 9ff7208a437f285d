//! From where on to look for due work.
//!
//! What was claimed leaves dead entries behind at the low end of the index. They are cleaned up soon, unless a long transaction
//! somewhere in the database keeps them: then every claim would walk over all of them. So a claim begins where the one before
//! ended. What others store before that place is found by a look at everything, now and then.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct State {
    from: i64,
    /// How often something was stored before the mark.
    lowered: u64,
    looked_at_all: Option<Instant>,
}

/// Of one table. A std mutex: held for a comparison.
#[derive(Debug)]
pub(super) struct Mark {
    every: Duration,
    state: Mutex<State>,
}

/// A place from where to look, and what was known then.
#[derive(Copy, Clone, Debug)]
pub(super) struct From {
    pub(super) ready_at: i64,
    lowered: u64,
}

impl Mark {
    /// Looks at everything so often.
    pub(super) fn new(every: Duration) -> Self {
        Mark { every, state: Mutex::new(State { from: 0, lowered: 0, looked_at_all: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn from(&self) -> From {
        let mut state = self.lock();
        if state.looked_at_all.is_none_or(|looked| looked.elapsed() >= self.every) {
            state.looked_at_all = Some(Instant::now());
            state.from = 0;
        }
        From { ready_at: state.from, lowered: state.lowered }
    }

    /// Something is there from this time on.
    pub(super) fn lower(&self, to: i64) {
        let mut state = self.lock();
        state.from = state.from.min(to.max(0));
        state.lowered += 1;
    }

    /// Everything before this was claimed.
    pub(super) fn raise(&self, since: From, to: i64) {
        let mut state = self.lock();
        if state.lowered == since.lowered {
            state.from = state.from.max(to);
        }
    }

    /// The next look is at everything.
    pub(super) fn forget(&self) {
        let mut state = self.lock();
        state.looked_at_all = None;
        state.lowered += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_begins_where_the_one_before_ended() {
        let mark = Mark::new(Duration::from_secs(3600));
        let first = mark.from();
        assert_eq!(first.ready_at, 0, "the first one looks at everything");
        mark.raise(first, 500);
        let second = mark.from();
        assert_eq!(second.ready_at, 500);
        mark.lower(300);
        mark.raise(second, 700);
        assert_eq!(mark.from().ready_at, 300, "what came meanwhile is not passed over");
        mark.forget();
        assert_eq!(mark.from().ready_at, 0);
    }
}
