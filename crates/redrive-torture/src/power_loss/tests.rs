//! Shows that images find missing syncs: removes syncs from a recording.

use std::sync::LazyLock;

use clap::{Args, Command as Clap, FromArgMatches};

use super::recording::DATABASE;
use super::trace::{Call, Step};
use super::*;
use crate::worker::{self, WorkerArgs};

/// Environment variable that makes this program the worker, with its arguments.
const WORKER: &str = "REDRIVE_TORTURE_WORKER";

/// Started by the other tests under `strace`.
#[test]
#[ignore = "the process that the other tests record"]
fn the_worker() {
    let Ok(arguments) = std::env::var(WORKER) else { return };
    let matches = WorkerArgs::augment_args(Clap::new("worker")).get_matches_from(arguments.lines());
    let args = WorkerArgs::from_arg_matches(&matches).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(worker::run(&args)).unwrap();
}

fn record(seed: u64) -> Recording {
    let this = std::env::current_exe().unwrap();
    let launch = |command: &mut Command, arguments: Vec<String>| {
        command.env(WORKER, arguments.join("\n")).arg(&this);
        command.args(["--ignored", "--exact", "power_loss::tests::the_worker"]);
    };
    let folder = in_memory().unwrap();
    Recording::make(&launch, folder.path(), seed, 240).unwrap_or_else(|error| panic!("{error}"))
}

static RECORDED: LazyLock<Recording> = LazyLock::new(|| record(0));

/// The recording without some of its syncs.
fn without(is_left_out: impl Fn(usize, &Call) -> bool) -> Recording {
    let mut steps = RECORDED.trace.steps.clone();
    let nothing = || Step::Noted(String::new());
    let is_gone: Vec<bool> = (0..)
        .zip(&steps)
        .map(|(index, step)| {
            matches!(step, Step::Begin(call @ (Call::Sync { .. } | Call::SyncFolder)) if is_left_out(index, call))
        })
        .collect();
    for (index, step) in steps.iter_mut().enumerate() {
        if is_gone[index] || matches!(step, Step::End(began) if is_gone[*began]) {
            *step = nothing();
        }
    }
    let Recording { before, facts, known_at, counting, .. } = &*RECORDED;
    let (before, facts, known_at) = (before.clone(), facts.clone(), known_at.clone());
    Recording { before, trace: trace::Trace { steps }, facts, known_at, counting: *counting }
}

fn is_log(call: &Call) -> bool {
    matches!(call, Call::Sync { name } if name.ends_with("-wal"))
}

/// Violations of this many images.
fn look_at(recording: &Recording, count: u64) -> Report {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let scratch = in_memory().unwrap();
    let evidence = Evidence::new(scratch.path(), scratch.path());
    let mut report = Report { rounds: count, ..Report::default() };
    Images::new(recording, 5).each(0..count, |loss| {
        let found = evidence.examine(&loss, recording.counting, Look::Once, &runtime).unwrap();
        report.lost += found.lost;
        report.violations.extend(found.violations);
        true
    });
    report
}

fn is_damage(wrong: &str) -> bool {
    ["damaged", "cannot be", "malformed"].iter().any(|word| wrong.contains(word))
}

#[test]
fn the_recording_as_it_is_loses_nothing() {
    let report = look_at(&RECORDED, 60);
    assert!(report.is_clean(), "{:#?}", report.violations);
}

#[test]
fn without_any_sync_acknowledged_events_are_missing() {
    let report = look_at(&without(|_, _| true), 30);
    assert!(report.lost > 0);
}

#[test]
fn with_a_log_that_is_synced_only_before_it_is_written_back_events_are_missing_and_the_file_is_whole() {
    // Syncs of SQLite with `synchronous = NORMAL`.
    let steps = &RECORDED.trace.steps;
    let is_write = |step: &&Step| matches!(step, Step::Begin(Call::Write { .. }));
    let recording = without(|index, call| {
        let begins_the_log = steps[..index].iter().rev().find(is_write);
        let begins_the_log = matches!(begins_the_log, Some(Step::Begin(Call::Write { offset: Some(0), .. })));
        let is_written_back = steps[index..].iter().find(is_write);
        let is_written_back =
            matches!(is_written_back, Some(Step::Begin(Call::Write { name, .. })) if name == DATABASE);
        is_log(call) && !begins_the_log && !is_written_back
    });
    let report = look_at(&recording, 60);
    assert!(report.lost > 0);
    let damage: Vec<_> = report.violations.iter().filter(|wrong| is_damage(wrong)).collect();
    assert!(damage.is_empty(), "{damage:#?}");
}

#[test]
fn without_syncs_of_the_database_a_log_that_was_written_back_leaves_damage() {
    let recording = without(|_, call| matches!(call, Call::Sync { name } if name == DATABASE));
    let report = look_at(&recording, 100);
    assert!(report.lost > 0 || report.violations.iter().any(|wrong| is_damage(wrong)));
}

#[test]
fn without_syncs_of_the_folder_the_log_may_have_no_name() {
    let report = look_at(&without(|_, call| *call == Call::SyncFolder), 30);
    assert!(report.lost > 0);
}

#[test]
fn an_image_with_something_wrong_is_kept_and_can_be_looked_at_again() {
    let recording = without(|_, _| true);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let scratch = in_memory().unwrap();
    let mut evidence = Evidence::new(scratch.path(), scratch.path());
    let mut seen = None;
    Images::new(&recording, 5).each(0..30, |loss| {
        let found = evidence.examine(&loss, recording.counting, Look::Once, &runtime).unwrap();
        if found.lost > 0 {
            let kept = evidence.keep(&loss, recording.counting, &found.violations).unwrap();
            seen = Some((found.lost, kept.unwrap()));
        }
        seen.is_none()
    });
    let (lost, kept) = seen.unwrap();
    assert_eq!(examine_kept(&kept).lost, lost);
    assert_eq!(examine_kept(&kept).lost, lost, "the examination has changed it");
    std::fs::remove_dir_all(kept.parent().unwrap()).unwrap();
}

#[test]
fn a_promise_that_is_made_before_the_sync_has_ended_is_broken() {
    let steps = &RECORDED.trace.steps;
    let mut recording = without(|_, _| false);
    for known_at in &mut recording.known_at {
        let syncs = steps[..*known_at].iter().rev().filter_map(|step| match step {
            Step::End(began) if matches!(&steps[*began], Step::Begin(call) if is_log(call)) => Some(*began),
            _ => None,
        });
        *known_at = syncs.take(1).next().unwrap_or(0);
    }
    let report = look_at(&recording, 100);
    assert!(report.lost > 0);
}
