//! Runs `examples/serve`: the walkthrough, and receivers in three languages.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::receiver::{Receiver, Request};
use super::world::{World, until};

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/serve").join(name)
}

/// Receiver in another language.
struct Foreign {
    child: Child,
    port: String,
    lines: mpsc::Receiver<String>,
}

impl Foreign {
    fn start(program: impl AsRef<Path>, file: &str) -> Self {
        let program = program.as_ref();
        let mut child = Command::new(program)
            .arg(example(file))
            .arg("0")
            .env("WEBHOOK_SECRET", SECRET)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} is missing, which runs {file}: {error}", program.display()));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap_or_else(|| panic!("{file} has ended")).unwrap();
        let port = first.split_whitespace().last().unwrap().to_owned();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Foreign { child, port, lines: receiver }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Sends a message; returns the status of the response.
    fn answer(&self, got: &Request, body: &str) -> u16 {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{}", self.port)).unwrap();
        let mut request =
            format!("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            request += &format!("{name}: {}\r\n", got.header(name).unwrap());
        }
        write!(stream, "{request}\r\n{body}").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        String::from_utf8_lossy(&head)[9..].parse().unwrap()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Python with the package `standardwebhooks`, installed in the build folder.
fn python_with_library() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standardwebhooks");
    let python = folder.join("bin/python");
    let has_it = || {
        Command::new(&python)
            .args(["-c", "import standardwebhooks"])
            .output()
            .is_ok_and(|done| done.status.success())
    };
    if !has_it() {
        let run = |program: &Path, arguments: &[&str]| {
            let done = Command::new(program).args(arguments).output();
            let done = done.unwrap_or_else(|error| panic!("{} is missing: {error}", program.display()));
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(
                done.status.success(),
                "the Python package standardwebhooks is missing and cannot be installed: {said}"
            );
        };
        run(Path::new("python3"), &["-m", "venv", folder.to_str().unwrap()]);
        run(&python, &["-m", "pip", "install", "--quiet", "standardwebhooks"]);
    }
    python
}

/// Checks that a receiver accepts a real message and refuses a changed one.
fn verifies(receiver: &Foreign) {
    let world = World::through_server();
    let here = Receiver::start(204);
    for url in [here.url(), receiver.url()] {
        world.json(&["endpoints", "add", &url, "--pattern", "order.*", "--secret", SECRET]);
    }
    let event = world.publish("order.created", r#"{"order":7}"#);
    let line =
        receiver.lines.recv_timeout(Duration::from_secs(60)).expect("the receiver accepted the message");
    assert_eq!(line, format!("got order.created {event}"));
    let got = until("the message was received here, too", || here.requests().pop());
    assert_eq!(receiver.answer(&got, &got.body), 204);
    assert_eq!(receiver.answer(&got, &got.body.replace('7', "8")), 401, "the body was changed");
    let mut late = got;
    for (name, value) in &mut late.headers {
        if name == "webhook-timestamp" {
            *value = "1000000000".to_owned();
        }
    }
    assert_eq!(receiver.answer(&late, &late.body), 401, "the time was changed");
}

#[test]
fn the_python_receiver_verifies() {
    verifies(&Foreign::start("python3", "receiver.py"));
}

#[test]
fn the_python_receiver_with_the_library_verifies() {
    verifies(&Foreign::start(python_with_library(), "receiver_library.py"));
}

#[test]
fn the_javascript_receiver_verifies() {
    verifies(&Foreign::start("node", "receiver.mjs"));
}

#[test]
fn the_walkthrough_completes() {
    let world = World::through_server();
    let receiver = Foreign::start("python3", "receiver.py");
    let walk = |token: Option<&str>| {
        let mut command = Command::new("sh");
        command
            .arg(example("walkthrough.sh"))
            .args([world.address(), receiver.url()])
            .env("WEBHOOK_SECRET", SECRET);
        command.env_remove("REDRIVE_TOKEN").envs(token.map(|token| ("REDRIVE_TOKEN", token)));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    let said = walk(None);
    assert!(said.trim_end().ends_with("done") && said.contains("job.resize"), "{said}");
    // Only the command line creates the first token, on the server's database.
    let created =
        world.command(&["tokens", "create", "--name", "walk", "--scope", "admin"]).output().unwrap();
    assert!(created.status.success(), "{created:?}");
    walk(Some(String::from_utf8(created.stdout).unwrap().trim()));
}

/// A database that is away at boot must not end the attempts to start.
#[test]
fn both_units_start_again_without_a_limit() {
    for unit in [
        include_str!("../../../../examples/serve/redrive.service"),
        include_str!("../../../../examples/scheduler/redrive-scheduler.service"),
    ] {
        assert!(unit.lines().any(|line| line == "StartLimitIntervalSec=0"), "{unit}");
    }
}
