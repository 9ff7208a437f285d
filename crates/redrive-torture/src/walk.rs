//! The store alone, against the model of its own suite: random histories with crashes, and settlements that come too late.
//!
//! The suite walks a few fixed ways in every test run; here it walks new ones for as long as there is time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redrive_store::conformance::{Harness, MAX_PAYLOAD, Restart, walk_with_crashes};
use redrive_store::{SqliteOptions, SqliteStore, Store};
use tempfile::TempDir;

use crate::dice::Dice;
use crate::lanes::Lanes;
use crate::options::Options;
use crate::process::in_memory;
use crate::report::Report;

/// The operations of one way.
const STEPS: usize = 600;

/// Walks until the time is over.
pub fn run(options: &Options) -> Report {
    let report = Report::of("store walk", "operations", options.seed);
    // The lanes count ways; what is told are operations.
    let ways = AtomicU64::new(0);
    let rounds = options.rounds.map(|rounds| rounds.div_ceil(STEPS as u64));
    let limits = Options { rounds, ..*options }.begin();
    let mut report = Lanes::run(limits, report, |lanes, lane, runtime| {
        let mut dice = Dice::split(options.seed, lane);
        while lanes.another() && !lanes.is_broken() {
            let seed = dice.roll();
            if let Err(why) = one_way(seed, runtime) {
                lanes.report(|report| report.violations.push(format!("way {seed}: {why}")));
                return;
            }
            ways.fetch_add(1, Ordering::Relaxed);
        }
    });
    report.rounds = ways.into_inner() * STEPS as u64;
    report
}

/// The walk panics where store and model disagree; its words are the result.
fn one_way(seed: u64, runtime: &tokio::runtime::Runtime) -> Result<(), String> {
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

/// A file in memory where there is such a place: what is tested is not the disk.
struct File {
    /// Empty only while it is opened anew.
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
