//! Pull subscriptions over HTTP.

use serde_json::{Value, json};

use crate::world::{JSON, TestDatabase, World};

fn put(world: &World, name: &str, body: &Value) -> Value {
    world.send("PUT", &format!("/v1/subscriptions/{name}"), &[JSON], &body.to_string()).ok(200)
}

fn pull(world: &World, name: &str, body: &Value) -> Vec<Value> {
    let pulled = world.post(&format!("/v1/subscriptions/{name}/pull"), body).ok(200);
    pulled["data"].as_array().unwrap().clone()
}

fn status(world: &World, id: &str) -> String {
    world.get(&format!("/v1/events/{id}")).ok(200)["status"].as_str().unwrap().to_owned()
}

#[test]
fn events_are_pulled_acked_nacked_and_extended() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = database.serve(&[]);
        let retry = json!({"base_delay_ms": 10, "max_delay_ms": 20});
        put(&world, "billing", &json!({"patterns": ["order.*"], "lease_ms": 30_000, "retry": retry}));
        let ids: Vec<String> = (0..3).map(|n| world.publish("order.created", &json!({ "n": n }))).collect();
        let mut fetched = Vec::new();
        while fetched.len() < 3 {
            fetched.extend(pull(&world, "billing", &json!({"max": 2, "wait_ms": 10_000})));
        }
        assert!(pull(&world, "billing", &json!({})).is_empty(), "leased events are not pulled again");
        let lease = |n: usize| fetched[n]["lease"].clone();
        let settle =
            |what: &str, body: &Value| world.post(&format!("/v1/subscriptions/billing/{what}"), body);
        assert_eq!(settle("extend", &json!({"leases": [lease(0)], "lease_ms": 60_000})).ok(200)["done"], 1);
        assert_eq!(settle("ack", &json!({"leases": [lease(0), lease(1)]})).ok(200)["done"], 2);
        let late = settle("ack", &json!({"leases": [lease(0)]})).ok(200);
        assert_eq!((&late["done"], &late["lost"]), (&json!(0), &json!([lease(0)])));
        let refused =
            settle("nack", &json!({"leases": [lease(2)], "delay_ms": 20, "reason": "no ink"})).ok(200);
        assert_eq!(refused["done"], 1);
        let again = pull(&world, "billing", &json!({"wait_ms": 20_000}));
        assert_eq!((&again[0]["id"], &again[0]["attempt"]), (&fetched[2]["id"], &json!(2)));
        settle("ack", &json!({"leases": [again[0]["lease"]]})).ok(200);
        for id in &ids {
            world.until("it is done", || status(&world, id) == "done");
        }
        let attempts = world.get(&format!("/v1/events/{}", fetched[2]["id"].as_str().unwrap())).ok(200);
        assert_eq!(attempts["attempts"][0]["error"], "no ink");
    }
}

#[test]
fn invalid_pull_requests_are_refused() {
    let world = World::new();
    let path = "/v1/subscriptions/billing";
    world.post(&format!("{path}/pull"), &json!({})).problem(404, "not_found");
    world.get(path).problem(404, "not_found");
    world.send("PUT", path, &[JSON], r#"{"patterns": []}"#).problem(400, "invalid_request");
    world
        .send("PUT", "/v1/subscriptions/ep_1", &[JSON], r#"{"patterns": ["*"]}"#)
        .problem(400, "invalid_request");
    put(&world, "billing", &json!({"patterns": ["order.*"]}));
    world.post(&format!("{path}/pull"), &json!({"max": 101})).problem(400, "invalid_request");
    world.post(&format!("{path}/pull"), &json!({"lease_ms": 1})).problem(400, "invalid_request");
    world.post(&format!("{path}/ack"), &json!({"leases": ["x"]})).problem(400, "invalid_request");
    world.post(&format!("{path}/ack"), &json!({"leases": []})).problem(400, "invalid_request");
    let foreign = "00000000000000000000000000000000.00000000000000000000000000000000";
    world.post(&format!("{path}/ack"), &json!({"leases": [foreign]})).problem(421, "misdirected");
    assert_eq!(world.get("/v1/subscriptions").ok(200)["data"][0]["name"], "billing");
}

#[test]
fn a_foreign_lease_does_not_block_the_other_leases() {
    let world = World::new();
    let path = "/v1/subscriptions/billing";
    put(&world, "billing", &json!({"patterns": ["order.*"], "retry": {"base_delay_ms": 10}}));
    let id = world.publish("order.created", &json!(1));
    let foreign = "00000000000000000000000000000000.00000000000000000000000000000000";
    let settle = |what: &str, lease: &Value, more: &Value| {
        let mut body = json!({"leases": [foreign, lease]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let settled = world.post(&format!("{path}/{what}"), &body).ok(200);
        assert_eq!(settled, json!({"done": 1, "lost": [foreign]}), "{what}");
    };
    let first = pull(&world, "billing", &json!({"wait_ms": 20_000}));
    settle("extend", &first[0]["lease"], &json!({"lease_ms": 60_000}));
    settle("nack", &first[0]["lease"], &json!({"delay_ms": 10}));
    let second = pull(&world, "billing", &json!({"wait_ms": 20_000}));
    settle("ack", &second[0]["lease"], &json!({}));
    world.until("it is done", || status(&world, &id) == "done");
}

#[tokio::test]
async fn removed_subscriptions_do_not_count_for_the_limit() {
    let database = TestDatabase::sqlite();
    let options = redrive::store::SqliteOptions { owner: false, ..Default::default() };
    let store = redrive::store::SqliteStore::open(database.name(), options).unwrap();
    for n in 0..1002 {
        let body = json!({"patterns": ["order.*"], "lease_ms": 1000, "is_removed": n >= 999});
        let key = format!("queue/q{n}").parse().unwrap();
        redrive_store::Documents::create(&store, key, body.to_string()).await.unwrap();
    }
    redrive::store::Store::close(&store).await.unwrap();
    let world = database.serve(&[]);
    let body = json!({"patterns": ["order.*"]});
    put(&world, "last", &body);
    let more = || world.send("PUT", "/v1/subscriptions/q1000", &[JSON], &body.to_string());
    let problem = more().problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("1000 subscriptions"), "{problem}");
    put(&world, "q5", &body);
    assert_eq!(world.send("DELETE", "/v1/subscriptions/q5", &[], "").status, 204);
    more().ok(200);
}

#[test]
fn deliveries_of_a_removed_subscription_are_dead_lettered() {
    let world = World::new();
    put(&world, "billing", &json!({"patterns": ["order.*"]}));
    let id = world.publish("order.created", &json!({"n": 1}));
    assert_eq!(world.send("DELETE", "/v1/subscriptions/billing", &[], "").status, 204);
    world.until("it is dead-lettered", || status(&world, &id) == "dlq");
    let dead = world.get("/v1/dlq?subscription=billing").ok(200);
    assert!(dead["data"][0]["errors"][0].as_str().unwrap().contains("was removed"), "{dead}");
    let next = world.publish("order.created", &json!({"n": 2}));
    world.until("the unmatched event is done", || status(&world, &next) == "done");
    // A recreated subscription gets its dead letters by a retry.
    put(&world, "billing", &json!({"patterns": ["order.*"]}));
    world.send("POST", &format!("/v1/dlq/{id}/retry"), &[], "").ok(202);
    let fetched = pull(&world, "billing", &json!({"wait_ms": 20_000}));
    assert_eq!(fetched[0]["id"], id.as_str());
}

#[test]
fn leased_events_are_redelivered_after_a_restart() {
    for signal in ["TERM", "KILL"] {
        let mut world = World::new();
        put(&world, "billing", &json!({"patterns": ["order.*"], "retry": {"base_delay_ms": 10}}));
        let id = world.publish("order.created", &json!({"n": 1}));
        let fetched = pull(&world, "billing", &json!({"wait_ms": 20_000}));
        assert_eq!(fetched.len(), 1);
        world.signal(signal);
        world.ended();
        let world = World::start(world.database.clone(), &[]);
        let late = json!({"leases": [fetched[0]["lease"]]});
        world.post("/v1/subscriptions/billing/ack", &late).problem(421, "misdirected");
        let again = pull(&world, "billing", &json!({"wait_ms": 20_000}));
        assert_eq!(again[0]["id"], id.as_str(), "{signal}");
        // A graceful shutdown releases the lease; a kill charges an attempt.
        assert_eq!(again[0]["attempt"], if signal == "TERM" { 1 } else { 2 }, "{signal}");
        world.post("/v1/subscriptions/billing/ack", &json!({"leases": [again[0]["lease"]]})).ok(200);
        world.until("it is done", || status(&world, &id) == "done");
    }
}
