//! What a fault was tried on, and what came of it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The result of one kind of fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What was done to the bus: "random kills".
    pub fault: String,
    /// How often: rounds, crash points, images, operations.
    pub rounds: u64,
    /// What `rounds` counts: "kills".
    pub unit: String,
    /// Events whose publisher was told that they are on stable storage.
    pub acknowledged: u64,
    /// Acknowledged events that were neither waiting, running, done nor dead afterwards.
    pub lost: u64,
    /// Handlers that ran to their end more than once for an event.
    pub duplicates: u64,
    /// Everything else that must not be: one sentence each, with the id of the event.
    pub violations: Vec<String>,
    /// What kept the harness from trying or from judging: one sentence each. It proves nothing, for or against.
    #[serde(default)]
    pub failures: Vec<String>,
    /// What was found on purpose: one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// With which seed it can be repeated.
    pub seed: u64,
    /// How long it took, with everything that was prepared and brought to its end.
    #[serde(default)]
    pub seconds: u64,
    /// Anything worth knowing beside the numbers.
    pub detail: String,
}

impl Report {
    /// Of a fault that is about to be tried.
    pub fn of(fault: &str, unit: &str, seed: u64) -> Self {
        Report { fault: fault.to_owned(), unit: unit.to_owned(), seed, ..Report::default() }
    }

    /// Of a fault that could not be tried.
    pub fn failed(why: impl ToString) -> Self {
        Report { failures: vec![why.to_string()], ..Report::default() }
    }

    /// Tries a fault, and says how long that took.
    pub fn timed(fault: impl FnOnce() -> Report) -> Self {
        let began = Instant::now();
        let report = fault();
        Report { seconds: (began.elapsed() + Duration::from_millis(500)).as_secs(), ..report }
    }

    /// Whether something was tried, and the promise was kept.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.violations.is_empty() && self.failures.is_empty() && self.rounds > 0
    }

    /// Everything that is not as it should be, one sentence each.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = self.violations.clone();
        complaints.extend(self.failures.iter().map(|why| format!("the harness failed: {why}")));
        if complaints.is_empty() && self.rounds == 0 {
            complaints.push("the harness failed: nothing was tried; give it more time".to_owned());
        }
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_tried_is_not_clean() {
        let tried = Report { rounds: 1, ..Report::default() };
        assert!(tried.is_clean());
        let nothing = Report::default();
        assert!(!nothing.is_clean());
        assert_eq!(nothing.complaints(), ["the harness failed: nothing was tried; give it more time"]);
        let failed = Report { rounds: 1, ..Report::failed("strace is missing") };
        assert!(!failed.is_clean());
        assert_eq!(failed.complaints(), ["the harness failed: strace is missing"]);
    }
}
