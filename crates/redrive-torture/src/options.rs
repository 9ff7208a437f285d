//! How long and how often a fault is tried, and with which seed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;

/// What every fault is told.
#[derive(Copy, Clone, Debug, Args)]
pub struct Options {
    /// How many seconds it may take
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
    /// Repeats what was done with this seed; without it, another one every time
    #[arg(long, default_value_t = new_seed(), hide_default_value = true)]
    pub seed: u64,
    /// Ends after so many rounds, if that is earlier
    #[arg(long)]
    pub rounds: Option<u64>,
}

impl Options {
    /// Starts the time: what is prepared counts, too.
    pub fn begin(&self) -> Limits {
        Limits {
            until: Instant::now() + Duration::from_secs(self.seconds),
            rounds: self.rounds.unwrap_or(u64::MAX),
        }
    }
}

/// Where a run ends: in time, or after so many rounds.
#[derive(Copy, Clone, Debug)]
pub struct Limits {
    /// Nothing new is begun after this.
    pub until: Instant,
    /// So many rounds are enough.
    pub rounds: u64,
}

impl Limits {
    /// Whether another round may begin after so many.
    pub fn allow(&self, rounds_so_far: u64) -> bool {
        rounds_so_far < self.rounds && Instant::now() < self.until && !is_interrupted()
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Somebody wants this to end: no new round begins, and what was begun is tidied up.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Whether somebody wants this to end.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Another one every time: the faults of yesterday are known.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Short enough to be typed.
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff_ffff)
}
