//! Test fixture: a database, a running server and an HTTP client.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{ClassifyError, Failure, RetryPolicy};
use redrive::{Event, EventBus};
use redrive_api::client::Client;
use redrive_api::endpoints::CreateEndpoint;
use redrive_api::events::PublishEvent;
use redrive_servers::Schema;
use serde::Serialize;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::http::{Answer, Connection, request};

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// Specified variables of the retry scheduler.
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

/// Database of a test, removed on drop.
pub(crate) enum TestDatabase {
    Sqlite(tempfile::TempDir),
    /// With a folder for the server's key file.
    Postgres(Schema, tempfile::TempDir),
}

impl TestDatabase {
    pub(crate) fn sqlite() -> Self {
        TestDatabase::Sqlite(tempfile::tempdir().unwrap())
    }

    pub(crate) fn postgres() -> Self {
        TestDatabase::on(Schema::new().unwrap_or_else(|missing| panic!("{missing}")))
    }

    pub(crate) fn on(schema: Schema) -> Self {
        TestDatabase::Postgres(schema, tempfile::tempdir().unwrap())
    }

    fn folder(&self) -> &Path {
        let (TestDatabase::Sqlite(folder) | TestDatabase::Postgres(_, folder)) = self;
        folder.path()
    }

    pub(crate) fn name(&self) -> String {
        match self {
            TestDatabase::Sqlite(folder) => folder.path().join("redrive.db").display().to_string(),
            TestDatabase::Postgres(schema, _) => schema.address(),
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

    /// Runs a command; returns its output.
    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Creates a token; returns its secret and its id.
    pub(crate) fn token(&self, scopes: &str, more: &[&str]) -> (String, String) {
        let made =
            self.text(&[&["tokens", "create", "--name", "test", "--scope", scopes, "--json"], more].concat());
        let made: Value = serde_json::from_str(&made).unwrap();
        (made["token"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned())
    }

    /// Stores dead events of these types; `bad.card` fails permanently, the others after two attempts.
    pub(crate) async fn create_dead_letters(&self, types: &[&str]) {
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
    }

    /// Starts a server with these arguments.
    pub(crate) fn serve(self, arguments: &[&str]) -> World {
        World::start(Arc::new(self), arguments)
    }
}

/// Running server; killed on drop.
pub(crate) struct World {
    pub(crate) database: Arc<TestDatabase>,
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<String>>,
    /// Sent with every request that names no other one.
    pub(crate) token: Option<String>,
}

impl World {
    pub(crate) fn start(database: Arc<TestDatabase>, arguments: &[&str]) -> Self {
        World::start_with(database, arguments, &[])
    }

    pub(crate) fn start_with(
        database: Arc<TestDatabase>,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let listen: &[&str] =
            if arguments.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        World::spawn(database, &[&["serve"], listen, arguments].concat(), variables)
    }

    /// Starts a command that prints its address.
    pub(crate) fn spawn(database: Arc<TestDatabase>, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = database.command(arguments);
        command.envs(variables.iter().copied());
        World::run(database, command)
    }

    /// Runs a prepared command that prints its address.
    pub(crate) fn run(database: Arc<TestDatabase>, mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
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
        World { database, child, address, log, token: None }
    }

    /// Starts a server on a SQLite file without tokens.
    pub(crate) fn new() -> Self {
        TestDatabase::sqlite().serve(&[])
    }

    /// Log so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Peak memory of the server.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_memory_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// The typed client of this server, with the present token. It sends every request once, so that a test sees the first answer.
    pub(crate) fn client(&self) -> Client {
        self.repeating_client().without_retries()
    }

    /// The typed client as programs use it: it repeats failed requests.
    pub(crate) fn repeating_client(&self) -> Client {
        let url = format!("http://{}", self.address).parse().unwrap();
        Client::http(url, self.token.as_deref()).unwrap()
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let authorization = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let mut headers = headers.to_vec();
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
        }
        let mut connection = self.connect();
        connection.send(request(method, path, &headers, body)).unwrap();
        connection.answer().unwrap_or_else(|| panic!("{method} {path} was not answered: {}", self.log()))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &impl Serialize) -> Answer {
        self.send("POST", path, &[JSON], &to_json(body))
    }

    /// Sends a request with a token.
    pub(crate) fn send_as(&self, token: &str, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, &[("authorization", &format!("Bearer {token}")), JSON], body)
    }

    /// Publishes an event; returns its id.
    pub(crate) fn publish(&self, event_type: &str, payload: &Value) -> String {
        let published = self.post("/v1/events", &event(event_type, payload)).ok(202);
        published["id"].as_str().unwrap().to_owned()
    }

    /// Creates an endpoint; returns its id.
    pub(crate) fn create_endpoint(&self, endpoint: &CreateEndpoint) -> String {
        let created = self.post("/v1/endpoints", endpoint).ok(201);
        created["id"].as_str().unwrap().to_owned()
    }

    /// Polls until `holds` returns true.
    pub(crate) fn until(&self, what: &str, holds: impl FnMut() -> bool) {
        until(what, holds, || self.log());
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Kills the server with SIGKILL; returns its database.
    pub(crate) fn kill(mut self) -> Arc<TestDatabase> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Arc::clone(&self.database)
    }

    /// Waits for the end of the process.
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

/// An event to publish, with nothing else set.
pub(crate) fn event(event_type: &str, payload: impl Serialize) -> PublishEvent {
    PublishEvent::new(event_type, to_raw_value(&payload).unwrap())
}

/// An endpoint to create for the events of one pattern, with nothing else set.
pub(crate) fn endpoint(url: impl Into<String>, pattern: &str) -> CreateEndpoint {
    CreateEndpoint { url: url.into(), patterns: vec![pattern.to_owned()], ..CreateEndpoint::default() }
}

/// The body of a request.
pub(crate) fn to_json(request: &impl Serialize) -> String {
    serde_json::to_string(request).unwrap()
}

/// Runs a request of the typed client in a test without a runtime, and returns its response.
pub(crate) fn ok<T>(request: impl Future<Output = redrive_api::client::Result<T>>) -> T {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> =
        LazyLock::new(|| tokio::runtime::Runtime::new().unwrap());
    RUNTIME.block_on(request).unwrap_or_else(|error| panic!("{error:?}"))
}

const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until `holds` returns true; fails with the log after [`TIMEOUT`].
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool, log: impl Fn() -> String) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "timed out waiting until {what}: {}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server that must fail; returns its error text.
pub(crate) fn refused(database: &TestDatabase, arguments: &[&str]) -> String {
    let mut child = database
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
