//! Power loss: judges the disk contents of a power failure at any moment of a run.
//!
//! A worker runs under `strace`, which records every write, sync and rename in order, and the promises of the bus between
//! them. Disk images are made of the recording: everything that was synced when the power failed, and a random part of the
//! rest, torn at sectors. Each image is opened as after a restart, and the oracle compares it with the promises made by
//! then.
//!
//! A recording has two sessions on the same files. Between them the bus is shut down, killed, or loses its power a first
//! time, so that the writes of recovery are cut off as well.
//!
//! An acknowledged publish, redrive or purge and every subscription must survive; the file must be intact and consistent.
//! Settlements may be lost: they are committed without a sync on purpose, and such work is done again.
//!
//! Images depend on the seed and on the trace. No two recordings are equal, so an image with violations is kept, with its
//! trace, to be [examined again](examine_kept).

mod disk;
mod evidence;
mod images;
mod luck;
mod recording;
mod trace;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::runtime::Runtime;

use self::evidence::{Evidence, Look};
use self::images::{Images, Loss};
use self::recording::{Launch, Recording, RecordingError};
use crate::dice::Dice;
use crate::options::Options;
use crate::parallel::ParallelRuns;
use crate::process::{in_memory, this_program};
use crate::report::Report;
use crate::strace;

/// Operations of one session: enough for several checkpoints.
const OPERATIONS: u64 = 240;

/// Images of one recording: about as many as it has critical moments.
const IMAGES: u64 = 1500;

/// Time limit of one recording: another one has other moments.
const RECORDING_TIMEOUT: Duration = Duration::from_secs(20);

/// Images of one pass through the recording. Few, as the time may be over after any pass, and then the end of the recording
/// is missing.
const WALK: u64 = 25;

/// Every n-th image is drained by a bus.
const DRAINED: u64 = 50;

/// Maximum images that are kept.
const KEPT: usize = 5;

/// Makes images until the time is over.
pub fn run(options: &Options) -> Report {
    match this_program() {
        Ok(program) => run_with(options, &program),
        Err(error) => Report::failed(error),
    }
}

/// Records a worker of another program.
pub fn run_with(options: &Options, program: &Path) -> Report {
    let launch = |command: &mut Command, arguments: Vec<String>| {
        command.arg(program).args(arguments);
    };
    let report = Report::of("power loss", "images", options.seed);
    if let Err(why) = strace::available() {
        return Report { failures: vec![why], ..report };
    }
    let tally = Mutex::new(Tally::default());
    let mut report = ParallelRuns::run(options.begin(), report, |runs, runner, runtime| {
        let mut dice = Dice::split(options.seed, runner);
        let bench = Bench { runs, runtime, launch: &launch, tally: &tally };
        // The first round of every recording is counted here.
        while runs.another() {
            if let Err(error) = bench.one_recording(dice.roll()) {
                runs.take_back();
                runs.fail(error.to_string());
                return; // the next one would fail, too
            }
            if runs.is_broken() {
                return;
            }
        }
    });
    report.detail = tally.into_inner().unwrap_or_else(PoisonError::into_inner).to_string();
    report
}

/// Arguments of the command `power-loss`.
#[derive(Clone, Debug, Args)]
pub struct LossArgs {
    /// Duration and seed
    #[command(flatten)]
    pub options: Options,
    /// Examine a kept image again instead
    #[arg(long, value_name = "FOLDER")]
    pub again: Option<PathBuf>,
}

/// Makes images, or examines a kept one.
pub fn run_or_look(args: &LossArgs) -> Report {
    args.again.as_deref().map_or_else(|| run(&args.options), examine_kept)
}

/// Examines a kept image again.
pub fn examine_kept(kept: &Path) -> Report {
    let again = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        evidence::examine_kept(kept, &runtime)
    };
    let report = again().unwrap_or_else(|error| {
        Report::failed(format!("{} cannot be judged again: {error}", kept.display()))
    });
    Report { fault: "power loss".into(), unit: "images".into(), rounds: 1, ..report }
}

/// Counters of the report.
#[derive(Debug, Default)]
struct Tally {
    recordings: u64,
    images: u64,
    /// Fingerprints.
    distinct: HashSet<u64>,
    drained: u64,
    kept: usize,
    looking: Duration,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each =
            self.looking.checked_div(u32::try_from(self.images).unwrap_or(u32::MAX)).unwrap_or_default();
        write!(
            f,
            "{} distinct contents, {} recordings, {} images run to the end, {} ms for each image",
            self.distinct.len(),
            self.recordings,
            self.drained,
            each.as_millis()
        )
    }
}

/// Workplace of one runner.
struct Bench<'b> {
    runs: &'b ParallelRuns,
    runtime: &'b Runtime,
    launch: Launch<'b>,
    tally: &'b Mutex<Tally>,
}

impl Bench<'_> {
    /// Records a run and makes images of it. The first round was counted already.
    fn one_recording(&self, seed: u64) -> Result<(), RecordingError> {
        let (recorded, scratch) = (in_memory()?, in_memory()?);
        let recording = match Recording::make(self.launch, recorded.path(), seed, OPERATIONS) {
            Err(RecordingError::CutOff) => {
                self.runs.take_back();
                return Ok(());
            }
            other => other?,
        };
        self.tally(|tally| tally.recordings += 1);
        self.runs.report(|report| report.acknowledged += recording.acknowledged());
        let images = Images::new(&recording, seed);
        let mut tried = HashSet::new();
        let mut evidence = Evidence::new(recorded.path(), scratch.path());
        let until = Instant::now() + RECORDING_TIMEOUT;
        let mut is_asked_for = true;
        for first in (0..IMAGES).step_by(usize::try_from(WALK).unwrap_or(1)) {
            let mut result = Ok(true);
            images.each(first..first + WALK, |loss| {
                let fingerprint = evidence::fingerprint(&loss.image);
                if !tried.insert((fingerprint, loss.facts.len())) {
                    return true; // skips images that were not tried
                }
                result = if std::mem::take(&mut is_asked_for) || self.runs.another() {
                    self.tally(|tally| tally.distinct.insert(fingerprint));
                    let go_on = || !self.runs.is_broken() && Instant::now() < until;
                    self.one_image(&recording, &loss, &mut evidence).map(|()| go_on())
                } else {
                    Ok(false)
                };
                matches!(result, Ok(true))
            });
            if !result? {
                break;
            }
        }
        Ok(())
    }

    fn one_image(
        &self,
        recording: &Recording,
        loss: &Loss<'_>,
        evidence: &mut Evidence<'_>,
    ) -> Result<(), RecordingError> {
        let began = Instant::now();
        let look = if loss.number.is_multiple_of(DRAINED) { Look::ToTheEnd } else { Look::Once };
        let found = evidence.examine(loss, recording.counting, look, self.runtime)?;
        let is_to_be_kept = self.tally(|tally| {
            tally.images += 1;
            tally.drained += u64::from(look == Look::ToTheEnd);
            tally.looking += began.elapsed();
            tally.kept += usize::from(!found.is_clean());
            !found.is_clean() && tally.kept <= KEPT
        });
        let kept =
            if is_to_be_kept { evidence.keep(loss, recording.counting, &found.violations)? } else { None };
        let kept = kept.map(|kept| format!(" (kept in {})", kept.display())).unwrap_or_default();
        self.runs.report(|report| {
            report.lost += found.lost;
            report.duplicates += found.duplicates;
            // One image may have hundreds of violations; the first ones suffice.
            let wrong = found.violations.iter().take(3);
            report.violations.extend(wrong.map(|wrong| format!("image {}{kept}: {wrong}", loss.number)));
        });
        Ok(())
    }

    fn tally<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
