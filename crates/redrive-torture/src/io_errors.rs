//! Injected I/O errors: every single call of the store that changes a file fails once, with `EIO` and with `ENOSPC`.
//!
//! What is expected of the store: nothing is acknowledged that is not on disk; whoever asked gets an error that says what to
//! do; after a full disk the same process goes on as soon as there is room; after a failed sync it stops and stays so, because
//! nobody knows what the system has forgotten. The next process finds everything that was acknowledged.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Runtime;

use crate::dice::Dice;
use crate::journal::{Fact, Reader, Refusal};
use crate::lanes::Lanes;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::process::{is_killed, this_program};
use crate::report::Report;
use crate::stories::{Before, LONGEST, Point, PointArgs, STORIES, Stage};
use crate::strace::{self, Injection, Log, Wrong};
use crate::worker::Script;

/// The calls that are looked at beside the one that fails: whether anything is written to the log afterwards.
const WATCHED: [&str; 2] = ["pwrite64", "fsync"];

/// How long a disk stays full, in calls.
const A_WHILE: u64 = 3;

/// In which way a call fails.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Error {
    /// Once, with an error of the device.
    Device,
    /// From then on, with an error of the device.
    DeviceForGood,
    /// Once, because there is no room.
    Full,
    /// Some times, because there is no room; then there is.
    FullForAWhile,
}

impl Error {
    const ALL: [Error; 4] = [Error::Device, Error::DeviceForGood, Error::Full, Error::FullForAWhile];

    fn injection(self, point: Point) -> Injection {
        let Point { call, number, .. } = point;
        let (name, when) = match self {
            Error::Device => ("EIO", number.to_string()),
            Error::DeviceForGood => ("EIO", format!("{number}+")),
            Error::Full => ("ENOSPC", number.to_string()),
            Error::FullForAWhile => ("ENOSPC", format!("{number}..{}", number + A_WHILE)),
        };
        Injection { call, wrong: Wrong::Error(name), when }
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

/// Lets calls fail.
pub fn run(options: &Options) -> Report {
    run_at(&PointArgs { options: *options, at: None })
}

/// Lets the calls fail that are asked for.
pub fn run_at(args: &PointArgs) -> Report {
    match this_program() {
        Ok(program) => run_with(args, &program),
        Err(error) => Report { violations: vec![error.to_string()], ..Report::default() },
    }
}

fn run_with(args: &PointArgs, program: &Path) -> Report {
    let options = &args.options;
    let report = Report { fault: "I/O errors".into(), unit: "errors".into(), ..Report::default() };
    let prepared = strace::available()
        .and_then(|()| prepare(program, args).map_err(|error| format!("the harness failed: {error}")));
    let (stage, rounds) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => return Report { seed: options.seed, violations: vec![why], ..report },
    };
    let next = Mutex::new(rounds.iter());
    let ends = Mutex::new(BTreeMap::<&str, u64>::new());
    let mut report = Lanes::run(options, report, |lanes, _, runtime| {
        while !lanes.is_broken() && lanes.another() {
            let round = next.lock().unwrap_or_else(PoisonError::into_inner).next().copied();
            let Some((point, error)) = round else { return lanes.take_back() };
            match one_round(&stage, point, error, lanes, runtime) {
                Ok(Some(end)) => {
                    *ends.lock().unwrap_or_else(PoisonError::into_inner).entry(end).or_default() += 1;
                }
                Ok(None) => lanes.take_back(),
                Err(error) => {
                    lanes.take_back();
                    lanes.complain(format!("the harness failed at {}: {error}", point.name()));
                }
            }
        }
    });
    let ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    let parts: Vec<_> = ends.iter().map(|(end, times)| format!("{end} {times}")).collect();
    report.detail = format!("of {}: {}", rounds.len(), parts.join(", "));
    report
}

/// Every call with every error, in any order.
fn prepare(program: &Path, args: &PointArgs) -> io::Result<(Stage, Vec<(Point, Error)>)> {
    let stage = Stage::build(program, args.options.seed)?;
    let with_all = |point: Point| Error::ALL.map(|error| (point, error));
    if let Some(point) = args.at {
        return Ok((stage, with_all(point).to_vec()));
    }
    let mut rounds = Vec::new();
    for story in &STORIES {
        let points = stage.points(story)?;
        // What the background does, it does some hundred times in the same way.
        let step = if story.script == Script::Crowd { 20 } else { 1 };
        for point in points.into_iter().step_by(step) {
            rounds.extend(with_all(point));
        }
    }
    let mut dice = Dice::new(args.options.seed);
    rounds.sort_by_cached_key(|_| dice.roll());
    Ok((stage, rounds))
}

/// Plays a story in which a call fails, kills what is left, and judges. Says how it went; `None` if the call was not reached.
fn one_round(
    stage: &Stage,
    point: Point,
    error: Error,
    lanes: &Lanes,
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
    let ended = worker.wait(LONGEST)?;
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
    check_stop(&facts, &log, &mut sentences);
    // After a failed sync nobody knows what is on disk, whatever the reason; and what did not start cannot go on.
    if error.is_full() && !point.call.ends_with("sync") && end != "did not start" {
        check_went_on(&facts, &mut sentences);
    }
    sentences.into_iter().for_each(|sentence| oracle.complain(sentence));
    runtime.block_on(oracle.examine(&site.database, &site.journal));
    lanes.report(|report| oracle.add_to_for(&format!("{} with {}", point.name(), error.name()), report));
    Ok(was_injected.then_some(end))
}

/// A worker ends because it is done, or because the bus has said why not.
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
        sentences.push(format!("the worker ended ({status}) and nobody was told why: {complaints}"));
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

/// A store that has stopped stays so; and after a failed sync of the log nothing more is written to it.
fn check_stop(facts: &[Fact], log: &Log, sentences: &mut Vec<String>) {
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
    let is_log = |file: &str| file.ends_with("-wal");
    let failed_sync =
        log.calls.iter().position(|call| call.is_injected && call.name == "fsync" && is_log(&call.file));
    if let Some(at) = failed_sync {
        let written =
            log.calls[at..].iter().filter(|call| call.name == "pwrite64" && is_log(&call.file)).count();
        if written > 0 {
            sentences
                .push(format!("a sync of the log failed, and {written} writes to the log came after it"));
        }
    }
}

/// A full disk is refused, and forgotten as soon as there is room.
fn check_went_on(facts: &[Fact], sentences: &mut Vec<String>) {
    let why = facts.iter().find_map(|fact| match fact {
        Fact::Refused { refusal: Refusal::Stopped | Refusal::Unknown | Refusal::Other, why, .. } => Some(why),
        _ => None,
    });
    if let Some(why) = why {
        sentences.push(format!("a full disk was not called one: {why}"));
    }
}
