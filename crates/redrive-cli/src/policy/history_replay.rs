//! Replays recorded failures under another policy.
//!
//! The history tells for every failed work when its target recovered: at the first success of any work on the same target after the last
//! failure, or at its own success if the target handled other work meanwhile, because then the failures were its own. Under
//! another policy the work makes its attempts at other times, and succeeds with the first one after the recovery.
//!
//! Waits behind an open circuit are taken out, because no policy is charged for them. The model is simple on purpose: the load of the
//! retries changes nothing about the recovery, an attempt takes as long as it did, and waits that a target requested are left out.

use redrive_retry::decision::Identity;
use redrive_retry::policy::Backoff;
use redrive_retry::{RetryPolicy, Timestamp};
use serde::Serialize;

use crate::history::works::{Collected, End, Work};
use crate::time_format::millis;

/// Finished works whose errors were not permanent.
#[derive(Debug)]
pub(super) struct Replay {
    cases: Vec<Case>,
}

/// One work to replay.
#[derive(Debug)]
struct Case {
    identity: String,
    target: String,
    /// Time from the first failed attempt to the recovery, without waits behind a circuit; `None` if no recovery was recorded.
    recovery_ms: Option<u64>,
    /// Average duration of a failed attempt.
    took_ms: u64,
    /// The recorded policy.
    policy: Option<(u32, Backoff)>,
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) succeeded: u64,
    pub(super) dead: u64,
    /// Share of the works that succeeded.
    pub(super) success_rate: f64,
    /// Attempts of all works together, the first ones included.
    pub(super) attempts: u64,
    /// Time from the first failed attempt to the success: median, nine tenths, longest.
    pub(super) median_ms: u64,
    pub(super) p90_ms: u64,
    pub(super) longest_ms: u64,
}

impl Replay {
    pub(super) fn new(history: &Collected) -> Self {
        let finished = history.works.iter().filter(|work| matches!(work.end, End::Succeeded(_) | End::Dead));
        let case = |work: &Work| {
            let successes = history.successes.get(&work.target).map_or(&[][..], Vec::as_slice);
            Some(Case {
                identity: work.identity.clone(),
                target: work.target.clone(),
                recovery_ms: recovery_ms(work, successes),
                took_ms: work.failing_ms.checked_div(work.failures.len() as u64)?,
                policy: work.policy,
            })
        };
        Replay { cases: finished.filter_map(case).collect() }
    }

    /// Number of works.
    pub(super) fn len(&self) -> u64 {
        self.cases.len() as u64
    }

    /// Times from the first failed attempt to the recovery, shortest first.
    pub(super) fn recoveries(&self) -> Vec<u64> {
        let mut times: Vec<u64> = self.cases.iter().filter_map(|case| case.recovery_ms).collect();
        times.sort_unstable();
        times
    }

    /// Numbers of attempts that each recovered work needs with these delays, smallest first; at most `max`, above which the work is
    /// left out.
    pub(super) fn needed_attempts(&self, backoff: &Backoff, max: u32) -> Vec<u32> {
        let mut needed: Vec<u32> = self
            .cases
            .iter()
            .filter_map(|case| case.success(backoff, max))
            .map(|(attempt, _)| attempt)
            .collect();
        needed.sort_unstable();
        needed
    }

    /// Replays the works with one policy.
    pub(super) fn run(&self, policy: &RetryPolicy) -> Outcome {
        self.run_each(|_| Some((policy.max_attempts(), *policy.backoff())))
    }

    /// Replays every work with its recorded policy; `None` if none is recorded.
    pub(super) fn run_recorded(&self) -> Option<Outcome> {
        let is_recorded = self.cases.iter().any(|case| case.policy.is_some());
        is_recorded.then(|| self.run_each(|case| case.policy))
    }

    fn run_each(&self, policy: impl Fn(&Case) -> Option<(u32, Backoff)>) -> Outcome {
        let mut times = Vec::new();
        let mut attempts = 0;
        for case in &self.cases {
            let Some((max_attempts, backoff)) = policy(case) else { continue };
            match case.success(&backoff, max_attempts) {
                Some((attempt, after_ms)) => {
                    attempts += u64::from(attempt);
                    times.push(after_ms);
                }
                None => attempts += u64::from(max_attempts),
            }
        }
        times.sort_unstable();
        let succeeded = times.len() as u64;
        Outcome {
            succeeded,
            dead: self.len() - succeeded,
            success_rate: share(succeeded, self.len()),
            attempts,
            median_ms: quantile(&times, 0.5),
            p90_ms: quantile(&times, 0.9),
            longest_ms: quantile(&times, 1.0),
        }
    }
}

impl Case {
    /// The attempt that succeeds and its time after the first one; `None` if none of them does.
    fn success(&self, backoff: &Backoff, max_attempts: u32) -> Option<(u32, u64)> {
        let recovery_ms = self.recovery_ms?;
        let identity = Identity::new(0, &self.identity, &self.target);
        let mut at_ms: u64 = 0;
        for attempt in 2..=max_attempts {
            let delay_ms = millis(backoff.delay(attempt, None, identity));
            at_ms = at_ms.saturating_add(self.took_ms).saturating_add(delay_ms);
            if at_ms >= recovery_ms {
                return Some((attempt, at_ms));
            }
        }
        None
    }
}

/// Time from the first failed attempt until the target accepted the work, or would have, without waits behind a circuit.
fn recovery_ms(work: &Work, successes: &[Timestamp]) -> Option<u64> {
    let (first, last) = (*work.failures.first()?, *work.failures.last()?);
    let own = match work.end {
        End::Succeeded(at) => Some(at),
        _ => None,
    };
    let after = |at: Timestamp| successes.get(successes.partition_point(|success| *success <= at)).copied();
    let is_its_own = after(first).is_some_and(|success| success <= last);
    let recovery = if is_its_own { own } else { [own, after(last)].into_iter().flatten().min() }?;
    // The successful attempt was planned earlier if it waited behind a circuit.
    let recovery = if own.is_some() { recovery.min(work.planned) } else { recovery };
    Some(millis(recovery.since(first)).saturating_sub(work.parked_ms))
}

/// The value below which this share of sorted values lies; 0 without values.
pub(super) fn quantile(sorted: &[u64], share: f64) -> u64 {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // an index of a list in memory
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0)
}

/// Share of a whole; 0 of nothing.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // exact up to 2^53
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
