//! A server that was stopped while another one took its work over.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::world::{JSON, TestDatabase, World};

fn pull(world: &World, wait_ms: u32) -> Vec<Value> {
    let body = json!({"max": 10, "wait_ms": wait_ms});
    let pulled = world.post("/v1/subscriptions/billing/pull", &body).ok(200);
    pulled["data"].as_array().unwrap().clone()
}

/// Stops the first server for longer than its lease on the database. Its leases of pulled events are still in its memory.
#[test]
fn a_stopped_server_reports_the_leases_that_another_server_took_over_as_lost() {
    let database = Arc::new(TestDatabase::postgres());
    let first = World::start(Arc::clone(&database), &[]);
    let body = json!({"patterns": ["order.*"], "lease_ms": 600_000, "retry": {"base_delay_ms": 10}});
    first.send("PUT", "/v1/subscriptions/billing", &[JSON], &body.to_string()).ok(200);
    let ids: Vec<String> = (0..3).map(|n| first.publish("order.created", &json!(n))).collect();
    let mut leased = Vec::new();
    while leased.len() < 3 {
        leased.extend(pull(&first, 20_000));
    }
    let second = World::start(Arc::clone(&database), &[]);
    first.signal("STOP");
    let mut taken_over = Vec::new();
    second.until("the second server has taken the events over", || {
        taken_over.extend(pull(&second, 1000));
        taken_over.len() == 3
    });
    first.signal("CONT");

    let settle = |world: &World, what: &str, body: Value| {
        world.post(&format!("/v1/subscriptions/billing/{what}"), &body).ok(200)
    };
    for (what, lease, more) in [
        ("extend", &leased[0]["lease"], json!({"lease_ms": 60_000})),
        ("ack", &leased[1]["lease"], json!({})),
        ("nack", &leased[2]["lease"], json!({"reason": "late"})),
    ] {
        let mut body = json!({ "leases": [lease] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(settle(&first, what, body), json!({"done": 0, "lost": [lease]}), "{what}");
    }
    for id in &ids {
        assert_eq!(second.get(&format!("/v1/events/{id}")).ok(200)["status"], "processing");
    }
    let leases: Vec<_> = taken_over.iter().map(|event| event["lease"].clone()).collect();
    assert_eq!(settle(&second, "ack", json!({ "leases": leases })), json!({"done": 3, "lost": []}));
    for id in &ids {
        // The ack is answered after it is stored.
        assert_eq!(second.get(&format!("/v1/events/{id}")).ok(200)["status"], "done");
    }
}
