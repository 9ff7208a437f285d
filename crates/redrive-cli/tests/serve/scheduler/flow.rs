//! Republish, review and retry by hand.

use std::sync::Arc;

use lapin::BasicProperties;
use redrive_api::review::{DiscardMessage, ReleaseMessage};
use redrive_servers::RabbitMq;
use serde_json::{Value, json};

use super::broker::failure;
use super::world::{Shop, in_review, metric, one_in_review};
use crate::world::{TestDatabase, World};

/// Sets only the broker, the database and a free port.
#[test]
fn defaults_use_the_specified_queues() {
    let server = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
    let shop = Shop::at(server.url(), "");
    assert_eq!(
        (shop.retry_queue.as_str(), shop.review_queue.as_str()),
        ("retry.scheduled", "manual-review.pending")
    );
    let database = Arc::new(TestDatabase::postgres());
    let address = database.name();
    let variables =
        [("HTTP_PORT", "0"), ("RABBITMQ_URL", server.url().as_str()), ("DATABASE_URL", address.as_str())]
            .map(|(name, value)| (name, value.to_owned()));
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let world = World::spawn(Arc::clone(&database), &["scheduler"], &variables);
    world.until("it is ready", || world.get("/readyz").status == 200);

    let began = std::time::Instant::now();
    shop.client.send_failure("retry.scheduled", &failure("m-1", "orders", 0));
    let message = shop.client.next("orders", || world.log());
    let took = began.elapsed().as_millis();
    assert!((1_950..8_000).contains(&took), "2 s and up to 1 s more: {took} ms");
    assert_eq!((message.body.as_str(), message.id().as_str()), (r#"{"order": 7}"#, "m-1"));
    assert_eq!(message.number("redrive-retry-count"), Some(1));

    // Three retries by default.
    shop.client.send_failure("retry.scheduled", &failure("m-1", "orders", 3));
    let review = shop.client.next("manual-review.pending", || world.log()).json();
    assert_eq!((&review["message_id"], &review["reason"]), (&json!("m-1"), &json!("retries_exhausted")));
    assert!(world.log().contains("retry-scheduler"), "{}", world.log());
    drop(world);
}

#[test]
fn the_four_metrics_are_as_specified() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let world = shop.schedule(&database, &[]);
    let orders = &shop.orders;
    shop.client.send_failure(&shop.retry_queue, &failure("m-1", orders, 0));
    shop.client.next(orders, || world.log());
    shop.client.send_failure(&shop.retry_queue, &failure("m-1", orders, 3));
    one_in_review(&world);
    let count = |name: &str| metric(&world, name);
    world.until("it is counted", || {
        count(&format!("retries_exhausted_total{{queue=\"{orders}\"}}")) == Some(1)
    });
    let scheduled = format!("retries_scheduled_total{{queue=\"{orders}\"}}");
    assert_eq!(count(&scheduled), Some(1), "an exhausted message is not scheduled");
    for (status, expected) in [("success", 1), ("failed", 0)] {
        let name = format!("retries_executed_total{{queue=\"{orders}\",status=\"{status}\"}}");
        assert_eq!(count(&name), Some(expected), "{name}");
    }
    assert_eq!(count("retry_queue_depth"), Some(0));
    shop.client.send_failure(&shop.retry_queue, &{
        let mut later = failure("m-2", orders, 0);
        let in_an_hour = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
            + std::time::Duration::from_secs(3600);
        later["next_retry_at_ms"] = json!(in_an_hour.as_millis().to_string());
        later
    });
    world.until("it waits", || count("retry_queue_depth") == Some(1));
    let page = world.get("/metrics");
    assert!(page.header("content-type").unwrap().starts_with("text/plain"), "{page:?}");
    for line in [
        "# TYPE retries_scheduled_total counter",
        "# TYPE retries_executed_total counter",
        "# HELP retries_exhausted_total Messages moved to manual review after max retries",
        "# TYPE retries_exhausted_total counter",
        "# HELP retry_queue_depth Pending retry tasks",
        "# TYPE retry_queue_depth gauge",
        "# TYPE redrive_scheduler_drift_seconds histogram",
        "# TYPE redrive_scheduler_confirm_seconds histogram",
        "redrive_scheduler_connected{purpose=\"consume\"} 1",
        "redrive_scheduler_connected{purpose=\"publish\"} 1",
        "redrive_scheduler_reviewed_total{reason=\"retries_exhausted\"} 1",
        concat!("redrive_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(page.body.lines().any(|found| found == line), "{line} in {}", page.body);
    }
}

#[test]
fn reviews_are_decided_by_command_on_the_database_by_server_and_by_http() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let (shop, database) = (Shop::new(), Arc::new(database));
        let world = shop.schedule(&database, &[]);
        shop.client.send_failure(&shop.retry_queue, &failure("m-1", &shop.orders, 0));
        shop.client.next(&shop.orders, || world.log());
        shop.client.send_failure(&shop.retry_queue, &failure("m-1", &shop.orders, 3));
        let id = one_in_review(&world)["id"].as_str().unwrap().to_owned();

        // Command and HTTP show the same.
        let server = format!("http://{}", world.address);
        let review = |words: &[&str]| database.text(&[&["scheduler", "review"], words].concat());
        let json = |words: &[&str]| -> Value { serde_json::from_str(&review(words)).unwrap() };
        let by_http = world.get("/v1/review").ok(200);
        assert_eq!(json(&["list", "--json"]), by_http);
        assert_eq!(json(&["list", "--json", "--server", &server]), by_http);
        let detail = world.get(&format!("/v1/review/{id}")).ok(200);
        assert_eq!(json(&["show", &id, "--json"]), detail);
        assert_eq!(json(&["show", &id, "--json", "--server", &server]), detail);
        assert_eq!((&detail["status"], &detail["in_review"]), (&json!("failed"), &json!(true)));
        assert_eq!(detail["history"].as_array().unwrap().len(), 2, "{detail}");
        assert_eq!(detail["original_payload"], json!({"text": r#"{"order": 7}"#}));
        let list = review(&["list"]);
        assert!(list.contains(&id) && list.contains("3 retries (limit 3)"), "{list}");
        let text = review(&["show", &id]);
        for part in ["in review", "\"order\": 7", "republished", "moved to review", "review retry"] {
            assert!(text.contains(part), "{part} in {text}");
        }

        // Retry by hand, failure, and back to review.
        assert!(review(&["retry", &id]).contains("goes to its queue again"));
        let message = shop.client.next(&shop.orders, || world.log());
        assert_eq!((message.id().as_str(), message.number("redrive-retry-count")), ("m-1", Some(4)));
        world
            .until("it is retried", || world.get(&format!("/v1/review/{id}")).ok(200)["status"] == "retried");
        world.send("POST", &format!("/v1/review/{id}/retry"), &[], "").problem(409, "not_in_review");
        let said = database.command(&["scheduler", "review", "retry", &id]).output().unwrap();
        assert_eq!(said.status.code(), Some(1), "{said:?}");
        shop.client.send_failure(&shop.retry_queue, &failure("m-1", &shop.orders, 4));
        let second = one_in_review(&world)["id"].as_str().unwrap().to_owned();
        assert_ne!(second, id);

        // Retry to another queue through the server.
        let other = format!("{}.other", shop.orders);
        shop.client.declare(&other);
        review(&["retry", &second, "--queue", &other, "--server", &server]);
        assert_eq!(shop.client.next(&other, || world.log()).id(), "m-1");
        shop.client.delete(&other);

        // Discard by HTTP.
        shop.client.send_failure(&shop.retry_queue, &failure("m-1", &shop.orders, 5));
        let third = one_in_review(&world)["id"].as_str().unwrap().to_owned();
        let decided = world
            .post(
                &format!("/v1/review/{third}/discard"),
                &DiscardMessage { why: Some("cancelled".to_owned()) },
            )
            .ok(202);
        assert_eq!(decided["decision"], "discarded");
        let detail = || world.get(&format!("/v1/review/{third}")).ok(200);
        world.until("it is discarded", || detail()["status"] == "failed" && detail()["in_review"] == false);
        assert_eq!(detail()["by_hand"]["why"], "cancelled");
        assert!(in_review(&world).is_empty());
        assert_eq!(review(&["list"]), "The review queue is empty.");
        assert!(review(&["show", &third]).contains("discarded by local"));
        assert!(shop.client.get(&shop.orders).is_none(), "it was not republished");
    }
}

#[test]
fn an_undecodable_message_is_reviewed_and_retried_to_a_given_queue() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let world = shop.schedule(&database, &[]);
    shop.client.publish(&shop.retry_queue, "what is this", BasicProperties::default());
    let id = one_in_review(&world)["id"].as_str().unwrap().to_owned();
    let retry = format!("/v1/review/{id}/retry");
    world.send("POST", &retry, &[], "").problem(400, "invalid_request");
    let said = database.command(&["scheduler", "review", "retry", &id]).output().unwrap();
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    world.post(&retry, &ReleaseMessage { queue: Some(shop.orders.clone()) }).ok(202);
    assert_eq!(shop.client.next(&shop.orders, || world.log()).body, "what is this");
    world.get("/v1/review/00000000-0000-4000-8000-000000000000").problem(404, "not_found");
    world.get("/v1/review/x").problem(400, "invalid_request");
    world.get("/v1/review?limit=0").problem(400, "invalid_request");
    world.post(&retry, &json!({"que": "x"})).problem(400, "invalid_request");
}

#[test]
fn a_dead_lettered_message_is_retried_without_a_producer() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let world = shop.schedule(&database, &[("DEFAULT_MAX_RETRIES", "2")]);
    let queue = shop.with_dead_letters("mail");
    let properties = BasicProperties::default().with_message_id("mail-1".into());
    shop.client.publish(&queue, "Dear Anna", properties.with_content_type("text/plain".into()));
    for _ in 0..3 {
        shop.client.reject_next(&queue);
    }
    let entry = one_in_review(&world);
    assert_eq!((&entry["message_id"], &entry["original_queue"]), (&json!("mail-1"), &json!(queue)));
    assert_eq!((&entry["retry_count"], &entry["max_retries"]), (&json!(2), &json!(2)), "{entry}");
    shop.client.delete(&queue);
}

#[test]
fn reviews_are_listed_in_pages() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let world = shop.schedule(&database, &[]);
    for n in 0..5 {
        shop.client.send_failure(&shop.retry_queue, &failure(&format!("m-{n}"), &shop.orders, 3));
    }
    world.until("all are in review", || in_review(&world).len() == 5);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = world.get(&format!("/v1/review?limit=2{after}")).ok(200);
        let ids = page["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned());
        seen.extend(ids);
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
        let more = database.text(&["scheduler", "review", "list", "--limit", "2", "--after", next, "--json"]);
        let by_http = world.get(&format!("/v1/review?limit=2{after}")).ok(200);
        assert_eq!(serde_json::from_str::<Value>(&more).unwrap(), by_http);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5);
}

#[test]
fn review_commands_print_the_answers_of_the_api() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let world = shop.schedule(&database, &[]);
    for n in 0..6 {
        shop.client.send_failure(&shop.retry_queue, &failure(&format!("m-{n}"), &shop.orders, 3));
    }
    world.until("all are in review", || in_review(&world).len() == 6);
    let ids: Vec<_> = in_review(&world).iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect();
    let address = format!("http://127.0.0.1:{}", world.address.port());
    let sides = [&[][..], &["--server", &address]];
    let command = |words: &[&str], side: &[&str]| -> Value {
        let printed = database.text(&[&["scheduler", "review"], words, &["--json"], side].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
    };
    for side in sides {
        assert_eq!(command(&["list"], side), world.get("/v1/review").ok(200), "{side:?}");
        for id in &ids {
            let by_http = world.get(&format!("/v1/review/{id}")).ok(200);
            assert_eq!(command(&["show", id], side), by_http, "{side:?}");
        }
    }
    let names = |answer: &Value| answer.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for (decision, ids) in ["retry", "discard"].into_iter().zip(ids.chunks(3)) {
        let by_http = world.post(&format!("/v1/review/{}/{decision}", ids[0]), &json!({})).ok(202);
        for (id, side) in ids[1..].iter().zip(sides) {
            let printed = command(&[decision, id], side);
            assert_eq!(names(&printed), names(&by_http), "{decision} {side:?}");
            assert_eq!(printed["decision"], by_http["decision"]);
        }
    }
}
