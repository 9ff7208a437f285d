//! Report of a fault.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The result of one kind of fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Name of the fault: "random kills".
    pub fault: String,
    /// Number of rounds, crash points, images or operations.
    pub rounds: u64,
    /// Unit of `rounds`: "kills".
    pub unit: String,
    /// Events whose publisher was told that they are on stable storage.
    pub acknowledged: u64,
    /// Acknowledged events that were neither waiting, running, done nor dead afterwards.
    pub lost: u64,
    /// Handlers that ran to their end more than once for an event.
    pub duplicates: u64,
    /// Other violations: one sentence each, with the id of the event.
    pub violations: Vec<String>,
    /// Failures of the harness: one sentence each. They prove nothing, for or against.
    #[serde(default)]
    pub failures: Vec<String>,
    /// Notes: one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Seed of the run.
    pub seed: u64,
    /// Duration, with preparation and drain.
    #[serde(default)]
    pub seconds: u64,
    /// Further details.
    pub detail: String,
}

impl Report {
    /// An empty report.
    pub fn of(fault: &str, unit: &str, seed: u64) -> Self {
        Report { fault: fault.to_owned(), unit: unit.to_owned(), seed, ..Report::default() }
    }

    /// Report of a fault that could not run.
    pub fn failed(why: impl ToString) -> Self {
        Report { failures: vec![why.to_string()], ..Report::default() }
    }

    /// Runs a fault and measures its duration.
    pub fn timed(fault: impl FnOnce() -> Report) -> Self {
        let began = Instant::now();
        let report = fault();
        Report { seconds: (began.elapsed() + Duration::from_millis(500)).as_secs(), ..report }
    }

    /// Whether the fault ran and the bus kept its promises.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.violations.is_empty() && self.failures.is_empty() && self.rounds > 0
    }

    /// All violations and failures, one sentence each.
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
    fn a_report_without_rounds_is_not_clean() {
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
