//! Requests that could be read in two ways, and stores that cannot write.

use serde_json::json;

use crate::http::request;
use crate::world::{JSON, TestDatabase, World};

#[test]
fn an_array_is_not_an_object() {
    let world = World::new();
    world.send("PUT", "/v1/subscriptions/billing", &[JSON], r#"{"patterns": ["order.*"]}"#).ok(200);
    let dead = "/v1/dlq/0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19/retry";
    for (method, path, body) in [
        ("POST", "/v1/events", r#"["a", 1, null, {}, null, null, null]"#),
        ("POST", "/v1/events", r#"{"type": "a", "payload": 1, "retry": [3, 1, 2, 2.0, "none"]}"#),
        ("POST", "/v1/tokens", r#"["mine", ["admin"], null]"#),
        ("PUT", "/v1/subscriptions/billing", r#"[["*"], null, null]"#),
        ("POST", "/v1/subscriptions/billing/pull", "[1, 0, 1000]"),
        ("POST", "/v1/subscriptions/billing/ack", r#"[["x"]]"#),
        ("POST", "/v1/subscriptions/billing/nack", r#"[["x"], null, null]"#),
        ("POST", "/v1/subscriptions/billing/extend", r#"[["x"], 1000]"#),
        ("POST", "/v1/dlq/retry", "[{}, true]"),
        ("POST", "/v1/dlq/retry", r#"{"filter": ["a"]}"#),
        ("POST", dead, "[1]"),
        ("POST", "/v1/endpoints", r#"["https://example.com", ["*"]]"#),
    ] {
        let answer = world.send(method, path, &[JSON], body);
        let problem = answer.problem(400, "invalid_request");
        assert!(problem["detail"].as_str().unwrap().contains("expected an object"), "{path}: {problem}");
    }
    let lines = [("content-type", "application/x-ndjson")];
    for (headers, body) in [(JSON, r#"[["a", 1]]"#), (lines[0], r#"["a", 1]"#)] {
        let problem = world.send("POST", "/v1/events/batch", &[headers], body).problem(400, "invalid_batch");
        assert_eq!(problem["errors"][0]["index"], 0, "{problem}");
    }
    assert_eq!(world.get("/v1/events").ok(200)["data"], json!([]));
}

#[test]
fn headers_that_decide_occur_once() {
    let world = World::new();
    let event = r#"{"type":"a","payload":1}"#;
    for twice in [
        [("host", "localhost"), ("host", "evil.example")],
        [("idempotency-key", "one"), ("Idempotency-Key", "two")],
        [("idempotency-key", "one"), ("idempotency-key", "one")],
        [("authorization", "Bearer rdt_one"), ("authorization", "Bearer rdt_two")],
    ] {
        let mut connection = world.connect();
        connection.send(request("POST", "/v1/events", &[&twice[..], &[JSON]].concat(), event)).unwrap();
        connection.answer().unwrap().problem(400, "invalid_request");
    }
    assert_eq!(world.get("/v1/events").ok(200)["data"], json!([]));
}

#[test]
fn a_server_whose_file_is_locked_is_not_ready() {
    let world = World::new();
    assert_eq!(world.get("/readyz").status, 200);
    let locker = rusqlite::Connection::open(world.database.name()).unwrap();
    locker.execute_batch("PRAGMA busy_timeout = 5000; BEGIN IMMEDIATE").unwrap();
    world.until("it is not ready", || world.get("/readyz").status == 503);
    world.get("/readyz").problem(503, "unavailable");
    assert_eq!(world.get("/v1/events").status, 200, "reading still works");
    locker.execute_batch("ROLLBACK").unwrap();
    world.until("it is ready again", || world.get("/readyz").status == 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_database_refuses_writes_is_not_ready() {
    let database = TestDatabase::postgres();
    let TestDatabase::Postgres(schema, _) = &database else { unreachable!() };
    let (mut client, connection) =
        tokio_postgres::connect(schema.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let lock = format!("LOCK TABLE {}.document IN EXCLUSIVE MODE", schema.name());
    let world = database.serve(&[]);
    assert_eq!(world.get("/readyz").status, 200);
    let locked = client.transaction().await.unwrap();
    locked.batch_execute(&lock).await.unwrap();
    world.until("it is not ready", || world.get("/readyz").status == 503);
    assert_eq!(world.get("/v1/events").status, 200, "reading still works");
    locked.rollback().await.unwrap();
    world.until("it is ready again", || world.get("/readyz").status == 200);
}
