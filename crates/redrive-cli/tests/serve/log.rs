//! Log lines of `redrive serve`.

use serde_json::{Value, json};

use crate::receiver::Receiver;
use crate::world::{TestDatabase, World, endpoint};

/// Publishes an event that fails twice, and returns the name of its endpoint.
fn fail_twice(world: &World, receiver: &Receiver) -> String {
    receiver.respond_with(500);
    let id = world.create_endpoint(&endpoint(receiver.url(), "order.*"));
    world.publish("order.created", &json!(1));
    world.until("it is dead", || world.get("/metrics").body.contains("redrive_events_dead_total 1\n"));
    id
}

fn serve(arguments: &[&str]) -> World {
    let common = ["--allow-range", "127.0.0.0/8", "--max-attempts", "2", "--base-delay", "10ms"];
    TestDatabase::sqlite().serve(&[&common, arguments].concat())
}

#[test]
fn a_json_log_line_has_each_field_once_and_the_retry_entry_as_specified() {
    let (receiver, world) = (Receiver::new(), serve(&["--log-format", "json"]));
    let endpoint = fail_twice(&world, &receiver);
    let log = world.log();
    let entries: Vec<&str> = log.lines().filter(|line| line.contains(r#""redrive::retry""#)).collect();
    assert_eq!(entries.len(), 2, "one for each failed attempt: {log}");
    for (line, attempt) in entries.into_iter().zip(1..) {
        let entry: Value = serde_json::from_str(line).unwrap();
        for name in entry.as_object().unwrap().keys() {
            assert_eq!(line.matches(&format!("\"{name}\":")).count(), 1, "{name} in {line}");
        }
        assert_eq!((&entry["level"], &entry["attempt"]), (&json!("warn"), &json!(attempt)));
        assert_eq!((&entry["event_type"], &entry["max_attempts"]), (&json!("order.created"), &json!(2)));
        assert_eq!(entry["subscription"], json!(endpoint), "from the span of the attempt");
        for name in ["event_id", "subscription_id", "delay_ms", "error"] {
            assert!(!entry[name].is_null(), "{name} in {line}");
        }
    }
}

#[test]
fn a_text_log_line_has_each_field_once() {
    let (receiver, world) = (Receiver::new(), serve(&[]));
    fail_twice(&world, &receiver);
    let log = world.log();
    let entry = log.lines().find(|line| line.contains("redrive::retry:")).unwrap_or_else(|| panic!("{log}"));
    for name in ["event_id=", "event_type=", " attempt=", "subscription=", "error="] {
        assert_eq!(entry.matches(name).count(), 1, "{name} in {entry}");
    }
}

#[test]
fn a_summary_replaces_the_warnings_about_failed_attempts() {
    let (receiver, mut world) =
        (Receiver::new(), serve(&["--log-retries", "summary", "--log-format", "json"]));
    let endpoint = fail_twice(&world, &receiver);
    assert!(!world.log().contains("redrive::retry"), "{}", world.log());
    world.signal("TERM"); // the end of the service writes the last summary
    assert!(world.ended().success(), "{}", world.log());
    let log = world.log();
    let lines: Vec<Value> = log
        .lines()
        .filter(|line| line.contains("redrive::retry"))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [summary] = lines.as_slice() else { panic!("{log}") };
    assert_eq!((&summary["subscription"], &summary["failed_attempts"]), (&json!(endpoint), &json!(2)));
    assert_eq!(summary["target"], json!("redrive::retry_summary"));
}
