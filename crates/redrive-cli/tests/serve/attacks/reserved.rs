//! Names and ids that belong to the server, or to somebody else's event.

use redrive_api::events::PublishEvent;
use serde_json::{Value, json};

use crate::receiver::Receiver;
use crate::world::{JSON, TestDatabase, World, endpoint, event, to_json};

#[test]
fn types_of_the_product_cannot_be_published() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let (publish, _) = database.token("publish", &[]);
        let (admin, _) = database.token("admin", &[]);
        let mut world = database.serve(&[]);
        world.token = Some(admin);
        for reserved in ["retry.task", "redrive.endpoint.disabled", "redrive."] {
            // What the scheduler would publish to any queue of its broker.
            let forged = json!({"type": reserved, "payload": {"message_id": "m", "original_queue": "payments",
                "original_payload": {"text": "pay the attacker"}, "retry_count": 0, "max_retries": 3}});
            let publish = |path: &str, body: &Value| world.send_as(&publish, "POST", path, &body.to_string());
            publish("/v1/events", &forged).problem(422, "reserved_type");
            let batch = json!([{"type": "a", "payload": 1}, forged]);
            let problem = publish("/v1/events/batch", &batch).problem(400, "invalid_batch");
            assert_eq!(problem["errors"][0]["index"], 1, "{problem}");
            world.post("/v1/events", &forged).problem(422, "reserved_type");
        }
        assert_eq!(world.get("/v1/events").ok(200)["data"], json!([]));
    }
}

#[test]
fn subscriptions_of_the_product_cannot_be_pulled() {
    let world = World::new();
    for name in ["republisher", "ep_1"] {
        let path = format!("/v1/subscriptions/{name}");
        let refused = |method: &str, path: &str, body: &str| {
            world.send(method, path, &[JSON], body).problem(400, "invalid_request");
        };
        refused("PUT", &path, r#"{"patterns": ["*"]}"#);
        refused("GET", &path, "");
        refused("DELETE", &path, "");
        refused("POST", &format!("{path}/pull"), "{}");
        refused("POST", &format!("{path}/ack"), r#"{"leases": ["x"]}"#);
        refused("POST", &format!("{path}/nack"), r#"{"leases": ["x"]}"#);
        refused("POST", &format!("{path}/extend"), r#"{"leases": ["x"], "lease_ms": 1000}"#);
    }
}

#[tokio::test]
async fn the_payload_of_a_dead_task_cannot_be_edited() {
    let database = TestDatabase::sqlite();
    database.create_dead_letters(&["retry.task"]).await;
    let world = database.serve(&[]);
    let id = world.get("/v1/dlq").ok(200)["data"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/dlq/{id}/retry");
    world.post(&path, &json!({"payload": {"original_queue": "payments"}})).problem(422, "reserved_type");
    assert_eq!(world.get(&format!("/v1/events/{id}")).ok(200)["payload"], json!({"order": 0}));
    world.send("POST", &path, &[], "").ok(202);
}

#[test]
fn the_id_of_another_event_is_refused() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = database.serve(&[]);
        let id = "4e1b2d3c-aaaa-4bbb-8ccc-123456789abc";
        let own = |event_type: &str, payload: u32| PublishEvent {
            id: Some(id.parse().unwrap()),
            ..event(event_type, payload)
        };
        assert_eq!(world.post("/v1/events", &own("a", 1)).ok(202)["duplicate"], false);
        assert_eq!(world.post("/v1/events", &own("a", 1)).ok(202)["duplicate"], true);
        for other in [own("a", 2), own("b", 1)] {
            let problem = world.post("/v1/events", &other).problem(409, "id_taken");
            assert!(problem["detail"].as_str().unwrap().contains(id), "{problem}");
            let batch = [event("new", 1), other];
            world.post("/v1/events/batch", &batch).problem(409, "id_taken");
        }
        let keyed = [JSON, ("idempotency-key", "k")];
        world.send("POST", "/v1/events", &keyed, &to_json(&own("a", 2))).problem(409, "id_taken");
        world.send("POST", "/v1/events", &keyed, &to_json(&own("a", 1))).ok(202);

        let twice = |payload: u32| {
            let id = Some("5e1b2d3c-aaaa-4bbb-8ccc-123456789abc".parse().unwrap());
            [1, payload].map(|payload| PublishEvent { id, ..event("new", payload) })
        };
        world.post("/v1/events/batch", &twice(2)).problem(409, "id_taken");
        let stored = world.get("/v1/events").ok(200);
        assert_eq!(stored["data"].as_array().unwrap().len(), 1, "nothing of a refused batch: {stored}");
        let stored = world.post("/v1/events/batch", &twice(1)).ok(202);
        assert_eq!(
            (&stored["data"][0]["duplicate"], &stored["data"][1]["duplicate"]),
            (&json!(false), &json!(true))
        );
    }
}

/// The id of the report is derived from the endpoint, so that a crash does not repeat it; anybody can compute it.
#[test]
fn a_taken_id_does_not_silence_the_report_of_a_disabled_endpoint() {
    let world = TestDatabase::sqlite().serve(&["--allow-range", "127.0.0.0/8"]);
    let receiver = Receiver::new();
    receiver.respond_with(410);
    let made = world.post("/v1/endpoints", &endpoint(receiver.url(), "order.*")).ok(201);
    let name = format!("redrive.endpoint.disabled/{}/{}", made["id"].as_str().unwrap(), made["version"]);
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let id = uuid::Uuid::new_v8(digest.as_ref()[..16].try_into().unwrap());
    world.post("/v1/events", &PublishEvent { id: Some(id), ..event("noise", 1) }).ok(202);
    world.publish("order.created", &json!(1));
    world.until("the endpoint is reported as disabled", || {
        let reports = world.get("/v1/events?type=redrive.endpoint.disabled").ok(200);
        !reports["data"].as_array().unwrap().is_empty()
    });
    assert_eq!(world.get(&format!("/v1/events/{id}")).ok(200)["type"], "noise");
}
