//! The same fault on several databases at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redrive_retry::planted::Planted;
use tokio::runtime::Runtime;

use crate::options::{Limits, is_interrupted};
use crate::report::Report;

/// One for each of two processors: every lane has a worker and its judge, which take turns.
const LANES: u64 = 2;

/// What the lanes of a fault share.
#[derive(Debug)]
pub struct Lanes {
    limits: Limits,
    is_begun: AtomicBool,
    rounds: AtomicU64,
    report: Mutex<Report>,
}

impl Lanes {
    /// Runs every lane until the time is over, and adds their results up. A lane is told its number.
    pub fn run(limits: Limits, report: Report, lane: impl Fn(&Lanes, u64, &Runtime) + Sync) -> Report {
        let lanes = Lanes {
            limits,
            is_begun: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            report: Mutex::new(report),
        };
        std::thread::scope(|scope| {
            for number in 0..LANES {
                let (lanes, lane) = (&lanes, &lane);
                scope.spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
                    match runtime {
                        Ok(runtime) => lane(lanes, number, &runtime),
                        Err(error) => lanes.fail(format!("no runtime for the judge: {error}")),
                    }
                });
            }
        });
        let mut report = lanes.report.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.rounds = lanes.rounds.into_inner();
        report
    }

    /// Whether there is time for another round; if so, it counts. For the first one there always is, however long it took to
    /// prepare it: who tries nothing shows nothing.
    pub fn another(&self) -> bool {
        let is_first = !self.is_begun.swap(true, Ordering::Relaxed) && !is_interrupted();
        self.limits.allow(self.rounds.fetch_add(1, Ordering::Relaxed)) || is_first || {
            self.rounds.fetch_sub(1, Ordering::Relaxed);
            false
        }
    }

    /// A round that was begun and was none.
    pub fn take_back(&self) {
        self.rounds.fetch_sub(1, Ordering::Relaxed);
    }

    /// Changes the result.
    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Something that cannot be tried or judged.
    pub fn fail(&self, why: String) {
        self.report(|report| report.failures.push(why));
    }

    /// Whether it is pointless to go on: what is broken was shown.
    pub fn is_broken(&self) -> bool {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        // A planted bug is found once; of the others, the hundredth sentence says no more than the first ones.
        let enough = if std::env::var_os(Planted::VARIABLE).is_some() { 1 } else { 100 };
        report.violations.len() + report.failures.len() >= enough
    }
}
