//! A NATS server with JetStream, on files, with its default durability.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::foreground::Foreground;
use crate::guard::{Guard, Signal};
use crate::missing::Missing;
use crate::port::free_port;
use crate::program::Program;

/// Names a server to use instead of a private one.
const URL: &str = "REDRIVE_TEST_NATS";

/// How long it may take to start.
const LONGEST_START: Duration = Duration::from_secs(30);

/// A server of this process alone.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    /// More than it needs.
    arguments: Vec<String>,
    // Dropped before the guard: what is over needs no guard.
    server: Foreground,
    _guard: Guard,
}

impl Nats {
    /// The address of a server for all tests of this process: the one that the environment names, or a private one that is
    /// started at the first call.
    pub fn shared_url() -> Result<String, Missing> {
        static SHARED: OnceLock<Result<Nats, Missing>> = OnceLock::new();
        if let Ok(url) = std::env::var(URL) {
            return Ok(url);
        }
        match SHARED.get_or_init(Nats::start) {
            Ok(server) => Ok(server.url()),
            Err(missing) => Err(start_failed(missing)),
        }
    }

    /// Starts one.
    pub fn start() -> Result<Self, Missing> {
        Self::start_with(&[])
    }

    /// Starts one with more arguments, such as who may sign in.
    pub fn start_with(arguments: &[&str]) -> Result<Self, Missing> {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let program = Program::Nats.find()?;
        let folder = tempfile::Builder::new().prefix("redrive-nats-").tempdir().map_err(start_failed)?.keep();
        let server = Foreground::new(Program::Nats.name(), &folder);
        let guard = Guard::set(Signal::Kill, &[server.pid_file()], &folder).map_err(start_failed)?;
        let port = free_port().map_err(start_failed)?;
        let server = Nats { program, folder, port, arguments, server, _guard: guard };
        server.resume()?;
        Ok(server)
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Ends it as a crash would: by SIGKILL.
    pub fn crash(&self) {
        self.server.kill();
    }

    /// Starts it again, on the same port, with what it had stored.
    pub fn resume(&self) -> Result<(), Missing> {
        let mut command = Command::new(&self.program);
        command.args(["--addr", "127.0.0.1", "--port", &self.port.to_string(), "--jetstream"]);
        command.arg("--store_dir").arg(self.folder.join("data")).args(&self.arguments);
        self.server.start(&command, self.port, LONGEST_START)
    }
}

fn start_failed(why: impl ToString) -> Missing {
    Missing::Start { program: Program::Nats.name(), log: Path::new("").to_owned(), why: why.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_server_starts_crashes_comes_back_and_ends() {
        let server = Nats::start().unwrap_or_else(|missing| panic!("{missing}"));
        let connects = |server: &Nats| TcpStream::connect(("127.0.0.1", server.port)).is_ok();
        assert!(connects(&server));
        server.crash();
        assert!(!connects(&server));
        server.resume().unwrap();
        assert!(connects(&server));
        let (folder, port) = (server.folder.clone(), server.port);
        drop(server);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(!folder.exists());
    }
}
