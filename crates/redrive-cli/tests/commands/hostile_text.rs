//! Stored text that is extreme JSON or that could steer a terminal: every command prints it, safely.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

use redrive_retry::decision::{DecisionRecord, Identity, Outcome, Situation};
use redrive_retry::{FailureClass, RetryPolicy, Timestamp};
use redrive_server::terminal_text::is_unsafe;
use serde_json::{Value, json};

use super::world::World;

/// C0, ESC sequences, DEL, C1, bidi controls and zero-width characters.
const HOSTILE: &str =
    "a\u{1b}[31m\u{7}\u{8}b\u{7f}c\u{9b}2Jd\u{202e}e\u{2066}f\u{200b}g\u{200f}h\u{feff}i\u{2028}j";

/// Stores an event with one dead letter for each payload; returns the ids.
fn dead(world: &World, payloads: &[&str], event_type: &str, metadata: &str, error: &str) -> Vec<String> {
    world.publish("seed", "1");
    let file = rusqlite::Connection::open(world.folder.path().join("redrive.db")).unwrap();
    let errors = json!([error]).to_string();
    let of_one = |(n, payload): (usize, &&str)| {
        let key = n as i64 + 10;
        file.execute(
            "INSERT INTO event (key, id, type, payload, metadata, status, retry_count, last_error, created_at, updated_at)
             VALUES (?1, randomblob(16), ?2, ?3, ?4, 4, 1, ?5, 1000, 1000)",
            rusqlite::params![key, event_type, payload, metadata, errors],
        )
        .unwrap();
        file.execute(
            "INSERT INTO dead_letter (event_key, subscription, type, created_at, dlq_at, reason, fingerprint, error)
             VALUES (?1, NULL, ?2, 1000, 1000, 'permanent', ?3, ?3)",
            rusqlite::params![key, event_type, error],
        )
        .unwrap();
        file.execute(
            "INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error)
             VALUES (?1, 'mail', 1, 1000, 1, 'permanent', 0, ?2)",
            rusqlite::params![key, error],
        )
        .unwrap();
        let id =
            file.query_row("SELECT id FROM event WHERE key = ?1", [key], |row| row.get::<_, [u8; 16]>(0));
        uuid::Uuid::from_bytes(id.unwrap()).to_string()
    };
    payloads.iter().enumerate().map(of_one).collect()
}

#[test]
fn any_stored_payload_is_printed_as_json_in_process_and_through_a_server() {
    let (digits, deep) = ("9".repeat(400), format!("{}{}", "[".repeat(500), "]".repeat(500)));
    let payloads = ["1e400", "[-1E+999]", r#""\ud800""#, r#"{"\udfff\ud800": "\ud800x"}"#, &digits, &deep];
    for by_server in [false, true] {
        let mut world = World::on_file();
        let ids = dead(&world, &payloads, "bad", "{}", "no");
        // A payload published by the command is printed by it as well.
        let published: Vec<String> = payloads.iter().map(|payload| world.publish("fine", payload)).collect();
        if by_server {
            world.serve_for_commands();
        }
        for (id, payload) in ids.iter().zip(payloads) {
            for command in [["dlq", "show", id], ["events", "show", id]] {
                let text = world.text(&[&command[..], &["--json"]].concat());
                assert!(text.contains(&format!("\"payload\":{payload}")), "{command:?}: {text}");
                let text = world.text(&command);
                assert!(
                    text.len() < 100_000 && text.contains("payload"),
                    "{command:?}: {} bytes",
                    text.len()
                );
            }
        }
        for (id, payload) in published.iter().zip(payloads) {
            let text = world.text(&["events", "show", id, "--json"]);
            assert!(text.contains(&format!("\"payload\":{payload}")), "{text}");
        }
        assert_eq!(world.json(&["dlq", "list"])["data"].as_array().unwrap().len(), payloads.len());
        let exported = world.text(&["dlq", "export"]);
        assert!(payloads.iter().all(|payload| exported.contains(payload)), "{exported}");
    }
}

#[test]
fn output_for_people_and_json_escape_what_could_steer_a_terminal() {
    for by_server in [false, true] {
        let mut world = World::on_file();
        // Descriptions and names hold no control characters.
        let visible = HOSTILE.replace(|c: char| c.is_control(), "");
        let metadata = json!({ HOSTILE: HOSTILE }).to_string();
        let payload = json!({ HOSTILE: [HOSTILE] }).to_string();
        // A type may hold every character but white space and control characters.
        let event_type = "order\u{202e}\u{2066}\u{200b}\u{feff}";
        let id = dead(&world, &[&payload], event_type, &metadata, HOSTILE).remove(0);
        let endpoint =
            ["endpoints", "add", "http://127.0.0.1:9/", "--pattern", event_type, "--description", &visible];
        let endpoint = world.json(&endpoint)["id"].as_str().unwrap().to_owned();
        world.text(&["tokens", "create", "--name", &visible, "--scope", "read"]);
        if by_server {
            let token = world.json(&["tokens", "create", "--name", "admin", "--scope", "admin"]);
            world.serve_for_commands();
            world.token = Some(token["token"].as_str().unwrap().to_owned());
        }
        for command in [
            &["events", "list"][..],
            &["events", "show", &id],
            &["dlq", "list"],
            &["dlq", "show", &id],
            &["dlq", "groups"],
            &["endpoints", "list"],
            &["endpoints", "show", &endpoint],
            &["tokens", "list"],
            &["dlq", "export"],
            &["doctor"],
        ] {
            for more in [&[][..], &["--json"]] {
                if command[1..] == ["export"] && !more.is_empty() {
                    continue; // its lines are JSON
                }
                let output = world.run(&[command, more].concat());
                let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
                let what = format!("{command:?} {more:?}");
                is_safe(&what, &said);
                let shows_text = !matches!(command[0], "doctor" | "tokens");
                assert!(!shows_text || said.contains("202e"), "{what} shows the escape: {said}");
            }
        }
    }
}

fn is_safe(what: &str, said: &str) {
    let found: Vec<char> = said.chars().filter(|c| is_unsafe(*c) && *c != '\n').collect();
    assert!(found.is_empty(), "{what}: {found:?} in {said:?}");
}

#[test]
fn audit_commands_escape_what_could_steer_a_terminal() {
    let world = World::on_file();
    let failed = Outcome::Failed(FailureClass::Transient);
    let identity = Identity::new(7, HOSTILE, HOSTILE);
    let situation = Situation::new(
        &RetryPolicy::webhook(),
        identity,
        2,
        failed,
        Timestamp::from_millis(1_767_225_600_000),
    );
    let record = serde_json::to_value(DecisionRecord::decide(situation)).unwrap();
    let mut changed = record.clone();
    changed[HOSTILE] = json!(1);
    let event = json!({
        "event_type": "retry_attempt", "retry_category": "RETRY_API_REQUEST", "operation": HOSTILE, "attempt_number": 1, "max_attempts": 3,
        "delay_seconds": 1, "exception_type": HOSTILE, "exception_message": HOSTILE, "tenant_id": HOSTILE, "correlation_id": null,
        "trace_id": null, "timestamp": "2026-01-25T21:15:00Z",
    });
    let lines = [
        event,
        json!({"event_type": "retry_decision", "retry_category": "RETRY_API_REQUEST", "operation": HOSTILE, "record": record}),
        // A discrepancy that quotes the line, and records that cannot be read.
        json!({"event_type": "retry_decision", "retry_category": "RETRY_API_REQUEST", "operation": format!("{HOSTILE}x"), "record": record}),
        json!({"event_type": "retry_decision", "record": changed}),
    ];
    let name = format!("{}.jsonl", HOSTILE.replace('/', ""));
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    std::fs::write(world.folder.path().join(&name), text.join("\n")).unwrap();
    // Dead letters whose attempts the commands read from the database.
    dead(&world, &["1"], "bad", "{}", HOSTILE);
    for command in [["audit", "list"], ["audit", "stats"], ["audit", "verify"], ["policy", "advise"]] {
        for source in [&name[..], "--db=redrive.db"] {
            for more in [&[][..], &["--json"]] {
                let arguments = [&command[..], &[source], more].concat();
                let output = world.command(&arguments).output().unwrap();
                let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
                is_safe(&format!("{arguments:?}"), &said);
                // The counts of `stats` name no text of a line.
                let is_counts = command[1] == "stats" && !more.is_empty();
                let shows_text = source == name && command[0] == "audit" && !is_counts;
                assert!(!shows_text || said.contains("202e"), "{arguments:?} shows the escape: {said}");
            }
        }
    }
}

#[test]
fn tail_escapes_what_could_steer_a_terminal() {
    let mut world = World::on_file();
    world.serve_for_commands();
    let event_type = "order\u{202e}\u{2066}\u{200b}\u{feff}";
    for more in [&[][..], &["--json"]] {
        let mut command = world.command(&[&["events", "tail", "--server", &world.address()], more].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        // Events before the start of tail are not shown, so publish until one is.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let world = &world;
            scope.spawn(move || {
                while stopped
                    .recv_timeout(Duration::from_millis(100))
                    .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
                {
                    world.publish(event_type, "1");
                }
            });
            lines.read_line(&mut said).unwrap();
            drop(stop);
        });
        child.kill().unwrap();
        child.wait().unwrap();
        lines.read_to_string(&mut said).unwrap();
        is_safe(&format!("events tail {more:?}"), &said);
        assert!(said.contains("202e"), "{more:?} shows the escape: {said}");
    }
}
