//! Computes the times of all attempts of a policy row by row, without storing them: a policy may have a million attempts.

use redrive_retry::RetryPolicy;
use redrive_retry::decision::Identity;
use serde::{Serialize, Serializer};

use crate::time_format::millis;

/// Delay and time of one attempt.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    /// Counted from 1.
    pub(crate) attempt: u32,
    /// Delay before the attempt, without jitter.
    pub(crate) delay_ms: u64,
    /// Minimum delay with jitter.
    pub(crate) min_ms: u64,
    /// Maximum delay with jitter.
    pub(crate) max_ms: u64,
    /// Sum of all delays so far, without jitter.
    pub(crate) total_ms: u64,
    /// Exact delay of the event given by the identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seeded_ms: Option<u64>,
    /// Sum of all minimum delays so far.
    #[serde(skip)]
    pub(crate) total_min_ms: u64,
    /// Sum of all maximum delays so far.
    #[serde(skip)]
    pub(crate) total_max_ms: u64,
}

/// Attempts of a policy, with the exact delays of one event if an identity is given.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Schedule<'a> {
    pub(crate) policy: &'a RetryPolicy,
    pub(crate) identity: Option<Identity<'a>>,
}

impl<'a> Schedule<'a> {
    pub(crate) fn rows(self) -> impl Iterator<Item = Row> + use<'a> {
        let backoff = *self.policy.backoff();
        (1..=self.policy.max_attempts()).scan(Row::default(), move |before, attempt| {
            let delay_ms = millis(backoff.nominal(attempt));
            let range = backoff.range(attempt, None);
            let (min_ms, max_ms) = (millis(range.min()), millis(range.max()));
            *before = Row {
                attempt,
                delay_ms,
                min_ms,
                max_ms,
                total_ms: before.total_ms.saturating_add(delay_ms),
                seeded_ms: self.identity.map(|identity| millis(backoff.delay(attempt, None, identity))),
                total_min_ms: before.total_min_ms.saturating_add(min_ms),
                total_max_ms: before.total_max_ms.saturating_add(max_ms),
            };
            Some(*before)
        })
    }

    /// Last attempt, which has the totals.
    pub(crate) fn last(self) -> Row {
        self.rows().last().unwrap_or_default()
    }

    /// First `head` and last `tail` rows, and the number omitted between them; all rows if there are at most `max`.
    pub(crate) fn ends(self, max: usize, head: usize, tail: usize) -> (Vec<Row>, usize, Vec<Row>) {
        let all = usize::try_from(self.policy.max_attempts()).unwrap_or(usize::MAX);
        if all <= max {
            return (self.rows().collect(), 0, Vec::new());
        }
        let mut rows = self.rows();
        let first = rows.by_ref().take(head).collect();
        let omitted = all - head - tail;
        (first, omitted, rows.skip(omitted).collect())
    }

    /// At most `max` evenly spaced rows, including the first and the last.
    pub(crate) fn sample(self, max: usize) -> Vec<Row> {
        let last = u64::from(self.policy.max_attempts()) - 1;
        let steps = (max as u64 - 1).min(last).max(1);
        let mut wanted = (0..=steps).map(|step| step * last / steps).peekable();
        let chosen =
            self.rows().filter(|row| wanted.next_if(|index| u64::from(row.attempt) - 1 == *index).is_some());
        chosen.collect()
    }
}

/// Serialised row by row, in constant memory.
impl Serialize for Schedule<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(policy: &RetryPolicy) -> Schedule<'_> {
        Schedule { policy, identity: None }
    }

    fn attempts(n: u32) -> RetryPolicy {
        RetryPolicy::bus().to_builder().max_attempts(n).build().unwrap()
    }

    #[test]
    fn totals_are_the_sums_of_the_delays() {
        let last = schedule(&RetryPolicy::webhook()).last();
        assert_eq!((last.attempt, last.delay_ms, last.total_ms), (5, 8000, 15_000));
        assert_eq!((last.min_ms, last.max_ms), (7200, 8800));
        assert_eq!((last.total_min_ms, last.total_max_ms), (13_500, 16_500));
    }

    #[test]
    fn seeded_delays_equal_those_of_the_policy() {
        let policy = attempts(6);
        let identity = Identity::new(7, "order-1", "shipping");
        let schedule = Schedule { policy: &policy, identity: Some(identity) };
        let seeded: Vec<u64> = schedule.rows().filter_map(|row| row.seeded_ms).collect();
        let waits: Vec<u64> = policy.delays(identity).map(millis).collect();
        assert_eq!(seeded[0], 0);
        assert_eq!(seeded[1..], waits);
    }

    #[test]
    fn long_schedules_omit_their_middle() {
        let numbers = |rows: Vec<Row>| rows.iter().map(|row| row.attempt).collect::<Vec<_>>();
        let (first, omitted, last) = schedule(&attempts(51)).ends(50, 3, 2);
        assert_eq!((numbers(first), omitted, numbers(last)), (vec![1, 2, 3], 46, vec![50, 51]));
        let (first, omitted, last) = schedule(&attempts(50)).ends(50, 3, 2);
        assert_eq!((first.len(), omitted, last.len()), (50, 0, 0));
    }

    #[test]
    fn a_sample_has_both_ends_and_is_small() {
        for (n, most, expected) in [(1, 10, 1), (2, 10, 2), (10, 10, 10), (1_000_000, 200, 200)] {
            let policy = attempts(n);
            let sample = schedule(&policy).sample(most);
            assert_eq!(sample.len(), expected, "{n}");
            assert_eq!((sample[0].attempt, sample[expected - 1].attempt), (1, n));
        }
    }
}
