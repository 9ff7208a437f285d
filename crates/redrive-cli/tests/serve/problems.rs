//! Every error is a problem document.

use crate::http::request;
use serde_json::json;

use crate::world::{JSON, TestDatabase, World};

#[test]
fn every_error_is_a_problem_document() {
    let world = World::new();
    assert_eq!(world.get("/nothing").problem(404, "not_found")["title"], "Not found");
    world.get("/v1/events/").problem(404, "not_found");
    world.get("/v1/nothing").problem(404, "not_found");
    let answer = world.send("PUT", "/v1/events", &[], "");
    answer.problem(405, "method_not_allowed");
    assert_eq!(answer.header("allow"), Some("GET,HEAD,POST"));
    world.send("POST", "/v1/events", &[], "{}").problem(415, "unsupported_media_type");
    world
        .send("POST", "/v1/events", &[("content-type", "text/plain")], "{}")
        .problem(415, "unsupported_media_type");
    world
        .send("POST", "/v1/events/batch", &[("content-type", "text/csv")], "{}")
        .problem(415, "unsupported_media_type");
    world.send("POST", "/v1/events", &[JSON], "{").problem(400, "invalid_request");
    world.send("POST", "/v1/events", &[JSON], "").problem(400, "invalid_request");
    world.send("POST", "/v1/events", &[JSON], &"[".repeat(100_000)).problem(400, "invalid_request");
    world.get("/v1/events?%ff=%fe").problem(400, "invalid_request");
    world.get("/v1/events/%ff").problem(400, "invalid_request");
    let utf8 = [("content-type", "application/json; charset=utf-8")];
    assert_eq!(world.send("POST", "/v1/events", &utf8, r#"{"type":"a","payload":1}"#).status, 202);
}

#[test]
fn security_headers_are_set() {
    let world = World::new();
    for path in ["/v1/events", "/healthz", "/nothing", "/openapi.json", "/metrics"] {
        let answer = world.get(path);
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
        assert!(
            answer.header("content-security-policy").unwrap().starts_with("default-src 'none'"),
            "{path}"
        );
    }
}

#[test]
fn cross_origin_requests_are_refused() {
    let world = World::new();
    let event = r#"{"type":"a","payload":1}"#;
    let from = |origin: &str| world.send("POST", "/v1/events", &[JSON, ("origin", origin)], event);
    from("http://evil.example").problem(403, "cross_origin");
    from("null").problem(403, "cross_origin");
    assert_eq!(from("http://localhost").status, 202, "same origin");
    let rebound = [("host", "evil.example"), JSON];
    world.send("POST", "/v1/events", &rebound, event).problem(401, "token_required");
    world.send("GET", "/v1/events", &rebound, "").problem(401, "token_required");
    let by_proxy = [("x-forwarded-for", "10.0.0.7")];
    world.send("GET", "/v1/events", &by_proxy, "").problem(401, "token_required");
}

#[test]
fn connections_are_kept_alive_until_invalid_http() {
    let world = World::new();
    let mut connection = world.connect();
    for _ in 0..3 {
        connection.send(request("GET", "/healthz", &[], "")).unwrap();
        assert_eq!(connection.answer().unwrap().status, 200);
    }
    connection.send(request("GET", "/nothing", &[], "")).unwrap();
    assert_eq!(connection.answer().unwrap().status, 404);
    connection.send("NONSENSE\r\n\r\n").unwrap();
    assert_eq!(connection.answer().unwrap().status, 400);
    assert_eq!(connection.line(), None);
    let mut connection = world.connect();
    connection.send(request("HEAD", "/v1/events", &[], "")).unwrap();
    assert_eq!(connection.head().unwrap().0, 200);
}

/// PostgreSQL text cannot contain NUL.
#[tokio::test]
async fn nul_characters_are_accepted() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        database.create_dead_letters(&["bad.order"]).await;
        let (admin, _) = database.token("admin", &[]);
        let mut world = database.serve(&[]);
        world.token = Some(admin);
        let event = json!({"type": "a", "payload": "\0", "metadata": {"\0": "\0"}});
        let id = world.post("/v1/events", &event).ok(202)["id"].as_str().unwrap().to_owned();
        assert_eq!(world.get(&format!("/v1/events/{id}")).ok(200)["metadata"], event["metadata"]);
        world.post("/v1/events", &json!({"type": "a\0", "payload": 1})).problem(400, "invalid_request");
        world.get("/v1/events?type=%00").problem(400, "invalid_request");
        for name in ["text", "fingerprint"] {
            for path in ["/v1/dlq", "/v1/dlq/groups"] {
                assert_eq!(
                    world.get(&format!("{path}?{name}=%00")).ok(200)["data"],
                    json!([]),
                    "{path} {name}"
                );
            }
            let body = json!({"filter": {name: "\0"}});
            assert_eq!(world.post("/v1/dlq/retry", &body).ok(200)["matched"], 0, "{name}");
        }
        let dead = world.get("/v1/dlq").ok(200)["data"][0]["id"].as_str().unwrap().to_owned();
        world.post(&format!("/v1/dlq/{dead}/retry"), &json!({"payload": "\0"})).ok(202);
        assert_eq!(world.get(&format!("/v1/events/{dead}")).ok(200)["payload"], "\0");
        world.post("/v1/tokens", &json!({"name": "\0", "scopes": ["read"]})).problem(400, "invalid_request");
        world.send("DELETE", "/v1/tokens/%00", &[], "").problem(404, "not_found");
    }
}
