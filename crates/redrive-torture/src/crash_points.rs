//! Enumerated kills: kills the process at every single call of the store that changes a file.
//!
//! Short stories are run to count their calls, and then once more for each call, with a kill at that call. After every kill
//! the strace log says which thread was hit.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Runtime;

use crate::dice::Dice;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::parallel::ParallelRuns;
use crate::process::is_killed;
use crate::report::Report;
use crate::stories::{Before, Point, Rehearsal, STORIES, Stage, TIMEOUT};
use crate::strace::{Injection, Wrong};
use crate::worker::Script;

/// Tries for a point: a story's calls vary a little, so a call may not be reached.
const TRIES: u32 = 8;

/// Kills a worker at each of the calls that were rehearsed.
pub fn run(options: &Options, rehearse: impl FnOnce() -> Result<Arc<Rehearsal>, String>) -> Report {
    let (limits, report) = (options.begin(), Report::of("enumerated kills", "crash points", options.seed));
    let rehearsal = match rehearse() {
        Ok(rehearsal) => rehearsal,
        Err(why) => return Report { failures: vec![why], ..report },
    };
    let (stage, mut points) = (&rehearsal.stage, rehearsal.points.clone());
    // Random order, so that a short run covers everything; a little less of what takes long.
    let mut dice = Dice::new(options.seed);
    points.sort_by_cached_key(|point| {
        let cost = if point.story.script == Script::Crowd { 4 } else { 1 };
        dice.within(0..1_000_000) * cost
    });
    let next = Mutex::new(points.iter());
    let reached = Mutex::new(BTreeMap::<&str, u64>::new());
    let unreached = Mutex::new(Vec::new());
    let mut report = ParallelRuns::run(limits, report, |runs, _, runtime| {
        while !runs.is_broken() && runs.another() {
            let point = next.lock().unwrap_or_else(PoisonError::into_inner).next().copied();
            let Some(point) = point else { return runs.take_back() };
            match try_for(stage, point, runs, runtime) {
                Ok(true) => {
                    let mut reached = reached.lock().unwrap_or_else(PoisonError::into_inner);
                    *reached.entry(point.story.name).or_default() += 1;
                }
                Ok(false) => {
                    runs.take_back();
                    unreached.lock().unwrap_or_else(PoisonError::into_inner).push(point);
                }
                Err(error) => {
                    runs.take_back();
                    runs.fail(format!("{}: {error}", point.name()));
                }
            }
        }
    });
    let reached = reached.into_inner().unwrap_or_else(PoisonError::into_inner);
    let unreached = unreached.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.detail = detail(&points, &reached, &unreached);
    if let ([point], 0) = (&*points, report.rounds) {
        report.failures.push(format!("{} was not reached", point.name()));
    }
    report
}

fn detail(points: &[Point], reached: &BTreeMap<&str, u64>, unreached: &[Point]) -> String {
    let mut parts: Vec<String> = STORIES
        .iter()
        .filter_map(|story| {
            let of = points.iter().filter(|point| point.story.name == story.name).count();
            let reached = reached.get(story.name).copied().unwrap_or(0);
            (of > 0).then(|| format!("{} {reached} of {of}", story.name))
        })
        .collect();
    if !unreached.is_empty() {
        let names: Vec<_> = unreached.iter().take(3).map(Point::name).collect();
        parts.push(format!("{} not reached in {TRIES} tries ({})", unreached.len(), names.join(", ")));
    }
    parts.join(", ")
}

/// Runs a story until the process is killed at the point, and judges. Returns whether the point was reached.
fn try_for(stage: &Stage, point: Point, runs: &ParallelRuns, runtime: &Runtime) -> io::Result<bool> {
    let thread = stage.thread_of(point.story);
    for _ in 0..TRIES {
        let play = stage.prepare(point.story)?;
        let site = &play.site;
        let mut oracle = Oracle::new(site.counting);
        if point.story.before != Before::Nothing {
            runtime.block_on(oracle.look_at_file(&site.database, &site.journal));
        }
        let kill = Injection { call: point.call, wrong: Wrong::Kill, when: point.number.to_string() };
        let mut worker = play.begin(&[point.call], vec![kill])?;
        match worker.wait(TIMEOUT)? {
            None => oracle.complain("the worker did not end".into()),
            Some(ended) if is_killed(ended) || ended.success() => {}
            Some(_) => oracle.complain(format!("the worker ended by itself: {}", worker.complaints())),
        }
        runtime.block_on(oracle.examine(&site.database, &site.journal));
        let log = play.log(&[point.call]).read();
        runs.report(|report| {
            oracle.add_to_for(&point.name(), report);
            if !oracle.is_content() {
                play.keep(report);
            }
        });
        if log.calls.iter().any(|call| call.is_cut_off && call.thread_name == thread) {
            return Ok(true);
        }
    }
    Ok(false)
}
