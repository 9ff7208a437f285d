//! Spreads deliveries that wait for a spent retry budget: each gets its own time to ask again.
//!
//! First attempts refill the budget at unknown times, so waiting deliveries poll. The first ones poll at the pace of the steady
//! refill. Later ones poll closer together, so that a long queue neither waits for hours nor asks all at once: the budget is
//! asked at most about a hundred times per second.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use redrive_retry::Timestamp;

/// Longest spacing: a first attempt may refill the budget long before the steady refill does.
const MAX_SPACING_MS: u64 = 5_000;

/// Part of the queue that is spaced by the steady refill, and the spacing behind it.
const REFILL_PACED_MS: i64 = 60_000;
const MIN_SPACING_MS: u64 = 10;

/// Longest wait before a delivery asks again.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// End of the queue in Unix milliseconds.
#[derive(Debug)]
pub(crate) struct BudgetQueue(AtomicI64);

impl BudgetQueue {
    pub(crate) const fn new() -> Self {
        BudgetQueue(AtomicI64::new(i64::MIN))
    }

    /// Moves the end of the queue by milliseconds, after the clock was set by as many.
    pub(crate) fn shift(&self, step_ms: i64) {
        let moved = |end: i64| (end != i64::MIN).then(|| end.saturating_add(step_ms));
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, moved);
    }

    /// Returns the next time to ask. `refill_ms` is the time that the steady refill takes for one retry. `spread` differs
    /// between deliveries, so that the queues of several processes do not ask at the same instant.
    pub(crate) fn join(&self, now: Timestamp, refill_ms: u64, spread: u64) -> Timestamp {
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |end| Some(next(end, now, refill_ms)))
            .unwrap_or(i64::MIN); // the closure never refuses
        let position = next(before, now, refill_ms);
        let spacing = position.saturating_sub(before.max(now.as_millis())).unsigned_abs().max(1);
        Timestamp::from_millis(position).plus_millis(spread % spacing)
    }
}

/// Position behind `end`.
fn next(end: i64, now: Timestamp, refill_ms: u64) -> i64 {
    let now_ms = now.as_millis();
    let refill_paced = refill_ms.clamp(1, MAX_SPACING_MS);
    let is_far_behind = end.saturating_sub(now_ms) >= REFILL_PACED_MS;
    let spacing = if is_far_behind { refill_paced.min(MIN_SPACING_MS) } else { refill_paced };
    let position = Timestamp::from_millis(end.max(now_ms)).plus_millis(spacing);
    if position > now + MAX_WAIT { now.plus_millis(refill_paced).as_millis() } else { position.as_millis() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn positions(count: usize, refill_ms: u64) -> Vec<u128> {
        let queue = BudgetQueue::new();
        (0..count).map(|_| queue.join(T0, refill_ms, 0).since(T0).as_millis()).collect()
    }

    #[test]
    fn the_front_of_the_queue_polls_at_the_refill_rate() {
        assert_eq!(positions(4, 500), [500, 1000, 1500, 2000]);
        assert_eq!(positions(2, u64::MAX), [5000, 10_000], "first attempts may refill the budget earlier");
    }

    #[test]
    fn a_long_queue_is_dense_at_its_end_and_waits_at_most_an_hour() {
        let positions = positions(60_000, 1000);
        assert_eq!(positions[..3], [1000, 2000, 3000]);
        assert_eq!(positions[59..62], [60_000, 60_010, 60_020]);
        assert!(positions.iter().all(|position| *position <= 3_600_000));
        let ends_at = positions[59_999];
        assert!((600_000..700_000).contains(&ends_at), "a hundred a second: {ends_at}");
        assert!(self::positions(500_000, 1000).iter().all(|position| *position <= 3_600_000));
    }

    #[test]
    fn deliveries_of_different_queues_ask_at_different_times() {
        let position = |spread| BudgetQueue::new().join(T0, 1000, spread).since(T0).as_millis();
        assert_eq!((position(0), position(17), position(1999)), (1000, 1017, 1999));
    }

    #[test]
    fn an_elapsed_queue_starts_again_from_now() {
        let queue = BudgetQueue::new();
        queue.join(T0, 1000, 0);
        let later = T0 + Duration::from_secs(100);
        assert_eq!(queue.join(later, 1000, 0), later + Duration::from_secs(1));
    }
}
