//! Access to the scheduler's HTTP API.

use std::sync::Arc;

use super::broker::failure;
use super::world::{Shop, one_in_review};
use crate::world::TestDatabase;

#[test]
fn review_requires_a_token_but_health_and_metrics_do_not() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let world = shop.schedule(&database, &[("REDRIVE_SCHEDULER_BIND", "0.0.0.0")]);
    assert!(world.log().contains("there are no tokens"), "{}", world.log());
    shop.client.send_failure(&shop.retry_queue, &failure("m-1", &shop.orders, 3));
    let id = one_in_review(&world)["id"].as_str().unwrap().to_owned();
    // A foreign host name does not count as local.
    world.send("GET", "/v1/review", &[("host", "shop.example")], "").problem(401, "token_required");

    let (reader, _) = database.token("read", &[]);
    let (admin, _) = database.token("admin", &[]);
    world.until("the token is known", || world.get("/v1/review").status == 401);
    for open in ["/healthz", "/health", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(world.get(open).status, 200, "{open}");
    }
    let retry = format!("/v1/review/{id}/retry");
    world.send_as(&reader, "GET", "/v1/review", "").ok(200);
    world.send_as(&reader, "POST", &retry, "{}").problem(403, "missing_scope");
    world.send_as("rdt_wrong", "GET", "/v1/review", "").problem(401, "invalid_token");
    let url = format!("http://127.0.0.1:{}", world.address.port());
    let said = database.command(&["scheduler", "review", "list", "--server", &url]).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains("--token"), "{said:?}");
    let list = database.text(&["scheduler", "review", "list", "--server", &url, "--token", &reader]);
    assert!(list.contains(&id), "{list}");
    database.text(&["scheduler", "review", "retry", &id, "--server", &url, "--token", &admin]);
    shop.client.next(&shop.orders, || world.log());
    let by = world.send_as(&admin, "GET", &format!("/v1/review/{id}"), "").ok(200)["by_hand"]["by"].clone();
    assert!(by.as_str().unwrap().len() > 8, "the id of the token: {by}");
}

#[test]
fn the_document_describes_the_schedulers_routes() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let world = shop.schedule(&database, &[]);
    let document = world.get("/openapi.json").ok(200);
    let paths: Vec<_> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        paths,
        [
            "/health",
            "/healthz",
            "/metrics",
            "/readyz",
            "/v1/review",
            "/v1/review/{id}",
            "/v1/review/{id}/discard",
            "/v1/review/{id}/retry"
        ]
    );
    assert!(document["info"]["title"].as_str().unwrap().contains("scheduler"));
    world.get("/nowhere").problem(404, "not_found");
    world.send("DELETE", "/v1/review", &[], "").problem(405, "method_not_allowed");
}
