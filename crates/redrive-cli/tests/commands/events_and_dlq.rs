//! `redrive publish`, `events list`, `events show` and `dlq …`, through a running server.

use serde_json::{Value, json};

use super::receiver::Receiver;
use super::world::{World, until};

/// Server with one endpoint, which fails every delivery at the first attempt.
fn world() -> (World, Receiver) {
    let (receiver, mut world) = (Receiver::start(500), World::on_file());
    world.serve(&["--allow-range", "127.0.0.0/8", "--max-attempts", "1"]);
    let made =
        through_server(&world, &["endpoints", "add", &receiver.url(), "--pattern", "order.*", "--json"]);
    assert!(made.contains("ep_"), "{made}");
    (world, receiver)
}

fn through_server(world: &World, arguments: &[&str]) -> String {
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

/// Publishes events through the server and waits until they are dead-lettered.
fn create_dead_letters(world: &World, count: usize) -> Vec<String> {
    let publish = |n| through_server(world, &["publish", "order.created", &format!("{{\"order\": {n}}}")]);
    let ids: Vec<_> = (0..count).map(|n| publish(n).trim().to_owned()).collect();
    until("they are dead-lettered", || {
        let dead = json_of(&through_server(world, &["dlq", "list", "--json"]));
        (dead["data"].as_array().unwrap().len() == count).then_some(())
    });
    ids
}

#[test]
fn read_commands_print_the_same_from_a_file_and_through_a_server() {
    let (world, _receiver) = world();
    let ids = create_dead_letters(&world, 3);
    let id = ids[0].as_str();
    for command in [
        &["events", "show", id, "--json"][..],
        &["dlq", "show", id, "--json"],
        &["dlq", "groups", "--json"],
        &["dlq", "retry", "--all", "--type", "order.created", "--dry-run", "--json"],
        &["dlq", "retry", "--all", "--until", "1h", "--dry-run", "--json"],
        &["dlq", "export", "--type", "order.created"],
    ] {
        assert_eq!(through_server(&world, command), in_file(&world, command), "{command:?}");
    }
    for (command, list) in [(["events", "list"], "data"), (["dlq", "list"], "data")] {
        let command = [&command[..], &["--limit", "2", "--json"]].concat();
        let (theirs, own) = (json_of(&through_server(&world, &command)), json_of(&in_file(&world, &command)));
        assert_eq!(theirs["next"], own["next"], "{command:?}");
        for (theirs, own) in theirs[list].as_array().unwrap().iter().zip(own[list].as_array().unwrap()) {
            for name in ["id", "type", "created_at", "errors", "retry_count"] {
                assert_eq!(theirs[name], own[name], "{name} of {theirs}");
            }
        }
        let next = theirs["next"].as_str().map_or_else(|| theirs["next"].to_string(), str::to_owned);
        let rest = json_of(&through_server(&world, &[&command[..], &["--after", &next]].concat()));
        assert_eq!((rest[list].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null), "{rest}");
    }
    let texts = through_server(&world, &["events", "list", "--status", "dlq"])
        + &through_server(&world, &["dlq", "list"]);
    assert!(ids.iter().all(|id| texts.matches(id.as_str()).count() == 2), "{texts}");
    let hint = through_server(&world, &["dlq", "show", id]);
    assert!(hint.contains(&format!("redrive dlq retry {id} --server {}", world.address())), "{hint}");
}

#[test]
fn publish_retry_and_purge_work_through_a_server() {
    let (world, receiver) = world();
    let own = "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19";
    // Numbers are kept exactly.
    let exact = r#"{"amount": 12345678901234567890123.000, "b": 1e2}"#;
    let publish =
        ["publish", "user.created", exact, "--id", own, "--meta", "source=cron", "--delay", "1h", "--json"];
    assert_eq!(json_of(&through_server(&world, &publish)), json!({"id": own, "duplicate": false}));
    assert_eq!(json_of(&through_server(&world, &publish)), json!({"id": own, "duplicate": true}));
    let shown = in_file(&world, &["events", "show", own, "--json"]);
    assert!(shown.contains("12345678901234567890123.000") && shown.contains(r#""source":"cron""#), "{shown}");

    let ids = create_dead_letters(&world, 3);
    receiver.respond_with(204);
    let sent = json_of(&through_server(
        &world,
        &["dlq", "retry", &ids[0], "--payload", r#"{"order": 1.50}"#, "--json"],
    ));
    assert_eq!(sent, json!({"id": ids[0]}));
    until("it was received", || {
        receiver.requests().iter().any(|got| got.body.contains("1.50")).then_some(())
    });
    let again = world.command(&["dlq", "retry", &ids[0], "--server", &world.address()]).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("not in the dead-letter queue"), "{again:?}");

    let sent =
        json_of(&through_server(&world, &["dlq", "retry", "--all", "--rate", "100/s", "--yes", "--json"]));
    assert_eq!(sent, json!({"matched": 2, "retried": 2, "next": null}));
    until("both were received", || (receiver.requests().len() >= 3 + 3).then_some(()));
    receiver.respond_with(500);
    until("the dead-letter queue is empty", || {
        through_server(&world, &["dlq", "list"]).contains("is empty").then_some(())
    });
    create_dead_letters(&world, 1);
    let refused = world
        .command(&["dlq", "purge", "--older-than", "0s", "--server", &world.address()])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("add --yes"), "{refused:?}");
    let purged = through_server(&world, &["dlq", "purge", "--older-than", "0s", "--yes", "--json"]);
    assert_eq!(json_of(&purged), json!({"purged": 1}));
}

#[test]
fn a_missing_token_is_reported_with_a_remedy() {
    let mut world = World::on_file();
    world.serve(&[]);
    let made = in_file(&world, &["tokens", "create", "--name", "shop", "--scope", "publish", "--json"]);
    let token = json_of(&made)["token"].as_str().unwrap().to_owned();
    let ask = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        command.args(["--server", &world.address()]);
        command
    };
    let refused = until("the server requires tokens", || {
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
