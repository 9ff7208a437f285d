//! Runs the commands on a SQLite database with the real binary, and checks output and exit codes.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, ClassifyError, Failure, RetryPolicy};
use redrive::{Event, EventBus, EventId};
use serde_json::{Value, json};

/// Folder with a database, and the commands on it.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        World { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env_remove("COLUMNS").env_remove("NO_COLOR").env_remove("REDRIVE_DB");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command with `--json` and parses its output.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs a command that fails with this exit code; returns its error text.
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn publish(&self, event_type: &str, payload: &str) -> String {
        self.text(&["publish", event_type, payload]).trim().to_owned()
    }

    /// Runs a bus until the file has no pending event: `ok.*` succeeds, `bad.*` always fails.
    async fn handle(&self) {
        let policy =
            RetryPolicy::builder().max_attempts(2).base_delay(Duration::from_millis(1)).build().unwrap();
        let bus = EventBus::builder().policy(policy).open(self.path("redrive.db")).await.unwrap();
        bus.subscribe("ok.*", |_: Event| async { Ok::<_, BoxError>(()) }).name("fine").register().unwrap();
        bus.subscribe("bad.*", |event: Event| async move {
            let error = format!("no such order: {}", event.payload());
            Err::<(), _>(if event.event_type().as_str() == "bad.card" {
                error.permanent()
            } else {
                Failure::new(error)
            })
        })
        .name("broken")
        // An open circuit would delay the test.
        .breaker(BreakerConfig::builder().min_samples(u32::MAX).build().unwrap())
        .register()
        .unwrap();
        bus.start().await.unwrap();
        loop {
            let stats = bus.store().stats().await.unwrap();
            if stats.pending + stats.processing == 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        bus.shutdown().await.unwrap();
    }
}

fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap()).collect()
}

#[test]
fn a_published_event_is_listed_and_shown_as_it_was_published() {
    let world = World::new();
    let first = world.run(&["publish", "order.created", r#"{"price": 1.10}"#]);
    assert!(first.status.success());
    assert!(String::from_utf8_lossy(&first.stderr).contains("redrive.db did not exist and was created"));
    let first = String::from_utf8(first.stdout).unwrap();
    let first: EventId = first.trim().parse().unwrap();

    let own = EventId::random().to_string();
    let publish = [
        "publish",
        "user.registered",
        "7",
        "--id",
        &own,
        "--meta",
        "source=cron",
        "--meta",
        "a=b=c",
        "--delay",
        "1h",
    ];
    assert_eq!(world.json(&publish), json!({"id": own, "duplicate": false}));
    assert_eq!(world.json(&publish), json!({"id": own, "duplicate": true}));

    let list = world.json(&["events", "list"]);
    assert_eq!(ids(&list["data"]), [own.clone(), first.to_string()], "newest first");
    assert_eq!(list["next"], Value::Null);
    let by_type = world.json(&["events", "list", "--type", "order.created", "--status", "pending"]);
    assert_eq!(ids(&by_type["data"]), [first.to_string()]);
    assert_eq!(world.text(&["events", "list", "--status", "done"]), "No events.\n");

    let page = world.json(&["events", "list", "--limit", "1"]);
    let next = page["next"].as_str().unwrap();
    assert_eq!(ids(&page["data"]), [own.as_str()]);
    let page = world.json(&["events", "list", "--limit", "1", "--after", next]);
    assert_eq!((ids(&page["data"]), &page["next"]), (vec![first.to_string().as_str()], &Value::Null));

    let shown = world.run(&["events", "show", &first.to_string(), "--json"]).stdout;
    assert!(String::from_utf8(shown).unwrap().contains(r#""payload":{"price": 1.10}"#), "number unchanged");
    let event = world.json(&["events", "show", &own]);
    assert_eq!((&event["type"], &event["status"]), (&json!("user.registered"), &json!("pending")));
    assert_eq!(event["metadata"], json!({"source": "cron", "a": "b=c"}));
    let text = world.text(&["events", "show", &own]);
    assert!(text.contains("due ") && text.contains("(in 59m)"), "{text}");
}

#[test]
fn a_payload_is_read_from_standard_input() {
    let world = World::new();
    for arguments in [&["publish", "a", "-"][..], &["publish", "a"]] {
        let mut child =
            world.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"{\"n\": 1}\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let id = String::from_utf8(output.stdout).unwrap();
        assert_eq!(world.json(&["events", "show", id.trim()])["payload"], json!({"n": 1}));
    }
    let mut child =
        world.command(&["publish", "a"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    let _ = child.stdin.take().unwrap().write_all(large.as_bytes()); // refused before the end
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("larger than the limit of 1048576 bytes"));
}

#[test]
fn invalid_input_is_refused_with_a_remedy() {
    let world = World::new();
    world.publish("ok.fine", "1");
    std::fs::write(world.path("garbage.db"), "this is not a database, however long the file is").unwrap();
    std::fs::write(world.path("empty.db"), "").unwrap();
    let other = rusqlite::Connection::open(world.path("other.db")).unwrap();
    other.execute_batch("CREATE TABLE other (x)").unwrap();
    let unknown = EventId::new().to_string();
    for (code, arguments, says) in [
        (2, &["events", "show", "7"][..], "is not an event id: use a UUID"),
        (2, &["publish", "order created", "1"], "is not an event type"),
        (2, &["publish", "a", "{\"x\": "], "the payload is not JSON"),
        (2, &["publish", "a", "NaN"], "the payload is not JSON"),
        (2, &["publish", "a", "1", "--meta", "x"], "use NAME=VALUE"),
        (2, &["publish", "a", "1", "--delay", "soon"], "--delay"),
        (2, &["publish", "a", "1", "--id", "x"], "use a UUID"),
        (2, &["events", "list", "--status", "dead"], "use pending, processing, done or dlq"),
        (2, &["events", "list", "--db", "mysql://host/db"], "unknown kind of database mysql"),
        (2, &["dlq", "list", "--since", "yesterday"], "use an age"),
        (2, &["dlq", "list", "--reason", "boredom"], "attempts_exhausted"),
        (2, &["dlq", "retry"], "<ID"),
        (2, &["dlq", "retry", &unknown, "--all"], "cannot be used with"),
        (2, &["dlq", "retry", &unknown, "--type", "x"], "a filter goes with --all"),
        (2, &["dlq", "retry", &unknown, &unknown, "--payload", "1"], "exactly one ID"),
        (2, &["dlq", "retry", &unknown, "--payload", "{"], "not JSON"),
        (2, &["dlq", "retry", "--all", "--rate", "0/s"], "such as 50/s"),
        (2, &["dlq", "purge"], "--older-than"),
        (1, &["events", "show", &unknown], "there is no event"),
        (1, &["dlq", "show", &unknown], "there is no event"),
        (1, &["dlq", "retry", &unknown], "there is no event"),
        (1, &["events", "list", "--db", "missing.db"], "missing.db does not exist"),
        (1, &["dlq", "groups", "--db", "sqlite:missing.db"], "missing.db does not exist"),
        (1, &["backup", "copy.db", "--db", "missing.db"], "missing.db does not exist"),
        (1, &["events", "list", "--db", "garbage.db"], "is not a Redrive database"),
        (1, &["events", "list", "--db", "empty.db"], "is empty, not a Redrive database"),
        (1, &["events", "list", "--db", "other.db"], "belongs to another program"),
        (1, &["events", "list", "--db", "."], "is a folder"),
        (1, &["demo", "--db", "redrive.db"], "the demo needs its own file"),
    ] {
        let said = world.refused(code, arguments);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    assert!(!world.path("missing.db").exists(), "a read command creates no file");
    assert_eq!(std::fs::metadata(world.path("empty.db")).unwrap().len(), 0);
}

#[test]
fn the_environment_names_the_database() {
    let world = World::new();
    let output = world.command(&["publish", "a", "1"]).env("REDRIVE_DB", "here.db").output().unwrap();
    assert!(output.status.success());
    assert!(world.path("here.db").exists() && !world.path("redrive.db").exists());
    assert_eq!(world.json(&["events", "--db", "here.db", "list"])["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn dead_events_are_listed_shown_grouped_and_exported() {
    let world = World::new();
    world.publish("ok.fine", "1");
    let order = world.publish("bad.order", r#"{"order":1}"#);
    let another = world.publish("bad.order", r#"{"order":2}"#);
    let card = world.publish("bad.card", "3");
    world.handle().await;

    let list = world.json(&["dlq", "list"]);
    assert_eq!(ids(&list["data"]), [&card, &another, &order].map(String::as_str));
    let first = world.json(&["dlq", "list", "--limit", "1"]);
    assert_eq!(ids(&first["data"]), [&card]);
    let rest = world.json(&["dlq", "list", "--limit", "2", "--after", first["next"].as_str().unwrap()]);
    assert_eq!((ids(&rest["data"]), &rest["next"]), (vec![another.as_str(), &order], &Value::Null));
    let text = world.text(&["dlq", "list"]);
    assert!(text.contains("after 2 attempts") && text.contains("at once: permanent"), "{text}");
    for (filter, expected) in [
        (&["--reason", "permanent"][..], vec![&card]),
        (&["--type", "bad.order"], vec![&another, &order]),
        (&["--text", "\"order\":1"], vec![&order]),
        (&["--since", "1h"], vec![&card, &another, &order]),
        (&["--until", "1h"], vec![]),
    ] {
        let list = world.json(&[&["dlq", "list"], filter].concat());
        assert_eq!(ids(&list["data"]), expected, "{filter:?}");
    }

    let shown = world.json(&["dlq", "show", &order]);
    let dead = &shown["data"][0];
    assert_eq!((&dead["payload"], &dead["reason"]), (&json!({"order": 1}), &json!("attempts_exhausted")));
    assert_eq!(
        (dead["errors"].as_array().unwrap().len(), dead["attempts"].as_array().unwrap().len()),
        (2, 2)
    );
    let text = world.text(&["dlq", "show", &order]);
    assert!(text.contains("\nattempts\n") && text.contains(&format!("redrive dlq retry {order}")), "{text}");
    let said = world
        .refused(1, &["dlq", "show", ids(&world.json(&["events", "list", "--status", "done"])["data"])[0]]);
    assert!(said.contains("is not in the dead-letter queue: it is done"), "{said}");

    let groups = world.json(&["dlq", "groups"]);
    let counts: u64 =
        groups["data"].as_array().unwrap().iter().map(|group| group["count"].as_u64().unwrap()).sum();
    assert_eq!(counts, 3);
    let fingerprint = groups["data"][0]["fingerprint"].as_str().unwrap();
    let of_group = world.json(&["dlq", "list", "--fingerprint", fingerprint]);
    assert_eq!(
        of_group["data"].as_array().unwrap().len() as u64,
        groups["data"][0]["count"].as_u64().unwrap()
    );

    let lines = world.text(&["dlq", "export"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| !line["attempts"].as_array().unwrap().is_empty()), "with every attempt");
    let report = world.json(&["dlq", "export", "dead.jsonl", "--type", "bad.card"]);
    assert_eq!(report, json!({"file": "dead.jsonl", "exported": 1}));
    assert!(world.refused(1, &["dlq", "export", "dead.jsonl"]).contains("choose a new name"));
}

#[tokio::test]
async fn dead_events_are_retried_and_purged() {
    let world = World::new();
    let order = world.publish("bad.order", "1");
    let card = world.publish("bad.card", "2");
    world.handle().await;

    let none = json!({"matched": 2, "retried": 0, "next": null});
    assert_eq!(world.json(&["dlq", "retry", "--all", "--dry-run"]), none);
    assert_eq!(world.json(&["dlq", "retry", &order, &card, "--dry-run"]), none);
    let edited = world.json(&["dlq", "retry", &order, "--payload", r#"{"order": 9}"#]);
    assert_eq!(edited, json!({"id": order}));
    let event = world.json(&["events", "show", &order]);
    assert_eq!((&event["status"], &event["payload"]), (&json!("pending"), &json!({"order": 9})));
    let output = world.run(&["dlq", "retry", &order, &card, "--json"]);
    assert_eq!(output.status.code(), Some(1), "one of them is no longer dead");
    let retried: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(retried, json!({"id": card}));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&order), "{output:?}");

    world.handle().await;
    let some = world.json(&["dlq", "retry", "--all", "--reason", "permanent", "--rate", "50/s", "--yes"]);
    assert_eq!(some, json!({"matched": 1, "retried": 1, "next": null}));
    world.handle().await;

    assert_eq!(world.json(&["dlq", "purge", "--older-than", "7d", "--yes"]), json!({"purged": 0}));
    let said = world.refused(1, &["dlq", "purge", "--older-than", "0s"]);
    assert!(said.contains("2 dead letters") && said.contains("add --yes"), "{said}");
    assert_eq!(world.json(&["dlq", "purge", "--older-than", "0s", "--yes"]), json!({"purged": 2}));
    assert_eq!(world.text(&["dlq", "list"]), "The dead-letter queue is empty.\n");
    assert_eq!(world.text(&["dlq", "groups"]), "The dead-letter queue is empty.\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_bus_dispatches_events_published_and_retried_by_the_cli() {
    let world = World::new();
    let (sender, handled) = std::sync::mpsc::channel();
    let bus = EventBus::open(world.path("redrive.db")).await.unwrap();
    bus.subscribe("order", move |event: Event| {
        sender.send((event.id().to_string(), event.payload().to_owned())).unwrap();
        let is_good = event.payload() == "2";
        async move { if is_good { Ok(()) } else { Err("wrong".permanent()) } }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let next = || handled.recv_timeout(Duration::from_secs(30)).unwrap();
    let id = world.publish("order", "1");
    assert_eq!(next(), (id.clone(), "1".to_owned()));
    while bus.store().stats().await.unwrap().dlq == 0 {
        tokio::task::yield_now().await;
    }
    world.text(&["dlq", "retry", &id, "--payload", "2"]);
    assert_eq!(next(), (id, "2".to_owned()));
    bus.shutdown().await.unwrap();
}

#[test]
fn a_backup_is_a_database_and_overwrites_no_file() {
    let world = World::new();
    let id = world.publish("a", "1");
    assert!(world.text(&["backup", "copy.db"]).contains("written to copy.db"));
    assert_eq!(ids(&world.json(&["events", "list", "--db", "copy.db"])["data"]), [id.as_str()]);
    let before = std::fs::read(world.path("copy.db")).unwrap();
    assert!(world.refused(1, &["backup", "copy.db"]).contains("choose a new name"));
    assert_eq!(std::fs::read(world.path("copy.db")).unwrap(), before);
}

#[tokio::test]
async fn doctor_passes_a_good_file_and_fails_a_bad_one() {
    let world = World::new();
    world.publish("ok.fine", "1");
    world.handle().await;
    let report = world.json(&["doctor"]);
    assert_eq!(report["ok"], json!(true), "{report}");
    let checks: Vec<&str> =
        report["checks"].as_array().unwrap().iter().map(|check| check["check"].as_str().unwrap()).collect();
    for check in [
        "file",
        "version",
        "settings",
        "content",
        "running",
        "waiting",
        "parked",
        "deliveries",
        "endpoints",
        "review",
        "key",
        "log",
        "disk",
        "sync",
    ] {
        assert!(checks.contains(&check), "{check} in {checks:?}");
    }
    assert!(world.text(&["doctor"]).contains("quick_check finds nothing wrong"));

    std::fs::write(world.path("garbage.db"), "garbage".repeat(1000)).unwrap();
    assert!(world.refused(1, &["doctor", "--db", "garbage.db"]).contains("failed checks: file"));
    assert!(world.refused(1, &["doctor", "--db", "missing.db"]).contains("failed checks: file"));
    assert!(!world.path("missing.db").exists());
    let newer = rusqlite::Connection::open(world.path("redrive.db")).unwrap();
    newer.execute_batch("PRAGMA user_version = 1000").unwrap();
    assert!(world.refused(1, &["doctor"]).contains("failed checks: version"));
}

#[tokio::test]
async fn doctor_finds_interrupted_work_and_orphaned_deliveries() {
    let world = World::new();
    world.publish("ok.fine", "1");
    let finding = |name: &str| {
        let report: Value = serde_json::from_slice(&world.run(&["doctor", "--json"]).stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["check"] == name).unwrap().clone()
    };
    {
        let bus = EventBus::open(world.path("redrive.db")).await.unwrap();
        assert!(finding("dispatcher")["found"].as_str().unwrap().contains("process"), "the owner is named");
        bus.shutdown().await.unwrap();
    }
    let file = rusqlite::Connection::open(world.path("redrive.db")).unwrap();
    file.execute_batch(
        "UPDATE event SET status = 1;
         INSERT INTO delivery (event_key, subscription, status, due_at, updated_at) VALUES (1, 'gone', 0, 0, 0);",
    )
    .unwrap();
    for (name, says) in [
        ("running", "1 event claimed by a process that has ended"),
        ("deliveries", "\"gone\""),
        ("waiting", "1 event"),
    ] {
        let finding = finding(name);
        assert_eq!(finding["verdict"], "act");
        assert!(
            finding["found"].as_str().unwrap().contains(says) && finding["advice"].is_string(),
            "{finding}"
        );
    }
}

#[test]
fn the_demo_ends_and_its_counts_add_up() {
    let world = World::new();
    let demo = world.json(&["demo", "--seconds", "2", "--db", "shop.db"]);
    let number = |key: &str| demo[key].as_u64().unwrap_or_else(|| panic!("{key} in {demo}"));
    assert!(number("published") > 100, "{demo}");
    assert_eq!(number("published"), number("done") + number("dead"));
    assert_eq!((number("lost"), number("pending")), (0, 0));
    assert!(number("dead") >= 1, "the poison event");
    assert!(number("retries") > 0 && number("parked") > 0, "{demo}");
    assert!(demo["events_per_second"].as_f64().unwrap() > 0.0);
    // The kept file has the same counts.
    let dead = world.json(&["dlq", "list", "--limit", "100000", "--db", "shop.db"]);
    assert_eq!(dead["data"].as_array().unwrap().len() as u64, number("dead"));
    let poison = world.json(&["dlq", "list", "--reason", "permanent", "--db", "shop.db"]);
    assert_eq!(ids(&poison["data"]), [demo["poison"].as_str().unwrap()]);
    let said = world.refused(1, &["doctor", "--db", "shop.db"]);
    assert!(said.contains("checks that need a person: dead letters;"), "{said}");
}

#[test]
fn the_demo_publishes_the_given_number_and_prints_a_report() {
    let world = World::new();
    let output = world.run(&["demo", "--seconds", "1", "--events", "300", "--db", "shop.db"]);
    assert!(output.status.success() && output.stderr.is_empty(), "no bar without a terminal: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["300 published = ", "Nothing was lost.", "billing", "redrive dlq groups --db shop.db"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn the_crash_demo_loses_nothing() {
    let world = World::new();
    let demo = world.json(&["demo", "--crash", "--seconds", "3"]);
    let number = |key: &str| demo[key].as_u64().unwrap_or_else(|| panic!("{key} in {demo}"));
    assert!(number("kills") >= 3, "{demo}");
    assert!(number("published") > 0);
    assert_eq!((number("lost"), number("pending")), (0, 0), "{demo}");
    assert_eq!(number("published"), number("done") + number("dead"));
    assert!(demo.get("damage").is_none());
}
