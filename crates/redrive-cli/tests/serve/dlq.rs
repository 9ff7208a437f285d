//! Dead-letter queue over HTTP: list, group, retry and purge.

use std::path::PathBuf;
use std::time::Duration;

use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, ClassifyError as _};
use redrive::{Event, EventBus, Tracking};
use redrive_api::dlq::{DlqFilter, RetryDeadMany, RetryReport};
use serde_json::{Value, json};

use crate::world::{TestDatabase, World};

/// Stores an event that two subscriptions have dead-lettered.
async fn create_two_dead_letters(database: &TestDatabase) {
    let bus = EventBus::builder().tracking(Tracking::PerSubscription);
    let bus = bus.open(PathBuf::from(database.name())).await.unwrap();
    for name in ["billing", "mail"] {
        let fail =
            move |_: Event| async move { Err::<(), _>(BoxError::from(format!("no {name}")).permanent()) };
        bus.subscribe("*", fail).name(name).register().unwrap();
    }
    bus.start().await.unwrap();
    bus.publish("order.created", &json!({"order": 7})).await.unwrap();
    bus.shutdown().await.unwrap();
}

async fn world(database: TestDatabase) -> World {
    database.create_dead_letters(&["bad.card", "bad.order", "bad.order", "bad.order"]).await;
    database.serve(&[])
}

fn entries(world: &World, query: &str) -> Vec<Value> {
    world.get(&format!("/v1/dlq?{query}")).ok(200)["data"].as_array().unwrap().clone()
}

#[tokio::test]
async fn dead_events_are_listed_grouped_and_shown() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = world(database).await;
        let all = entries(&world, "");
        assert_eq!(all.len(), 4);
        assert_eq!(all[0]["reason"], "attempts_exhausted");
        assert_eq!(entries(&world, "reason=permanent").len(), 1);
        assert_eq!(entries(&world, "type=bad.order").len(), 3);
        assert_eq!(entries(&world, "text=no%20such%20order").len(), 4);
        assert_eq!(entries(&world, "since=2099-01-01T00:00:00Z").len(), 0);
        assert_eq!(entries(&world, "until=2099-01-01T00:00:00%2B02:00").len(), 4);
        let groups = world.get("/v1/dlq/groups").ok(200);
        assert_eq!(
            (&groups["data"][0]["count"], &groups["has_more"]),
            (&json!(4), &json!(false)),
            "{groups}"
        );
        let group = &groups["data"][0];
        assert!(all.iter().any(|dead| dead["id"] == group["example_id"]), "{groups}");
        assert!(
            group["target"].is_string() && group["types"].as_array().is_some_and(|all| !all.is_empty()),
            "{groups}"
        );
        let print = groups["data"][0]["fingerprint"].as_str().unwrap();
        let print: String = print.bytes().map(|byte| format!("%{byte:02x}")).collect();
        assert_eq!(entries(&world, &format!("fingerprint={print}")).len(), 4);
        let one = world.get(&format!("/v1/dlq/{}", all[0]["id"].as_str().unwrap())).ok(200);
        assert_eq!(one["data"][0]["attempts"].as_array().unwrap().len(), 2, "{one}");
        assert_eq!(one["data"][0]["attempts"][0]["class"], "transient");
        assert_eq!(one["data"][0]["payload"], json!({"order": 3}));
        let (mut seen, mut after) = (0, String::new());
        loop {
            let page = world.get(&format!("/v1/dlq?limit=1{after}")).ok(200);
            seen += page["data"].as_array().unwrap().len();
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(seen, 4);
        for bad in ["reason=x", "since=x", "after=1", "limit=0", &format!("text={}", "x".repeat(1001))] {
            world.get(&format!("/v1/dlq?{bad}")).problem(400, "invalid_request");
        }
    }
}

/// Stores dead events with distinct error fingerprints.
async fn create_distinct_dead_letters(database: &TestDatabase, count: usize) {
    let bus = EventBus::open(PathBuf::from(database.name())).await.unwrap();
    let fail = |event: Event| async move { Err::<(), _>(event.event_type().to_string().permanent()) };
    let breaker = BreakerConfig::builder().min_samples(u32::MAX).build().unwrap();
    bus.subscribe("*", fail).name("broken").breaker(breaker).register().unwrap();
    bus.start().await.unwrap();
    // Letters only: fingerprints ignore numbers.
    let letter = |n: usize| char::from(b'g' + u8::try_from(n % 20).unwrap());
    let word = |n: usize| String::from_iter([letter(n / 400), letter(n / 20), letter(n)]);
    let events = (0..count).map(|n| bus.publish(&word(n), &json!(n)).into_event().unwrap());
    bus.append(events.collect()).await.unwrap();
    while !bus.metrics().await.unwrap().depth.is_idle() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn groups_beyond_the_limit_set_has_more() {
    let database = TestDatabase::sqlite();
    create_distinct_dead_letters(&database, 1000).await;
    let world = database.serve(&[]);
    let groups = world.get("/v1/dlq/groups").ok(200);
    assert_eq!((groups["data"].as_array().unwrap().len(), &groups["has_more"]), (999, &json!(true)));
    let one = entries(&world, "limit=1")[0]["id"].as_str().unwrap().to_owned();
    world.send("POST", &format!("/v1/dlq/{one}/retry"), &[], "").ok(202);
    let groups = world.get("/v1/dlq/groups").ok(200);
    assert_eq!((groups["data"].as_array().unwrap().len(), &groups["has_more"]), (999, &json!(false)));
}

#[tokio::test]
async fn a_dead_letter_is_retried_unchanged_or_edited() {
    let world = world(TestDatabase::sqlite()).await;
    let ids: Vec<String> =
        entries(&world, "").iter().map(|dead| dead["id"].as_str().unwrap().to_owned()).collect();
    let back = world.send("POST", &format!("/v1/dlq/{}/retry", ids[0]), &[], "").ok(202);
    assert_eq!(back["id"], ids[0].as_str());
    world.send("POST", &format!("/v1/dlq/{}/retry", ids[0]), &[], "").problem(409, "not_dead");
    world.post(&format!("/v1/dlq/{}/retry", ids[1]), &json!({"payload": {"order": "mended"}})).ok(202);
    let shown = world.get(&format!("/v1/events/{}", ids[1])).ok(200);
    assert_eq!(shown["payload"], json!({"order": "mended"}));
    world.post(&format!("/v1/dlq/{}/retry", ids[3]), &json!({"payload": null})).ok(202);
    assert_eq!(world.get(&format!("/v1/events/{}", ids[3])).ok(200)["payload"], Value::Null);
    world.post(&format!("/v1/dlq/{}/retry", ids[2]), &json!({"pay": 1})).problem(400, "invalid_request");
    world
        .send("POST", &format!("/v1/dlq/{}/retry", ids[2]), &[], "{}")
        .problem(415, "unsupported_media_type");
    let unknown = "/v1/dlq/0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19/retry";
    world.post(unknown, &json!({})).problem(404, "not_found");
    world.post(unknown, &Value::Null).problem(400, "invalid_request");
    assert_eq!(entries(&world, "").len(), 1);
    world.get(&format!("/v1/dlq/{}", ids[0])).problem(409, "not_dead");
}

#[tokio::test]
async fn dead_letters_are_retried_in_pages() {
    let world = world(TestDatabase::sqlite()).await;
    let client = world.client();
    let retry = async |how: RetryDeadMany| client.dlq().retry_many(&how).await.unwrap();
    let filter = DlqFilter { event_type: Some("bad.order".to_owned()), ..DlqFilter::default() };
    let dry = retry(RetryDeadMany { filter, dry_run: true, ..RetryDeadMany::default() }).await;
    assert_eq!(dry, RetryReport { matched: 3, retried: 0, next: None });
    assert_eq!(entries(&world, "").len(), 4);
    let three = RetryDeadMany { limit: Some(3), ..RetryDeadMany::default() };
    let first = retry(RetryDeadMany { rate: Some(10), ..three.clone() }).await;
    assert_eq!((first.matched, first.retried), (3, 3));
    let rest = retry(RetryDeadMany { after: first.next, ..three }).await;
    assert_eq!(rest, RetryReport { matched: 1, retried: 1, next: None });
    assert_eq!(entries(&world, "").len(), 0);
    for bad in [
        json!({}),
        json!({"filter": {}, "limit": 0}),
        json!({"filter": {}, "rate": 1001}),
        json!({"filter": {"typ": "a"}}),
    ] {
        world.post("/v1/dlq/retry", &bad).problem(400, "invalid_request");
    }
}

#[tokio::test]
async fn a_retry_by_filter_affects_only_matching_subscriptions() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        create_two_dead_letters(&database).await;
        let world = database.serve(&[]);
        let all = entries(&world, "");
        assert_eq!(all.len(), 2);
        let id = all[0]["id"].as_str().unwrap();
        let ask = |filter: Value| world.post("/v1/dlq/retry", &json!({"filter": filter})).ok(200);
        let one = json!({"matched": 1, "retried": 1, "next": null});
        assert_eq!(ask(json!({"subscription": "billing"})), one);
        let left = entries(&world, "");
        assert_eq!((left.len(), &left[0]["subscription"]), (1, &json!("mail")), "{left:?}");
        let deliveries = world.get(&format!("/v1/events/{id}")).ok(200)["deliveries"].take();
        // The retried delivery may be in flight.
        let state_of = |name: &str| {
            let all = deliveries.as_array().unwrap();
            all.iter().find(|one| one["subscription"] == name).unwrap()["status"].clone()
        };
        assert!(state_of("billing") != "dlq" && state_of("mail") == "dlq", "{deliveries}");
        assert_eq!(ask(json!({"text": "no billing"})), json!({"matched": 0, "retried": 0, "next": null}));
        assert_eq!(ask(json!({"text": "no mail"})), one);
        assert_eq!(entries(&world, "").len(), 0);
    }
}

#[tokio::test]
async fn old_dead_letters_are_purged() {
    let world = world(TestDatabase::sqlite()).await;
    assert_eq!(world.send("DELETE", "/v1/dlq?older_than=1h", &[], "").ok(200), json!({"purged": 0}));
    world.send("DELETE", "/v1/dlq", &[], "").problem(400, "invalid_request");
    for bad in ["old", "0", "7", "", "-1d", "7dd", "1w", "999999d"] {
        world.send("DELETE", &format!("/v1/dlq?older_than={bad}"), &[], "").problem(400, "invalid_request");
    }
    assert_eq!(world.send("DELETE", "/v1/dlq?older_than=0s", &[], "").ok(200), json!({"purged": 4}));
    assert_eq!(entries(&world, "").len(), 0);
}
