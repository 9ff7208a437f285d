//! A server, and whoever talks to it.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive::{BoxError, BreakerConfig, ClassifyError, Event, EventBus, Failure, RetryPolicy};
use redrive_servers::Schema;
use serde_json::{Value, json};

use crate::http::{Answer, Connection, request};

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// The variables of the retry scheduler, as they are specified.
pub(crate) const SPECIFIED: [&str; 10] = [
    "SERVICE_NAME",
    "HTTP_PORT",
    "RABBITMQ_URL",
    "RETRY_QUEUE",
    "MANUAL_REVIEW_QUEUE",
    "DEFAULT_MAX_RETRIES",
    "BASE_DELAY_MS",
    "MAX_DELAY_MS",
    "RETRY_POLL_INTERVAL_MS",
    "DATABASE_URL",
];

/// Where events are kept.
pub(crate) enum Place {
    File(tempfile::TempDir),
    /// With a folder for what a server writes down beside its database.
    Server(Schema, tempfile::TempDir),
}

impl Place {
    pub(crate) fn file() -> Self {
        Place::File(tempfile::tempdir().unwrap())
    }

    pub(crate) fn server() -> Self {
        Place::on(Schema::new().unwrap_or_else(|missing| panic!("{missing}")))
    }

    pub(crate) fn on(schema: Schema) -> Self {
        Place::Server(schema, tempfile::tempdir().unwrap())
    }

    fn folder(&self) -> &Path {
        let (Place::File(folder) | Place::Server(_, folder)) = self;
        folder.path()
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Place::File(folder) => folder.path().join("redrive.db").display().to_string(),
            Place::Server(schema, _) => schema.address(),
        }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command
            .args(arguments)
            .env("REDRIVE_DB", self.name())
            .current_dir(self.folder())
            .stdin(Stdio::null());
        for name in SPECIFIED {
            command.env_remove(name);
        }
        command
            .env_remove("NATS_URL")
            .env_remove("REDRIVE_LISTEN")
            .env_remove("RUST_LOG")
            .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
        command
    }

    /// What a command prints.
    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Makes a token, and says what it is and what it is called.
    pub(crate) fn token(&self, scopes: &str, more: &[&str]) -> (String, String) {
        let made =
            self.text(&[&["tokens", "create", "--name", "test", "--scope", scopes, "--json"], more].concat());
        let made: Value = serde_json::from_str(&made).unwrap();
        (made["token"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned())
    }

    /// Leaves so many dead events behind; `bad.card` was given up at once, the others after two attempts.
    pub(crate) async fn die(&self, types: &[&str]) {
        let policy =
            RetryPolicy::builder().max_attempts(2).base_delay(Duration::from_millis(1)).build().unwrap();
        let bus = EventBus::builder().policy(policy).open(PathBuf::from(self.name())).await.unwrap();
        bus.subscribe("*", |event: Event| async move {
            let error = format!("no such order: {}", event.payload());
            Err::<(), _>(if event.event_type().as_str() == "bad.card" {
                error.permanent()
            } else {
                Failure::new(error)
            })
        })
        .name("broken")
        .breaker(BreakerConfig::builder().min_samples(u32::MAX).build().unwrap())
        .register()
        .unwrap();
        bus.start().await.unwrap();
        for (n, event_type) in types.iter().enumerate() {
            bus.publish(event_type, &json!({ "order": n })).await.unwrap();
        }
        bus.shutdown().await.unwrap();
        let _: Result<(), BoxError> = Ok(());
    }

    /// Starts a server with these arguments.
    pub(crate) fn serve(self, arguments: &[&str]) -> World {
        World::start(Arc::new(self), arguments)
    }
}

/// A server that runs.
pub(crate) struct World {
    pub(crate) place: Arc<Place>,
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<String>>,
    /// For every request, if there is one.
    pub(crate) token: Option<String>,
}

impl World {
    pub(crate) fn start(place: Arc<Place>, arguments: &[&str]) -> Self {
        World::start_with(place, arguments, &[])
    }

    pub(crate) fn start_with(place: Arc<Place>, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let listen: &[&str] =
            if arguments.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        World::spawn(place, &[&["serve"], listen, arguments].concat(), variables)
    }

    /// Any command that says where it listens.
    pub(crate) fn spawn(place: Arc<Place>, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = place.command(arguments);
        command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (mut errors, kept) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
        std::thread::spawn(move || {
            let mut line = String::new();
            while errors.read_line(&mut line).is_ok_and(|read| read > 0) {
                kept.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let address = first.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{first:?} {}", log.lock().unwrap())).parse().unwrap();
        World { place, child, address, log, token: None }
    }

    /// On a file, without any token.
    pub(crate) fn new() -> Self {
        Place::file().serve(&[])
    }

    /// Everything that was logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The most memory that the server has had so far, in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn most_memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let authorization = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let mut headers = headers.to_vec();
        headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
        let mut connection = self.connect();
        connection.send(request(method, path, &headers, body)).unwrap();
        connection.answer().unwrap_or_else(|| panic!("{method} {path} was not answered: {}", self.log()))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[JSON], &body.to_string())
    }

    /// With a token.
    pub(crate) fn as_holder(&self, token: &str, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, &[("authorization", &format!("Bearer {token}")), JSON], body)
    }

    /// Publishes, and says the id.
    pub(crate) fn publish(&self, event_type: &str, payload: &Value) -> String {
        let published = self.post("/v1/events", &json!({"type": event_type, "payload": payload})).ok(202);
        published["id"].as_str().unwrap().to_owned()
    }

    /// Waits until something holds.
    pub(crate) fn until(&self, what: &str, holds: impl FnMut() -> bool) {
        until(what, holds, || self.log());
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// As `kill -9` does it.
    pub(crate) fn kill(mut self) -> Arc<Place> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Arc::clone(&self.place)
    }

    /// Waits for the end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let log = Arc::clone(&self.log);
        let mut status = None;
        until(
            "the server ends",
            || {
                status = child.try_wait().unwrap();
                status.is_some()
            },
            || log.lock().unwrap().clone(),
        );
        status.unwrap()
    }
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool, log: impl Fn() -> String) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain until {what}: {}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a server says that does not start.
pub(crate) fn refused(place: &Place, arguments: &[&str]) -> String {
    let mut child = place
        .command(&[&["serve"], arguments].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    said
}
