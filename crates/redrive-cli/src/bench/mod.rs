//! `redrive bench`: measures durable throughput on this disk, compared with SQLite alone.
//!
//! Bus and SQLite alone alternate in one run, so that noise affects both; each figure is the median of all rounds. Everything is
//! synced (`synchronous = FULL`).

mod bus;
mod raw;
mod sample;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use self::raw::Raw;
use crate::failure::Failure;

const ROUNDS: u32 = 3;
/// SQLite alone and the bus at four batch sizes each, a thread switch, two cycles and the latency.
const MEASUREMENTS_PER_ROUND: u32 = 12;

/// Measure durable throughput on this disk, compared with SQLite alone
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive bench                      about 20 seconds, in a temporary folder
  redrive bench --dir /var/lib/app --seconds 60 --json")]
pub(crate) struct Bench {
    /// Folder on the disk to measure
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Total duration in seconds
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(4..=3600))]
    seconds: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Events per second, ratios of the bus to SQLite alone, and latencies in microseconds.
#[derive(Debug, Default, Serialize)]
struct Figures {
    raw_insert_1: f64,
    raw_insert_8: f64,
    raw_insert_64: f64,
    raw_insert_512: f64,
    publish_1: f64,
    publish_8: f64,
    publish_64: f64,
    publish_512: f64,
    publish_ratio_64: f64,
    publish_ratio_512: f64,
    publish_p50_us_64: f64,
    publish_p99_us_64: f64,
    publish_p50_us_512: f64,
    publish_p99_us_512: f64,
    raw_cycle: f64,
    cycle: f64,
    cycle_ratio: f64,
    sequential_ratio: f64,
    raw_thread_ratio: f64,
    dispatch_p99_us: f64,
}

impl Bench {
    pub(crate) fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let failed =
            |error: &dyn std::fmt::Display| Failure::Failed(format!("the benchmark failed: {error}"));
        let folder = match &self.dir {
            Some(dir) => tempfile::tempdir_in(dir),
            None => tempfile::tempdir(),
        }
        .map_err(|error| {
            Failure::Failed(format!("cannot create a temporary folder: {error}; choose one with --dir"))
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Failed(format!("cannot start the async runtime: {error}")))?;
        let slice = Duration::from_secs(u64::from(self.seconds)) / (ROUNDS * MEASUREMENTS_PER_ROUND);
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let folder = folder.path().join(round.to_string());
            std::fs::create_dir(&folder).map_err(|error| failed(&error))?;
            rounds.push(measure(&folder, slice, &runtime).map_err(|error| failed(&error))?);
            std::fs::remove_dir_all(&folder).map_err(|error| failed(&error))?;
        }
        let figures = medians(&rounds);
        if self.json {
            serde_json::to_writer(&mut *out, &figures)?;
            writeln!(out)?;
        } else {
            show(&figures, out)?;
        }
        Ok(())
    }
}

fn measure(
    folder: &Path,
    slice: Duration,
    runtime: &tokio::runtime::Runtime,
) -> Result<Figures, redrive::retry::BoxError> {
    let mut figures = Figures::default();
    let bus = |name: &str| folder.join(name);
    for batch in [1, 8, 64, 512] {
        let limit = Raw::create(&folder.join(format!("raw-{batch}.db")))?.inserts(batch, slice)?;
        let ours = runtime.block_on(bus::publish(&bus(&format!("bus-{batch}.db")), batch, slice))?;
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        match batch {
            1 => {
                (figures.raw_insert_1, figures.publish_1) = (limit, ours.per_second);
                figures.sequential_ratio = limit / ours.per_second;
                let bare = Raw::create(&folder.join("raw-thread.db"))?;
                figures.raw_thread_ratio = limit / runtime.block_on(bare.on_other_thread(slice))?;
            }
            8 => (figures.raw_insert_8, figures.publish_8) = (limit, ours.per_second),
            64 => {
                (figures.raw_insert_64, figures.publish_64) = (limit, ours.per_second);
                figures.publish_ratio_64 = ours.per_second / limit;
                (figures.publish_p50_us_64, figures.publish_p99_us_64) = (micros(ours.p50), micros(ours.p99));
            }
            _ => {
                (figures.raw_insert_512, figures.publish_512) = (limit, ours.per_second);
                figures.publish_ratio_512 = ours.per_second / limit;
                (figures.publish_p50_us_512, figures.publish_p99_us_512) =
                    (micros(ours.p50), micros(ours.p99));
            }
        }
    }
    figures.raw_cycle = Raw::create(&folder.join("raw-cycle.db"))?.cycles(slice)?;
    figures.cycle = runtime.block_on(bus::cycle(&bus("cycle.db"), 512, slice))?.per_second;
    figures.cycle_ratio = figures.cycle / figures.raw_cycle;
    figures.dispatch_p99_us =
        runtime.block_on(bus::dispatch_p99(&bus("dispatch.db"), slice))?.as_secs_f64() * 1e6;
    Ok(figures)
}

/// Median of every field, so that each ratio was measured within one round.
fn medians(rounds: &[Figures]) -> Figures {
    let median = |field: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(field).collect();
        values.sort_by(f64::total_cmp);
        (values[values.len() / 2] * 1000.0).round() / 1000.0
    };
    Figures {
        raw_insert_1: median(|f| f.raw_insert_1),
        raw_insert_8: median(|f| f.raw_insert_8),
        raw_insert_64: median(|f| f.raw_insert_64),
        raw_insert_512: median(|f| f.raw_insert_512),
        publish_1: median(|f| f.publish_1),
        publish_8: median(|f| f.publish_8),
        publish_64: median(|f| f.publish_64),
        publish_512: median(|f| f.publish_512),
        publish_ratio_64: median(|f| f.publish_ratio_64),
        publish_ratio_512: median(|f| f.publish_ratio_512),
        publish_p50_us_64: median(|f| f.publish_p50_us_64),
        publish_p99_us_64: median(|f| f.publish_p99_us_64),
        publish_p50_us_512: median(|f| f.publish_p50_us_512),
        publish_p99_us_512: median(|f| f.publish_p99_us_512),
        raw_cycle: median(|f| f.raw_cycle),
        cycle: median(|f| f.cycle),
        cycle_ratio: median(|f| f.cycle_ratio),
        sequential_ratio: median(|f| f.sequential_ratio),
        raw_thread_ratio: median(|f| f.raw_thread_ratio),
        dispatch_p99_us: median(|f| f.dispatch_p99_us),
    }
}

fn show(figures: &Figures, out: &mut impl Write) -> Result<(), Failure> {
    writeln!(
        out,
        "Events per second, every one on stable storage (synchronous = FULL); medians of {ROUNDS} rounds\n"
    )?;
    writeln!(out, "{:<34}{:>12}{:>14}{:>8}", "", "bus", "SQLite alone", "ratio")?;
    let mut row = |name: &str, ours: f64, limit: f64| {
        writeln!(out, "{name:<34}{ours:>12.0}{limit:>14.0}{:>8.2}", ours / limit)
    };
    row("publish, 1 at a time", figures.publish_1, figures.raw_insert_1)?;
    row("publish, 8 publishers", figures.publish_8, figures.raw_insert_8)?;
    row("publish, 64 publishers", figures.publish_64, figures.raw_insert_64)?;
    row("publish, 512 publishers", figures.publish_512, figures.raw_insert_512)?;
    row("publish, handle, done: 512 at once", figures.cycle, figures.raw_cycle)?;
    writeln!(
        out,
        "\nSQLite alone: the same rows in a minimal table, in transactions of as many rows as there are publishers;\n\
         for the cycle, insert, claim and done in batches of 100.\n\
         One publish at a time takes {:.2} times as long as a commit on the caller's own thread; a commit on another thread,\n\
         through a channel, takes {:.2} times as long.\n\
         From stored to handler: 99 of 100 within {:.0} µs, at 1,000 events/s.",
        figures.sequential_ratio, figures.raw_thread_ratio, figures.dispatch_p99_us
    )?;
    Ok(())
}
