//! `redrive doctor`: what needs a person is found in a database and through a server, with exit code 1.

use std::process::Output;

use serde_json::Value;

use super::world::{World, until};

const HOURS: i64 = 3_600_000;

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// A database in which every check of work finds something: a failing endpoint, dead letters, a message in review, an orphaned
/// subscription and an old backlog.
fn world() -> (World, String) {
    let world = World::on_file();
    let endpoint =
        ["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "order.*", "--description", "the shop"];
    let endpoint = world.json(&endpoint)["id"].as_str().unwrap().to_owned();
    let file = rusqlite::Connection::open(world.folder.path().join("redrive.db")).unwrap();
    let (now, old) = (now(), now() - 3 * HOURS);
    file.execute_batch(&format!(
        "INSERT INTO event (key, id, type, payload, status, created_at, updated_at) VALUES
           (1, randomblob(16), 'order.created', '1', 4, {old}, {old}),
           (2, randomblob(16), 'retry.task', '{{\"message_id\":\"m-1\"}}', 4, {old}, {old}),
           (3, randomblob(16), 'order.created', '1', 5, {old}, {old}),
           (4, randomblob(16), 'order.created', '1', 5, {now}, {now});
         INSERT INTO dead_letter (event_key, type, created_at, dlq_at, reason, fingerprint, error) VALUES
           (1, 'order.created', {old}, {old}, 'permanent', 'no', 'no'), (2, 'retry.task', {old}, {old}, 'permanent', 'no', 'no');
         INSERT INTO delivery (event_key, subscription, status, due_at, updated_at) VALUES
           (3, 'gone', 0, 9000000000000000, {old}), (4, '{endpoint}', 0, {now} + 600000, {now});
         INSERT INTO document (key, version, body, created_at, updated_at) VALUES
           ('health/{endpoint}', 1, '{{\"failing_since\":{old},\"count\":1}}', {old}, {old});"
    ))
    .unwrap();
    (world, endpoint)
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The verdict of a check and its text.
fn finding(report: &Value, name: &str) -> (String, String) {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == name);
    let check = check.unwrap_or_else(|| panic!("no check {name}: {report:#}"));
    (check["verdict"].as_str().unwrap().to_owned(), check["found"].as_str().unwrap().to_owned())
}

fn finds_everything(report: &Value, endpoint: &str, more: &[(&str, &str, &str)]) {
    assert_eq!(report["ok"], false, "{report:#}");
    let endpoints = format!("{endpoint} (the shop) failing for 3h");
    for (name, verdict, says) in [
        ("endpoints", "act", endpoints.as_str()),
        ("review", "act", "1 message in review, the oldest for 3h"),
    ]
    .iter()
    .chain(more)
    {
        let (found_verdict, found) = finding(report, name);
        assert_eq!((found_verdict.as_str(), found.contains(says)), (*verdict, true), "{name}: {found}");
    }
}

#[test]
fn doctor_finds_what_needs_a_person_in_a_file_and_through_a_server() {
    let (mut world, endpoint) = world();
    let output = world.command(&["doctor", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("need a person"), "{output:?}");
    // The other dead event is the message in review.
    let parked = format!("{endpoint}: 1 parked (the oldest published ");
    let in_file = [
        ("parked", "act", parked.as_str()),
        ("dead letters", "act", "1 event"),
        ("deliveries", "act", "1 for \"gone\""),
        ("parked", "act", "gone: 1 in the backlog (the oldest published 3h ago)"),
    ];
    finds_everything(&report(&output), &endpoint, &in_file);
    let text = String::from_utf8(world.command(&["doctor"]).output().unwrap().stdout).unwrap();
    assert!(text.contains("ACT   review") && text.contains("redrive scheduler review list"), "{text}");

    // The server dead-letters the backlog of the subscription that is gone.
    world.serve(&["--allow-range", "127.0.0.0/8"]);
    let report = until("the orphaned delivery is dead", || {
        let output =
            world.command(&["doctor", "--json"]).env("REDRIVE_SERVER", world.address()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let report = report(&output);
        finding(&report, "dead letters").1.contains("2 events").then_some(report)
    });
    finds_everything(&report, &endpoint, &[("deliveries", "ok", ""), ("parked", "warn", &parked)]);
    for name in ["server", "clocks"] {
        assert_eq!(finding(&report, name).0, "ok", "{report:#}");
    }
    assert_eq!(report["database"], world.address());
}

#[test]
fn doctor_of_a_healthy_server_ends_with_success_and_of_a_missing_one_with_a_failure() {
    let mut world = World::on_file();
    world.serve(&[]);
    let address = world.address();
    let healthy = world.command(&["doctor", "--server", &address, "--json"]).output().unwrap();
    assert!(healthy.status.success(), "{healthy:?}");
    assert_eq!(report(&healthy)["ok"], true);
    world.stop();
    let missing = world.command(&["doctor", "--server", &address, "--json"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    let (verdict, found) = finding(&report(&missing), "server");
    assert!(verdict == "fail" && found.contains("cannot reach"), "{found}");
}

#[test]
#[cfg(unix)]
fn doctor_warns_of_a_key_that_others_can_read_and_fails_without_the_key() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::on_file();
    world.json(&["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "*"]);
    let key = world.folder.path().join("redrive.db.key");
    let look = || report(&world.command(&["doctor", "--json"]).output().unwrap());
    assert_eq!(finding(&look(), "key").0, "ok");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (verdict, found) = finding(&look(), "key");
    assert!(verdict == "warn" && found.contains("mode 644"), "{found}");
    std::fs::remove_file(&key).unwrap();
    let (verdict, found) = finding(&look(), "key");
    assert!(verdict == "fail" && found.contains("redrive.db.key cannot be read"), "{found}");
    assert!(!key.exists(), "doctor creates no key");
}
