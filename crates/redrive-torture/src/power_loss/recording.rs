//! Records a run of the worker under `strace`: its disk operations and the promises of the bus.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::disk::{Disk, Image};
use super::evidence::put;
use super::images::Images;
use super::trace::{RECORDED, Step, Trace};
use crate::account::Account;
use crate::dice::Dice;
use crate::journal::Fact;
use crate::process::{self, Site};
use crate::subject::Counting;
use crate::worker::Script;

/// File name of the database.
pub(super) const DATABASE: &str = "events.db";

/// Recorded bytes of a write: more than any page and any line of the journal.
const MAX_WRITE_BYTES: &str = "70000";

/// Timeout of a session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Adds the program and arguments of a worker to a command.
pub(super) type Launch<'l> = &'l (dyn Fn(&mut Command, Vec<String>) + Sync);

/// Reason why there is no recording.
#[derive(Debug)]
pub(super) enum RecordingError {
    /// Files could not be read or written.
    Io(io::Error),
    /// The worker or `strace` failed.
    Worker(String),
    /// A write was in flight when the worker was killed: its effect is unknown. Another recording is made.
    CutOff,
    /// A line that cannot be parsed.
    Odd(String),
    /// A call that failed, or that changes files in a way the model of the disk does not know.
    Unknown(String),
    /// The model of the disk differs from the files.
    Differs(String),
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordingError::Io(error) => write!(f, "the run could not be recorded: {error}"),
            RecordingError::Worker(why) => write!(f, "the run to be recorded failed: {why}"),
            RecordingError::CutOff => f.write_str("the worker was killed during a write"),
            RecordingError::Odd(line) => write!(f, "a line of the trace is not understood: {line}"),
            RecordingError::Unknown(line) => {
                write!(f, "a call of the run failed, or the model of the disk does not know it: {line}")
            }
            RecordingError::Differs(file) => {
                write!(f, "the model of the disk is wrong: {file} is not what the recorded calls make of it")
            }
        }
    }
}

impl From<io::Error> for RecordingError {
    fn from(error: io::Error) -> Self {
        RecordingError::Io(error)
    }
}

/// Steps of a run.
#[derive(Debug)]
pub(super) struct Recording {
    /// Files at the start.
    pub(super) before: Image,
    pub(super) trace: Trace,
    pub(super) counting: Counting,
    /// Facts of the workers, in order.
    pub(super) facts: Vec<Fact>,
    /// For each fact, the number of steps before it.
    pub(super) known_at: Vec<usize>,
}

/// End of the first of two sessions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum End {
    /// Shut down.
    Orderly,
    /// Killed: the next session finds a log that was not checkpointed.
    Killed,
    /// The power fails: the next session finds one of the images of the first, and the power fails once more.
    PowerLoss,
}

impl Recording {
    /// Runs two workers one after the other in a new folder, with about this many operations each. The traces stay there.
    pub(super) fn make(
        launch: Launch<'_>,
        folder: &Path,
        seed: u64,
        operations: u64,
    ) -> Result<Self, RecordingError> {
        let mut dice = Dice::new(seed);
        let counting = if dice.percent(50) { Counting::Event } else { Counting::Subscription };
        std::fs::create_dir_all(folder.join("files"))?;
        let folder = folder.canonicalize()?; // strace reports canonical paths
        let files = folder.join("files");
        let site = Site::with_database(&folder, files.join(DATABASE), counting);
        let studio = Studio { launch, site, files, operations };
        let end = dice.choose(&[End::Orderly, End::Killed, End::Killed, End::PowerLoss, End::PowerLoss]);
        let end = end.copied().unwrap_or(End::Orderly);

        let first = folder.join("trace-1");
        studio.run(&first, end == End::Killed, false, &mut dice)?;
        let mut text = std::fs::read(&first)?;
        let (mut before, mut known) = (Image::new(), Vec::new());
        if end == End::PowerLoss {
            let recording = studio.read(&text, before, known)?;
            let number = dice.roll() >> 1;
            let mut found = None;
            Images::new(&recording, seed).each(number..number + 1, |loss| {
                found = Some((loss.image, loss.facts.to_vec()));
                false
            });
            (before, known) = found.unwrap_or_default();
            put(&before, &studio.files)?;
            text.clear();
        }
        // A crowd leaves many events, which are slow to examine: only in the second session.
        let is_crowded = dice.percent(20);
        let second = folder.join("trace-2");
        studio.run(&second, false, is_crowded, &mut dice)?;
        text.extend(std::fs::read(&second)?);
        studio.read(&text, before, known)
    }

    /// Number of acknowledged events.
    pub(super) fn acknowledged(&self) -> u64 {
        let mut account = Account::default();
        account.add(self.facts.iter().cloned());
        account.acknowledged()
    }

    /// Checks that the calls explain the files: otherwise the parser or the model of the disk is wrong.
    fn compare(&self, files: &Path) -> Result<(), RecordingError> {
        let mut disk = Disk::new(&self.before);
        self.trace.steps.iter().for_each(|step| disk.step(step));
        let mut found = Image::new();
        for entry in std::fs::read_dir(files)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with("-shm") {
                found.insert(name, std::fs::read(entry.path())?);
            }
        }
        let expected = disk.everything();
        let mut names = found.keys().chain(expected.keys());
        match names.find(|name| found.get(*name) != expected.get(*name)) {
            None => Ok(()),
            Some(name) => Err(RecordingError::Differs(name.clone())),
        }
    }
}

/// Workplace of a recording.
struct Studio<'s> {
    launch: Launch<'s>,
    site: Site,
    files: PathBuf,
    operations: u64,
}

impl Studio<'_> {
    /// One session.
    fn run(
        &self,
        trace: &Path,
        is_killed: bool,
        is_crowded: bool,
        dice: &mut Dice,
    ) -> Result<(), RecordingError> {
        let mut command = strace(trace);
        if is_killed {
            let when = dice.within(2..self.operations / 4);
            command.arg(format!("--inject=fsync:signal=KILL:when={when}"));
        } else {
            // Stops only at recorded calls, which is much faster; but nothing can be injected.
            command.arg("--seccomp-bpf");
        }
        // A single publisher commits inline, a few share a commit, and a crowd causes background checkpoints.
        let publishers = dice.choose(&[1, 1, 4, 4, 16]).copied().unwrap_or(1);
        let (count, each) = (publishers.to_string(), (self.operations / publishers).to_string());
        let mixture = ["--publishers", &count, "--operations", &each];
        let crowd = ["--script", &Script::Crowd.name()];
        let further = if is_crowded { &crowd[..] } else { &mixture[..] };
        (self.launch)(&mut command, self.site.arguments(dice.roll(), further));

        let mut worker = self.site.spawn(command)?;
        match worker.wait(SESSION_TIMEOUT)? {
            Some(status) if status.success() || process::is_killed(status) => Ok(()),
            Some(status) => Err(RecordingError::Worker(format!("{status}: {}", worker.complaints()))),
            None => {
                Err(RecordingError::Worker(format!("it takes longer than {} s", SESSION_TIMEOUT.as_secs())))
            }
        }
    }

    /// Parses a recording that began with these files and facts.
    fn read(&self, text: &[u8], before: Image, known: Vec<Fact>) -> Result<Recording, RecordingError> {
        let trace = Trace::parse(text, &self.files, &self.site.journal)?;
        let (mut facts, mut known_at) = (known, Vec::new());
        known_at.resize(facts.len(), 0);
        for (index, step) in trace.steps.iter().enumerate() {
            let Step::Noted(lines) = step else { continue };
            for line in lines.lines() {
                facts.push(line.parse().map_err(RecordingError::Worker)?);
                known_at.push(index + 1);
            }
        }
        let recording = Recording { before, trace, counting: self.site.counting, facts, known_at };
        recording.compare(&self.files)?;
        Ok(recording)
    }
}

fn strace(trace: &Path) -> Command {
    let mut command = Command::new("strace");
    command.args(["--follow-forks", "--decode-fds=path", "--strings-in-hex=all"]);
    command.args(["--string-limit", MAX_WRITE_BYTES, "--signal=none"]);
    command.arg(format!("--trace={RECORDED}")).arg("--output").arg(trace);
    command
}
