//! Stored text that is extreme JSON or that could steer a terminal: every command prints it, safely.

use redrive_server::terminal_text::is_unsafe;
use serde_json::json;

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
                let found: Vec<char> = said.chars().filter(|c| is_unsafe(*c) && *c != '\n').collect();
                assert!(found.is_empty(), "{command:?} {more:?}: {found:?} in {said:?}");
                let shows_text = !matches!(command[0], "doctor" | "tokens");
                assert!(
                    !shows_text || said.contains("202e"),
                    "{command:?} {more:?} shows the escape: {said}"
                );
            }
        }
    }
}
