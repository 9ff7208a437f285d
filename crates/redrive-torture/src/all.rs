//! Runs all faults within the given time.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::broker::{self, BrokerArgs};
use crate::chaos::{self, Storm};
use crate::options::Options;
use crate::report::Report;
use crate::server::{self, ServerArgs};
use crate::stories::Rehearsal;
use crate::{crash_points, full_disk, io_errors, kills, model, power_loss, soak, walk};

/// Arguments of the command `all`.
#[derive(Clone, Debug, Args)]
pub struct AllArgs {
    /// For everything together
    #[command(flatten)]
    pub options: Options,
    /// This program, built with `--features planted`: then the planted bugs are looked for, too, each for a few seconds
    #[arg(long)]
    pub planted: Option<PathBuf>,
}

/// Maximum seconds that a fault looks for a planted bug; most end much earlier.
const MAX_SEARCH_SECONDS: u64 = 25;

/// Minimum seconds in which growth can be seen.
const MIN_SOAK_SECONDS: u64 = 10;

/// Seconds beside the storms: the server starts, processes come and go, the last bus drains.
const STORM_OVERHEAD_SECONDS: u64 = 8;

/// Seconds beside the kills: `redrive serve` delivers the rest and every event is asked for.
const SERVER_OVERHEAD_SECONDS: u64 = 4;

/// Seconds beside the troubles: servers start, and each trouble ends with a drain.
const BROKER_OVERHEAD_SECONDS: u64 = 40;

/// One line of the table.
struct Line<'a> {
    /// Share of the time, relative to the other lines.
    weight: u64,
    /// Minimum seconds.
    least: u64,
    /// Seconds for start and end, beside its share.
    more: u64,
    run: Box<dyn Fn(&Options) -> Report + 'a>,
}

impl<'a> Line<'a> {
    fn new(weight: u64, run: impl Fn(&Options) -> Report + 'a) -> Self {
        Line { weight, least: 1, more: 0, run: Box::new(run) }
    }
}

/// Runs the faults of files, of servers and of a broker and the search for planted bugs in parallel. The last three mostly
/// wait.
pub fn run(args: &AllArgs) -> Vec<Report> {
    let AllArgs { options, planted } = args;
    std::thread::scope(|scope| {
        let around_servers = scope.spawn(|| {
            let storm = |storm: Storm| Line {
                more: STORM_OVERHEAD_SECONDS,
                ..Line::new(1, move |options| chaos::run_one(storm, options, None))
            };
            let mut lines: Vec<_> = Storm::ALL.map(storm).into();
            lines.push(Line {
                more: SERVER_OVERHEAD_SECONDS,
                ..Line::new(1, |options| {
                    server::run(&ServerArgs { options: *options, program: None, db: None })
                })
            });
            work_off(lines, options)
        });
        let around_brokers = scope.spawn(|| {
            let seconds = options.seconds.saturating_sub(BROKER_OVERHEAD_SECONDS);
            broker::run(&BrokerArgs { options: Options { seconds, ..*options }, trouble: None })
        });
        let planted = planted
            .as_deref()
            .map(|program| scope.spawn(|| vec![Report::timed(|| look_for_planted(program, options.seed))]));
        let mut reports = to_files(options);
        for others in [Some(around_servers), Some(around_brokers), planted].into_iter().flatten() {
            reports.extend(others.join().expect("it does not panic"));
        }
        reports
    })
}

fn to_files(options: &Options) -> Vec<Report> {
    let rehearsed = OnceCell::new();
    let rehearse = || rehearsed.get_or_init(|| Rehearsal::of_all(options.seed)).clone();
    let lines = vec![
        Line::new(18, kills::run),
        Line::new(12, power_loss::run),
        Line::new(12, model::run),
        Line::new(3, walk::run),
        Line::new(25, |options| crash_points::run(options, rehearse)),
        Line::new(20, |options| io_errors::run(options, rehearse)),
        Line::new(5, full_disk::run),
        Line { least: MIN_SOAK_SECONDS, ..Line::new(5, soak::run) },
    ];
    work_off(lines, options)
}

/// Runs the lines from the last to the first: lines that can stop at any moment get the time that the others leave.
fn work_off(mut lines: Vec<Line<'_>>, options: &Options) -> Vec<Report> {
    let began = Instant::now();
    let mut reports = Vec::new();
    while let Some(line) = lines.pop() {
        let left = options.seconds.saturating_sub(began.elapsed().as_secs());
        let others: u64 = lines.iter().map(|line| line.weight).sum();
        let share = left * line.weight / (line.weight + others);
        let seconds = share.saturating_sub(line.more).max(line.least);
        reports.push(Report::timed(|| (line.run)(&Options { seconds, ..*options })));
    }
    reports.reverse();
    reports
}

fn look_for_planted(program: &Path, seed: u64) -> Report {
    let (seconds, seed) = (MAX_SEARCH_SECONDS.to_string(), seed.to_string());
    let output = Command::new(program)
        .args(["--json", "planted", "--seconds", &seconds, "--seed", &seed])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let report = output.map_err(|error| error.to_string()).and_then(|output| {
        let [report]: [Report; 1] =
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        Ok(report)
    });
    report.unwrap_or_else(|why| {
        let failed = Report::failed(format!("{} cannot be run: {why}", program.display()));
        Report { fault: "planted bugs".into(), ..failed }
    })
}
