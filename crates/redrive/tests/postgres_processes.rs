//! Killed and stopped processes on one server: leader election, fencing and repeated effects.
//!
//! The workers are this test binary, started with their names in the environment.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::events::EventStatus;
use redrive::retry::{BoxError, RetryPolicy};
use redrive::store::{PostgresOptions, PostgresStore};
use redrive::{Event, EventBus, EventId};
use redrive_servers::Schema;
use tokio_postgres::{Client, NoTls};

/// Maximum time until a new leader is elected: the lease of two seconds, plus a third of it as poll interval, plus slack for a
/// busy machine.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(3 + 4);

/// File with one line per handler call: `worker handler attempt key`.
struct Scene {
    schema: Schema,
    notes: tempfile::TempDir,
    client: Client,
}

impl Scene {
    async fn new() -> Self {
        let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
        let (client, connection) = tokio_postgres::connect(schema.url(), NoTls).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        Scene { schema, notes: tempfile::tempdir().unwrap(), client }
    }

    fn start(&self, name: &str) -> Worker {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "postgres_processes::worker", "--nocapture", "--test-threads=1"])
            .env("REDRIVE_WORKER", name)
            .env("REDRIVE_WORKER_NOTES", self.notes.path())
            .env("REDRIVE_WORKER_SCHEMA", self.schema.name())
            .env("REDRIVE_TEST_POSTGRES", self.schema.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Worker(child)
    }

    /// Bus that publishes and reads, and handles nothing.
    async fn observer(&self) -> EventBus {
        open(self.schema.url(), self.schema.name(), "observer").await
    }

    fn notes(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.notes.path().join("handled")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Name of the leader and the start of its term.
    async fn leader(&self) -> Option<(String, i64)> {
        let query = format!(
            "SELECT p.instance, l.since FROM {0}.leader l JOIN {0}.process p ON p.boot = l.boot
             WHERE l.until > {0}.now_ms()",
            self.schema.name()
        );
        let found = self.client.query_opt(&query, &[]).await.unwrap_or(None);
        found.map(|row| (row.get(0), row.get(1)))
    }

    /// Waits for a new leader; returns its name and the time it took.
    async fn leader_after(&self, old: Option<&str>) -> (String, Duration) {
        let began = Instant::now();
        loop {
            match self.leader().await {
                Some((leader, _)) if Some(leader.as_str()) != old => return (leader, began.elapsed()),
                _ => assert!(began.elapsed() < Duration::from_secs(30), "nobody leads"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

struct Worker(Child);

impl Worker {
    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success(), "{signal}");
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill(); // also if it is stopped
        let _ = self.0.wait();
    }
}

async fn open(url: &str, schema: &str, instance: &str) -> EventBus {
    let options = PostgresOptions {
        schema: schema.into(),
        instance: instance.into(),
        lease: Duration::from_secs(2),
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(url, options).await.unwrap();
    let policy = RetryPolicy::builder().max_attempts(5).base_delay(Duration::from_secs(1)).build().unwrap();
    EventBus::builder().policy(policy).on(Arc::new(store)).await.unwrap()
}

fn note(notes: &Path, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(notes.join("handled")).unwrap();
    // One write call, so that no line is partial.
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Worker process that the other tests start, stop and kill; not a test.
#[test]
fn worker() {
    let Ok(name) = std::env::var("REDRIVE_WORKER") else { return };
    let notes = PathBuf::from(std::env::var_os("REDRIVE_WORKER_NOTES").unwrap());
    let schema = std::env::var("REDRIVE_WORKER_SCHEMA").unwrap();
    let url = std::env::var("REDRIVE_TEST_POSTGRES").unwrap();
    // Ends with its parent process.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let bus = open(&url, &schema, &name).await;
        let handler = |handler: &'static str| {
            let (name, notes) = (name.clone(), notes.clone());
            move |event: Event| {
                let line = format!("{name} {handler} {} {}", event.attempt(), event.idempotency_key());
                note(&notes, &line);
                let (payload, attempt) = (event.payload().to_owned(), event.attempt());
                async move {
                    match (handler, payload.as_str(), attempt) {
                        ("second", "\"fails\"", 1) => return Err("not yet".into()),
                        // Never ends: the test kills or stops this process.
                        ("second", "\"hangs\"", 1) => std::future::pending::<()>().await,
                        ("second", "\"slow\"", 1) => tokio::time::sleep(Duration::from_secs(4)).await,
                        _ => {}
                    }
                    Ok::<_, BoxError>(())
                }
            }
        };
        bus.subscribe("order", handler("mail")).name("mail").idempotent().register().unwrap();
        bus.subscribe("order", handler("second"))
            .name("second")
            .timeout(Duration::from_secs(60))
            .register()
            .unwrap();
        bus.start().await.unwrap();
        std::future::pending::<()>().await;
    });
}

async fn until(
    bus: &EventBus,
    id: EventId,
    what: &str,
    is_so: impl Fn(&redrive::events::EventDetail) -> bool,
) {
    let began = Instant::now();
    loop {
        let shown = bus.store().event(id).await.unwrap();
        if is_so(&shown) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: {shown:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Handlers that ran, without the event key.
fn calls(scene: &Scene) -> Vec<String> {
    scene.notes().iter().map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_or_stopped_leader_is_replaced_within_seconds() {
    let scene = Scene::new().await;
    let mut workers = std::collections::BTreeMap::new();
    // The observer creates the schema and does not dispatch.
    let observer = scene.observer().await;
    for name in ["a", "b", "c"] {
        workers.insert(name.to_owned(), scene.start(name));
    }
    let (first, _) = scene.leader_after(None).await;
    workers.remove(&first).unwrap().kill();
    let (second, waited) = scene.leader_after(Some(&first)).await;
    assert!(waited < ELECTION_TIMEOUT, "{waited:?} after a kill");

    workers[&second].signal("-STOP");
    let (third, waited) = scene.leader_after(Some(&second)).await;
    assert!(waited < ELECTION_TIMEOUT, "{waited:?} after a stop");
    let (_, since) = scene.leader().await.unwrap();
    // After SIGCONT it is no longer the leader.
    workers[&second].signal("-CONT");
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_secs(4) {
        assert_eq!(scene.leader().await, Some((third.clone(), since)), "without a gap");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // It continues to work with the other processes.
    let process = format!(
        "SELECT count(*) FROM {0}.process WHERE instance = $1 AND beats_at + lease_ms > {0}.now_ms()",
        scene.schema.name()
    );
    let lives: i64 = scene.client.query_one(&process, &[&second]).await.unwrap().get(0);
    assert_eq!(lives, 1);
    observer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_a_stopped_process_are_taken_over_and_its_late_result_is_fenced() {
    let scene = Scene::new().await;
    let observer = scene.observer().await;
    let sleeper = scene.start("sleeper");
    let id = observer.publish("order", &"slow").enqueue().await.unwrap();
    until(&observer, id, "it is claimed", |_| scene.notes().len() == 2).await;
    sleeper.signal("-STOP");
    let _heir = scene.start("heir");
    until(&observer, id, "it is taken over and done", |shown| shown.status == EventStatus::Done).await;
    let before = observer.store().event(id).await.unwrap();
    assert_eq!((before.retry_count, before.attempts.len()), (1, 1), "the attempt is charged, once");
    assert!(before.errors[0].contains("process ended during the attempt"), "{:?}", before.errors);
    sleeper.signal("-CONT");
    // The handler ends, and its process has tried to settle by now.
    let began = Instant::now();
    let lives = format!("SELECT count(*) FROM {}.process WHERE instance = 'sleeper'", scene.schema.name());
    while scene.client.query_one(&lives, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "it lives on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = observer.store().event(id).await.unwrap();
    assert_eq!(
        serde_json::to_value(&after).unwrap(),
        serde_json::to_value(&before).unwrap(),
        "nothing is overwritten"
    );
    assert_eq!(
        calls(&scene),
        ["sleeper mail 1", "sleeper second 1", "heir mail 2", "heir second 2"],
        "what was not settled is done again"
    );
    observer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_effect_is_not_repeated_after_a_takeover() {
    let scene = Scene::new().await;
    let observer = scene.observer().await;
    let first = scene.start("first");
    let id = observer.publish("order", &"fails").enqueue().await.unwrap();
    until(&observer, id, "the attempt is settled", |shown| shown.retry_count == 1).await;
    // A second before the next attempt.
    first.kill();
    let _second = scene.start("second");
    until(&observer, id, "another process takes over", |shown| shown.status == EventStatus::Done).await;
    assert_eq!(calls(&scene), ["first mail 1", "first second 1", "second second 2"], "one mail");
    observer.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrecorded_effect_is_repeated_under_the_same_key() {
    let scene = Scene::new().await;
    let observer = scene.observer().await;
    let first = scene.start("first");
    let id = observer.publish("order", &"hangs").enqueue().await.unwrap();
    until(&observer, id, "both handlers are called", |_| scene.notes().len() == 2).await;
    first.kill();
    let _second = scene.start("second");
    until(&observer, id, "another process takes over", |shown| shown.status == EventStatus::Done).await;
    assert_eq!(calls(&scene), ["first mail 1", "first second 1", "second mail 2", "second second 2"]);
    let key = |line: &str| line.rsplit_once(' ').unwrap().1.to_owned();
    let notes = scene.notes();
    assert_eq!(key(&notes[0]), key(&notes[2]), "a receiver can deduplicate by the key");
    observer.shutdown().await.unwrap();
}
