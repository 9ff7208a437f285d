//! Finds planted bugs, to show that the harness is able to find real ones.
//!
//! The harness is built a second time with the feature `planted`, which compiles the product's `fault!("name")` lines. An
//! environment variable then activates one bug in the harness and in every worker that it starts. Each bug is given to the faults
//! that should find it, one after the other, until one of them reports it. Each of these faults also runs once without a bug and
//! must report nothing: a fault that always complains proves nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use redrive_retry::fault;

use crate::options::Options;
use crate::process::this_program;
use crate::report::Report;

/// Command line of a fault that looks for a bug.
type Finder = &'static [&'static str];

/// A bug in the product and the reports that are expected of it.
#[derive(Debug)]
pub struct Bug {
    /// Name at the product's `fault!("name")`.
    pub name: &'static str,
    /// Faults that should find it, the likeliest first.
    finders: &'static [Finder],
    /// Parts of the sentences that report this bug and no other. The store walk and the model report a history that shows it.
    signs: &'static [&'static str],
}

/// Every bug that the product has a place for.
pub const BUGS: [Bug; 10] = [
    // Publishers are acknowledged before the commit.
    Bug {
        name: "acknowledge-before-commit",
        finders: &[&["crash-points", "--story", "work"], &["kills"]],
        signs: &["is lost", "had ended", "is dead as before"],
    },
    // A synced commit does not sync the log.
    Bug {
        name: "normal-for-full",
        finders: &[&["power-loss"]],
        signs: &["is lost", "though it was purged", "is dead as before"],
    },
    // The delivery ends as dead in one transaction and enters the dead-letter queue in the next.
    Bug {
        name: "dead-letter-in-two-transactions",
        finders: &[&["crash-points", "--story", "work"], &["kills"]],
        signs: &["is not in the dead-letter queue"],
    },
    // A delivery that waited for a retry when the process ended never becomes due again.
    Bug {
        name: "recovery-skips-waiting",
        finders: &[&["kills"], &["model"]],
        signs: &["work is left", "seed "],
    },
    // A worker that lost its claim settles it all the same (SQLite).
    Bug { name: "settle-without-fence", finders: &[&["walk"]], signs: &["history "] },
    // A worker that lost its claim settles it all the same (PostgreSQL).
    Bug {
        name: "settle-without-fence-on-server",
        finders: &[&["chaos", "--storm", "pauses"]],
        signs: &["without a claim", "and carries the errors"],
    },
    // A delivery that an open circuit parks is forgotten.
    Bug {
        name: "parked-dropped",
        finders: &[&["kills"], &["model"]],
        signs: &["was never handled by", "seed "],
    },
    // A probe that failed keeps the half-open circuit's only slot for ever.
    Bug {
        name: "half-open-slot-leaked",
        finders: &[&["kills"], &["model"]],
        signs: &["work is left", "seed "],
    },
    // A purge deletes events that are one millisecond too young.
    Bug { name: "purge-off-by-one", finders: &[&["walk"], &["model"]], signs: &["history ", "seed "] },
    // A store continues to write after a failed sync.
    Bug {
        name: "failed-sync-ignored",
        finders: &[&["io-errors", "--at", "work: fsync number 3"]],
        signs: &["a sync of", "had stopped", "and unsynced data dropped"],
    },
];

/// Seconds that a fault runs without a bug. With one, it ends at its first report.
const CONTROL_SECONDS: u64 = 2;

/// Longest quotation of a report.
const MAX_QUOTE_CHARS: usize = 200;

/// Result of the search for one bug.
#[derive(Debug)]
struct Catch {
    bug: &'static str,
    found_by: Option<String>,
    /// First report of the fault that found it, or why none did.
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
    let all: BTreeSet<Finder> = BUGS.iter().flat_map(|bug| bug.finders).copied().collect();
    for finder in all {
        let name = finder.join(" ");
        let control = Options { seconds: CONTROL_SECONDS, ..*options };
        match try_with(None, finder, &program, &control) {
            Ok(None) => {}
            Ok(Some(said)) => {
                report.failures.push(format!("{name} finds something without any bug: {said}"));
            }
            Err(why) => report.failures.push(format!("{name} without any bug: {why}")),
        }
    }
    let catches: Vec<Catch> = BUGS.iter().map(|bug| look_for(bug, &program, options)).collect();
    report.rounds = catches.len() as u64;
    let found = catches.iter().filter(|catch| catch.found_by.is_some()).count();
    report.detail = format!("{found} of {} caught", BUGS.len());
    for Catch { bug, found_by, said } in catches {
        match found_by {
            Some(finder) => report.notes.push(format!("{bug}: caught by {finder}: {said}")),
            None => report.violations.push(format!("{bug} was not caught: {said}")),
        }
    }
    report
}

fn look_for(bug: &Bug, program: &Path, options: &Options) -> Catch {
    let mut missed = Vec::new();
    for finder in bug.finders {
        let name = finder.join(" ");
        match try_with(Some(bug), finder, program, options) {
            Ok(Some(said)) => return Catch { bug: bug.name, found_by: Some(name), said },
            Ok(None) => missed.push(format!("{name} saw nothing")),
            Err(why) => missed.push(format!("{name} failed: {why}")),
        }
    }
    Catch { bug: bug.name, found_by: None, said: missed.join("; ") }
}

/// Runs one fault with the bug active and returns its first report of it. A fault that could not run has found nothing.
fn try_with(
    bug: Option<&Bug>,
    finder: Finder,
    program: &Path,
    options: &Options,
) -> Result<Option<String>, String> {
    let mut command = Command::new(program);
    match bug {
        Some(bug) => command.env(fault::VARIABLE, bug.name),
        None => command.env_remove(fault::VARIABLE),
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
    let first_line =
        |said: &String| said.lines().next().unwrap_or_default().chars().take(MAX_QUOTE_CHARS).collect();
    let is_it = |said: &&String| bug.is_none_or(|bug| bug.signs.iter().any(|sign| said.contains(sign)));
    let found = reports.iter().flat_map(|report| &report.violations).find(is_it);
    match found.map(first_line) {
        Some(said) => Ok(Some(said)),
        None => match reports.iter().flat_map(Report::complaints).next() {
            Some(why) => Err(first_line(&why)),
            None => Ok(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::BUGS;

    fn rust_files(folder: &Path) -> Vec<PathBuf> {
        let entries =
            std::fs::read_dir(folder).expect("the folder is readable").map(|entry| entry.unwrap().path());
        entries
            .flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] })
            .filter(|path| path.extension().is_some_and(|ending| ending == "rs"))
            .collect()
    }

    /// Names at `fault!("name")` in the sources of all other crates.
    fn names_in_the_product() -> BTreeSet<String> {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a folder");
        let own = ["redrive-torture/", "redrive-retry/src/fault.rs"].map(|part| crates.join(part));
        let files =
            rust_files(crates).into_iter().filter(|path| !own.iter().any(|own| path.starts_with(own)));
        let sources = files.map(|path| std::fs::read_to_string(path).expect("the source is readable"));
        let name = |part: &str| part.split('"').next().unwrap_or_default().to_owned();
        sources.flat_map(|source| source.split("fault!(\"").skip(1).map(name).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn every_fault_in_the_product_has_an_expectation_and_every_expectation_a_fault() {
        let expected: BTreeSet<String> = BUGS.iter().map(|bug| bug.name.to_owned()).collect();
        assert_eq!(names_in_the_product(), expected);
        assert_eq!(expected.len(), BUGS.len(), "two bugs of the same name");
    }
}
