//! Private RabbitMQ server: its own node and its own port mapper, so that it shares nothing with other servers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::foreground::Foreground;
use crate::guard::{Guard, Signal};
use crate::missing::Missing;
use crate::port::free_ports;
use crate::program::Program;

/// The environment variable that names a server to use instead of a private one.
const URL_VARIABLE: &str = "REDRIVE_TEST_RABBITMQ";

/// Erlang's port mapper daemon, through which the node and its tools find each other. Part of Erlang.
const PORT_MAPPER: &str = "epmd";

/// A start takes about 5 s on an idle machine, mostly for loading modules.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Maximum time that an alarm takes to reach all parts of the node.
const ALARM_TIMEOUT: Duration = Duration::from_secs(30);

/// Two scheduler threads without busy waiting, and only local connections.
const ERLANG_ARGUMENTS: &str =
    "+S 2:2 +SDio 2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}";

/// A private RabbitMQ server.
#[derive(Debug)]
pub struct RabbitMq {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    /// The port for the node's tools.
    tools_port: u16,
    mapper_port: u16,
    // The node is dropped before the mapper, and both before the guard, which then finds nothing to end.
    node: Foreground,
    mapper: Foreground,
    _guard: Guard,
}

impl RabbitMq {
    /// Returns the address of a server for all tests of this process: the one named by the environment, or a private one that
    /// the first call starts.
    pub fn shared_url() -> Result<String, Missing> {
        static SHARED: OnceLock<Result<RabbitMq, Missing>> = OnceLock::new();
        if let Ok(url) = std::env::var(URL_VARIABLE) {
            return Ok(url);
        }
        match SHARED.get_or_init(RabbitMq::start) {
            Ok(server) => Ok(server.url()),
            Err(missing) => Err(start_failed(missing)),
        }
    }

    /// Starts a server.
    pub fn start() -> Result<Self, Missing> {
        let program = Program::RabbitMq.find()?;
        let folder =
            tempfile::Builder::new().prefix("redrive-rabbitmq-").tempdir().map_err(start_failed)?.keep();
        let (node, mapper) =
            (Foreground::new(Program::RabbitMq.name(), &folder), Foreground::new(PORT_MAPPER, &folder));
        let pid_files = [node.pid_file(), mapper.pid_file()];
        let guard = Guard::set(Signal::Kill, &pid_files, &folder).map_err(start_failed)?;
        let [port, tools_port, mapper_port] = free_ports().map_err(start_failed)?;
        // Empty files, so that the machine's settings are not read.
        for name in ["settings.conf", "environment.conf"] {
            std::fs::write(folder.join(name), "").map_err(start_failed)?;
        }
        let server = RabbitMq { program, folder, port, tools_port, mapper_port, node, mapper, _guard: guard };
        let mut command = Command::new(PORT_MAPPER);
        command.args(["-address", "127.0.0.1", "-port", &mapper_port.to_string()]);
        server.mapper.start(&command, mapper_port, START_TIMEOUT)?;
        server.resume()?;
        Ok(server)
    }

    /// The server's address: the virtual host `/`, as its administrator.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Kills the server with SIGKILL. Every connection breaks.
    pub fn crash(&self) {
        self.node.kill();
    }

    /// Starts the server again, on the same port and with its data.
    pub fn resume(&self) -> Result<(), Missing> {
        let mut command = Command::new(&self.program);
        command.arg("-noinput").envs(self.environment());
        self.node.start(&command, self.port, START_TIMEOUT)
    }

    /// Raises or clears the memory alarm, which blocks publishing connections. Returns when the alarm has changed.
    pub fn memory_alarm(&self, on: bool) -> Result<(), Missing> {
        let share = if on { "0" } else { "0.4" };
        self.control(&["set_vm_memory_high_watermark", share])?;
        let deadline = Instant::now() + ALARM_TIMEOUT;
        while self.control(&["eval", "rabbit_alarm:get_alarms()."])?.contains("memory") != on {
            if Instant::now() > deadline {
                return Err(self.node.failed("the memory alarm did not change"));
            }
        }
        Ok(())
    }

    /// Closes every connection, with a reason.
    pub fn close_connections(&self) -> Result<(), Missing> {
        self.control(&["close_all_connections", "asked for by a test"]).map(drop)
    }

    /// Runs `rabbitmqctl` on the server, and returns its output.
    pub fn control(&self, arguments: &[&str]) -> Result<String, Missing> {
        let output = Command::new(self.program.with_file_name("rabbitmqctl"))
            .arg("--quiet")
            .args(arguments)
            .envs(self.environment())
            .current_dir("/")
            .output()
            .map_err(|error| self.node.failed(error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(self.node.failed(format!("{text}{}", String::from_utf8_lossy(&output.stderr))))
    }

    /// The environment of the node and of its tools.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let file = |name: &str| self.folder.join(name).into_os_string();
        let number = |port: u16| OsString::from(port.to_string());
        vec![
            // Erlang keeps the shared secret (cookie) of node and tools in the home folder.
            ("HOME", self.folder.clone().into_os_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("ERL_EPMD_PORT", number(self.mapper_port)),
            ("ERL_CRASH_DUMP", file("crash.dump")),
            ("RABBITMQ_NODENAME", format!("redrive{}@localhost", self.port).into()),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into()),
            ("RABBITMQ_NODE_PORT", number(self.port)),
            ("RABBITMQ_DIST_PORT", number(self.tools_port)),
            ("RABBITMQ_CONF_ENV_FILE", file("environment.conf")),
            ("RABBITMQ_CONFIG_FILE", file("settings.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", file("advanced.config")),
            ("RABBITMQ_MNESIA_BASE", file("data")),
            ("RABBITMQ_LOG_BASE", file("logs")),
            ("RABBITMQ_LOGS", "-".into()),
            ("RABBITMQ_PID_FILE", file("node.pid")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins")),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG_ARGUMENTS.into()),
            // Tools use any port.
            ("RABBITMQ_CTL_DIST_PORT_MIN", "0".into()),
            ("RABBITMQ_CTL_DIST_PORT_MAX", "0".into()),
            ("RABBITMQ_CTL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".into()),
            // Makes the script execute the node, so that both have the same process id.
            ("RABBITMQ_ALLOW_INPUT", "true".into()),
        ]
    }
}

fn start_failed(why: impl ToString) -> Missing {
    Missing::Start { program: Program::RabbitMq.name(), log: Path::new("").to_owned(), why: why.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_server_starts_crashes_resumes_and_ends() {
        let server = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
        let connects = |server: &RabbitMq| TcpStream::connect(("127.0.0.1", server.port)).is_ok();
        assert!(connects(&server));
        server.crash();
        assert!(!connects(&server));
        server.resume().unwrap();
        assert!(connects(&server));

        server.memory_alarm(true).unwrap();
        server.memory_alarm(false).unwrap();
        server.close_connections().unwrap();

        let folder = server.folder.clone();
        let ports = [server.port, server.tools_port, server.mapper_port];
        drop(server);
        for port in ports {
            assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "{port}");
        }
        assert!(!folder.exists());
    }
}
