//! `redrive-bench bus`: the bus over files that have grown large.
//!
//! The rows are put there by SQL, because publishing ten million events is not what is measured; what is measured goes
//! through the bus and its inspector. Everything is synced (`synchronous = FULL`).

mod dead_letters;
mod figure;
mod fill;
mod growth;
mod memory;
mod recovery;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use redrive::BoxError;
use tokio::runtime::Runtime;

pub(crate) use self::figure::Report;
pub(crate) use self::memory::Resident;

/// Rounds of which the median is taken, where a round takes seconds.
const ROUNDS: usize = 3;

/// What a finished event takes on disk with its indexes, roughly; to see beforehand whether there is room.
const BYTES_PER_ROW: u64 = 400;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive-bench bus                            everything; some minutes, and 5 GB in a temporary folder
  redrive-bench bus dlq recovery               two parts of it
  redrive-bench bus --rows 100000 --seconds 1  all of it, a hundred times smaller")]
pub(crate) struct Bus {
    /// Which parts; all of them if none is named
    #[arg(value_enum, value_name = "PART")]
    parts: Vec<Part>,
    /// The largest file, in finished events. All other sizes shrink with it
    #[arg(long, value_name = "N", default_value_t = 10_000_000,
          value_parser = clap::value_parser!(u32).range(100_000..=100_000_000))]
    rows: u32,
    /// Where to write; the disk is what is measured
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// How long one round of full cycles takes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

/// A part of the measurement with files of its own.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pages and groups of the dead-letter queue
    Dlq,
    /// Starting after a crash
    Recovery,
    /// Full cycles in a file full of finished events
    Growth,
    /// What a bus occupies while many events wait for a retry
    Memory,
}

impl Bus {
    pub(crate) fn run(self) -> Result<Report, BoxError> {
        let folder = match &self.dir {
            Some(dir) => tempfile::tempdir_in(dir),
            None => tempfile::tempdir(),
        }
        .map_err(|error| format!("no folder to write to: {error}; choose one with --dir"))?;
        let (free, needed) =
            (fs4::available_space(folder.path())?, u64::from(self.rows) * BYTES_PER_ROW + (1 << 30));
        if free < needed {
            return Err(format!(
                "{} MiB are free and {} may be needed: choose another disk with --dir, or fewer --rows",
                free >> 20,
                needed >> 20
            )
            .into());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let slice = Duration::from_secs(self.seconds.into());
        let mut report = Report::default();
        for part in [Part::Dlq, Part::Recovery, Part::Growth, Part::Memory] {
            if !self.parts.is_empty() && !self.parts.contains(&part) {
                continue;
            }
            let began = Instant::now();
            // Each part has a folder that goes with it: all at once they would need twice the room.
            let folder = tempfile::tempdir_in(folder.path())?;
            let folder = folder.path();
            let figures = match part {
                Part::Dlq => dead_letters::measure(folder, [self.rows / 1000, self.rows / 10], &runtime),
                Part::Recovery => recovery::measure(
                    folder,
                    [self.rows / 100_000, self.rows / 100],
                    self.rows / 10,
                    &runtime,
                ),
                Part::Growth => growth::measure(folder, [0, self.rows / 10, self.rows], slice, &runtime),
                Part::Memory => memory::measure(folder, self.rows / 10, self.seconds),
            }?;
            report.add(figures);
            progress(&format!("{part:?} took {:.0} s", began.elapsed().as_secs_f64()));
        }
        Ok(report)
    }
}

/// What happens meanwhile goes to the error channel; the figures are the output.
fn progress(text: &str) {
    eprintln!("… {text}");
}

/// Runs something and says how long it took, in milliseconds.
fn timed<T>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T, redrive::BusError>>,
) -> Result<(T, f64), BoxError> {
    let began = Instant::now();
    let value = runtime.block_on(work)?;
    Ok((value, began.elapsed().as_secs_f64() * 1e3))
}
