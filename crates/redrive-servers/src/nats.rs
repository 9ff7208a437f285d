//! Private NATS server with JetStream, file storage and default durability.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::foreground::Foreground;
use crate::guard::{Guard, Signal};
use crate::missing::Missing;
use crate::port::free_port;
use crate::program::Program;

/// The environment variable that names a server to use instead of a private one.
const URL_VARIABLE: &str = "REDRIVE_TEST_NATS";

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A private NATS server.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    /// Additional command-line arguments.
    arguments: Vec<String>,
    // Dropped before the guard, which then finds nothing to end.
    server: Foreground,
    _guard: Guard,
}

impl Nats {
    /// Returns the address of a server for all tests of this process: the one named by the environment, or a private one that
    /// the first call starts.
    pub fn shared_url() -> Result<String, Missing> {
        static SHARED: OnceLock<Result<Nats, Missing>> = OnceLock::new();
        if let Ok(url) = std::env::var(URL_VARIABLE) {
            return Ok(url);
        }
        match SHARED.get_or_init(Nats::start) {
            Ok(server) => Ok(server.url()),
            Err(missing) => Err(start_failed(missing)),
        }
    }

    /// Starts a server.
    pub fn start() -> Result<Self, Missing> {
        Self::start_with(&[])
    }

    /// Starts a server with additional arguments, such as credentials.
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

    /// The server's address.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server with SIGKILL.
    pub fn crash(&self) {
        self.server.kill();
    }

    /// Starts the server again, on the same port and with its data.
    pub fn resume(&self) -> Result<(), Missing> {
        let mut command = Command::new(&self.program);
        command.args(["--addr", "127.0.0.1", "--port", &self.port.to_string(), "--jetstream"]);
        command.arg("--store_dir").arg(self.folder.join("data")).args(&self.arguments);
        self.server.start(&command, self.port, START_TIMEOUT)
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
    fn a_server_starts_crashes_resumes_and_ends() {
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
