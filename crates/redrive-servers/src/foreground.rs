//! Child process that stays in the foreground: it can be started, killed and started again.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::missing::Missing;

/// Interval at which the port is checked during the start.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The length of the end of the log that the error of a failed start shows.
const LOG_TAIL_CHARS: usize = 2_000;

/// A child process whose id is in a file for the [guard](crate::guard::Guard).
#[derive(Debug)]
pub(crate) struct Foreground {
    program: &'static str,
    pid_file: PathBuf,
    log: PathBuf,
    /// Reaped after each kill, because a zombie would look alive to the guard.
    child: Mutex<Option<Child>>,
}

impl Foreground {
    /// Prepares a process with its files in `folder`, without starting it.
    pub(crate) fn new(program: &'static str, folder: &Path) -> Self {
        Foreground {
            program,
            pid_file: folder.join(format!("{program}.pid")),
            log: folder.join(format!("{program}.log")),
            child: Mutex::new(None),
        }
    }

    /// The file that has the process id while the process runs.
    pub(crate) fn pid_file(&self) -> &Path {
        &self.pid_file
    }

    /// The error of a failed start or command.
    pub(crate) fn failed(&self, why: impl ToString) -> Missing {
        Missing::Start { program: self.program, log: self.log.clone(), why: why.to_string() }
    }

    /// Starts the command, and waits until it listens on this port of the loopback interface.
    pub(crate) fn start(&self, command: &Command, port: u16, timeout: Duration) -> Result<(), Missing> {
        let deadline = Instant::now() + timeout;
        let mut child = self.spawn(command).map_err(|error| self.failed(error))?;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = child.try_wait().map_err(|error| self.failed(error))?;
            if ended.is_some() || Instant::now() > deadline {
                self.end(child);
                return Err(self.failed(self.log_tail()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(())
    }

    /// Kills the process with SIGKILL, and waits for its end.
    pub(crate) fn kill(&self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(child) = child {
            self.end(child);
        }
    }

    /// Starts a shell that writes its process id to the file and then executes the program, so that the file exists before
    /// the program runs.
    fn spawn(&self, command: &Command) -> std::io::Result<Child> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(&self.pid_file);
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        // In its own process group: Ctrl-C ends the tests, and then the guard ends this process.
        shell
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .current_dir("/")
            .spawn()
    }

    fn end(&self, mut child: Child) {
        // The process may have ended already.
        let _ = child.kill().and_then(|()| child.wait());
        // The system may reuse the id.
        let _ = fs::remove_file(&self.pid_file);
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let from = log.char_indices().rev().nth(LOG_TAIL_CHARS).map_or(0, |(at, _)| at);
        log[from..].trim().to_owned()
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        self.kill();
    }
}
