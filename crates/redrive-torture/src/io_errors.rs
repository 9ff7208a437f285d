//! Injected I/O errors: lets every single call of the store that changes a file fail once, with `EIO` and with `ENOSPC`.
//!
//! The store must acknowledge nothing that is not on disk, and must return an error that says what to do. After a full disk
//! the process continues as soon as there is space. After a failed sync it stops for good, because the system may have
//! dropped written data. The next process finds everything that was acknowledged, even if the system has dropped everything
//! that was not synced.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Runtime;

use crate::dice::Dice;
use crate::journal::{Fact, Reader, Refusal};
use crate::options::Options;
use crate::oracle::{Oracle, copy_of};
use crate::parallel::ParallelRuns;
use crate::process::{beside, is_killed};
use crate::report::Report;
use crate::stories::{Before, Point, Rehearsal, Stage, TIMEOUT};
use crate::strace::{Call, Injection, Wrong};
use crate::worker::Script;

/// Calls that are recorded beside the failing one: nothing may be written or deleted after a failed sync.
const WATCHED: [&str; 4] = ["pwrite64", "fsync", "ftruncate", "unlink"];

/// Number of calls for which a disk stays full.
const FULL_CALLS: u64 = 3;

/// Injected error.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Error {
    /// Once, with an error of the device.
    Device,
    /// From then on, with an error of the device.
    DeviceForGood,
    /// Once, because there is no room.
    Full,
    /// Several times, because the disk is full; then there is space.
    FullForAWhile,
}

impl Error {
    const ALL: [Error; 4] = [Error::Device, Error::Full, Error::DeviceForGood, Error::FullForAWhile];

    fn injection(self, point: Point) -> Injection {
        let Point { call, number, .. } = point;
        let (name, when) = match self {
            Error::Device => ("EIO", number.to_string()),
            Error::DeviceForGood => ("EIO", format!("{number}+")),
            Error::Full => ("ENOSPC", number.to_string()),
            Error::FullForAWhile => ("ENOSPC", format!("{number}..{}", number + FULL_CALLS)),
        };
        Injection { call, wrong: Wrong::Error(name), when }
    }

    /// Deleting needs no space. The engine does not report which error it was there, so the bus cannot call it a full disk.
    fn can_come_from(self, call: &str) -> bool {
        !(self.is_full() && call.starts_with("unlink"))
    }

    fn is_full(self) -> bool {
        matches!(self, Error::Full | Error::FullForAWhile)
    }

    fn name(self) -> &'static str {
        match self {
            Error::Device => "EIO",
            Error::DeviceForGood => "EIO from then on",
            Error::Full => "ENOSPC",
            Error::FullForAWhile => "ENOSPC for a while",
        }
    }
}

/// Lets the rehearsed calls fail.
pub fn run(options: &Options, rehearse: impl FnOnce() -> Result<Arc<Rehearsal>, String>) -> Report {
    let (limits, report) = (options.begin(), Report::of("I/O errors", "errors", options.seed));
    let rehearsal = match rehearse() {
        Ok(rehearsal) => rehearsal,
        Err(why) => return Report { failures: vec![why], ..report },
    };
    let (stage, rounds) = (&rehearsal.stage, rounds_of(&rehearsal.points, options.seed));
    let next = Mutex::new(rounds.iter());
    let ends = Mutex::new(BTreeMap::<&str, u64>::new());
    let mut report = ParallelRuns::run(limits, report, |runs, _, runtime| {
        while !runs.is_broken() && runs.another() {
            let round = next.lock().unwrap_or_else(PoisonError::into_inner).next().copied();
            let Some((point, error)) = round else { return runs.take_back() };
            match one_round(stage, point, error, runs, runtime) {
                Ok(Some(end)) => {
                    *ends.lock().unwrap_or_else(PoisonError::into_inner).entry(end).or_default() += 1;
                }
                Ok(None) => runs.take_back(),
                Err(error) => {
                    runs.take_back();
                    runs.fail(format!("{}: {error}", point.name()));
                }
            }
        }
    });
    let ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    let parts: Vec<_> = ends.iter().map(|(end, times)| format!("{end} {times}")).collect();
    report.detail = format!("of {}: {}", rounds.len(), parts.join(", "));
    if let ([point], 0) = (&*rehearsal.points, report.rounds) {
        report.failures.push(format!("{} was not reached", point.name()));
    }
    report
}

/// Every call with every error, in random order.
fn rounds_of(points: &[Point], seed: u64) -> Vec<(Point, Error)> {
    let (crowd, others): (Vec<Point>, Vec<Point>) =
        points.iter().partition(|point| point.story.script == Script::Crowd);
    // The background thread makes hundreds of equal calls.
    let points = others.into_iter().chain(crowd.into_iter().step_by(20));
    let errors_at =
        |point: Point| Error::ALL.into_iter().filter(move |error| error.can_come_from(point.call));
    let mut rounds: Vec<_> =
        points.flat_map(|point| errors_at(point).map(move |error| (point, error))).collect();
    let mut dice = Dice::new(seed);
    rounds.sort_by_cached_key(|_| dice.roll());
    rounds
}

/// Runs a story in which a call fails, kills the rest, and judges. Returns the outcome; `None` if the call was not reached.
fn one_round(
    stage: &Stage,
    point: Point,
    error: Error,
    runs: &ParallelRuns,
    runtime: &Runtime,
) -> io::Result<Option<&'static str>> {
    let play = stage.prepare(point.story)?;
    let site = &play.site;
    let mut oracle = Oracle::new(site.counting);
    let mut reader = Reader::default();
    reader.read(&site.journal)?;
    if point.story.before != Before::Nothing {
        runtime.block_on(oracle.look_at_file(&site.database, &site.journal));
    }
    let mut calls = WATCHED.to_vec();
    if !calls.contains(&point.call) {
        calls.push(point.call);
    }
    let mut worker = play.begin(&calls, vec![error.injection(point)])?;
    let ended = worker.wait(TIMEOUT)?;
    let facts = reader.read(&site.journal)?;
    let log = play.log(&calls).read();
    let was_injected = log.calls.iter().any(|call| call.is_injected);
    let mut sentences = Vec::new();
    let end = match ended {
        None => {
            sentences.push("the worker did not end".to_owned());
            "hung"
        }
        Some(status) => how_it_ended(status, &facts, &worker.complaints(), &mut sentences),
    };
    check_stop(&facts, &mut sentences);
    let failed_sync = log.calls.iter().position(|call| call.is_injected && call.name.ends_with("sync"));
    if let Some(at) = failed_sync {
        let is_told = facts.iter().any(|fact| matches!(fact, Fact::Refused { .. }));
        if !is_told && ended.is_some_and(|status| status.success()) {
            sentences.push("a sync failed, and no caller got an error".to_owned());
        }
        // A process that only creates the file undoes its work, and acknowledges nothing.
        if point.story.before != Before::Nothing {
            check_failed_sync(&log.calls, at, &mut sentences);
            let mut forgetful = Oracle::after_power_loss(site.counting);
            forgetful.read(&site.journal);
            let (_folder, copy) = copy_of(&site.database)?;
            forget_unsynced(&copy, &log.calls)?;
            runtime.block_on(forgetful.look_at(&copy));
            runs.report(|report| {
                report.lost += forgetful.lost();
                let name = format!("{} with {}, and unsynced data dropped", point.name(), error.name());
                report.violations.extend(forgetful.sentences().map(|said| format!("{name}: {said}")));
            });
        }
    } else if error.is_full() && end != "did not start" {
        check_went_on(&facts, &mut sentences);
    }
    if !error.is_full() {
        check_not_called_full(&facts, &mut sentences);
        let is_write_of_log =
            |call: &Call| call.is_injected && call.name == "pwrite64" && call.file.ends_with("-wal");
        if log.calls.iter().any(is_write_of_log) && end == "unnoticed" {
            sentences.push("a write of the log failed, and no caller got an error".to_owned());
        }
    }
    sentences.into_iter().for_each(|sentence| oracle.complain(sentence));
    runtime.block_on(oracle.examine(&site.database, &site.journal));
    runs.report(|report| {
        oracle.add_to_for(&format!("{} with {}", point.name(), error.name()), report);
        if !oracle.is_content() {
            play.keep(report);
        }
    });
    Ok(was_injected.then_some(end))
}

/// Classifies the end: the worker is done, or the bus has said why not.
fn how_it_ended(
    status: ExitStatus,
    facts: &[Fact],
    complaints: &str,
    sentences: &mut Vec<String>,
) -> &'static str {
    let is_refused = |wanted: Option<Refusal>| {
        facts.iter().any(|fact| match fact {
            Fact::Refused { refusal, .. } => wanted.is_none_or(|wanted| *refusal == wanted),
            _ => false,
        })
    };
    if is_killed(status) || status.code().is_none() || complaints.contains("panicked") {
        sentences.push(format!("the worker crashed ({status}): {complaints}"));
        return "crashed";
    }
    if !status.success() && !is_refused(None) {
        sentences.push(format!("the worker ended ({status}) and no caller got a reason: {complaints}"));
    }
    if is_refused(Some(Refusal::Stopped)) || is_refused(Some(Refusal::Unknown)) {
        "stopped"
    } else if !status.success() {
        "did not start"
    } else if is_refused(Some(Refusal::DiskFull)) {
        "went on after refusing"
    } else {
        "unnoticed"
    }
}

/// Checks that a stopped store stays stopped.
fn check_stop(facts: &[Fact], sentences: &mut Vec<String>) {
    let stopped = facts
        .iter()
        .position(|fact| matches!(fact, Fact::Refused { refusal: Refusal::Stopped | Refusal::Unknown, .. }));
    if let Some(at) = stopped {
        let acknowledged = facts[at..].iter().filter(|fact| matches!(fact, Fact::Ack { .. })).count();
        if acknowledged > 0 {
            sentences
                .push(format!("the store had stopped, and acknowledged {acknowledged} events after that"));
        }
    }
}

/// Checks that nothing is written or deleted after a failed sync, as the written data may be gone. A complete log may be
/// appended to, but not restarted.
fn check_failed_sync(calls: &[Call], at: usize, sentences: &mut Vec<String>) {
    let is_log = |file: &str| file.ends_with("-wal");
    let file = calls[at].file.as_str();
    let is_wrong = |call: &&Call| match call.name.as_str() {
        "pwrite64" if is_log(&call.file) => is_log(file) || call.place.is_some_and(|(offset, _)| offset == 0),
        "pwrite64" => true,
        "ftruncate" | "unlink" => true,
        _ => false,
    };
    let is_database = |call: &&Call| !call.file.ends_with("-shm") && !call.file.ends_with("-owner");
    // A call in flight in another thread is not to blame.
    let after = calls[at..].iter().skip(1).filter(is_database).filter(is_wrong);
    let names: Vec<_> = after.map(|call| format!("{} of {}", call.name, call.file)).collect();
    if let Some(first) = names.first() {
        let count = names.len();
        sentences
            .push(format!("a sync of {file} failed, and {count} changes came after it, the first a {first}"));
    }
}

/// Corrupts everything that was written since the last successful sync, as the system may when a sync fails.
fn forget_unsynced(database: &Path, calls: &[Call]) -> io::Result<()> {
    for suffix in ["", "-wal"] {
        let path = beside(database, suffix);
        let is_its = |call: &&Call| call.file.ends_with(&format!(".db{suffix}"));
        let synced = calls.iter().rposition(|call| {
            is_its(&call) && call.name.ends_with("sync") && !call.is_injected && !call.is_cut_off
        });
        let unsynced = calls[synced.unwrap_or(0)..].iter().filter(is_its);
        let places: Vec<_> =
            unsynced.filter(|call| call.name == "pwrite64").filter_map(|call| call.place).collect();
        if places.is_empty() || !path.exists() {
            continue;
        }
        let file = OpenOptions::new().write(true).open(&path)?;
        let length = file.metadata()?.len();
        for (offset, count) in places {
            let count = count.min(length.saturating_sub(offset));
            file.write_all_at(&vec![0; usize::try_from(count).unwrap_or(0)], offset)?;
        }
    }
    Ok(())
}

/// Checks that only a full disk is reported as full, not a broken one.
fn check_not_called_full(facts: &[Fact], sentences: &mut Vec<String>) {
    let called_full = facts.iter().find_map(|fact| match fact {
        Fact::Refused { refusal: Refusal::DiskFull, why, .. } => Some(why),
        _ => None,
    });
    if let Some(why) = called_full {
        sentences.push(format!("an error of the device was called a full disk: {why}"));
    }
}

/// Checks that a full disk is refused and that work resumes as soon as there is space.
fn check_went_on(facts: &[Fact], sentences: &mut Vec<String>) {
    let why = facts.iter().find_map(|fact| match fact {
        Fact::Refused { refusal: Refusal::Stopped | Refusal::Unknown | Refusal::Other, why, .. } => Some(why),
        _ => None,
    });
    if let Some(why) = why {
        sentences.push(format!("a full disk was not called one: {why}"));
    }
    let is_full = |fact: &Fact| matches!(fact, Fact::Refused { refusal: Refusal::DiskFull, .. });
    let is_progress = |fact: &Fact| {
        matches!(fact, Fact::Ack { .. } | Fact::Handled { .. } | Fact::Redriven { .. } | Fact::Purged { .. })
    };
    // A publisher that is refused at the very end has nothing more to do.
    let after = facts.iter().rposition(is_full).map_or(&[][..], |at| &facts[at + 1..]);
    if !after.is_empty() && !after.iter().any(is_progress) {
        sentences.push("the disk has space again, and no publish succeeds".to_owned());
    }
}
