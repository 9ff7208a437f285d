//! Everything, one fault after the other, in the time that is given.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use crate::chaos::{self, ChaosArgs};
use crate::options::Options;
use crate::report::Report;
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

type Fault = fn(&Options) -> Report;

/// The faults, with their shares of the time in percent.
const SHARES: [(Fault, u64); 8] = [
    (kills::run, 16),
    (crash_points::run, 18),
    (io_errors::run, 14),
    (full_disk::run, 4),
    (power_loss::run, 12),
    (model::run, 12),
    (walk::run, 3),
    (soak::run, 5),
];

/// The share of everything that goes wrong around a server.
const CHAOS: u64 = 16;

/// A part of the time is for the planted bugs, where they are looked for: one of so many.
const PLANTED: u64 = 4;

/// For so long a fault looks for a bug at most; nearly always it ends much earlier.
const LONGEST_LOOK: u64 = 25;

/// Runs all of them.
pub fn run(args: &AllArgs) -> Vec<Report> {
    let for_planted = if args.planted.is_some() { args.options.seconds / PLANTED } else { 0 };
    let rest = args.options.seconds - for_planted;
    let part = |share: u64| Options { seconds: (rest * share / 100).max(1), ..args.options };
    let mut reports: Vec<Report> = SHARES.iter().map(|(fault, share)| fault(&part(*share))).collect();
    reports.extend(chaos::run(&ChaosArgs { options: part(CHAOS), storm: None, events: None }));
    if let Some(program) = &args.planted {
        reports.extend(planted(program, LONGEST_LOOK, args.options.seed));
    }
    reports
}

fn planted(program: &Path, seconds: u64, seed: u64) -> Vec<Report> {
    let output = Command::new(program)
        .args(["--json", "planted", "--seconds", &seconds.to_string(), "--seed", &seed.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let reports = output
        .map_err(|error| error.to_string())
        .and_then(|output| serde_json::from_slice(&output.stdout).map_err(|error| error.to_string()));
    reports.unwrap_or_else(|why| {
        let failed = Report::failed(format!("{} cannot be run: {why}", program.display()));
        vec![Report { fault: "planted bugs".into(), ..failed }]
    })
}
