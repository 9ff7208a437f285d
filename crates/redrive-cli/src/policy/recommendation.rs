//! Recommends attempts, base delay and longest delay for a target success rate, from recorded failures.

use std::time::Duration;

use redrive_retry::{Jitter, RetryPolicy};

use super::history_replay::{Replay, quantile, share};

/// More attempts are not recommended: longer delays reach further.
const MAX_ATTEMPTS: u32 = 30;

/// Delays that a person would write, in milliseconds.
const ROUND_MS: [u64; 21] = [
    100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_200_000,
    1_800_000, 3_600_000, 7_200_000, 14_400_000, 21_600_000, 43_200_000, 86_400_000,
];

/// A recommended policy, and the share of the works that any policy can reach.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Recommendation {
    pub(super) policy: RetryPolicy,
    /// Share of the works for which a recovery was recorded.
    pub(super) reachable: f64,
}

/// Recommends the smallest number of attempts that reaches the target, with delays that fit the recorded recoveries.
///
/// - The base delay is at most the time within which a quarter of the works recovered: a shorter wait meets the failure again.
/// - The longest delay is at least a quarter of the time within which nine tenths recovered: after the recovery no work waits much
///   longer than the outage took. It grows if the attempts would not suffice.
///
/// `None` if no recovery was recorded.
pub(super) fn recommend(replay: &Replay, target: f64) -> Option<Recommendation> {
    let recoveries = replay.recoveries();
    let longest = *recoveries.last()?;
    let reachable = share(recoveries.len() as u64, replay.len());
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // a number of works in memory
    let wanted = ((replay.len() as f64 * target).ceil() as usize).clamp(1, recoveries.len());
    let base = round_down(quantile(&recoveries, 0.25));
    let mut cap = round_up(quantile(&recoveries, 0.9) / 4).max(base);
    loop {
        let policy = |attempts| {
            RetryPolicy::builder()
                .max_attempts(attempts)
                .base_delay(Duration::from_millis(base))
                .max_delay(Duration::from_millis(cap))
                .multiplier(2.0)
                .jitter(Jitter::TEN_PERCENT)
                .build()
                .ok()
        };
        let needed = replay.needed_attempts(policy(MAX_ATTEMPTS)?.backoff(), MAX_ATTEMPTS);
        if let Some(attempts) = needed.get(wanted - 1) {
            return Some(Recommendation { policy: policy(*attempts)?, reachable });
        }
        let larger = ROUND_MS.iter().copied().find(|round| *round > cap);
        // A single wait of the longest recovery reaches every work.
        cap = larger.or((cap < longest).then_some(longest.saturating_mul(2)))?;
    }
}

fn round_down(ms: u64) -> u64 {
    ROUND_MS.iter().copied().rev().find(|round| *round <= ms).unwrap_or(ROUND_MS[0])
}

fn round_up(ms: u64) -> u64 {
    ROUND_MS.iter().copied().find(|round| *round >= ms).unwrap_or(ROUND_MS[ROUND_MS.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::works::{Collected, End, Work};
    use redrive_retry::Timestamp;
    use std::collections::BTreeMap;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(1_767_225_600_000 + second * 1000)
    }

    fn work(number: i64, failures: &[i64], end: End) -> Work {
        Work {
            identity: format!("event-{number}"),
            target: "shipping".into(),
            failures: failures.iter().map(|second| at(*second)).collect(),
            failing_ms: 0,
            parked_ms: 0,
            planned: at(*failures.last().unwrap() + 1),
            end,
            policy: None,
        }
    }

    fn history(works: Vec<Work>, other_successes: &[i64]) -> Collected {
        let mut times: Vec<Timestamp> = other_successes.iter().map(|second| at(*second)).collect();
        times.extend(works.iter().filter_map(|work| match work.end {
            End::Succeeded(at) => Some(at),
            _ => None,
        }));
        times.sort_unstable();
        Collected { works, successes: BTreeMap::from([("shipping".into(), times)]) }
    }

    /// Ninety failures that a retry after a second heals, and ten that died in an outage of five minutes.
    fn blips_and_an_outage() -> Replay {
        let mut works: Vec<Work> =
            (0..90).map(|n| work(n, &[n * 10], End::Succeeded(at(n * 10 + 1)))).collect();
        works
            .extend((90..100).map(|n| work(n, &[10_000 + n, 10_001 + n, 10_003 + n, 10_007 + n], End::Dead)));
        Replay::new(&history(works, &[10_300]))
    }

    #[test]
    fn the_recommended_policy_reaches_the_target_and_one_attempt_less_does_not() {
        let replay = blips_and_an_outage();
        let found = recommend(&replay, 0.99).unwrap();
        assert!((found.reachable - 1.0).abs() < 1e-9);
        let rate = |attempts| {
            let policy = found.policy.to_builder().max_attempts(attempts).build().unwrap();
            replay.run(&policy).success_rate
        };
        let attempts = found.policy.max_attempts();
        assert!(rate(attempts) >= 0.99 && rate(attempts - 1) < 0.99, "{:?}", found.policy);
        assert_eq!(
            found.policy.base_delay(),
            Duration::from_secs(1),
            "most failures are over after a second"
        );
        let bus = replay.run(&RetryPolicy::bus());
        assert_eq!((bus.succeeded, bus.dead), (90, 10), "the default policy ends before the outage");
    }

    #[test]
    fn a_lower_target_needs_fewer_attempts() {
        let replay = blips_and_an_outage();
        let attempts = |target| recommend(&replay, target).unwrap().policy.max_attempts();
        assert!(attempts(0.5) < attempts(0.99), "{} {}", attempts(0.5), attempts(0.99));
    }

    #[test]
    fn an_event_that_fails_while_others_succeed_has_no_recovery() {
        // The target handled other events between the failures: the event itself is the problem.
        let works = vec![
            work(1, &[0, 10, 20], End::Dead),
            work(2, &[4], End::Succeeded(at(5))),
            work(3, &[100], End::Succeeded(at(101))),
        ];
        let replay = Replay::new(&history(works, &[]));
        let found = recommend(&replay, 0.99).unwrap();
        assert!((found.reachable - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(replay.run(&found.policy).dead, 1);
    }

    #[test]
    fn without_a_recovery_nothing_is_recommended() {
        let replay = Replay::new(&history(vec![work(1, &[0, 1], End::Dead)], &[]));
        assert_eq!(recommend(&replay, 0.99), None);
        let permanent = Replay::new(&history(vec![work(1, &[0], End::Permanent)], &[5]));
        assert_eq!(permanent.len(), 0, "no policy helps against a permanent error");
    }

    #[test]
    fn a_wait_behind_a_circuit_is_not_charged_to_a_policy() {
        // Failed at 0 s and, parked for 57 s, at 60 s; parked again until 120 s. The policy alone planned 1 s, 3 s.
        let parked =
            Work { parked_ms: 57_000, planned: at(62), ..work(1, &[0, 60], End::Succeeded(at(120))) };
        let replay = Replay::new(&history(vec![parked], &[]));
        assert_eq!(replay.recoveries(), [5000]);
    }

    #[test]
    fn an_outage_of_weeks_is_reached() {
        let month = 30 * 24 * 3600;
        let waited = Work { planned: at(month), ..work(1, &[0], End::Succeeded(at(month))) };
        let replay = Replay::new(&history(vec![waited], &[]));
        let found = recommend(&replay, 1.0).unwrap();
        assert_eq!(replay.run(&found.policy).succeeded, 1, "{:?}", found.policy);
    }
}
