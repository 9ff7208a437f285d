//! The line of those who wait for a budget that is spent: when each asks again.
//!
//! Nobody knows when there will be something, because first attempts pay in when they come. So who waits asks now and then. The
//! first ones ask as often as the trickle brings something; behind them it becomes closer, so that a long line neither waits for
//! hours nor asks all at once: a process is asked about a hundred times a second at most, however long the line is.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::timestamp::Timestamp;

/// The longest distance: who waits alone for a trickle of a retry an hour may be helped by a first attempt.
const FARTHEST: u64 = 5_000;

/// How long the part of the line is that goes by the trickle, and how close it is behind that.
const FRONT: i64 = 60_000;
const CLOSEST: u64 = 10;

/// Nobody waits for longer before he asks again.
const LONGEST: Duration = Duration::from_secs(3600);

/// Where the line ends, in milliseconds.
#[derive(Debug)]
pub(super) struct Line(AtomicI64);

impl Line {
    pub(super) const fn new() -> Self {
        Line(AtomicI64::new(i64::MIN))
    }

    /// The next place. `per_retry` is how many milliseconds the trickle takes for one; `spread` is any number that is another
    /// one for other work, so that who has the same place in the lines of several processes does not ask at the same instant.
    pub(super) fn join(&self, now: Timestamp, per_retry: u64, spread: u64) -> Timestamp {
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |end| Some(next(end, now, per_retry)))
            .unwrap_or(i64::MIN); // always there
        let place = next(before, now, per_retry);
        let distance = place.saturating_sub(before.max(now.as_millis())).unsigned_abs().max(1);
        Timestamp::from_millis(place).plus_millis(spread % distance)
    }
}

/// The place behind `end`.
fn next(end: i64, now: Timestamp, per_retry: u64) -> i64 {
    let now_ms = now.as_millis();
    let by_trickle = per_retry.clamp(1, FARTHEST);
    let is_behind = end.saturating_sub(now_ms) >= FRONT;
    let distance = if is_behind { by_trickle.min(CLOSEST) } else { by_trickle };
    let place = Timestamp::from_millis(end.max(now_ms)).plus_millis(distance);
    if place > now + LONGEST { now.plus_millis(by_trickle).as_millis() } else { place.as_millis() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn places(count: usize, per_retry: u64) -> Vec<u128> {
        let line = Line::new();
        (0..count).map(|_| line.join(T0, per_retry, 0).since(T0).as_millis()).collect()
    }

    #[test]
    fn the_first_ones_ask_as_often_as_the_trickle_brings_something() {
        assert_eq!(places(4, 500), [500, 1000, 1500, 2000]);
        assert_eq!(places(2, u64::MAX), [5000, 10_000], "a slow trickle is not all there is");
    }

    #[test]
    fn a_long_line_is_close_at_its_end_and_nobody_waits_for_hours() {
        let places = places(60_000, 1000);
        assert_eq!(places[..3], [1000, 2000, 3000]);
        assert_eq!(places[59..62], [60_000, 60_010, 60_020]);
        assert!(places.iter().all(|place| *place <= 3_600_000));
        let ends_at = places[59_999];
        assert!((600_000..700_000).contains(&ends_at), "a hundred a second: {ends_at}");
        assert!(self::places(500_000, 1000).iter().all(|place| *place <= 3_600_000));
    }

    #[test]
    fn no_two_ask_at_once_even_in_lines_of_their_own() {
        let place = |spread| Line::new().join(T0, 1000, spread).since(T0).as_millis();
        assert_eq!((place(0), place(17), place(1999)), (1000, 1017, 1999));
    }

    #[test]
    fn a_line_that_has_passed_begins_anew() {
        let line = Line::new();
        line.join(T0, 1000, 0);
        let later = T0 + Duration::from_secs(100);
        assert_eq!(line.join(later, 1000, 0), later + Duration::from_secs(1));
    }
}
