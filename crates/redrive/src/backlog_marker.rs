//! Remembers whether a subscription may have a backlog on disk.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tracks whether a subscription may have deliveries in its on-disk backlog, so that an empty backlog is not read again and again.
#[derive(Debug)]
pub(crate) struct BacklogMarker {
    /// How often a delivery may have been deferred. Starts at 1: an earlier process may have left a backlog.
    deferrals: AtomicU64,
    /// The deferrals that were counted when the backlog was last found empty.
    drained: AtomicU64,
}

impl Default for BacklogMarker {
    fn default() -> Self {
        BacklogMarker { deferrals: AtomicU64::new(1), drained: AtomicU64::new(0) }
    }
}

impl BacklogMarker {
    /// Records that a delivery may have been deferred.
    pub(crate) fn deferred(&self) {
        self.deferrals.fetch_add(1, Ordering::AcqRel);
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
}
