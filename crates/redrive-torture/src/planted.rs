//! Planted bugs: whoever does not find them proves nothing.
//!
//! This program is built a second time with the feature `planted`; then a variable in the environment puts one bug into it and
//! into every worker that it starts. Each bug is given to the faults that should find it, one after the other, until one does.
//! The same faults run once without any bug, and must find nothing: who always complains has caught nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use redrive_retry::planted::Planted;

use crate::options::Options;
use crate::process::this_program;
use crate::report::Report;

/// How a fault is asked for.
type Finder = &'static [&'static str];

/// What should find a bug, the likeliest first.
fn finders(bug: Planted) -> &'static [Finder] {
    match bug {
        Planted::AcknowledgeBeforeCommit | Planted::DeadLetterInTwoTransactions => {
            &[&["crash-points", "--story", "work"], &["kills"]]
        }
        Planted::NormalForFull => &[&["power-loss"]],
        Planted::RecoverySkipsWaiting | Planted::ParkedDropped | Planted::HalfOpenSlotLeaked => {
            &[&["kills"], &["model"]]
        }
        Planted::SettleWithoutFence => &[&["walk"]],
        Planted::SettleWithoutFenceOnServer => &[&["chaos", "--storm", "pauses"]],
        Planted::PurgeOffByOne => &[&["walk"], &["model"]],
        Planted::FailedSyncIgnored => &[&["io-errors", "--at", "work: fsync number 3"]],
    }
}

/// Without a bug a fault runs for so many seconds. With one, it ends as soon as it has found it.
const CONTROL: u64 = 2;

/// So many letters of a sentence say what was found.
const SHOWN: usize = 200;

/// What a sentence says that is about this bug, and not about something else. The walk and the model tell what is not as it should
/// be by the history that shows it.
fn signs(bug: Planted) -> &'static [&'static str] {
    match bug {
        Planted::AcknowledgeBeforeCommit => &["is lost", "had come to its end", "as if it had not been"],
        Planted::NormalForFull => &["is lost", "though it was purged", "as if it had not been"],
        Planted::DeadLetterInTwoTransactions => &["does not stand in the dead-letter queue"],
        Planted::RecoverySkipsWaiting | Planted::HalfOpenSlotLeaked => {
            &["there is still something to do", "seed "]
        }
        Planted::SettleWithoutFence => &["way "],
        Planted::SettleWithoutFenceOnServer => &["though nobody held it", "and carries the errors"],
        Planted::ParkedDropped => &["was never handled by", "seed "],
        Planted::PurgeOffByOne => &["way ", "seed "],
        Planted::FailedSyncIgnored => &["a sync of", "had stopped", "and the system forgot"],
    }
}

/// What became of one bug.
#[derive(Debug)]
struct Catch {
    bug: &'static str,
    found_by: Option<String>,
    /// What the fault that found it said first, or why none did.
    said: String,
}

/// Plants every bug and lets the faults look for it, each for at most as long as the options say.
pub fn run(options: &Options) -> Report {
    let mut report = Report::of("planted bugs", "bugs", options.seed);
    if !cfg!(feature = "planted") {
        report.failures.push("this program has no bugs planted: build it with `--features planted`".into());
        return report;
    }
    let program = match this_program() {
        Ok(program) => program,
        Err(error) => {
            report.failures.push(error.to_string());
            return report;
        }
    };
    let all: BTreeSet<Finder> = Planted::ALL.into_iter().flat_map(finders).copied().collect();
    for finder in all {
        let name = finder.join(" ");
        let brief = Options { seconds: CONTROL, ..*options };
        match try_with(None, finder, &program, &brief) {
            Ok(None) => {}
            Ok(Some(said)) => {
                report.failures.push(format!("{name} finds something without any bug: {said}"));
            }
            Err(why) => report.failures.push(format!("{name} without any bug: {why}")),
        }
    }
    let catches: Vec<Catch> = Planted::ALL.into_iter().map(|bug| look_for(bug, &program, options)).collect();
    report.rounds = catches.len() as u64;
    let found = catches.iter().filter(|catch| catch.found_by.is_some()).count();
    report.detail = format!("{found} of {} caught", Planted::ALL.len());
    for Catch { bug, found_by, said } in catches {
        match found_by {
            Some(finder) => report.notes.push(format!("{bug}: caught by {finder}: {said}")),
            None => report.violations.push(format!("{bug} was not caught: {said}")),
        }
    }
    report
}

fn look_for(bug: Planted, program: &Path, options: &Options) -> Catch {
    let mut missed = Vec::new();
    for finder in finders(bug) {
        let name = finder.join(" ");
        match try_with(Some(bug), finder, program, options) {
            Ok(Some(said)) => return Catch { bug: bug.name(), found_by: Some(name), said },
            Ok(None) => missed.push(format!("{name} saw nothing")),
            Err(why) => missed.push(format!("{name} failed: {why}")),
        }
    }
    Catch { bug: bug.name(), found_by: None, said: missed.join("; ") }
}

/// Runs one fault with the bug in it, and returns the first thing it found. What keeps a fault from being tried is no find.
fn try_with(
    bug: Option<Planted>,
    finder: Finder,
    program: &Path,
    options: &Options,
) -> Result<Option<String>, String> {
    let mut command = Command::new(program);
    match bug {
        Some(bug) => command.env(Planted::VARIABLE, bug.name()),
        None => command.env_remove(Planted::VARIABLE),
    };
    let output = command
        .arg("--json")
        .args(finder)
        .args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let reports: Vec<Report> = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error} (it ended with {})", output.status))?;
    let first_line = |said: &String| said.lines().next().unwrap_or_default().chars().take(SHOWN).collect();
    let is_it = |said: &&String| bug.is_none_or(|bug| signs(bug).iter().any(|sign| said.contains(sign)));
    let found = reports.iter().flat_map(|report| &report.violations).find(is_it);
    match found.map(first_line) {
        Some(said) => Ok(Some(said)),
        None => match reports.iter().flat_map(Report::complaints).next() {
            Some(why) => Err(first_line(&why)),
            None => Ok(None),
        },
    }
}
