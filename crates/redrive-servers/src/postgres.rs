//! Private PostgreSQL server with default durability.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::guard::{Guard, Signal};
use crate::missing::Missing;
use crate::port::free_port;
use crate::program::{Program, is_root};

/// The environment variable that names a server to use instead of a private one.
const URL_VARIABLE: &str = "REDRIVE_TEST_POSTGRES";

/// `pg_hba.conf`: trusts all users, except members of the role `with_password`, for tests of passwords. Standbys may connect.
const CLIENT_AUTHENTICATION: &str = "host all +with_password 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n\
     host replication redrive 127.0.0.1/32 trust\n";

/// A private PostgreSQL server.
#[derive(Debug)]
pub struct Postgres {
    tools: PathBuf,
    data: PathBuf,
    log: PathBuf,
    port: u16,
    _guard: Guard,
}

impl Postgres {
    /// Returns the address of a server for all tests of this process: the one named by the environment, or a private one that
    /// the first call starts.
    pub fn shared_url() -> Result<String, Missing> {
        static SHARED: OnceLock<Result<Postgres, Missing>> = OnceLock::new();
        if let Ok(url) = std::env::var(URL_VARIABLE) {
            return Ok(url);
        }
        match SHARED.get_or_init(Postgres::start) {
            Ok(server) => Ok(server.url()),
            Err(missing) => {
                Err(Missing::Start { program: "postgres", log: PathBuf::new(), why: missing.to_string() })
            }
        }
    }

    /// Starts a server.
    pub fn start() -> Result<Self, Missing> {
        let server = Self::prepare()?;
        server.run(
            "initdb",
            &["--username=redrive", "--auth=trust", "--encoding=UTF8", "--no-sync", "--no-instructions"],
        )?;
        server.configure(&format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = ''\nmax_connections = 200\n",
            server.port
        ))?;
        fs::write(server.data.join("pg_hba.conf"), CLIENT_AUTHENTICATION)
            .map_err(|why| start_failed(&server.log, &why.to_string()))?;
        server.resume()?;
        Ok(server)
    }

    /// Starts a synchronous standby of this server. From now on each commit of this server waits until the standby has it.
    ///
    /// [`crash`](Self::crash) and [`resume`](Self::resume) stop and start the standby, [`promote`](Self::promote) makes it a
    /// primary.
    pub fn start_standby(&self) -> Result<Self, Missing> {
        let standby = Self::prepare()?;
        standby.run(
            "pg_basebackup",
            &[
                "--host=127.0.0.1",
                &format!("--port={}", self.port),
                "--username=redrive",
                "--checkpoint=fast",
                "--write-recovery-conf",
                "--no-sync",
            ],
        )?;
        standby.configure(&format!("port = {}\n", standby.port))?;
        self.configure("synchronous_standby_names = '*'\n")?;
        self.run("pg_ctl", &["reload"])?;
        standby.resume()?;
        Ok(standby)
    }

    /// Makes this standby a primary that takes writes and waits for no standby.
    pub fn promote(&self) -> Result<(), Missing> {
        self.run("pg_ctl", &["promote", "--wait"])
    }

    /// Makes the folder, port and guard of a server.
    fn prepare() -> Result<Self, Missing> {
        let failed = |why: std::io::Error| start_failed(Path::new(""), &why.to_string());
        // A link to the server may have no links to its tools beside it.
        let program = Program::Postgres.find()?.canonicalize().map_err(failed)?;
        let tools = program.parent().map(Path::to_owned).unwrap_or_default();
        let folder = tempfile::Builder::new().prefix("redrive-postgres-").tempdir().map_err(failed)?.keep();
        let (data, log) = (folder.join("data"), folder.join("log"));
        if is_root() {
            // The server refuses to run as root; its package creates the user postgres.
            let chown = Command::new("chown").arg("postgres").arg(&folder).output().map_err(failed)?;
            succeeded(&chown, &log)?;
        }
        let port = free_port().map_err(failed)?;
        let guard = Guard::set(Signal::Quit, &[&data.join("postmaster.pid")], &folder).map_err(failed)?;
        Ok(Postgres { tools, data, log, port, _guard: guard })
    }

    /// Adds settings, which override earlier ones when the server starts or reloads them.
    fn configure(&self, settings: &str) -> Result<(), Missing> {
        let added = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.data.join("postgresql.auto.conf"))
            .and_then(|mut file| std::io::Write::write_all(&mut file, settings.as_bytes()));
        added.map_err(|why| start_failed(&self.log, &why.to_string()))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The server's address. Members of a role `with_password`, if a test creates it, need their password.
    pub fn url(&self) -> String {
        format!("postgres://redrive@127.0.0.1:{}/postgres", self.port)
    }

    /// Restarts the server with TLS enabled, with this key and certificate. Connections without TLS stay possible.
    pub fn enable_tls(&self, key: &Path, certificate: &Path) -> Result<(), Missing> {
        let failed = |why: std::io::Error| start_failed(&self.log, &why.to_string());
        // The server must own the files, and refuses a key that others can read.
        for (from, name) in [(key, "server.key"), (certificate, "server.crt")] {
            let to = self.data.join(name);
            let mut install = Command::new("install");
            install.args(["-m", "600"]);
            if is_root() {
                install.args(["-o", "postgres"]);
            }
            succeeded(&install.arg(from).arg(to).output().map_err(failed)?, &self.log)?;
        }
        self.configure("ssl = on\n")?;
        self.run(
            "pg_ctl",
            &["restart", "--mode=fast", "--wait", "--silent", &format!("--log={}", self.log.display())],
        )
    }

    /// Stops the server like a crash: without a flush, and every connection breaks.
    pub fn crash(&self) -> Result<(), Missing> {
        self.run("pg_ctl", &["stop", "--mode=immediate", "--wait"])
    }

    /// Starts the server again.
    pub fn resume(&self) -> Result<(), Missing> {
        let log = format!("--log={}", self.log.display());
        self.run("pg_ctl", &["start", "--wait", "--silent", &log])
    }

    /// Runs a tool of the server on its data, as a user that the tool accepts.
    fn run(&self, tool: &str, arguments: &[&str]) -> Result<(), Missing> {
        let tool = self.tools.join(tool);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(tool);
            command
        } else {
            Command::new(tool)
        };
        command.arg(format!("--pgdata={}", self.data.display())).args(arguments).current_dir("/");
        // A file and not a pipe: the server would inherit the pipe and keep it open.
        let output =
            tempfile::NamedTempFile::new().map_err(|error| start_failed(&self.log, &error.to_string()))?;
        let file = || output.reopen().map_err(|error| start_failed(&self.log, &error.to_string()));
        let status = command.stdout(file()?).stderr(file()?).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => {
                Err(start_failed(&self.log, fs::read_to_string(output.path()).unwrap_or_default().trim()))
            }
            Err(error) => Err(start_failed(&self.log, &error.to_string())),
        }
    }
}

fn succeeded(output: &Output, log: &Path) -> Result<(), Missing> {
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(start_failed(log, message.trim())) }
}

fn start_failed(log: &Path, why: &str) -> Missing {
    Missing::Start { program: "postgres", log: log.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_server_starts_crashes_resumes_and_ends() {
        let server = Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
        let connects = |server: &Postgres| TcpStream::connect(("127.0.0.1", server.port)).is_ok();
        assert!(connects(&server));
        server.crash().unwrap();
        assert!(!connects(&server));
        server.resume().unwrap();
        assert!(connects(&server));
        let (data, port) = (server.data.clone(), server.port);
        drop(server);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(!data.exists());
    }
}
