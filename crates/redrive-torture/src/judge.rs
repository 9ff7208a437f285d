//! Judges a kept database with violations again.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use redrive_retry::fault;
use tempfile::TempDir;

use crate::oracle::Oracle;
use crate::process::{Site, in_memory};
use crate::report::Report;
use crate::subject::Counting;

/// Maximum databases that are kept of one run.
const MAX_KEPT: usize = 5;

/// Arguments of the command `judge`.
#[derive(Clone, Debug, Args)]
pub struct JudgeArgs {
    /// The folder that was kept
    pub folder: PathBuf,
    /// Tracking of failures in that run
    #[arg(long, value_enum, default_value_t = Counting::Event)]
    pub counting: Counting,
}

/// Judges a copy; the kept database stays as it is.
pub fn run(args: &JudgeArgs) -> Report {
    let report = judge(args).unwrap_or_else(|error| {
        Report::failed(format!("{} cannot be judged again: {error}", args.folder.display()))
    });
    Report { fault: "judged again".into(), unit: "databases".into(), rounds: 1, ..report }
}

fn judge(args: &JudgeArgs) -> io::Result<Report> {
    let copy = in_memory()?;
    for entry in std::fs::read_dir(&args.folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name()))?;
        }
    }
    let site = Site::new(copy.path(), args.counting);
    if !site.database.exists() || !site.journal.exists() {
        return Err(io::Error::other("there is no events.db with its journal"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut oracle = Oracle::new(args.counting);
    runtime.block_on(oracle.examine(&site.database, &site.journal));
    let mut report = Report::default();
    oracle.add_to(&mut report);
    Ok(report)
}

/// Keeps the folder of a database with violations, and names it in the report.
pub fn keep(folder: TempDir, counting: Counting, report: &mut Report) {
    // Databases with planted bugs are not kept.
    if report.notes.len() < MAX_KEPT && std::env::var_os(fault::VARIABLE).is_none() {
        report.notes.push(kept(&folder.keep(), counting));
    }
}

fn kept(path: &Path, counting: Counting) -> String {
    format!("kept; judge it again: redrive-torture judge {} --counting {}", path.display(), counting.name())
}
