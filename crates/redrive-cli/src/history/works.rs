//! Puts recorded attempts together to works: an event, a delivery or a guarded call with its failures and its end.

use std::collections::{BTreeMap, HashMap};

use redrive::events::EventStatus;
use redrive_retry::audit::RetryDecision;
use redrive_retry::decision::{Decision, DecisionRecord, Identity, Outcome};
use redrive_retry::policy::Backoff;
use redrive_retry::{FailureClass, Timestamp};
use redrive_store::RecordedAttempt;

use crate::failure::Failure;
use crate::time_format::millis;

/// Maximum number of works kept in memory.
pub(crate) const MAX_WORKS: usize = 1_000_000;

/// An event, delivery or guarded call with at least one failed attempt.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Identity of its jitter.
    pub(crate) identity: String,
    /// Subscription of its last failed attempt; category and operation of a guarded call.
    pub(crate) target: String,
    /// Start of every failed attempt, oldest first.
    pub(crate) failures: Vec<Timestamp>,
    /// Duration of all failed attempts together, in milliseconds.
    pub(crate) failing_ms: u64,
    /// Waits between failed attempts beyond the delays of the policy, in milliseconds: behind an open circuit or a limit.
    pub(crate) parked_ms: u64,
    /// Time at which the policy planned the attempt after the last failed one.
    pub(crate) planned: Timestamp,
    pub(crate) end: End,
    /// Number of attempts and delays of the policy at its last recorded decision.
    pub(crate) policy: Option<(u32, Backoff)>,
}

/// End of a work.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It waits or runs.
    Open,
    /// An attempt succeeded at this time.
    Succeeded(Timestamp),
    /// It used up its attempts, or its next one came too late.
    Dead,
    /// The last error was permanent.
    Permanent,
}

impl Work {
    /// Number of attempts, the successful one included.
    pub(crate) fn attempts(&self) -> u64 {
        self.failures.len() as u64 + u64::from(matches!(self.end, End::Succeeded(_)))
    }
}

/// Key of a work in progress: the event, and the subscription or operation.
type Key = (String, String);

/// Collects works from attempts in the order in which they were recorded.
#[derive(Debug, Default)]
pub(crate) struct Works {
    open: HashMap<Key, InProgress>,
    ended: Vec<Work>,
    /// Recorded successes of each target.
    successes: BTreeMap<String, Vec<Timestamp>>,
    /// Attempts before this instant are left out.
    since: Option<Timestamp>,
}

#[derive(Debug)]
struct InProgress {
    work: Work,
    /// Number of the last attempt.
    attempt: u32,
    /// Whether the last decision was that the error is permanent.
    is_permanent: bool,
    /// State of the event or delivery.
    status: EventStatus,
    updated_at: Timestamp,
}

/// Works, and the successes of each target in order of time.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) works: Vec<Work>,
    pub(crate) successes: BTreeMap<String, Vec<Timestamp>>,
}

impl Works {
    pub(crate) fn since(since: Option<Timestamp>) -> Self {
        Works { since, ..Works::default() }
    }

    /// Adds an attempt of an event or delivery.
    pub(crate) fn attempt(&mut self, row: &RecordedAttempt) -> Result<(), Failure> {
        let attempt = &row.attempt;
        if self.since.is_some_and(|since| attempt.started_at < since) {
            return Ok(());
        }
        let target = &attempt.subscription;
        let Some(class) = attempt.class else {
            self.success(target, attempt.started_at);
            return Ok(());
        };
        let scope = if row.is_delivery { target.as_str() } else { "" };
        let key = (row.event_id.to_string(), scope.to_owned());
        let record = attempt.record.as_ref().and_then(|record| serde_json::from_str(&record.0).ok());
        let failure = Failed {
            target,
            attempt: attempt.attempt,
            at: attempt.started_at,
            took_ms: attempt.duration_ms,
            delay_ms: attempt.delay_ms,
            class,
            record: record.as_ref(),
        };
        let work = self.failure(key, &failure)?;
        (work.status, work.updated_at) = (row.status, row.updated_at);
        Ok(())
    }

    /// Adds a recorded decision of a guarded call.
    pub(crate) fn decision(&mut self, decision: &RetryDecision) -> Result<(), Failure> {
        let situation = decision.record.situation();
        if self.since.is_some_and(|since| situation.now < since) {
            return Ok(());
        }
        let target = format!("{} {}", decision.retry_category.code(), decision.operation);
        let key = (situation.event.to_string(), target.clone());
        match situation.outcome {
            Outcome::Succeeded => {
                if let Some(done) = self.open.remove(&key) {
                    self.ended.push(Work { end: End::Succeeded(situation.now), ..done.work });
                }
            }
            Outcome::Failed(class) => {
                let failure = Failed {
                    target: &target,
                    attempt: situation.attempt,
                    at: situation.now,
                    took_ms: 0,
                    delay_ms: 0,
                    class,
                    record: Some(&decision.record),
                };
                let work = self.failure(key, &failure)?;
                if matches!(decision.record.decision(), Decision::Dead { .. }) {
                    work.status = EventStatus::Dlq;
                }
            }
            Outcome::Refused => {}
        }
        Ok(())
    }

    fn success(&mut self, target: &str, at: Timestamp) {
        match self.successes.get_mut(target) {
            Some(times) => times.push(at),
            None => drop(self.successes.insert(target.to_owned(), vec![at])),
        }
    }

    fn failure(&mut self, key: Key, failed: &Failed<'_>) -> Result<&mut InProgress, Failure> {
        if self.open.len() + self.ended.len() >= MAX_WORKS {
            return Err(Failure::Failed(format!(
                "the history has more than {MAX_WORKS} failed events and calls: read less of it with --since"
            )));
        }
        // The attempts of a redriven event count from 1 again: its first life ended in the dead-letter queue.
        if self.open.get(&key).is_some_and(|before| before.attempt >= failed.attempt) {
            self.ended.extend(self.open.remove(&key).map(|before| before.ended_dead()));
        }
        let in_progress = self.open.entry(key).or_insert_with_key(|(identity, _)| InProgress {
            work: Work {
                identity: identity.clone(),
                target: String::new(),
                failures: Vec::new(),
                failing_ms: 0,
                parked_ms: 0,
                planned: failed.at,
                end: End::Open,
                policy: None,
            },
            attempt: 0,
            is_permanent: false,
            status: EventStatus::Processing,
            updated_at: failed.at,
        });
        let work = &mut in_progress.work;
        work.target.clear();
        work.target.push_str(failed.target);
        work.failures.push(failed.at);
        work.parked_ms = work.parked_ms.saturating_add(millis(failed.at.since(work.planned)));
        work.planned = failed.at.plus_millis(failed.took_ms).plus_millis(failed.policy_delay_ms());
        work.failing_ms = work.failing_ms.saturating_add(failed.took_ms);
        if let Some(record) = failed.record {
            work.policy = Some((record.situation().max_attempts, record.situation().backoff));
        }
        in_progress.attempt = failed.attempt;
        in_progress.is_permanent = failed.class == FailureClass::Permanent;
        Ok(in_progress)
    }

    /// Ends the collection: works without an end are open.
    pub(crate) fn collect(mut self) -> Collected {
        let mut works = std::mem::take(&mut self.ended);
        for in_progress in std::mem::take(&mut self.open).into_values() {
            works.push(match in_progress.status {
                EventStatus::Done => {
                    let at = in_progress.updated_at;
                    Work { end: End::Succeeded(at), ..in_progress.work }
                }
                EventStatus::Dlq => in_progress.ended_dead(),
                EventStatus::Pending | EventStatus::Processing => in_progress.work,
            });
        }
        for work in &works {
            if let End::Succeeded(at) = work.end {
                self.success(&work.target, at);
            }
        }
        works.sort_by(|one, other| {
            (one.failures.first(), &one.identity).cmp(&(other.failures.first(), &other.identity))
        });
        self.successes.values_mut().for_each(|times| times.sort_unstable());
        Collected { works, successes: self.successes }
    }
}

impl InProgress {
    fn ended_dead(self) -> Work {
        Work { end: if self.is_permanent { End::Permanent } else { End::Dead }, ..self.work }
    }
}

/// A failed attempt.
struct Failed<'a> {
    target: &'a str,
    attempt: u32,
    at: Timestamp,
    took_ms: u64,
    delay_ms: u64,
    class: FailureClass,
    record: Option<&'a DecisionRecord>,
}

impl Failed<'_> {
    /// Delay that the policy alone gives, without an open circuit or a wait that the target requested.
    fn policy_delay_ms(&self) -> u64 {
        self.record.map_or(self.delay_ms, |record| {
            let situation = record.situation();
            let identity = Identity::new(situation.seed, &situation.event, &situation.subscription);
            millis(situation.backoff.delay(situation.attempt.saturating_add(1), None, identity))
        })
    }
}
