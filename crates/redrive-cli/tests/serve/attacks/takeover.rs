//! Leases of a server that was stopped: every server on the database honours them until they end, and none afterwards.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::world::{JSON, TestDatabase, World};

fn pull(world: &World, body: &Value) -> Vec<Value> {
    let pulled = world.post("/v1/subscriptions/billing/pull", body).ok(200);
    pulled["data"].as_array().unwrap().clone()
}

/// Sends an ack, a nack or an extension of leases.
fn end(world: &World, what: &str, leases: &[&Value]) -> Value {
    let mut body = json!({ "leases": leases });
    if what == "extend" {
        body["lease_ms"] = json!(60_000);
    }
    world.post(&format!("/v1/subscriptions/billing/{what}"), &body).ok(200)
}

fn status(world: &World, id: &str) -> Value {
    world.get(&format!("/v1/events/{id}")).ok(200)["status"].clone()
}

/// Creates a subscription, publishes three events and leases them. Returns their ids and leases.
fn leased_by(first: &World, lease_ms: u32) -> (Vec<String>, Vec<Value>) {
    let body = json!({"patterns": ["order.*"], "lease_ms": lease_ms, "retry": {"base_delay_ms": 10}});
    first.send("PUT", "/v1/subscriptions/billing", &[JSON], &body.to_string()).ok(200);
    (0..3).for_each(|n| drop(first.publish("order.created", &json!(n))));
    let mut leased = Vec::new();
    while leased.len() < 3 {
        leased.extend(pull(first, &json!({"max": 10, "wait_ms": 20_000})));
    }
    let id = |event: &Value| event["id"].as_str().unwrap().to_owned();
    (leased.iter().map(id).collect(), leased.iter().map(|event| event["lease"].clone()).collect())
}

#[test]
fn every_server_ends_the_leases_of_a_stopped_one() {
    let database = Arc::new(TestDatabase::postgres());
    let first = World::start(Arc::clone(&database), &[]);
    let (second, third) =
        (World::start(Arc::clone(&database), &[]), World::start(Arc::clone(&database), &[]));
    let (ids, leases) = leased_by(&first, 600_000);
    first.signal("STOP");
    // Longer than the lease of the process on its claims.
    assert!(pull(&second, &json!({"wait_ms": 20_000})).is_empty(), "the consumers still have them");
    let one = json!({"done": 1, "lost": []});
    assert_eq!(end(&second, "extend", &[&leases[0]]), one);
    assert_eq!(end(&third, "ack", &[&leases[0]]), one);
    assert_eq!(end(&third, "nack", &[&leases[1]]), one);
    assert_eq!(status(&second, &ids[0]), "done");
    first.signal("CONT");
    for what in ["extend", "ack", "nack"] {
        let lost = json!({"done": 0, "lost": [&leases[0], &leases[1]]});
        assert_eq!(end(&first, what, &[&leases[0], &leases[1]]), lost, "{what}");
    }
    assert_eq!(end(&first, "ack", &[&leases[2]]), one, "its own lease is as good as before");
    let again = pull(&second, &json!({"wait_ms": 20_000})).remove(0);
    assert_eq!((again["id"].as_str(), again["attempt"].as_u64()), (Some(ids[1].as_str()), Some(2)));
    assert_eq!(end(&first, "ack", &[&again["lease"]]), one, "and so is that of another server");
    for id in &ids {
        assert_eq!(status(&first, id), "done"); // the ack is answered after it is stored
    }
}

#[test]
fn no_server_honours_a_lease_that_ended_while_its_server_was_stopped() {
    let database = Arc::new(TestDatabase::postgres());
    let first = World::start(Arc::clone(&database), &[]);
    let (ids, leases) = leased_by(&first, 1500);
    let second = World::start(Arc::clone(&database), &[]);
    first.signal("STOP");
    let mut taken_over = Vec::new();
    second.until("the leases have ended", || {
        taken_over.extend(pull(&second, &json!({"max": 10, "wait_ms": 1000, "lease_ms": 600_000})));
        taken_over.len() == 3
    });
    first.signal("CONT");
    for (what, lease) in ["extend", "ack", "nack"].into_iter().zip(&leases) {
        for world in [&first, &second] {
            assert_eq!(end(world, what, &[lease]), json!({"done": 0, "lost": [lease]}), "{what}");
        }
    }
    for id in &ids {
        assert_eq!(status(&second, id), "processing");
    }
    let leases: Vec<_> = taken_over.iter().map(|event| &event["lease"]).collect();
    assert_eq!(end(&first, "ack", &leases), json!({"done": 3, "lost": []}));
    for id in &ids {
        assert_eq!(status(&second, id), "done");
    }
    assert!(taken_over.iter().all(|event| event["attempt"] == 2), "the ended lease was an attempt");
}
