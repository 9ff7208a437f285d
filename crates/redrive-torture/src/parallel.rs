//! Runs one fault on several databases in parallel.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redrive_retry::fault;
use tokio::runtime::Runtime;

use crate::options::{Limits, is_interrupted};
use crate::report::Report;

/// One for each of two processors: every runner has a worker and its judge, which take turns.
const PARALLEL_RUNS: u64 = 2;

/// Shared state of a fault's parallel runners.
#[derive(Debug)]
pub struct ParallelRuns {
    limits: Limits,
    is_begun: AtomicBool,
    rounds: AtomicU64,
    report: Mutex<Report>,
}

impl ParallelRuns {
    /// Runs every runner until the time is over, and adds their results up. A runner gets its number.
    pub fn run(
        limits: Limits,
        report: Report,
        runner: impl Fn(&ParallelRuns, u64, &Runtime) + Sync,
    ) -> Report {
        let runs = ParallelRuns {
            limits,
            is_begun: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            report: Mutex::new(report),
        };
        std::thread::scope(|scope| {
            for number in 0..PARALLEL_RUNS {
                let (runs, runner) = (&runs, &runner);
                scope.spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
                    match runtime {
                        Ok(runtime) => runner(runs, number, &runtime),
                        Err(error) => runs.fail(format!("no runtime for the judge: {error}")),
                    }
                });
            }
        });
        let mut report = runs.report.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.rounds = runs.rounds.into_inner();
        report
    }

    /// Starts a round if there is time, and counts it. The first round always starts, however long its preparation took: a
    /// run without rounds shows nothing.
    pub fn another(&self) -> bool {
        let is_first = !self.is_begun.swap(true, Ordering::Relaxed) && !is_interrupted();
        self.limits.allow(self.rounds.fetch_add(1, Ordering::Relaxed)) || is_first || {
            self.rounds.fetch_sub(1, Ordering::Relaxed);
            false
        }
    }

    /// Uncounts a round that did not take place.
    pub fn take_back(&self) {
        self.rounds.fetch_sub(1, Ordering::Relaxed);
    }

    /// Changes the shared report.
    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records a failure of the harness.
    pub fn fail(&self, why: String) {
        self.report(|report| report.failures.push(why));
    }

    /// Whether enough violations were found to stop.
    pub fn is_broken(&self) -> bool {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        // One report of a planted bug is enough; of others, more than a hundred add nothing.
        let enough = if std::env::var_os(fault::VARIABLE).is_some() { 1 } else { 100 };
        report.violations.len() + report.failures.len() >= enough
    }
}
