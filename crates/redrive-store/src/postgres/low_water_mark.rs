//! Low-water mark: the ready time from which a claim scans the index of due work.
//!
//! Claimed rows leave dead entries at the low end of the index. Vacuum removes them soon, unless a long transaction in the
//! database keeps them: then every claim would scan all of them. So a claim starts where the previous one ended, and a
//! periodic full scan finds rows that other processes have stored below the mark.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lock;

#[derive(Debug)]
struct State {
    ready_at: i64,
    /// Counts the calls that lower the mark.
    lowered: u64,
    last_full_scan: Option<Instant>,
}

/// The mark of one table. A std mutex: held for a comparison.
#[derive(Debug)]
pub(super) struct LowWaterMark {
    full_scan_interval: Duration,
    state: Mutex<State>,
}

/// The start of one scan.
#[derive(Copy, Clone, Debug)]
pub(super) struct ScanStart {
    pub(super) ready_at: i64,
    /// The state's count when the scan started.
    lowered: u64,
}

impl LowWaterMark {
    pub(super) fn new(full_scan_interval: Duration) -> Self {
        let state = State { ready_at: 0, lowered: 0, last_full_scan: None };
        LowWaterMark { full_scan_interval, state: Mutex::new(state) }
    }

    /// Returns the mark, or 0 if a full scan is due.
    pub(super) fn scan_start(&self) -> ScanStart {
        let mut state = lock(&self.state);
        if state.last_full_scan.is_none_or(|scanned| scanned.elapsed() >= self.full_scan_interval) {
            state.last_full_scan = Some(Instant::now());
            state.ready_at = 0;
        }
        ScanStart { ready_at: state.ready_at, lowered: state.lowered }
    }

    /// Lowers the mark to a row that was stored with this ready time.
    pub(super) fn lower(&self, ready_at: i64) {
        let mut state = lock(&self.state);
        state.ready_at = state.ready_at.min(ready_at.max(0));
        state.lowered += 1;
    }

    /// Raises the mark after a scan has claimed everything below `ready_at`, unless the mark was lowered during the scan.
    pub(super) fn raise(&self, start: ScanStart, ready_at: i64) {
        let mut state = lock(&self.state);
        if state.lowered == start.lowered {
            state.ready_at = state.ready_at.max(ready_at);
        }
    }

    /// Makes the next scan a full one.
    pub(super) fn reset(&self) {
        let mut state = lock(&self.state);
        state.last_full_scan = None;
        state.lowered += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_starts_where_the_previous_one_ended() {
        let mark = LowWaterMark::new(Duration::from_secs(3600));
        let first = mark.scan_start();
        assert_eq!(first.ready_at, 0, "the first scan is a full one");
        mark.raise(first, 500);
        let second = mark.scan_start();
        assert_eq!(second.ready_at, 500);
        mark.lower(300);
        mark.raise(second, 700);
        assert_eq!(mark.scan_start().ready_at, 300, "a row stored during the scan is not skipped");
        mark.reset();
        assert_eq!(mark.scan_start().ready_at, 0);
    }
}
