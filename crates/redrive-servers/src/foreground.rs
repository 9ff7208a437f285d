//! A program that stays in the foreground: started, killed, started again.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::missing::Missing;

/// How often it is asked whether it listens.
const PAUSE: Duration = Duration::from_millis(20);

/// So much of its log is shown if it does not start.
const SHOWN: usize = 2_000;

/// One process, which leaves its id in a file for the [guard](crate::guard::Guard).
#[derive(Debug)]
pub(crate) struct Foreground {
    program: &'static str,
    pid_file: PathBuf,
    log: PathBuf,
    /// Waited for after each kill, so that it does not stay as a zombie that looks alive to the guard.
    child: Mutex<Option<Child>>,
}

impl Foreground {
    /// Not started yet. Its files are in `folder`.
    pub(crate) fn new(program: &'static str, folder: &Path) -> Self {
        Foreground {
            program,
            pid_file: folder.join(format!("{program}.pid")),
            log: folder.join(format!("{program}.log")),
            child: Mutex::new(None),
        }
    }

    /// Where its process id is while it runs.
    pub(crate) fn pid_file(&self) -> &Path {
        &self.pid_file
    }

    /// Why it does not start, or does not do what was asked.
    pub(crate) fn failed(&self, why: impl ToString) -> Missing {
        Missing::Start { program: self.program, log: self.log.clone(), why: why.to_string() }
    }

    /// Runs the command until it listens on this port of the loopback interface.
    pub(crate) fn start(&self, command: &Command, port: u16, longest: Duration) -> Result<(), Missing> {
        let until = Instant::now() + longest;
        let mut child = self.spawn(command).map_err(|error| self.failed(error))?;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = child.try_wait().map_err(|error| self.failed(error))?;
            if ended.is_some() || Instant::now() > until {
                self.end(child);
                return Err(self.failed(self.last_words()));
            }
            std::thread::sleep(PAUSE);
        }
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(())
    }

    /// Ends it as a crash would, and waits until it is gone.
    pub(crate) fn kill(&self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(child) = child {
            self.end(child);
        }
    }

    /// Through a shell that writes its id down and becomes the program: the id is there before the program does anything.
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
        // In a group of its own: whoever presses Ctrl-C ends the tests, and the guard ends this.
        shell
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .current_dir("/")
            .spawn()
    }

    fn end(&self, mut child: Child) {
        // It may be gone already.
        let _ = child.kill().and_then(|()| child.wait());
        // The id may soon be somebody else's.
        let _ = fs::remove_file(&self.pid_file);
    }

    fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let from = said.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
        said[from..].trim().to_owned()
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        self.kill();
    }
}
