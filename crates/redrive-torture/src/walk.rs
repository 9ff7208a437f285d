//! Compares the store with the model of its conformance suite: random histories with crashes and late settlements.
//!
//! The suite walks a few fixed histories in every test run; this fault walks new ones as long as there is time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redrive_store::conformance::{Harness, MAX_PAYLOAD, Restart, walk_with_crashes};
use redrive_store::{SqliteOptions, SqliteStore, Store};
use tempfile::TempDir;

use crate::dice::Dice;
use crate::options::Options;
use crate::parallel::ParallelRuns;
use crate::process::in_memory;
use crate::report::Report;

/// Operations of one history.
const STEPS: usize = 600;

/// Walks until the time is over.
pub fn run(options: &Options) -> Report {
    let report = Report::of("store walk", "operations", options.seed);
    // The runners count histories; the report counts operations.
    let histories = AtomicU64::new(0);
    let rounds = options.rounds.map(|rounds| rounds.div_ceil(STEPS as u64));
    let limits = Options { rounds, ..*options }.begin();
    let mut report = ParallelRuns::run(limits, report, |runs, runner, runtime| {
        let mut dice = Dice::split(options.seed, runner);
        while runs.another() && !runs.is_broken() {
            let seed = dice.roll();
            if let Err(why) = one_history(seed, runtime) {
                runs.report(|report| report.violations.push(format!("history {seed}: {why}")));
                return;
            }
            histories.fetch_add(1, Ordering::Relaxed);
        }
    });
    report.rounds = histories.into_inner() * STEPS as u64;
    report
}

/// The walk panics where store and model disagree; its message is the result.
fn one_history(seed: u64, runtime: &tokio::runtime::Runtime) -> Result<(), String> {
    let walked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let mut file = File::fresh().await;
            walk_with_crashes(&mut file, seed, STEPS).await;
        });
    }));
    walked.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
    })
}

/// A file in memory where possible: the disk is not under test.
struct File {
    /// Empty only while it is reopened.
    store: Option<Arc<dyn Store>>,
    folder: TempDir,
}

impl File {
    fn open(folder: &TempDir) -> Option<Arc<dyn Store>> {
        let options = SqliteOptions { max_payload: MAX_PAYLOAD, ..SqliteOptions::default() };
        let store = SqliteStore::open(folder.path().join("events.db"), options);
        Some(Arc::new(store.expect("a fresh file opens")))
    }
}

impl Harness for File {
    async fn fresh() -> Self {
        let folder = in_memory().expect("there is room for a folder");
        File { store: File::open(&folder), folder }
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().expect("it is open")
    }
}

impl Restart for File {
    async fn restart(&mut self) {
        self.store = None;
        self.store = File::open(&self.folder);
    }
}
