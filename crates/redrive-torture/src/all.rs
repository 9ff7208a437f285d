//! Everything, one fault after the other, in the time that is given.

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

/// What runs all faults is told.
#[derive(Clone, Debug, Args)]
pub struct AllArgs {
    /// For everything together
    #[command(flatten)]
    pub options: Options,
    /// This program, built with `--features planted`: then the planted bugs are looked for, too, each for a few seconds
    #[arg(long)]
    pub planted: Option<PathBuf>,
}

/// For so long a fault looks for a planted bug at most; nearly always it ends much earlier.
const LONGEST_LOOK: u64 = 25;

/// In less time nobody sees whether anything grows.
const SHORTEST_SOAK: u64 = 10;

/// A server starts, processes come and go, and what is left is brought to its end.
const AROUND_A_STORM: u64 = 8;

/// `redrive serve` delivers what is left after the last kill, and every event is asked for.
const AROUND_A_SERVER: u64 = 4;

/// Servers start, and after each trouble what is left is brought to its end.
const AROUND_BROKERS: u64 = 40;

/// One line of the table.
struct Line<'a> {
    /// Its part of the time, beside those of the others.
    weight: u64,
    /// At least so many seconds.
    least: u64,
    /// It takes so many more to begin and to end.
    more: u64,
    run: Box<dyn Fn(&Options) -> Report + 'a>,
}

impl<'a> Line<'a> {
    fn new(weight: u64, run: impl Fn(&Options) -> Report + 'a) -> Self {
        Line { weight, least: 1, more: 0, run: Box::new(run) }
    }
}

/// Runs all of them: what happens to files, around servers and around a broker, and the search for planted bugs beside one another.
/// Most of the last three is waiting.
pub fn run(args: &AllArgs) -> Vec<Report> {
    let AllArgs { options, planted } = args;
    std::thread::scope(|scope| {
        let around_servers = scope.spawn(|| {
            let storm = |storm: Storm| Line {
                more: AROUND_A_STORM,
                ..Line::new(1, move |options| chaos::run_one(storm, options, None))
            };
            let mut lines: Vec<_> = Storm::ALL.map(storm).into();
            lines.push(Line {
                more: AROUND_A_SERVER,
                ..Line::new(1, |options| {
                    server::run(&ServerArgs { options: *options, program: None, db: None })
                })
            });
            work_off(lines, options)
        });
        let around_brokers = scope.spawn(|| {
            let seconds = options.seconds.saturating_sub(AROUND_BROKERS);
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
        Line { least: SHORTEST_SOAK, ..Line::new(5, soak::run) },
    ];
    work_off(lines, options)
}

/// The table is read from above and worked off from below: who can stop at any moment takes what those have left that take their
/// time anyway.
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
    let (seconds, seed) = (LONGEST_LOOK.to_string(), seed.to_string());
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
