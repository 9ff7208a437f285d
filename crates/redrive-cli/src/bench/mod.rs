//! `redrive bench`: measures durable throughput on this disk, compared with SQLite alone.
//!
//! Bus and SQLite alone alternate in one run, so that noise affects both; each figure is the median of all rounds. Everything is
//! synced (`synchronous = FULL`).

mod bus;
mod raw;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use self::raw::Raw;
use crate::api::write_json;
use crate::failure::Failure;

const ROUNDS: u32 = 3;
/// Concurrent publishers, and rows in a transaction of SQLite alone.
const BATCHES: [u32; 4] = [1, 8, 64, 512];
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

/// Events per second, ratios of the bus to SQLite alone, and latencies in microseconds, by name.
type Figures = BTreeMap<String, f64>;

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
        if self.json { write_json(out, &figures) } else { show(&figures, out) }
    }
}

fn measure(
    folder: &Path,
    slice: Duration,
    runtime: &tokio::runtime::Runtime,
) -> Result<Figures, redrive::retry::BoxError> {
    let mut figures = Figures::new();
    let mut add = |name: &str, figure: f64| figures.insert(name.to_owned(), figure);
    let file = |name: &str| folder.join(format!("{name}.db"));
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    for batch in BATCHES {
        let limit = Raw::create(&file(&format!("raw-{batch}")))?.inserts(batch, slice)?;
        let ours = runtime.block_on(bus::publish(&file(&format!("bus-{batch}")), batch, slice))?;
        add(&format!("raw_insert_{batch}"), limit);
        add(&format!("publish_{batch}"), ours.per_second);
        if batch == 1 {
            add("sequential_ratio", limit / ours.per_second);
            let bare = Raw::create(&file("raw-thread"))?;
            add("raw_thread_ratio", limit / runtime.block_on(bare.on_other_thread(slice))?);
        }
        if batch >= 64 {
            add(&format!("publish_ratio_{batch}"), ours.per_second / limit);
            add(&format!("publish_p50_us_{batch}"), micros(ours.p50));
            add(&format!("publish_p99_us_{batch}"), micros(ours.p99));
        }
    }
    let raw_cycle = Raw::create(&file("raw-cycle"))?.cycles(slice)?;
    let cycle = runtime.block_on(bus::cycle(&file("cycle"), 512, slice))?.per_second;
    add("raw_cycle", raw_cycle);
    add("cycle", cycle);
    add("cycle_ratio", cycle / raw_cycle);
    add("dispatch_p99_us", micros(runtime.block_on(bus::dispatch_p99(&file("dispatch"), slice))?));
    Ok(figures)
}

/// Median of every figure, so that each ratio was measured within one round.
fn medians(rounds: &[Figures]) -> Figures {
    let median = |name: &String| {
        let mut values: Vec<f64> = rounds.iter().map(|figures| figures[name]).collect();
        values.sort_by(f64::total_cmp);
        (name.clone(), (values[values.len() / 2] * 1000.0).round() / 1000.0)
    };
    rounds[0].keys().map(median).collect()
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
    for batch in BATCHES {
        let name = if batch == 1 {
            "publish, 1 at a time".to_owned()
        } else {
            format!("publish, {batch} publishers")
        };
        row(&name, figures[&format!("publish_{batch}")], figures[&format!("raw_insert_{batch}")])?;
    }
    row("publish, handle, done: 512 at once", figures["cycle"], figures["raw_cycle"])?;
    writeln!(
        out,
        "\nSQLite alone: the same rows in a minimal table, in transactions of as many rows as there are publishers;\n\
         for the cycle, insert, claim and done in batches of 100.\n\
         One publish at a time takes {:.2} times as long as a commit on the caller's own thread; a commit on another thread,\n\
         through a channel, takes {:.2} times as long.\n\
         From stored to handler: 99 of 100 within {:.0} µs, at 1,000 events/s.",
        figures["sequential_ratio"], figures["raw_thread_ratio"], figures["dispatch_p99_us"]
    )?;
    Ok(())
}
