//! Output for people: tables without a terminal, confirmations, filters, `stats` and manual pages.

use serde_json::{Value, json};

use super::receiver::Receiver;
use super::world::{World, until};

/// A database with this many dead letters of the type `bad`, and with messages in review.
fn with_dead_letters(world: &World, errors: &[&str]) {
    world.publish("seed", "1");
    let file = rusqlite::Connection::open(world.folder.path().join("redrive.db")).unwrap();
    for (n, error) in errors.iter().enumerate() {
        let errors = json!([error]).to_string();
        file.execute(
            "INSERT INTO event (key, id, type, payload, status, retry_count, last_error, created_at, updated_at)
             VALUES (?1, randomblob(16), 'bad', '1', 4, 1, ?2, 1000, 1000)",
            rusqlite::params![n as i64 + 10, errors],
        )
        .unwrap();
        for table in [
            "dead_letter (event_key, type, created_at, dlq_at, reason, fingerprint, error)
             VALUES (?1, 'bad', 1000, 1000, 'permanent', ?2, ?2)",
            "attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error)
             VALUES (?1, 'shipping', 1, 1000, 1, '\"permanent\"', 0, ?2)",
        ] {
            file.execute(&format!("INSERT INTO {table}"), rusqlite::params![n as i64 + 10, error]).unwrap();
        }
    }
}

/// Stores messages in review: queue and error of each.
pub(super) fn with_reviews(world: &World, tasks: &[(&str, &str)]) {
    world.publish("seed", "1");
    let file = rusqlite::Connection::open(world.folder.path().join("redrive.db")).unwrap();
    for (n, (queue, error)) in tasks.iter().enumerate() {
        let task = json!({
            "message_id": format!("0190b3c4-7d2e-7a11-8f00-00000000000{n}"), "original_payload": {"text": "{}"},
            "original_queue": queue, "error_reason": error, "retry_count": 5, "max_retries": 3, "next_retry_at_ms": 0,
            "via": "retry_message", "received_at": 1000, "first_failed_at": 1000, "fingerprint": ""
        });
        let values = rusqlite::params![n as i64 + 100, task.to_string()];
        file.execute(
            "INSERT INTO event (key, id, type, payload, status, retry_count, created_at, updated_at)
             VALUES (?1, randomblob(16), 'retry.task', ?2, 4, 1, 1000, 1000)",
            values,
        )
        .unwrap();
        file.execute(
            "INSERT INTO dead_letter (event_key, type, created_at, dlq_at, reason, fingerprint, error)
             VALUES (?1, 'retry.task', 1000, 1000, 'permanent', 'in review', 'in review')",
            [n as i64 + 100],
        )
        .unwrap();
    }
}

/// The output of a command without a terminal, as wide as 40 columns.
fn piped(world: &World, arguments: &[&str]) -> String {
    let output = world.command(arguments).env("COLUMNS", "40").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn nothing_is_cut_without_a_terminal() {
    let world = World::on_file();
    let long_type = format!("order.{}", "x".repeat(200));
    let id = world.publish(&long_type, "1");
    let text = piped(&world, &["events", "list"]);
    assert!(text.contains(&long_type) && text.contains(&id) && !text.contains('…'), "{text}");

    let long_error = format!("the card was refused {}", "because ".repeat(30));
    let long_error = long_error.trim();
    with_dead_letters(&world, &[long_error]);
    for command in [["dlq", "list"], ["dlq", "groups"], ["events", "list"]] {
        let text = piped(&world, &command);
        assert!(text.contains(long_error) && !text.contains('…'), "{command:?}: {text}");
    }

    let url = format!("http://127.0.0.1:9/{}", "a".repeat(100));
    let description = format!("the shop of {}", "Anna ".repeat(20));
    let description = description.trim();
    let endpoint =
        world.json(&["endpoints", "add", &url, "--pattern", &long_type, "--description", description]);
    let text = piped(&world, &["endpoints", "list"]);
    for part in [endpoint["id"].as_str().unwrap(), &url, description, &long_type] {
        assert!(text.contains(part), "{part}: {text}");
    }
    with_reviews(&world, &[("orders", "a"), ("orders", "a")]);
    let text = piped(&world, &["scheduler", "review", "list"]);
    for part in ["00000000000", "00000000001", "5 retries (limit 3)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let line = text.lines().find(|line| line.contains("0190b3c4-7d2e-7a11-8f00-000000000000"));
    assert!(line.is_some(), "the whole message id: {text}");
}

#[test]
fn redriving_and_purging_many_say_the_number_and_need_a_yes() {
    for by_server in [false, true] {
        let mut world = World::on_file();
        with_dead_letters(&world, &["a", "a", "b"]);
        if by_server {
            // The redriven events wait for it. Without a subscription they would be dead again.
            world.json(&["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "bad"]);
            world.serve_for_commands();
        }
        let said = world.refused(1, &["dlq", "retry", "--all", "--rate", "50/s"]);
        assert!(said.contains("redrive 3 dead letters at 50/s, which takes about 60ms"), "{said}");
        assert!(said.contains("--yes") && said.contains("--dry-run"), "{said}");
        let purge = ["dlq", "purge", "--older-than", "1d"];
        let said = world.refused(1, &purge);
        assert!(said.contains("delete 3 dead letters at least 1day old") && said.contains("--yes"), "{said}");
        let dry = world.text(&[&purge[..], &["--dry-run"]].concat());
        assert_eq!(dry, "3 dead letters would be deleted; nothing was changed\n");
        assert_eq!(world.json(&[&purge[..], &["--dry-run"]].concat())["matched"], 3);
        assert_eq!(world.json(&["dlq", "list"])["data"].as_array().unwrap().len(), 3, "nothing was changed");

        let retry = ["dlq", "retry", "--all", "--text", "a", "--rate", "1000/s", "--yes"];
        let output = world.run(&retry);
        assert!(output.status.success(), "{output:?}");
        let note = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(note.contains("redriving 2 dead letters at 1000/s, which takes about 2ms"), "{note}");
        assert!(world.text(&[&purge[..], &["--yes"]].concat()).contains("1 dead letter deleted"));
        assert_eq!(world.text(&["dlq", "retry", "--all"]), "No dead letter matches.\n");
    }
}

/// The words of a command on the review queue.
fn review<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["scheduler", "review"][..], words].concat()
}

#[test]
fn messages_in_review_are_filtered_grouped_and_decided_together() {
    let world = World::on_file();
    with_reviews(
        &world,
        &[("orders", "timeout"), ("orders", "timeout"), ("orders", "no such card"), ("mails", "timeout")],
    );
    let count = |words: &[&str]| world.json(&review(words))["data"].as_array().unwrap().len();
    assert_eq!(count(&["list"]), 4);
    assert_eq!(count(&["list", "--from", "orders"]), 3);
    assert_eq!(count(&["list", "--from", "orders", "--error", "timeout"]), 2);
    assert_eq!(count(&["list", "--since", "1h"]), 0);
    let none = world.text(&review(&["list", "--from", "nobody"]));
    assert_eq!(none, "No message in review matches.\n");

    let groups = world.json(&review(&["groups"]));
    let groups: Vec<(u64, &str, &str)> = groups["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| {
            let text = |name: &str| group[name].as_str().unwrap();
            (group["count"].as_u64().unwrap(), text("original_queue"), text("error_reason"))
        })
        .collect();
    assert_eq!(groups[0], (2, "orders", "timeout"));
    assert!(groups.contains(&(1, "mails", "timeout")) && groups.len() == 3, "{groups:?}");
    assert!(world.text(&review(&["groups", "--from", "mails"])).contains("timeout"));

    assert!(world.refused(2, &review(&["retry"])).contains("<TASK"));
    let id = world.json(&review(&["list"]))["data"][0]["id"].as_str().unwrap().to_owned();
    assert!(world.refused(2, &review(&["retry", &id, "--from", "x"])).contains("a filter goes with --all"));
    let retry = ["retry", "--all", "--from", "orders", "--error", "timeout"];
    let said = world.refused(1, &review(&retry));
    assert!(said.contains("republish 2 messages") && said.contains("add --yes"), "{said}");
    let dry = world.json(&review(&[&retry[..], &["--dry-run"]].concat()));
    assert_eq!(dry, json!({"matched": 2, "decided": 0}));
    let done = world.text(&review(&[&retry[..], &["--yes"]].concat()));
    assert_eq!(done, "2 messages go to their queues again.\n", "a database stores only the decision");
    assert_eq!(count(&["list"]), 2);
    let discarded = world.json(&review(&["discard", "--all", "--why", "old", "--yes"]));
    assert_eq!(discarded, json!({"matched": 2, "decided": 2}));
    assert_eq!(world.text(&review(&["list"])), "The review queue is empty.\n");
}

#[test]
fn attempts_are_filtered_by_failure() {
    let receiver = Receiver::start(204);
    let world = World::through_server();
    let endpoint =
        world.json(&["endpoints", "add", &receiver.url(), "--pattern", "order.*", "--max-attempts", "1"]);
    let id = endpoint["id"].as_str().unwrap();
    let attempts = |more: &[&str]| world.json(&[&["endpoints", "attempts", id], more].concat());
    let until_recorded = |number: usize| {
        until("the attempt is recorded", || {
            (attempts(&[])["data"].as_array().unwrap().len() == number).then_some(())
        });
    };
    assert_eq!(world.text(&["endpoints", "attempts", id, "--failed"]), "No failed attempts.\n");
    world.json(&["publish", "order.created", "1"]);
    until_recorded(1);
    receiver.respond_with(500);
    world.json(&["publish", "order.created", "2"]);
    until_recorded(2);
    let failed = attempts(&["--failed"]);
    let failed = failed["data"].as_array().unwrap();
    assert_eq!((failed.len(), &failed[0]["request"]["status"]), (1, &json!(500)));
}

#[test]
fn stats_count_events_in_a_file_and_through_a_server() {
    let mut world = World::on_file();
    with_dead_letters(&world, &["a", "b"]);
    let counts =
        |stats: &Value| [&stats["pending"], &stats["dlq"], &stats["done"]].map(|n| n.as_u64().unwrap());
    assert_eq!(counts(&world.json(&["stats"])), [1, 2, 0]);
    let text = world.text(&["stats"]);
    assert!(text.contains("dlq              2\n") && text.contains("pending          1\n"), "{text}");
    world.serve(&[]);
    let output = world.command(&["stats", "--json"]).env("REDRIVE_SERVER", world.address()).output().unwrap();
    let by_server: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(by_server["dlq"], 2, "{by_server}");
}

#[test]
fn every_command_has_a_manual_page() {
    let world = World::on_file();
    let page = world.text(&["man"]);
    assert!(page.contains(".TH redrive 1") && page.contains("redrive\\-dlq(1)"), "{page}");
    let said = world.text(&["man", "--dir", "man1"]);
    assert!(said.contains("pages written to man1"), "{said}");
    let read = |name: &str| std::fs::read_to_string(world.folder.path().join("man1").join(name)).unwrap();
    for name in [
        "redrive",
        "redrive-serve",
        "redrive-doctor",
        "redrive-dlq-retry",
        "redrive-scheduler-review-discard",
    ] {
        let page = read(&format!("{name}.1"));
        assert!(page.contains(&format!(".TH {name} 1")), "{page}");
    }
    assert!(read("redrive-dlq-retry.1").contains("\\-\\-dry\\-run"));
    let pages = std::fs::read_dir(world.folder.path().join("man1")).unwrap().count();
    assert!(pages > 40, "{pages}");
}

#[test]
fn events_show_and_list_print_the_failed_attempts() {
    let world = World::on_file();
    with_dead_letters(&world, &["no stock"]);
    let list = piped(&world, &["events", "list"]);
    assert!(list.contains("1× no stock"), "{list}");
    let id = world.json(&["dlq", "list"])["data"][0]["id"].as_str().unwrap().to_owned();
    let text = world.text(&["events", "show", &id]);
    let line = text.lines().find(|line| line.contains("failures")).unwrap();
    assert_eq!(line.split_whitespace().last(), Some("1"), "{text}");
}
