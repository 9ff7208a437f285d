//! Counts guarded calls and their attempts from audit events.

use std::collections::BTreeMap;

use redrive_retry::Timestamp;
use redrive_retry::audit::AuditEvent;
use redrive_retry::decision::{DeadReason, Decision, Outcome};
use serde::Serialize;

/// Names with counters of their own; further ones are counted as [`OTHER`].
const MAX_NAMES: usize = 1000;
const OTHER: &str = "(other)";

/// Minutes that are counted at the same time: entries may come out of order by a day.
const MAX_MINUTES: usize = 1440;

/// Counters of one category or subscription.
#[derive(Debug, Default)]
struct Tally {
    attempts: u64,
    /// Finished calls and their attempts.
    succeeded: Ended,
    failed: Ended,
    retries: u64,
    /// Retries by minute since 1970, of the last minutes.
    by_minute: BTreeMap<i64, u64>,
    max_retries_per_minute: u64,
    /// Whether the log has decisions. Without them a success shows only by the absence of a failure.
    has_decisions: bool,
    /// Calls whose first attempt failed and was retried.
    retried_calls: u64,
    /// Attempts and calls that ended after a retry, by `retry_exhausted`.
    exhausted: Ended,
}

#[derive(Copy, Clone, Debug, Default)]
struct Ended {
    calls: u64,
    attempts: u64,
}

impl Ended {
    fn add(&mut self, attempts: u64) {
        self.calls += 1;
        self.attempts += attempts;
    }
}

/// Result for one category or subscription.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Code of the category, or name of the subscription.
    pub name: String,
    /// Finished calls with at least one failed attempt.
    pub calls: u64,
    /// Attempts, those of unfinished calls included.
    pub total_attempts: u64,
    /// Finished calls that succeeded.
    pub succeeded: u64,
    /// Finished calls that failed.
    pub failed: u64,
    /// Share of the calls that succeeded.
    pub success_rate: Option<f64>,
    /// Average number of attempts of a call.
    pub avg_attempts: Option<f64>,
    /// Retries in the minute with the most of them.
    pub max_retries_per_minute: u64,
}

/// Counters by name.
#[derive(Debug, Default)]
pub struct Tallies(BTreeMap<String, Tally>);

impl Tallies {
    fn of(&mut self, name: &str) -> &mut Tally {
        let is_new = !self.0.contains_key(name);
        let name = if is_new && self.0.len() >= MAX_NAMES { OTHER } else { name };
        self.0.entry(name.to_owned()).or_default()
    }

    /// Counts an audit event.
    pub fn event(&mut self, event: &AuditEvent) {
        match event {
            AuditEvent::RetryAttempt(e) => {
                let tally = self.of(e.retry_category.code());
                tally.retry(e.timestamp);
                tally.attempts += 1;
                tally.retried_calls += u64::from(e.attempt_number == 1);
            }
            AuditEvent::RetryExhausted(e) => {
                let (tally, attempts) = (self.of(e.retry_category.code()), u64::from(e.total_attempts));
                tally.failed.add(attempts);
                // The last attempt has no event of its own.
                tally.attempts += u64::from(attempts > 0);
                if attempts > 1 {
                    tally.exhausted.add(attempts);
                }
            }
            AuditEvent::RetryDecision(e) => {
                let (tally, situation) = (self.of(e.retry_category.code()), e.record.situation());
                tally.has_decisions = true;
                let attempts = u64::from(situation.attempt);
                match (e.record.decision(), situation.outcome) {
                    (Decision::Done, _) => {
                        tally.succeeded.add(attempts);
                        tally.attempts += 1;
                    }
                    // A non-retryable error has no `retry_exhausted`.
                    (Decision::Dead { because: DeadReason::Permanent }, Outcome::Failed(_)) => {
                        tally.failed.add(attempts);
                        tally.attempts += 1;
                    }
                    _ => {}
                }
            }
            AuditEvent::Idempotency(_) => {}
        }
    }

    /// Counts a finished event or delivery with these failed attempts.
    pub fn work(&mut self, name: &str, failures: &[Timestamp], succeeded: Option<bool>) {
        let tally = self.of(name);
        tally.has_decisions = true;
        let failed = failures.len() as u64;
        tally.attempts += failed + u64::from(succeeded == Some(true));
        match succeeded {
            Some(true) => tally.succeeded.add(failed + 1),
            Some(false) => tally.failed.add(failed),
            None => {}
        }
        // The last failure of dead work was not followed by a retry.
        let retried = failures.len() - usize::from(succeeded == Some(false) && failed > 0);
        failures.iter().take(retried).for_each(|at| tally.retry(*at));
    }

    /// Results by name.
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.0.iter().map(|(name, tally)| tally.row(name));
        rows.filter(|row| row.total_attempts > 0).collect()
    }
}

impl Tally {
    fn retry(&mut self, at: Timestamp) {
        self.retries += 1;
        let minute = self.by_minute.entry(at.as_millis().div_euclid(60_000)).or_default();
        *minute += 1;
        self.max_retries_per_minute = self.max_retries_per_minute.max(*minute);
        if self.by_minute.len() > MAX_MINUTES {
            self.by_minute.pop_first();
        }
    }

    fn row(&self, name: &str) -> Row {
        let (mut succeeded, failed, mut attempts) = (self.succeeded, self.failed, self.attempts);
        if !self.has_decisions {
            // Every retried call that did not exhaust its attempts has succeeded, or still runs.
            let calls = self.retried_calls.saturating_sub(self.exhausted.calls);
            let in_vain = self.exhausted.attempts.saturating_sub(self.exhausted.calls);
            succeeded = Ended { calls, attempts: self.retries.saturating_sub(in_vain) + calls };
            attempts += calls;
        }
        let calls = succeeded.calls + failed.calls;
        #[allow(clippy::cast_precision_loss)] // exact up to 2^53 calls
        let ratio = |part: u64| (calls > 0).then(|| part as f64 / calls as f64);
        Row {
            name: name.to_owned(),
            calls,
            total_attempts: attempts,
            succeeded: succeeded.calls,
            failed: failed.calls,
            success_rate: ratio(succeeded.calls),
            avg_attempts: ratio(succeeded.attempts + failed.attempts),
            max_retries_per_minute: self.max_retries_per_minute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_retry::audit::ChannelSink;
    use redrive_retry::{Category, ClassifyError, RetryManager, VirtualTime};

    /// Events of four calls: a success, a success after two retries, an exhausted call, a permanent error.
    async fn events() -> Vec<AuditEvent> {
        let time = VirtualTime::new();
        let (sink, mut events, _) = ChannelSink::new(100);
        let manager = RetryManager::builder().clock(time.clock()).audit(sink).build();
        for failures in [0, 2, 9] {
            let run = manager.execute(&Category::KvGet, "get").run(|attempt| async move {
                if attempt.number() <= failures { Err("down") } else { Ok(()) }
            });
            let _ = time.drive(run).await;
        }
        let run = manager.execute(&Category::KvGet, "get").run(|_| async { Err::<(), _>("no".permanent()) });
        time.drive(run).await.unwrap_err();
        std::iter::from_fn(|| events.try_recv().ok()).collect()
    }

    fn row(events: &[AuditEvent]) -> Row {
        let mut tallies = Tallies::default();
        events.iter().for_each(|event| tallies.event(event));
        tallies.rows().remove(0)
    }

    #[tokio::test]
    async fn finished_calls_are_counted_by_category() {
        let row = row(&events().await);
        assert_eq!((row.name.as_str(), row.calls, row.total_attempts), ("RETRY_KV_GET", 3, 7));
        assert_eq!((row.succeeded, row.failed, row.max_retries_per_minute), (1, 2, 4));
        assert_eq!((row.success_rate, row.avg_attempts), (Some(1.0 / 3.0), Some(7.0 / 3.0)));
    }

    #[tokio::test]
    async fn a_log_without_decisions_shows_all_but_permanent_errors() {
        let mut events = events().await;
        events.retain(|event| !matches!(event, AuditEvent::RetryDecision(_)));
        let row = row(&events);
        assert_eq!((row.calls, row.total_attempts, row.succeeded, row.failed), (2, 6, 1, 1));
        assert_eq!(row.avg_attempts, Some(3.0));
    }
}
