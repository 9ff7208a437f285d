//! Power loss: what would be on the disk if the power failed at any moment of a run?
//!
//! A worker runs under `strace`, which writes down every write, sync and change of a name in the order in which they happened,
//! and the promises of the bus between them. Afterwards disk images are made of that, as many as wanted: everything that
//! was synced when the power failed, and of the rest whatever the dice say, torn at sectors. Each is opened
//! as after a restart, and the oracle compares it with the promises that had been made by then.
//!
//! A recording has two sessions on the same files. Between them the bus is shut down, or killed, or the power fails a first
//! time, so that also what recovery itself writes is cut off in the middle.
//!
//! What must hold: an acknowledged publish, redrive or purge is there, and every subscription; the file is whole; and whatever
//! is in it makes sense. What need not: that an event was done or had failed is committed without a sync, on purpose, so that
//! may be forgotten and is done again.
//!
//! The images come from the seed and from the trace. A run is never recorded the same way twice, so an image with which
//! something is wrong is kept, with its trace, to be [looked at again](look_again).

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
use crate::lanes::Lanes;
use crate::options::Options;
use crate::process::{in_memory, this_program};
use crate::report::Report;
use crate::strace;

/// How many operations are made in one session: enough for the log to be written back several times.
const OPERATIONS: u64 = 240;

/// So many images are made of one recording: about as many as it has moments at which a mistake would show.
const IMAGES: u64 = 1500;

/// No longer than this is spent on one recording: another one has other moments.
const LONGEST: Duration = Duration::from_secs(20);

/// So many are made in one walk through the recording, from its beginning to its end. Few: the time may be over after any of
/// them, and then its end is missing.
const WALK: u64 = 25;

/// Every so many images, a bus does what is left in it.
const DRAINED: u64 = 50;

/// So many images are kept. More do not say more.
const KEPT: usize = 5;

/// Makes images until the time is over.
pub fn run(options: &Options) -> Report {
    match this_program() {
        Ok(program) => run_with(options, &program),
        Err(error) => Report::failed(error),
    }
}

/// The same with a worker from elsewhere.
pub fn run_with(options: &Options, program: &Path) -> Report {
    let launch = |command: &mut Command, arguments: Vec<String>| {
        command.arg(program).args(arguments);
    };
    let report = Report::of("power loss", "images", options.seed);
    if let Err(why) = strace::available() {
        return Report { failures: vec![why], ..report };
    }
    let tally = Mutex::new(Tally::default());
    let mut report = Lanes::run(options.begin(), report, |lanes, lane, runtime| {
        let mut dice = Dice::split(options.seed, lane);
        let bench = Bench { lanes, runtime, launch: &launch, tally: &tally };
        // The first image of every recording is asked for here.
        while lanes.another() {
            if let Err(error) = bench.one_recording(dice.roll()) {
                lanes.take_back();
                lanes.fail(error.to_string());
                return; // the next one would not do better
            }
            if lanes.is_broken() {
                return;
            }
        }
    });
    report.detail = tally.into_inner().unwrap_or_else(PoisonError::into_inner).to_string();
    report
}

/// What to do with the power.
#[derive(Clone, Debug, Args)]
pub struct LossArgs {
    /// How long, and with which seed
    #[command(flatten)]
    pub options: Options,
    /// Looks once more at an image that was kept because something was wrong with it, instead
    #[arg(long, value_name = "FOLDER")]
    pub again: Option<PathBuf>,
}

/// Builds images, or looks at one again.
pub fn run_or_look(args: &LossArgs) -> Report {
    args.again.as_deref().map_or_else(|| run(&args.options), look_again)
}

/// Looks once more at an image that was kept because something was wrong with it.
pub fn look_again(kept: &Path) -> Report {
    let again = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        evidence::look_again(kept, &runtime)
    };
    let report = again().unwrap_or_else(|error| {
        Report::failed(format!("{} cannot be looked at again: {error}", kept.display()))
    });
    Report { fault: "power loss".into(), unit: "images".into(), rounds: 1, ..report }
}

/// What is worth knowing beside the numbers.
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

/// Where one lane works.
struct Bench<'b> {
    lanes: &'b Lanes,
    runtime: &'b Runtime,
    launch: Launch<'b>,
    tally: &'b Mutex<Tally>,
}

impl Bench<'_> {
    /// Records a run and makes images of it. The first image was asked for already.
    fn one_recording(&self, seed: u64) -> Result<(), RecordingError> {
        let (recorded, scratch) = (in_memory()?, in_memory()?);
        let recording = match Recording::make(self.launch, recorded.path(), seed, OPERATIONS) {
            Err(RecordingError::CutOff) => {
                self.lanes.take_back();
                return Ok(());
            }
            other => other?,
        };
        self.tally(|tally| tally.recordings += 1);
        self.lanes.report(|report| report.acknowledged += recording.acknowledged());
        let images = Images::new(&recording, seed);
        let mut tried = HashSet::new();
        let mut evidence = Evidence::new(recorded.path(), scratch.path());
        let until = Instant::now() + LONGEST;
        let mut is_asked_for = true;
        for first in (0..IMAGES).step_by(usize::try_from(WALK).unwrap_or(1)) {
            let mut result = Ok(true);
            images.each(first..first + WALK, |loss| {
                let fingerprint = evidence::fingerprint(&loss.image);
                if !tried.insert((fingerprint, loss.facts.len())) {
                    return true; // nothing that was not tried
                }
                result = if std::mem::take(&mut is_asked_for) || self.lanes.another() {
                    self.tally(|tally| tally.distinct.insert(fingerprint));
                    let go_on = || !self.lanes.is_broken() && Instant::now() < until;
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
        self.lanes.report(|report| {
            report.lost += found.lost;
            report.duplicates += found.duplicates;
            // One image may have hundreds; the first ones say enough.
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
