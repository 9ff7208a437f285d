//! Tracks in memory whether a subscription may have a backlog on disk, and whether it is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// Tracks whether a subscription may have deliveries in its on-disk backlog, so that an empty backlog is not read again and again, and
/// whether a pause keeps them there.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Number of deliveries that may have been deferred. Starts at 1: an earlier process may have left a backlog.
    deferrals: AtomicU64,
    /// The deferrals that were counted when the backlog was last found empty.
    drained: AtomicU64,
    is_paused: AtomicBool,
    /// Notified when the backlog loop may have something to claim. One for all subscriptions of a bus.
    pub(crate) wakeup: Arc<Notify>,
}

impl Backlog {
    pub(crate) fn new(wakeup: Arc<Notify>) -> Self {
        let (drained, is_paused) = (AtomicU64::new(0), AtomicBool::new(false));
        Backlog { deferrals: AtomicU64::new(1), drained, is_paused, wakeup }
    }

    /// Records that a delivery may have been deferred.
    pub(crate) fn may_have_grown(&self) {
        self.deferrals.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that a delivery is, or may be, in the backlog, and wakes the backlog loop.
    pub(crate) fn deferred(&self) {
        self.may_have_grown();
        self.wakeup.notify_one();
    }

    /// The number of deferrals up to now, if the backlog may not be empty.
    pub(crate) fn may_exist(&self) -> Option<u64> {
        let deferrals = self.deferrals.load(Ordering::Acquire);
        (deferrals != self.drained.load(Ordering::Acquire)).then_some(deferrals)
    }

    /// Records that a claim found the end of the backlog. `deferrals` is the number before that claim: a later deferral still counts.
    pub(crate) fn drained(&self, deferrals: u64) {
        self.drained.store(deferrals, Ordering::Release);
    }

    /// Keeps deliveries in the backlog, or lets them go.
    pub(crate) fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Release);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }
}
