//! Test fixture: a folder with a database, the commands on it, and an optional server.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    server: Option<(Child, String)>,
    /// Arguments appended to every command.
    side: Vec<String>,
    /// Token of every command, if there is one.
    pub(crate) token: Option<String>,
}

impl World {
    /// Fixture without a server; commands open the file.
    pub(crate) fn on_file() -> Self {
        let side = ["--allow-range", "127.0.0.0/8"].map(str::to_owned).to_vec();
        World { folder: tempfile::tempdir().unwrap(), server: None, side, token: None }
    }

    /// Fixture with a server; commands use it.
    pub(crate) fn through_server() -> Self {
        let mut world = World::on_file();
        world.serve_for_commands();
        world
    }

    /// Starts a server on the file; commands use it from now on.
    pub(crate) fn serve_for_commands(&mut self) {
        self.serve(&["--allow-range", "127.0.0.0/8"]);
        self.side = vec!["--server".to_owned(), self.address()];
    }

    pub(crate) fn serve(&mut self, arguments: &[&str]) {
        self.serve_at("127.0.0.1:0", arguments);
    }

    pub(crate) fn serve_at(&mut self, listen: &str, arguments: &[&str]) {
        let mut child = self
            .command(&[&["serve"], arguments].concat())
            .env("REDRIVE_LISTEN", listen)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("http://"));
        let address = address.unwrap_or_else(|| panic!("the server printed {line:?}")).to_owned();
        self.server = Some((child, address));
    }

    /// Waits until the running server has registered an endpoint added in the file: its metrics then have a series for it.
    pub(crate) fn wait_for_endpoint(&self, endpoint: &str) {
        let address = self.address();
        let host = address.trim_start_matches("http://");
        until("the server has registered the endpoint", || {
            let mut stream = std::net::TcpStream::connect(host).unwrap();
            write!(stream, "GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer.contains(endpoint).then_some(())
        });
    }

    pub(crate) fn address(&self) -> String {
        self.server.as_ref().unwrap().1.clone()
    }

    pub(crate) fn stop(&mut self) {
        if let Some((mut child, _)) = self.server.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Command in the folder, without variables of Redrive or OpenTelemetry.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if ["REDRIVE_", "OTEL_"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
                command.env_remove(name);
            }
        }
        command.env_remove("RUST_LOG").env("COLUMNS", "160");
        if let Some(token) = &self.token {
            command.env("REDRIVE_TOKEN", token);
        }
        command
    }

    /// Runs a command on the file or through the server.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let takes_range = matches!(arguments.first(), Some(&"endpoints"));
        let is_file = self.side.first().is_some_and(|flag| flag == "--allow-range");
        let mut command = self.command(arguments);
        if !is_file || takes_range {
            command.args(&self.side);
        }
        command.output().unwrap()
    }

    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let text = self.text(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Runs a command that fails with this exit code; returns its error text.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Publishes into the file; returns the id.
    pub(crate) fn publish(&self, event_type: &str, payload: &str) -> String {
        let output = self.command(&["publish", event_type, payload]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
    }
}

const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until `look` returns a value.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < TIMEOUT, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
