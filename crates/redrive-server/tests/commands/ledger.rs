//! `redrive publish`, `events list`, `events show` and `dlq …`, by a running server.

use serde_json::{Value, json};

use super::receiver::Receiver;
use super::world::{World, until};

/// A server whose one endpoint refuses everything, at once and for good.
fn world() -> (World, Receiver) {
    let (receiver, mut world) = (Receiver::start(500), World::on_a_file());
    world.serve(&["--allow-range", "127.0.0.0/8", "--max-attempts", "1"]);
    let made = by_server(&world, &["endpoints", "add", &receiver.url(), "--pattern", "order.*", "--json"]);
    assert!(made.contains("ep_"), "{made}");
    (world, receiver)
}

fn by_server(world: &World, arguments: &[&str]) -> String {
    let output = world.command(arguments).args(["--server", &world.address()]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn in_file(world: &World, arguments: &[&str]) -> String {
    let output = world.command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Publishes so many by the server, and waits until they are given up.
fn die(world: &World, count: usize) -> Vec<String> {
    let publish = |n| by_server(world, &["publish", "order.created", &format!("{{\"order\": {n}}}")]);
    let ids: Vec<_> = (0..count).map(|n| publish(n).trim().to_owned()).collect();
    until("they are given up", || {
        let dead = json_of(&by_server(world, &["dlq", "list", "--json"]));
        (dead["dead_letters"].as_array().unwrap().len() == count).then_some(())
    });
    ids
}

#[test]
fn what_is_shown_is_the_same_in_the_file_and_by_the_server() {
    let (world, _receiver) = world();
    let ids = die(&world, 3);
    let id = ids[0].as_str();
    for command in [
        &["events", "show", id, "--json"][..],
        &["dlq", "show", id, "--json"],
        &["dlq", "groups", "--json"],
        &["dlq", "retry", "--all", "--type", "order.created", "--dry-run", "--json"],
        &["dlq", "retry", "--all", "--until", "1h", "--dry-run", "--json"],
        &["dlq", "export", "--type", "order.created"],
    ] {
        assert_eq!(by_server(&world, command), in_file(&world, command), "{command:?}");
    }
    for (command, list) in [(["events", "list"], "events"), (["dlq", "list"], "dead_letters")] {
        let command = [&command[..], &["--limit", "2", "--json"]].concat();
        let (theirs, own) = (json_of(&by_server(&world, &command)), json_of(&in_file(&world, &command)));
        assert_eq!(theirs["next"], own["next"], "{command:?}");
        for (theirs, own) in theirs[list].as_array().unwrap().iter().zip(own[list].as_array().unwrap()) {
            for name in ["id", "type", "payload", "created_at", "errors", "retry_count"] {
                assert_eq!(theirs[name], own[name], "{name} of {theirs}");
            }
        }
        let next = theirs["next"].as_str().map_or_else(|| theirs["next"].to_string(), str::to_owned);
        let rest = json_of(&by_server(&world, &[&command[..], &["--after", &next]].concat()));
        assert_eq!((rest[list].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null), "{rest}");
    }
    let texts =
        by_server(&world, &["events", "list", "--status", "dlq"]) + &by_server(&world, &["dlq", "list"]);
    assert!(ids.iter().all(|id| texts.matches(id.as_str()).count() == 2), "{texts}");
    let hint = by_server(&world, &["dlq", "show", id]);
    assert!(hint.contains(&format!("redrive dlq retry {id} --server {}", world.address())), "{hint}");
}

#[test]
fn what_is_published_sent_back_and_deleted_by_the_server_is_so() {
    let (world, receiver) = world();
    let own = "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19";
    // No number changes on its way.
    let exact = r#"{"amount": 12345678901234567890123.000, "b": 1e2}"#;
    let publish =
        ["publish", "user.created", exact, "--id", own, "--meta", "source=cron", "--delay", "1h", "--json"];
    assert_eq!(json_of(&by_server(&world, &publish)), json!({"id": own, "duplicate": false}));
    assert_eq!(json_of(&by_server(&world, &publish)), json!({"id": own, "duplicate": true}));
    let shown = in_file(&world, &["events", "show", own, "--json"]);
    assert!(shown.contains("12345678901234567890123.000") && shown.contains(r#""source":"cron""#), "{shown}");

    let ids = die(&world, 3);
    receiver.answer(204);
    let sent =
        json_of(&by_server(&world, &["dlq", "retry", &ids[0], "--payload", r#"{"order": 1.50}"#, "--json"]));
    assert_eq!(sent, json!({"matched": 1, "retried": 1, "dry_run": false, "failed": []}));
    until("it has come", || receiver.got().iter().any(|got| got.body.contains("1.50")).then_some(()));
    let again = world.command(&["dlq", "retry", &ids[0], "--server", &world.address()]).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("not in the dead-letter queue"), "{again:?}");

    let sent = json_of(&by_server(&world, &["dlq", "retry", "--all", "--rate", "100/s", "--json"]));
    assert_eq!(sent, json!({"matched": 2, "retried": 2, "dry_run": false, "failed": []}));
    until("both have come", || (receiver.got().len() >= 3 + 3).then_some(()));
    receiver.answer(500);
    until("nothing is dead", || by_server(&world, &["dlq", "list"]).contains("is empty").then_some(()));
    die(&world, 1);
    let refused = world
        .command(&["dlq", "purge", "--older-than", "0s", "--server", &world.address()])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("add --yes"), "{refused:?}");
    let purged = by_server(&world, &["dlq", "purge", "--older-than", "0s", "--yes", "--json"]);
    assert_eq!(json_of(&purged), json!({"purged": 1}));
}

#[test]
fn who_has_no_token_is_told_what_to_do() {
    let mut world = World::on_a_file();
    world.serve(&[]);
    let made = in_file(&world, &["tokens", "create", "--name", "shop", "--scope", "publish", "--json"]);
    let token = json_of(&made)["token"].as_str().unwrap().to_owned();
    let ask = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        command.args(["--server", &world.address()]);
        command
    };
    let refused = until("tokens are asked for", || {
        let output = ask(&["publish", "order.created", "1"]).output().unwrap();
        (output.status.code() == Some(1)).then_some(output)
    });
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--token") && said.contains("--id"), "{said}");
    let published = ask(&["publish", "order.created", "1"]).env("REDRIVE_TOKEN", &token).output().unwrap();
    assert!(published.status.success(), "{published:?}");
    let refused = ask(&["dlq", "list"]).env("REDRIVE_TOKEN", &token).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("read"), "{refused:?}");
}
