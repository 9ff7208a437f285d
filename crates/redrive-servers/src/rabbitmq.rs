//! A RabbitMQ server: a node of its own, with a port mapper of its own, so that nothing is shared with another one.

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

/// Names a server to use instead of a private one.
const URL: &str = "REDRIVE_TEST_RABBITMQ";

/// Erlang's port mapper, by which the node and its tools find each other. It comes with Erlang.
const PORT_MAPPER: &str = "epmd";

/// How long it may take to start: about 5 s on an idle machine, most of it for loading its modules.
const LONGEST_START: Duration = Duration::from_secs(90);

/// How long it may take until everybody knows of an alarm.
const LONGEST_ALARM: Duration = Duration::from_secs(30);

/// Two threads that sleep when there is nothing to do, and only this machine may come.
const ERLANG: &str =
    "+S 2:2 +SDio 2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}";

/// A server of this process alone.
#[derive(Debug)]
pub struct RabbitMq {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    /// Where the node talks to its tools.
    tools_port: u16,
    mapper_port: u16,
    // The node is dropped before the mapper, and both before the guard: what is over needs no guard.
    node: Foreground,
    mapper: Foreground,
    _guard: Guard,
}

impl RabbitMq {
    /// The address of a server for all tests of this process: the one that the environment names, or a private one that is
    /// started at the first call.
    pub fn shared_url() -> Result<String, Missing> {
        static SHARED: OnceLock<Result<RabbitMq, Missing>> = OnceLock::new();
        if let Ok(url) = std::env::var(URL) {
            return Ok(url);
        }
        match SHARED.get_or_init(RabbitMq::start) {
            Ok(server) => Ok(server.url()),
            Err(missing) => Err(start_failed(missing)),
        }
    }

    /// Starts one.
    pub fn start() -> Result<Self, Missing> {
        let program = Program::RabbitMq.find()?;
        let folder =
            tempfile::Builder::new().prefix("redrive-rabbitmq-").tempdir().map_err(start_failed)?.keep();
        let (node, mapper) =
            (Foreground::new(Program::RabbitMq.name(), &folder), Foreground::new(PORT_MAPPER, &folder));
        let pid_files = [node.pid_file(), mapper.pid_file()];
        let guard = Guard::set(Signal::Kill, &pid_files, &folder).map_err(start_failed)?;
        let [port, tools_port, mapper_port] = free_ports().map_err(start_failed)?;
        // Empty, so that the machine's own settings are not read.
        for name in ["settings.conf", "environment.conf"] {
            std::fs::write(folder.join(name), "").map_err(start_failed)?;
        }
        let server = RabbitMq { program, folder, port, tools_port, mapper_port, node, mapper, _guard: guard };
        let mut command = Command::new(PORT_MAPPER);
        command.args(["-address", "127.0.0.1", "-port", &mapper_port.to_string()]);
        server.mapper.start(&command, mapper_port, LONGEST_START)?;
        server.resume()?;
        Ok(server)
    }

    /// Where it listens: the virtual host `/`, as the user that may do everything there.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Ends it as a crash would: by SIGKILL. Every connection breaks.
    pub fn crash(&self) {
        self.node.kill();
    }

    /// Starts it again, on the same port, with what it had stored.
    pub fn resume(&self) -> Result<(), Missing> {
        let mut command = Command::new(&self.program);
        command.arg("-noinput").envs(self.environment());
        self.node.start(&command, self.port, LONGEST_START)
    }

    /// Says that it is out of memory, or no longer: connections that publish are blocked meanwhile. Returns when the alarm is
    /// on, or off.
    pub fn memory_alarm(&self, on: bool) -> Result<(), Missing> {
        let share = if on { "0" } else { "0.4" };
        self.control(&["set_vm_memory_high_watermark", share])?;
        let until = Instant::now() + LONGEST_ALARM;
        while self.control(&["eval", "rabbit_alarm:get_alarms()."])?.contains("memory") != on {
            if Instant::now() > until {
                return Err(self.node.failed("the memory alarm did not change"));
            }
        }
        Ok(())
    }

    /// Closes every connection; who was connected is told why.
    pub fn close_connections(&self) -> Result<(), Missing> {
        self.control(&["close_all_connections", "asked for by a test"]).map(drop)
    }

    /// Runs `rabbitmqctl` on it, and returns what that says.
    pub fn control(&self, arguments: &[&str]) -> Result<String, Missing> {
        let output = Command::new(self.program.with_file_name("rabbitmqctl"))
            .arg("--quiet")
            .args(arguments)
            .envs(self.environment())
            .current_dir("/")
            .output()
            .map_err(|error| self.node.failed(error))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        Err(self.node.failed(format!("{said}{}", String::from_utf8_lossy(&output.stderr))))
    }

    /// The same for the node and its tools, so that they are one another's.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let file = |name: &str| self.folder.join(name).into_os_string();
        let number = |port: u16| OsString::from(port.to_string());
        vec![
            // Where Erlang keeps the secret that the two have in common.
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
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG.into()),
            // Any port will do for a tool.
            ("RABBITMQ_CTL_DIST_PORT_MIN", "0".into()),
            ("RABBITMQ_CTL_DIST_PORT_MAX", "0".into()),
            ("RABBITMQ_CTL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".into()),
            // The script becomes the node instead of waiting for it: its process id is the node's.
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
    fn a_server_starts_crashes_comes_back_and_ends() {
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
