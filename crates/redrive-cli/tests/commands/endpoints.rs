//! `redrive endpoints …`

use redrive_servers::Schema;
use serde_json::json;

use super::receiver::Receiver;
use super::world::{World, until};

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3";

#[test]
fn endpoint_commands_behave_alike_on_a_file_and_through_a_server() {
    let receiver = Receiver::start(204);
    for world in [World::on_file(), World::through_server()] {
        let url = receiver.url();
        let made = world.json(&[
            "endpoints",
            "add",
            &url,
            "--pattern",
            "order.*",
            "--pattern",
            "invoice.paid",
            "--description",
            "shop",
            "--header",
            "X-Shop: s3cret-header",
            "--timeout",
            "5s",
            "--per-second",
            "50",
            "--concurrency",
            "3",
            "--max-attempts",
            "7",
            "--base-delay",
            "2s",
            "--max-delay",
            "10m",
            "--multiplier",
            "3",
            "--jitter",
            "full",
        ]);
        let id = made["id"].as_str().unwrap();
        let secret = made["secret"].as_str().unwrap();
        assert!(secret.starts_with("whsec_"), "{made}");
        assert_eq!(made["patterns"], json!(["order.*", "invoice.paid"]));
        assert_eq!(
            (&made["timeout_ms"], &made["per_second"], &made["concurrency"]),
            (&json!(5000), &json!(50.0), &json!(3))
        );
        let retry = json!({"max_attempts": 7, "base_delay_ms": 2000, "max_delay_ms": 600_000, "multiplier": 3.0, "jitter": "full"});
        assert_eq!(made["retry"], retry);

        // No secret is shown again.
        let listed = world.json(&["endpoints", "list"]);
        assert_eq!(listed["data"][0]["id"], id);
        let shown = [
            listed.to_string(),
            world.text(&["endpoints", "list"]),
            world.text(&["endpoints", "show", id]),
            world.json(&["endpoints", "show", id]).to_string(),
        ];
        for text in &shown {
            assert!(text.contains(id) && !text.contains(secret) && !text.contains("s3cret-header"), "{text}");
        }
        assert!(shown[2].contains("x-shop") && shown[2].contains("7 attempts"), "{}", shown[2]);

        let said = world.text(&["endpoints", "test", id]);
        assert!(said.contains("answered 204"), "{said}");
        let got = receiver.requests().pop().unwrap();
        assert_eq!(got.header("x-shop"), Some("s3cret-header"));
        assert!(got.body.contains("redrive.test") && got.header("webhook-signature").is_some(), "{got:?}");
        receiver.respond_with(500);
        let said = world.refused(1, &["endpoints", "test", id]);
        assert!(said.contains("did not accept it"), "{said}");
        receiver.respond_with(204);

        let changed = world.json(&[
            "endpoints",
            "update",
            id,
            "--pattern",
            "*",
            "--no-retry",
            "--no-per-second",
            "--no-headers",
        ]);
        assert_eq!(
            (&changed["patterns"], &changed["retry"], &changed["per_second"]),
            (&json!(["*"]), &json!(null), &json!(null))
        );
        assert_eq!(
            (&changed["header_names"], &changed["concurrency"]),
            (&json!([]), &json!(3)),
            "other fields are unchanged"
        );
        assert!(
            world
                .refused(1, &["endpoints", "update", id, "--url", &url, "--if-version", "1"])
                .contains("changed meanwhile")
        );
        assert!(world.refused(2, &["endpoints", "update", id]).contains("nothing to change"));

        assert!(world.text(&["endpoints", "disable", id]).contains("dead-lettered"));
        assert!(world.text(&["endpoints", "list"]).contains("disabled (by hand)"));
        assert!(world.text(&["endpoints", "enable", id]).contains("redrive replay endpoint"));
        assert_eq!(world.json(&["endpoints", "show", id])["enabled"], true);

        let rotated =
            world.json(&["endpoints", "rotate-secret", id, "--overlap", "1h", "--signing", "ed25519"]);
        assert!(rotated["data"][0]["secret"].as_str().unwrap().starts_with("whpk_"), "{rotated}");
        assert!(rotated["data"][1]["expires_at"].is_string(), "{rotated}");
        let said = world.text(&["endpoints", "rotate-secret", id, "--overlap", "0s", "--secret", SECRET]);
        assert!(said.contains(SECRET) && said.contains("signs no more"), "{said}");

        assert!(world.text(&["endpoints", "attempts", id]).contains("No attempts"));
        assert!(world.text(&["endpoints", "remove", id]).contains("is removed"));
        assert!(world.refused(1, &["endpoints", "show", id]).contains("there is no endpoint"));
        assert!(world.text(&["endpoints", "list"]).contains("redrive endpoints add"));
    }
}

#[test]
fn a_running_server_delivers_to_an_endpoint_added_in_its_file() {
    let receiver = Receiver::start(204);
    let mut world = World::on_file();
    world.serve(&["--allow-range", "127.0.0.0/8"]);
    let made = world.json(&["endpoints", "add", &receiver.url(), "--pattern", "order.*", "--secret", SECRET]);
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!(made["secret"], SECRET);
    world.wait_for_endpoint(&id);
    let event = world.publish("order.created", r#"{"order":7}"#);
    let got = until("the message was received", || receiver.requests().pop());
    assert_eq!(got.header("webhook-id"), Some(event.as_str()));
    let attempts = until("the attempt is recorded", || {
        let attempts = world.json(&["endpoints", "attempts", &id]);
        attempts["data"][0].is_object().then_some(attempts)
    });
    assert_eq!(
        (&attempts["data"][0]["event_id"], &attempts["data"][0]["request"]["status"]),
        (&json!(event), &json!(204))
    );
    assert!(world.text(&["endpoints", "attempts", &id]).contains(&event));
}

#[test]
fn a_publish_into_a_file_leaves_matching_to_the_dispatching_process() {
    let (receiver, world) = (Receiver::start(204), World::on_file());
    world.json(&["endpoints", "add", &receiver.url(), "--pattern", "order.*"]);
    let published = world.json(&["publish", "order.created", "{}"]);
    let event = world.json(&["events", "show", published["id"].as_str().unwrap()]);
    // Deliveries for the endpoint alone would leave out the subscriptions of the program that dispatches.
    assert_eq!((&event["status"], &event["deliveries"]), (&json!("pending"), &json!([])), "{event}");
}

#[test]
fn invalid_endpoint_commands_are_refused_with_a_remedy() {
    let world = World::on_file();
    assert!(world.refused(1, &["endpoints", "list"]).contains("--db PATH"));
    assert!(world.refused(2, &["endpoints", "add", "ftp://x", "--pattern", "*"]).contains("https://"));
    assert!(world.refused(2, &["endpoints", "add", "https://example.com"]).contains("--pattern"));
    let said = world.refused(2, &["endpoints", "add", "http://10.0.0.1/", "--pattern", "*"]);
    assert!(said.contains("allow-range"), "{said}");
    assert!(world.refused(2, &["endpoints", "show", "ep_x"]).contains("redrive endpoints list"));
    assert!(
        world
            .refused(2, &["endpoints", "add", "http://127.0.0.1/", "--pattern", "*", "--timeout", "1h"])
            .contains("timeout_ms")
    );
    let said = world.refused(1, &["endpoints", "list", "--server", "http://127.0.0.1:1"]);
    assert!(said.contains("redrive serve"), "{said}");
    assert!(
        world
            .refused(2, &["endpoints", "list", "--server", "localhost"])
            .contains("https://events.example.com")
    );
    assert!(
        world
            .refused(2, &["endpoints", "list", "--server", "http://127.0.0.1:1", "--db", "x.db"])
            .contains("not both")
    );
}

#[test]
fn the_db_flag_overrides_redrive_server() {
    let world = World::on_file();
    world.json(&["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "*"]);
    let listed = world
        .command(&["endpoints", "list", "--db", "redrive.db", "--json"])
        .env("REDRIVE_SERVER", "http://127.0.0.1:1")
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let asked =
        world.command(&["endpoints", "list"]).env("REDRIVE_SERVER", "http://127.0.0.1:1").output().unwrap();
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
}

#[test]
fn no_second_key_is_created_for_a_database_with_endpoints() {
    let world = World::on_file();
    let output = world.run(&["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "*"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("did not exist and was created")
            && said.contains("redrive.db.key")
            && said.contains("keep a copy"),
        "{said}"
    );
    std::fs::rename(world.folder.path().join("redrive.db.key"), world.folder.path().join("moved")).unwrap();
    let said = world.refused(1, &["endpoints", "list"]);
    assert!(said.contains("--secret-key-file") && said.contains("--server"), "{said}");
    assert!(!world.folder.path().join("redrive.db.key").exists());
    assert_eq!(
        world.json(&["endpoints", "list", "--secret-key-file", "moved"])["data"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn endpoint_commands_on_postgresql_need_the_servers_key() {
    let world = World::on_file();
    let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
    let db = schema.address();
    let said = world.refused(1, &["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "*", "--db", &db]);
    assert!(said.contains("--secret-key-file"), "{said}");
    std::fs::write(world.folder.path().join("key"), "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n")
        .unwrap();
    let on = ["--db", &db, "--secret-key-file", "key"];
    let made =
        world.json(&[&["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "*"], &on[..]].concat());
    let listed = world.json(&[&["endpoints", "list"], &on[..]].concat());
    assert_eq!(listed["data"][0]["id"], made["id"]);
}

#[test]
fn adding_an_endpoint_says_when_events_are_dead_and_how_to_change_it() {
    let world = World::on_file();
    let said = world.text(&["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "*"]);
    for part in ["dead after 5 attempts in 15 seconds", "--retry-preset standard"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let id = said.split_whitespace().find(|word| word.starts_with("ep_")).unwrap();
    let shown = world.text(&["endpoints", "show", id]);
    assert!(shown.contains("server default"), "{shown}");
}

#[test]
fn a_reduced_rate_is_shown() {
    let (receiver, world) = (Receiver::start(429), World::through_server());
    let made = world.json(&["endpoints", "add", &receiver.url(), "--pattern", "*"]);
    let id = made["id"].as_str().unwrap();
    world.publish("order.created", "1");
    until("the rate is reduced", || world.json(&["endpoints", "show", id])["state"]["reduced_rate"].as_f64());
    let shown = world.text(&["endpoints", "show", id]);
    assert!(shown.contains("reduced to"), "{shown}");
}
