//! `redrive migrate` with the real binary: interrupted, repeated and refused.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a panic is a failed test; the seed is printed for a replay

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use redrive::retry::BoxError;
use redrive::{Event, EventBus};
use redrive_servers::Schema;
use serde_json::Value;

const EVENTS: u64 = 20_000;

struct World {
    folder: tempfile::TempDir,
    schema: Schema,
}

impl World {
    fn new() -> Self {
        let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
        World { folder: tempfile::tempdir().unwrap(), schema }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("redrive.db")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(arguments).current_dir(self.folder.path()).env("REDRIVE_DB", self.schema.address());
        command.stdin(Stdio::null()).env_remove("COLUMNS");
        command
    }

    fn migrate(&self, more: &[&str]) -> Output {
        self.command(&[&["migrate", "--from", "redrive.db"], more].concat()).output().unwrap()
    }

    fn json(&self, more: &[&str]) -> Value {
        let output = self.migrate(&[more, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refused(&self, more: &[&str]) -> String {
        let output = self.migrate(more);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    async fn publish(&self, count: u64) {
        let bus = EventBus::open(self.file()).await.unwrap();
        let payloads: Vec<u64> = (0..count).collect();
        for part in payloads.chunks(5000) {
            bus.publish_batch(part.iter().map(|n| ("order.created", n))).await.unwrap();
        }
        bus.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_migration_killed_repeatedly_completes_without_duplicates() {
    let world = World::new();
    world.publish(EVENTS).await;
    let seed = std::env::var("REDRIVE_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("seed {random} (REDRIVE_SEED replays the kill times)");
    let mut unfinished = 0;
    for kill in 0..30u64 {
        let mut command = world.command(&["migrate", "--from", "redrive.db"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Random kill time, later in each round so that the migration progresses.
        std::thread::sleep(Duration::from_millis(10 + (random >> 33) % (100 + 20 * kill)));
        child.kill().unwrap();
        child.wait().unwrap();
        let looked = world.command(&["events", "list", "--limit", "1"]).output().unwrap();
        let said = String::from_utf8(looked.stderr).unwrap();
        unfinished += u32::from(said.contains("is not complete"));
    }
    assert!(unfinished > 0, "some runs were interrupted");

    let tables = world.json(&[])["tables"].take();
    assert_eq!((&tables[0]["table"], &tables[0]["rows"]), (&"event".into(), &EVENTS.into()));
    let handled = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = std::sync::Arc::clone(&handled);
    let bus = EventBus::open(world.schema.address()).await.unwrap();
    bus.subscribe("*", move |event: Event| {
        seen.lock().unwrap().push(event.payload().to_owned());
        async { Ok::<_, BoxError>(()) }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    while bus.store().depth().await.unwrap().pending > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bus.shutdown().await.unwrap();
    let mut handled: Vec<u64> = handled.lock().unwrap().iter().map(|text| text.parse().unwrap()).collect();
    handled.sort_unstable();
    assert_eq!(handled, (0..EVENTS).collect::<Vec<_>>(), "each event once");
}

#[tokio::test]
async fn a_dry_run_prints_the_plan_and_changes_nothing() {
    let world = World::new();
    world.publish(7).await;
    for _ in 0..2 {
        let plan = world.json(&["--dry-run"]);
        assert_eq!((&plan["tables"][0]["rows"], &plan["tables"][0]["there"]), (&7.into(), &0.into()));
    }
    let looked = world.command(&["events", "list"]).output().unwrap();
    assert!(String::from_utf8(looked.stderr).unwrap().contains("there is no schema"));

    let output = world.migrate(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("can be dispatched there"), "{text}");
    assert_eq!(world.json(&["--dry-run"])["tables"][0]["there"], 7);
}

#[tokio::test]
async fn impossible_migrations_are_refused_with_a_remedy() {
    let world = World::new();
    assert!(world.refused(&[]).contains("redrive.db does not exist: name the database with --from PATH"));
    world.publish(1).await;
    let bus = EventBus::open(world.file()).await.unwrap();
    assert!(world.refused(&[]).contains("is in use by process"));
    bus.shutdown().await.unwrap();
    let unreachable = "postgres://anna:s3cret@127.0.0.1:1/shop";
    let said = world.refused(&["--to", unreachable]);
    assert!(said.contains("cannot be reached") && !said.contains("s3cret"), "{said}");
    for (arguments, why) in [
        (&["migrate", "--from", "redrive.db", "--to", "other.db"][..], "--to is the PostgreSQL server"),
        (&["migrate", "--from", unreachable], "--from is the SQLite file"),
    ] {
        let output = world.command(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(why) && !said.contains("s3cret"), "{said}");
    }

    let bus = EventBus::open(world.schema.address()).await.unwrap();
    bus.publish("mine", &1).enqueue().await.unwrap();
    bus.shutdown().await.unwrap();
    let said = world.refused(&[]);
    assert!(said.contains("differs from the file") && said.contains("name an empty one"), "{said}");
}
