//! A run of the worker under `strace`: what it did to the disk, and when it was promised what.

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

/// The database in the folder of a run.
pub(super) const DATABASE: &str = "events.db";

/// Bytes of a write that are recorded: more than any write of a page, and than any line of the journal.
const LONGEST_WRITE: &str = "70000";

/// A session that takes longer hangs.
const LONGEST_SESSION: Duration = Duration::from_secs(60);

/// Adds to a command how a worker is started with these arguments.
pub(super) type Launch<'l> = &'l (dyn Fn(&mut Command, Vec<String>) + Sync);

/// Why there is no recording.
#[derive(Debug)]
pub(super) enum RecordingError {
    /// Files could not be read or written.
    Io(io::Error),
    /// The worker, or `strace`, did not do what it was told.
    Worker(String),
    /// A write was under way when the worker was killed: nobody knows what it did. Another recording will do.
    CutOff,
    /// A line that is not understood.
    Odd(String),
    /// A call that failed, or that changes files in a way the model of the disk does not know.
    Unknown(String),
    /// What the model of the disk makes of the calls is not what is in the file.
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

/// What a run did, step by step.
#[derive(Debug)]
pub(super) struct Recording {
    /// What was on the disk before.
    pub(super) before: Image,
    pub(super) trace: Trace,
    pub(super) counting: Counting,
    /// What the workers learned, in order.
    pub(super) facts: Vec<Fact>,
    /// For each fact, how many steps had been taken when it was known.
    pub(super) known_at: Vec<usize>,
}

/// How the first of two sessions ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum End {
    /// Shut down.
    Orderly,
    /// Killed: the next session finds a log that nobody has cleaned up.
    Killed,
    /// The power fails: the next session finds one of the images of the first, and the power fails once more.
    PowerLoss,
}

impl Recording {
    /// Runs two workers one after the other in a new folder, each of which makes about so many operations. The traces stay
    /// there.
    pub(super) fn make(
        launch: Launch<'_>,
        folder: &Path,
        seed: u64,
        operations: u64,
    ) -> Result<Self, RecordingError> {
        let mut dice = Dice::new(seed);
        let counting = if dice.percent(50) { Counting::Event } else { Counting::Subscription };
        std::fs::create_dir_all(folder.join("files"))?;
        let folder = folder.canonicalize()?; // strace calls files by their real names
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
        // A crowd leaves many events, which are slow to look at: only at the end.
        let is_crowded = dice.percent(20);
        let second = folder.join("trace-2");
        studio.run(&second, false, is_crowded, &mut dice)?;
        text.extend(std::fs::read(&second)?);
        studio.read(&text, before, known)
    }

    /// How many events were acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        let mut account = Account::default();
        account.add(self.facts.iter().cloned());
        account.acknowledged()
    }

    /// Whether the files are what the calls made of them: if not, something is wrong with the reader or with the disk.
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

/// Where a recording is made.
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
            // Stops only at the calls that are asked for, which is much faster; but then nothing is injected.
            command.arg("--seccomp-bpf");
        }
        // Who publishes alone commits on its own thread; a few share a commit; a crowd has the log written back beside it.
        let publishers = dice.choose(&[1, 1, 4, 4, 16]).copied().unwrap_or(1);
        let (count, each) = (publishers.to_string(), (self.operations / publishers).to_string());
        let mixture = ["--publishers", &count, "--operations", &each];
        let crowd = ["--script", &Script::Crowd.name()];
        let further = if is_crowded { &crowd[..] } else { &mixture[..] };
        (self.launch)(&mut command, self.site.arguments(dice.roll(), further));

        let mut worker = self.site.spawn(command)?;
        match worker.wait(LONGEST_SESSION)? {
            Some(status) if status.success() || process::is_killed(status) => Ok(()),
            Some(status) => Err(RecordingError::Worker(format!("{status}: {}", worker.complaints()))),
            None => {
                Err(RecordingError::Worker(format!("it takes longer than {} s", LONGEST_SESSION.as_secs())))
            }
        }
    }

    /// Reads what was recorded since this was on the disk and this was known.
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
    command.args(["--string-limit", LONGEST_WRITE, "--signal=none"]);
    command.arg(format!("--trace={RECORDED}")).arg("--output").arg(trace);
    command
}
