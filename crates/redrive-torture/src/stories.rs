//! Stories: short, repeatable runs about one store thread, in which every call that changes a file has a number.
//!
//! `strace` counts per thread. So a story is about one thread, and about files that no other thread touches before it: then
//! the count identifies the call.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use redrive_retry::fault;
use tempfile::TempDir;

use crate::judge;
use crate::options::Options;
use crate::process::{Site, Worker, beside, this_program};
use crate::report::Report;
use crate::strace::{self, Injection, Strace};
use crate::subject::Counting;
use crate::worker::Script;

/// Timeout of a story.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Number of runs to find the calls that are made every time.
const RECORDINGS: usize = 3;

/// The calls that change files.
const CHANGES: [&str; 9] =
    ["write", "pwrite64", "fsync", "fdatasync", "ftruncate", "unlink", "unlinkat", "rename", "renameat2"];

/// Initial state of a story.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// A database that was closed.
    Closed,
    /// A database whose process was killed at work.
    Killed,
}

/// A story about one thread.
#[derive(Debug)]
pub struct Story {
    /// Name of the story.
    pub name: &'static str,
    /// Initial state.
    pub before: Before,
    /// Script of the worker.
    pub script: Script,
    /// Whether a single publisher commits inline.
    pub is_alone: bool,
    /// Thread whose calls are counted, by its system name of 15 bytes. `None` for the first thread, which has the program's
    /// name.
    thread: Option<&'static str>,
    /// Suffixes of the files that this thread alone touches, and on which its calls are counted.
    files: &'static [&'static str],
    /// Relevant calls.
    calls: &'static [&'static str],
}

impl Story {
    /// Finds a story by its name.
    fn named(name: &str) -> Result<&'static Self, String> {
        STORIES.iter().find(|story| story.name == name).ok_or_else(|| {
            let names: Vec<_> = STORIES.iter().map(|story| story.name).collect();
            format!("there is no such story; there are: {}", names.join(", "))
        })
    }
}

/// All of them.
pub static STORIES: [Story; 6] = [
    // The first thread creates the file, before the store has other threads.
    Story {
        name: "create",
        before: Before::Nothing,
        script: Script::Rest,
        is_alone: false,
        thread: Some("tokio-rt-worker"),
        files: &["", "-wal", "-shm", "-journal", "-owner"],
        calls: &CHANGES,
    },
    // Opening an existing file writes only to the owner's file and the shared memory.
    Story {
        name: "work",
        before: Before::Closed,
        script: Script::Sequence,
        is_alone: false,
        thread: Some("redrive-writer"),
        files: &["", "-wal", "-journal"],
        calls: &CHANGES,
    },
    Story {
        name: "recover",
        before: Before::Killed,
        script: Script::Rest,
        is_alone: false,
        thread: Some("redrive-writer"),
        files: &["", "-wal", "-journal"],
        calls: &CHANGES,
    },
    // The writer touches the database only after the background thread.
    Story {
        name: "background",
        before: Before::Closed,
        script: Script::Crowd,
        is_alone: false,
        thread: Some("redrive-checkpo"),
        files: &[""],
        calls: &CHANGES,
    },
    // Pages are alike; the syncs around them are not.
    Story {
        name: "checkpoint",
        before: Before::Closed,
        script: Script::Bulk,
        is_alone: false,
        thread: Some("redrive-writer"),
        files: &["", "-wal"],
        calls: &["fsync", "fdatasync", "ftruncate"],
    },
    // The events are not due yet, so the writer is idle meanwhile.
    Story {
        name: "inline-commit",
        before: Before::Closed,
        script: Script::Alone,
        is_alone: true,
        thread: None,
        files: &["", "-wal", "-journal"],
        calls: &CHANGES,
    },
];

/// One call in a story.
#[derive(Copy, Clone, Debug)]
pub struct Point {
    /// The story.
    pub story: &'static Story,
    /// The kind of call.
    pub call: &'static str,
    /// Which of its kind, counted from 1.
    pub number: u64,
}

impl Point {
    /// Name in reports.
    pub fn name(&self) -> String {
        format!("{}: {} number {}", self.story.name, self.call, self.number)
    }
}

impl FromStr for Point {
    type Err = String;

    /// Parses the name that reports use.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(": ").and_then(|(story, point)| {
            let (call, number) = point.split_once(" number ")?;
            let story = Story::named(story).ok()?;
            let call = CHANGES.into_iter().find(|known| *known == call)?;
            Some(Point { story, call, number: number.parse().ok()? })
        });
        parts.ok_or_else(|| {
            "a point is written as in the report, for example \"work: fsync number 3\"".to_owned()
        })
    }
}

/// Arguments of the commands that go through points.
#[derive(Copy, Clone, Debug, Args)]
pub struct PointArgs {
    /// Duration and order
    #[command(flatten)]
    pub options: Options,
    /// Only this point, as reports name it: "work: fsync number 3"
    #[arg(long, conflicts_with = "story")]
    pub at: Option<Point>,
    /// Only the points of this story, such as "work"
    #[arg(long, value_parser = Story::named)]
    pub story: Option<&'static Story>,
}

impl PointArgs {
    /// Finds the points.
    pub fn rehearse(&self) -> Result<Arc<Rehearsal>, String> {
        let stories: Vec<&Story> = match (self.at, self.story) {
            (Some(_), _) => Vec::new(),
            (None, Some(story)) => vec![story],
            (None, None) => STORIES.iter().collect(),
        };
        let mut rehearsal = Rehearsal::of(&stories, self.options.seed)?;
        rehearsal.points.extend(self.at);
        Ok(Arc::new(rehearsal))
    }
}

/// Stories and the points in them.
#[derive(Debug)]
pub struct Rehearsal {
    /// The stage of the stories.
    pub stage: Stage,
    /// Every point, story by story.
    pub points: Vec<Point>,
}

impl Rehearsal {
    /// Of all stories.
    pub fn of_all(seed: u64) -> Result<Arc<Self>, String> {
        Rehearsal::of(&STORIES.each_ref(), seed).map(Arc::new)
    }

    fn of(stories: &[&'static Story], seed: u64) -> Result<Self, String> {
        strace::available()?;
        let stage = this_program().and_then(|program| Stage::build(&program, seed));
        let stage = stage.map_err(|error| error.to_string())?;
        let mut points = Vec::new();
        // Two at a time, as in the later runs.
        for pair in stories.chunks(2) {
            let found: io::Result<Vec<_>> = std::thread::scope(|scope| {
                let in_flight: Vec<_> =
                    pair.iter().map(|story| scope.spawn(|| stage.points(story))).collect();
                in_flight.into_iter().map(|points| points.join().expect("it does not panic")).collect()
            });
            points.extend(found.map_err(|error| error.to_string())?.concat());
        }
        Ok(Rehearsal { stage, points })
    }
}

/// The worker program and the initial states, made once.
#[derive(Debug)]
pub struct Stage {
    program: PathBuf,
    seed: u64,
    closed: TempDir,
    killed: TempDir,
}

impl Stage {
    /// Makes the initial states, always without a planted bug.
    pub fn build(program: &Path, seed: u64) -> io::Result<Self> {
        let (closed, killed) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let start = |site: &Site, seed: u64, further: &[&str]| {
            let mut command = Command::new(program);
            command.args(site.arguments(seed, further)).env_remove(fault::VARIABLE);
            site.spawn(command)
        };
        let site = Site::new(closed.path(), Counting::Event);
        let mut worker = start(&site, seed, &["--script", &Script::Sequence.name()])?;
        if !worker.wait(TIMEOUT)?.is_some_and(|status| status.success()) {
            return Err(io::Error::other(format!("the worker failed: {}", worker.complaints())));
        }
        let site = Site::new(killed.path(), Counting::Event);
        // Twice: a delivery that was running both times is a suspect.
        for life in 0..2 {
            let before = site.journal_length();
            let mut worker = start(&site, seed.wrapping_add(life), &[])?;
            while site.journal_length() < before + 10_000 && worker.is_running()? {
                std::thread::sleep(Duration::from_millis(1));
            }
            worker.kill()?;
        }
        Ok(Stage { program: program.to_owned(), seed, closed, killed })
    }

    /// Finds the calls of a story that are made every time, or at all where the calling thread depends on the machine's
    /// speed.
    pub fn points(&self, story: &'static Story) -> io::Result<Vec<Point>> {
        let mut calls: Option<BTreeSet<(&'static str, u64)>> = None;
        for _ in 0..RECORDINGS {
            let mut made = self.record(story)?;
            // On a busy machine a thread may find nothing to do: then the story is run again.
            for _ in 0..RECORDINGS {
                if made.is_empty() {
                    made = self.record(story)?;
                }
            }
            calls = Some(match calls {
                None => made,
                Some(calls) if story.is_alone => &calls | &made,
                Some(calls) => &calls & &made,
            });
        }
        let points: Vec<_> =
            calls.into_iter().flatten().map(|(call, number)| Point { story, call, number }).collect();
        if points.is_empty() {
            return Err(io::Error::other(format!("nothing happens in the story {}", story.name)));
        }
        Ok(points)
    }

    /// Name of the story's thread.
    pub fn thread_of(&self, story: &Story) -> String {
        let program =
            || self.program.file_name().map(|name| name.to_string_lossy().chars().take(15).collect());
        story.thread.map_or_else(|| program().unwrap_or_default(), str::to_owned)
    }

    /// Runs a story to its end, without a bug, and counts its calls.
    fn record(&self, story: &'static Story) -> io::Result<BTreeSet<(&'static str, u64)>> {
        let play = self.prepare(story)?;
        let mut command = play.command(&CHANGES, Vec::new());
        command.env_remove(fault::VARIABLE);
        let mut worker = play.site.spawn(command)?;
        if !worker.wait(TIMEOUT)?.is_some_and(|status| status.success()) {
            return Err(io::Error::other(format!("the story {}: {}", story.name, worker.complaints())));
        }
        let known = |name: &str| story.calls.iter().copied().find(|call| *call == name);
        let log = play.log(&CHANGES).read();
        let hit = log.hit_in(&self.thread_of(story)).into_iter();
        Ok(hit.filter_map(|(name, number)| Some((known(name)?, number))).collect())
    }

    /// Prepares the initial state.
    pub fn prepare(&self, story: &'static Story) -> io::Result<Play<'_>> {
        let folder = tempfile::tempdir()?;
        let from = match story.before {
            Before::Nothing => None,
            Before::Closed => Some(&self.closed),
            Before::Killed => Some(&self.killed),
        };
        if let Some(from) = from {
            for entry in std::fs::read_dir(from.path())? {
                let entry = entry?;
                std::fs::copy(entry.path(), folder.path().join(entry.file_name()))?;
            }
        }
        Ok(Play { stage: self, story, site: Site::new(folder.path(), Counting::Event), folder })
    }
}

/// One run of a story.
#[derive(Debug)]
pub struct Play<'a> {
    stage: &'a Stage,
    story: &'static Story,
    /// The run's files.
    pub site: Site,
    folder: TempDir,
}

impl Play<'_> {
    /// Keeps its files for a later look.
    pub fn keep(self, report: &mut Report) {
        judge::keep(self.folder, self.site.counting, report);
    }

    /// Starts it, with injected faults.
    pub fn begin(&self, calls: &[&'static str], injections: Vec<Injection>) -> io::Result<Worker> {
        self.site.spawn(self.command(calls, injections))
    }

    fn command(&self, calls: &[&'static str], injections: Vec<Injection>) -> Command {
        let strace = Strace { injections, ..self.log(calls) };
        let script = self.story.script.name();
        let mut further = vec!["--script", script.as_str()];
        if self.story.is_alone {
            further.push("--alone");
        }
        // A new life, after those of the initial state.
        let seed = self.stage.seed.wrapping_add(2);
        let arguments = self.site.arguments(seed, &further);
        strace.command(&self.stage.program, &arguments)
    }

    /// Returns the `strace` settings that log these calls of the run.
    pub fn log(&self, calls: &[&'static str]) -> Strace {
        Strace {
            log: self.folder.path().join("strace"),
            calls: calls.to_vec(),
            files: self.story.files.iter().map(|suffix| beside(&self.site.database, suffix)).collect(),
            injections: Vec::new(),
        }
    }
}
