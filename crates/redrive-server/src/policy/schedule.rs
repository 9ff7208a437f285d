//! When each attempt of a policy comes, row by row. Nothing is kept: a policy may have a million attempts.

use std::time::Duration;

use redrive_retry::{Identity, RetryPolicy};
use serde::{Serialize, Serializer};

/// One attempt.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    /// Counted from 1.
    pub(crate) attempt: u32,
    /// The wait before it, without jitter.
    pub(crate) delay_ms: u64,
    /// The shortest wait that jitter allows.
    pub(crate) min_ms: u64,
    /// The longest wait that jitter allows.
    pub(crate) max_ms: u64,
    /// All waits so far, without jitter.
    pub(crate) total_ms: u64,
    /// The wait that one particular event has, if one is asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seeded_ms: Option<u64>,
    /// All waits so far at their shortest.
    #[serde(skip)]
    pub(crate) total_min_ms: u64,
    /// All waits so far at their longest.
    #[serde(skip)]
    pub(crate) total_max_ms: u64,
}

/// The attempts of a policy, and of one event if there is an identity.
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

    /// The last attempt: the totals are in it.
    pub(crate) fn last(self) -> Row {
        self.rows().last().unwrap_or_default()
    }

    /// The first `head` and the last `tail` rows, and how many lie between them. All of them up to `most`.
    pub(crate) fn ends(self, most: usize, head: usize, tail: usize) -> (Vec<Row>, usize, Vec<Row>) {
        let all = usize::try_from(self.policy.max_attempts()).unwrap_or(usize::MAX);
        if all <= most {
            return (self.rows().collect(), 0, Vec::new());
        }
        let mut rows = self.rows();
        let first = rows.by_ref().take(head).collect();
        let omitted = all - head - tail;
        (first, omitted, rows.skip(omitted).collect())
    }

    /// At most `most` rows, evenly chosen, the first and the last among them.
    pub(crate) fn sample(self, most: usize) -> Vec<Row> {
        let last = u64::from(self.policy.max_attempts()) - 1;
        let steps = (most as u64 - 1).min(last).max(1);
        let mut wanted = (0..=steps).map(|step| step * last / steps).peekable();
        let chosen =
            self.rows().filter(|row| wanted.next_if(|index| u64::from(row.attempt) - 1 == *index).is_some());
        chosen.collect()
    }
}

/// Written row by row, so that a million attempts need no memory.
impl Serialize for Schedule<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows())
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
    fn the_rows_add_up() {
        let last = schedule(&RetryPolicy::webhook()).last();
        assert_eq!((last.attempt, last.delay_ms, last.total_ms), (5, 8000, 15_000));
        assert_eq!((last.min_ms, last.max_ms), (7200, 8800));
        assert_eq!((last.total_min_ms, last.total_max_ms), (13_500, 16_500));
    }

    #[test]
    fn a_seeded_row_is_what_the_policy_would_wait() {
        let policy = attempts(6);
        let identity = Identity::new(7, "order-1", "shipping");
        let schedule = Schedule { policy: &policy, identity: Some(identity) };
        let seeded: Vec<u64> = schedule.rows().filter_map(|row| row.seeded_ms).collect();
        let waits: Vec<u64> = policy.delays(identity).map(millis).collect();
        assert_eq!(seeded[0], 0);
        assert_eq!(seeded[1..], waits);
    }

    #[test]
    fn long_schedules_show_their_ends() {
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
