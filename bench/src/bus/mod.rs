//! `redrive-bench bus`: the bus over files that have grown large.
//!
//! SQL creates the rows, because publishing ten million events is not measured; all measured operations go through the bus.
//! Everything is synced (`synchronous = FULL`).

mod dead_letters;
mod figure;
mod fill;
mod growth;
mod memory;
mod recovery;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use redrive::retry::BoxError;
use tokio::runtime::Runtime;

pub(crate) use self::figure::Report;
pub(crate) use self::memory::Resident;

/// Rounds per median, where a round takes seconds.
const ROUNDS: usize = 3;

/// Approximate disk space of a finished event with its indexes, to check the free space.
const BYTES_PER_ROW: u64 = 400;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive-bench bus                            everything; some minutes, and 5 GB in a temporary folder
  redrive-bench bus dlq recovery               two parts of it
  redrive-bench bus --rows 100000 --seconds 1  all of it, a hundred times smaller")]
pub(crate) struct Bus {
    /// Parts to measure; all by default
    #[arg(value_enum, value_name = "PART")]
    parts: Vec<Part>,
    /// Finished events in the largest file; all other sizes scale with it
    #[arg(long, value_name = "N", default_value_t = 10_000_000,
          value_parser = clap::value_parser!(u32).range(100_000..=100_000_000))]
    rows: u32,
    /// Folder of the files, on the disk to measure
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Seconds of one round of full cycles
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
    /// Memory of a bus while many events wait for a retry
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
            // Each part has its own folder: together they would need twice the space.
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

/// Prints progress to standard error; standard output has the figures.
fn progress(text: &str) {
    eprintln!("… {text}");
}

/// Runs a function and measures it in milliseconds.
fn timed<T>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T, redrive::BusError>>,
) -> Result<(T, f64), BoxError> {
    let began = Instant::now();
    let value = runtime.block_on(work)?;
    Ok((value, began.elapsed().as_secs_f64() * 1e3))
}
