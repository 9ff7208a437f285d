//! What was given up, and the way back.

use std::path::PathBuf;
use std::time::Duration;

use redrive::{BoxError, BreakerConfig, ClassifyError as _, Event, EventBus, Tracking};
use serde_json::{Value, json};

use crate::world::{Place, World};

/// Leaves an event behind that two subscriptions have given up, each on its own.
async fn die_for_two(place: &Place) {
    let bus = EventBus::builder().tracking(Tracking::PerSubscription);
    let bus = bus.open(PathBuf::from(place.name())).await.unwrap();
    for name in ["ledger", "mail"] {
        let fail =
            move |_: Event| async move { Err::<(), _>(BoxError::from(format!("no {name}")).permanent()) };
        bus.subscribe("*", fail).name(name).register().unwrap();
    }
    bus.start().await.unwrap();
    bus.publish("order.created", &json!({"order": 7})).await.unwrap();
    bus.shutdown().await.unwrap();
}

async fn world(place: Place) -> World {
    place.die(&["bad.card", "bad.order", "bad.order", "bad.order"]).await;
    place.serve(&[])
}

fn entries(world: &World, query: &str) -> Vec<Value> {
    world.get(&format!("/v1/dlq?{query}")).ok(200)["data"].as_array().unwrap().clone()
}

#[tokio::test]
async fn dead_events_are_listed_grouped_and_shown() {
    for place in [Place::file(), Place::server()] {
        let world = world(place).await;
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

/// So many dead events, each with an error of its own kind.
async fn die_of_everything(place: &Place, count: usize) {
    let bus = EventBus::open(PathBuf::from(place.name())).await.unwrap();
    let give_up = |event: Event| async move { Err::<(), _>(event.event_type().to_string().permanent()) };
    let breaker = BreakerConfig::builder().min_samples(u32::MAX).build().unwrap();
    bus.subscribe("*", give_up).name("broken").breaker(breaker).register().unwrap();
    bus.start().await.unwrap();
    // Letters only: numbers do not tell errors apart.
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
async fn of_very_many_groups_the_largest_are_shown_and_it_is_said_that_there_are_more() {
    let place = Place::file();
    die_of_everything(&place, 1000).await;
    let world = place.serve(&[]);
    let groups = world.get("/v1/dlq/groups").ok(200);
    assert_eq!((groups["data"].as_array().unwrap().len(), &groups["has_more"]), (999, &json!(true)));
    let one = entries(&world, "limit=1")[0]["id"].as_str().unwrap().to_owned();
    world.send("POST", &format!("/v1/dlq/{one}/retry"), &[], "").ok(202);
    let groups = world.get("/v1/dlq/groups").ok(200);
    assert_eq!((groups["data"].as_array().unwrap().len(), &groups["has_more"]), (999, &json!(false)));
}

#[tokio::test]
async fn one_goes_back_as_it_was_or_edited() {
    let world = world(Place::file()).await;
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
    world.post("/v1/dlq/0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19/retry", &Value::Null).problem(404, "not_found");
    assert_eq!(entries(&world, "").len(), 1);
    world.get(&format!("/v1/dlq/{}", ids[0])).problem(409, "not_dead");
}

#[tokio::test]
async fn many_go_back_in_parts() {
    let world = world(Place::file()).await;
    let ask = |body: Value| world.post("/v1/dlq/retry", &body).ok(200);
    let dry = ask(json!({"filter": {"type": "bad.order"}, "dry_run": true}));
    assert_eq!(dry, json!({"matched": 3, "retried": 0, "next": null}));
    assert_eq!(entries(&world, "").len(), 4);
    let first = ask(json!({"filter": {}, "limit": 3, "rate": 10}));
    assert_eq!((&first["matched"], &first["retried"]), (&json!(3), &json!(3)));
    let rest = ask(json!({"filter": {}, "limit": 3, "after": first["next"]}));
    assert_eq!(rest, json!({"matched": 1, "retried": 1, "next": null}));
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
async fn only_those_whom_the_filter_means_are_sent_it_again() {
    for place in [Place::file(), Place::server()] {
        die_for_two(&place).await;
        let world = place.serve(&[]);
        let all = entries(&world, "");
        assert_eq!(all.len(), 2);
        let id = all[0]["id"].as_str().unwrap();
        let ask = |filter: Value| world.post("/v1/dlq/retry", &json!({"filter": filter})).ok(200);
        let one = json!({"matched": 1, "retried": 1, "next": null});
        assert_eq!(ask(json!({"subscription": "ledger"})), one);
        let left = entries(&world, "");
        assert_eq!((left.len(), &left[0]["subscription"]), (1, &json!("mail")), "{left:?}");
        let deliveries = world.get(&format!("/v1/events/{id}")).ok(200)["deliveries"].take();
        // Who has it again may just be asked.
        let state_of = |name: &str| {
            let all = deliveries.as_array().unwrap();
            all.iter().find(|one| one["subscription"] == name).unwrap()["status"].clone()
        };
        assert!(state_of("ledger") != "dlq" && state_of("mail") == "dlq", "{deliveries}");
        assert_eq!(ask(json!({"text": "no ledger"})), json!({"matched": 0, "retried": 0, "next": null}));
        assert_eq!(ask(json!({"text": "no mail"})), one);
        assert_eq!(entries(&world, "").len(), 0);
    }
}

#[tokio::test]
async fn old_ones_are_deleted() {
    let world = world(Place::file()).await;
    assert_eq!(world.send("DELETE", "/v1/dlq?older_than=1h", &[], "").ok(200), json!({"purged": 0}));
    world.send("DELETE", "/v1/dlq", &[], "").problem(400, "invalid_request");
    for bad in ["old", "0", "7", "", "-1d", "7dd", "1w", "999999d"] {
        world.send("DELETE", &format!("/v1/dlq?older_than={bad}"), &[], "").problem(400, "invalid_request");
    }
    assert_eq!(world.send("DELETE", "/v1/dlq?older_than=0s", &[], "").ok(200), json!({"purged": 4}));
    assert_eq!(entries(&world, "").len(), 0);
}
