//! Everything, one fault after the other, in the time that is given.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::chaos::{self, Storm};
use crate::options::Options;
use crate::report::Report;
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

/// One line of the table.
struct Line<'a> {
    /// Its part of the time, beside those of the others.
    weight: u64,
    /// At least so many seconds.
    least: u64,
    run: Box<dyn Fn(&Options) -> Report + 'a>,
}

impl<'a> Line<'a> {
    fn new(weight: u64, run: impl Fn(&Options) -> Report + 'a) -> Self {
        Line { weight, least: 1, run: Box::new(run) }
    }
}

/// Runs all of them. The planted bugs are looked for beside the others: most of that is waiting for what never comes.
pub fn run(args: &AllArgs) -> Vec<Report> {
    std::thread::scope(|scope| {
        let seed = args.options.seed;
        let planted = args.planted.as_deref();
        let planted =
            planted.map(|program| scope.spawn(move || Report::timed(|| look_for_planted(program, seed))));
        let mut reports = run_faults(&args.options);
        reports.extend(planted.map(|planted| planted.join().expect("it does not panic")));
        reports
    })
}

fn run_faults(options: &Options) -> Vec<Report> {
    let rehearsed = OnceCell::new();
    let rehearse = || rehearsed.get_or_init(|| Rehearsal::of_all(options.seed)).clone();
    // The table is read from above. It is worked off from below: what takes its time anyway, with servers that start and work
    // that is brought to its end, comes first, and who can stop at any moment takes what is left.
    let mut lines = vec![
        Line::new(16, kills::run),
        Line::new(12, power_loss::run),
        Line::new(12, model::run),
        Line::new(3, walk::run),
        Line::new(22, |options| crash_points::run(options, rehearse)),
        Line::new(20, |options| io_errors::run(options, rehearse)),
        Line::new(5, full_disk::run),
        Line { least: SHORTEST_SOAK, ..Line::new(6, soak::run) },
    ];
    lines.extend(Storm::ALL.map(|storm| Line::new(5, move |options| chaos::run_one(storm, options, None))));
    let began = Instant::now();
    let mut reports = Vec::new();
    while let Some(line) = lines.pop() {
        let left = options.seconds.saturating_sub(began.elapsed().as_secs());
        let others: u64 = lines.iter().map(|line| line.weight).sum();
        let seconds = (left * line.weight / (line.weight + others)).max(line.least);
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
