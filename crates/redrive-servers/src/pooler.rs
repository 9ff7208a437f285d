//! Private transaction pooler before a PostgreSQL server: clients share its server connections, one transaction at a time.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::guard::{Guard, Signal};
use crate::missing::Missing;
use crate::port::free_port;
use crate::postgres::Postgres;
use crate::program::{Program, is_root};

/// The number of connections to the server.
const SERVER_CONNECTIONS: u32 = 4;

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// PgBouncer in `transaction` mode.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    _guard: Guard,
}

impl Pooler {
    /// Starts a pooler before this server.
    pub fn before(server: &Postgres) -> Result<Self, Missing> {
        let program = Program::PgBouncer.find()?;
        let failed = |why: std::io::Error| start_failed(Path::new(""), &why.to_string());
        let folder = tempfile::Builder::new().prefix("redrive-pooler-").tempdir().map_err(failed)?.keep();
        let (settings, pid, log) = (folder.join("settings.ini"), folder.join("pid"), folder.join("log"));
        let port = free_port().map_err(failed)?;
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=redrive\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 200\n\
             pidfile = {}\nlogfile = {}\n",
            server.port(),
            pid.display(),
            log.display()
        );
        fs::write(&settings, text).map_err(failed)?;
        let mut command = Command::new(program);
        if is_root() {
            // Like the server, it refuses to run as root.
            let chown =
                Command::new("chown").args(["-R", "postgres"]).arg(&folder).status().map_err(failed)?;
            if !chown.success() {
                return Err(start_failed(&log, "chown of its folder to the user postgres failed"));
            }
            command.args(["--user", "postgres"]);
        }
        // Not SIGQUIT, which PgBouncer does not handle: a shell's background job inherits that it is ignored.
        let guard = Guard::set(Signal::Kill, &[&pid], &folder).map_err(failed)?;
        let status =
            command.args(["--daemon", "--quiet"]).arg(&settings).current_dir("/").status().map_err(failed)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while status.success()
            && TcpStream::connect(("127.0.0.1", port)).is_err()
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        if !status.success() || Instant::now() >= deadline {
            return Err(start_failed(&log, fs::read_to_string(&log).unwrap_or_default().trim()));
        }
        Ok(Pooler { port, _guard: guard })
    }

    /// The address of the server through the pooler.
    pub fn url(&self) -> String {
        format!("postgres://redrive@127.0.0.1:{}/postgres", self.port)
    }
}

fn start_failed(log: &Path, why: &str) -> Missing {
    Missing::Start { program: "pgbouncer", log: log.to_owned(), why: why.to_owned() }
}
