//! Drives the real bus and a model of plain maps with the same random operations.
//!
//! Publishing, subscribing, handlers that fail in every way, time that passes and clocks that jump, redriving, purging,
//! crashes and restarts, both ways of tracking: after every operation both must show the same events, attempts and instants.
//! A failing history is shrunk before it is reported.

mod case;
mod circuit;
mod compare;
mod history;
mod life;
mod operation;
mod plain;
mod scene;
mod watch;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use self::case::Tally;
use self::history::{History, shortest};
use crate::options::Options;
use crate::report::Report;

/// One of this many cases is on a file, where the process can restart.
const ON_FILE: u64 = 6;

/// Maximum failures that are reported.
const MAX_FAILURES: usize = 2;

/// Runs random histories until the time is over.
pub fn run(options: &Options) -> Report {
    let limits = options.begin();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (operations, next, is_enough) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let all = Mutex::new((Tally::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while limits.allow(operations.load(Ordering::Relaxed)) && !is_enough.load(Ordering::Relaxed) {
                    // The seed of a case is enough to repeat it alone.
                    let seed = options.seed.wrapping_add(next.fetch_add(1, Ordering::Relaxed));
                    let (tally, failure) = run_case(seed);
                    operations.fetch_add(tally.operations, Ordering::Relaxed);
                    let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    all.0.add(tally);
                    all.1.extend(failure);
                    if all.1.len() >= MAX_FAILURES {
                        is_enough.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (tally, violations) = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Report {
        fault: "random histories, against a model".to_owned(),
        rounds: tally.operations,
        unit: "operations".to_owned(),
        acknowledged: tally.acknowledged,
        lost: tally.lost,
        duplicates: tally.repetitions,
        violations,
        seed: options.seed,
        detail: format!("{} histories, {} restarts", next.into_inner(), tally.restarts),
        ..Report::default()
    }
}

/// Runs one case; returns its violation with the shortest history that shows it.
fn run_case(seed: u64) -> (Tally, Option<String>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut tally = Tally::default();
    let history = match History::new(&mut runner, seed.is_multiple_of(ON_FILE)) {
        Ok(history) => history,
        Err(why) => return (tally, Some(format!("seed {seed}: no history: {why}"))),
    };
    let failure = case::run(&history.scene(), &history.operations(), &mut tally).err();
    let shortest_failure = failure.map(|first| {
        let (history, why) = shortest(history, first);
        let operations: Vec<String> =
            history.operations().iter().map(|operation| format!("    {operation:?}")).collect();
        format!("seed {seed}: {why}\n  {:?}\n{}", history.scene(), operations.join("\n"))
    });
    (tally, shortest_failure)
}
