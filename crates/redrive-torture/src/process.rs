//! Starts, watches and kills worker processes.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::subject::Counting;

/// SIGKILL: no handler, no cleaning up, no goodbye.
const KILL: i32 = 9;

const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Files of one database.
#[derive(Debug)]
pub struct Site {
    /// The database.
    pub database: PathBuf,
    /// The harness's own log.
    pub journal: PathBuf,
    /// Standard error of the worker.
    complaints: PathBuf,
    /// Tracking of failures.
    pub counting: Counting,
}

impl Site {
    /// A site in this folder.
    pub fn new(folder: &Path, counting: Counting) -> Self {
        Self::with_database(folder, folder.join("events.db"), counting)
    }

    /// A site whose database is in another folder.
    pub fn with_database(folder: &Path, database: PathBuf, counting: Counting) -> Self {
        Site { database, journal: folder.join("journal"), complaints: folder.join("complaints"), counting }
    }

    /// Arguments of a worker of this site.
    pub fn arguments(&self, seed: u64, further: &[&str]) -> Vec<String> {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let mut arguments = vec!["worker".to_owned(), "--db".into(), path(&self.database)];
        arguments.extend(["--journal".into(), path(&self.journal), "--seed".into(), seed.to_string()]);
        arguments.extend(["--counting".into(), self.counting.name().into()]);
        arguments.extend(further.iter().map(|argument| (*argument).to_owned()));
        arguments
    }

    /// Starts a worker.
    pub fn start(&self, program: &Path, seed: u64, further: &[&str]) -> io::Result<Worker> {
        let mut command = Command::new(program);
        command.args(self.arguments(seed, further));
        self.spawn(command)
    }

    /// Starts a command that runs a worker.
    pub fn spawn(&self, mut command: Command) -> io::Result<Worker> {
        // The worker ends when this end of the pipe is closed.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&self.complaints)?);
        Ok(Worker { child: command.spawn()?, complaints: self.complaints.clone() })
    }

    /// Length of the journal in bytes.
    pub fn journal_length(&self) -> u64 {
        std::fs::metadata(&self.journal).map_or(0, |file| file.len())
    }
}

/// A worker process. Killed when dropped, so that none is left behind.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    complaints: PathBuf,
}

impl Worker {
    /// Kills it; returns whether the kill ended it.
    pub fn kill(&mut self) -> io::Result<bool> {
        self.child.kill()?;
        Ok(is_killed(self.child.wait()?))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let process = process.ok_or(io::ErrorKind::NotFound)?;
        Ok(kill_process(process, signal)?)
    }

    /// Waits for its end, then kills it after the timeout. `None` if it was killed.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + timeout;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.kill()?;
        Ok(None)
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Reads the beginning of the process's standard error.
    pub fn complaints(&self) -> String {
        let text = std::fs::read_to_string(&self.complaints).unwrap_or_default();
        text.trim().chars().take(2000).collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill(); // dead already, or dead now
        let _ = self.child.wait();
    }
}

/// Path beside a database: `events.db-wal` for `-wal`.
pub fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(database);
    path.push(suffix);
    path.into()
}

/// Whether a process ended by SIGKILL.
pub fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(KILL)
}

/// A temporary folder in memory where possible: syncs are fast there.
pub fn in_memory() -> io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

/// This program itself, which is also the worker.
pub fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}
