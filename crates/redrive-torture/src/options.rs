//! Limits and seed of a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;

/// Arguments of every fault.
#[derive(Copy, Clone, Debug, Args)]
pub struct Options {
    /// Maximum seconds
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
    /// Seed, to repeat a run; random by default
    #[arg(long, default_value_t = new_seed(), hide_default_value = true)]
    pub seed: u64,
    /// Maximum rounds
    #[arg(long)]
    pub rounds: Option<u64>,
}

impl Options {
    /// Starts the clock; preparation counts.
    pub fn begin(&self) -> Limits {
        Limits {
            until: Instant::now() + Duration::from_secs(self.seconds),
            rounds: self.rounds.unwrap_or(u64::MAX),
        }
    }
}

/// Limits of a run: time and rounds.
#[derive(Copy, Clone, Debug)]
pub struct Limits {
    /// No round begins after this.
    pub until: Instant,
    /// Maximum rounds.
    pub rounds: u64,
}

impl Limits {
    /// Whether another round may begin after this many.
    pub fn allow(&self, rounds_so_far: u64) -> bool {
        rounds_so_far < self.rounds && Instant::now() < self.until && !is_interrupted()
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Interrupts the run: no new round begins, and cleanup runs.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Whether the run was interrupted.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// A new seed for every run, so that runs differ.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Short enough to be typed.
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff_ffff)
}
