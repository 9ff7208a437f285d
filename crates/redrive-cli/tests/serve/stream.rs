//! `GET /v1/stream`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::http::{Connection, request};
use crate::world::{TestDatabase, World, event};

/// Stream client.
struct Watcher(Connection);

impl Watcher {
    fn new(world: &World, path: &str) -> Self {
        let authorization = world.token.as_ref().map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = authorization.iter().map(|value| ("authorization", value.as_str())).collect();
        let mut connection = world.connect();
        connection.send(request("GET", path, &headers, "")).unwrap();
        let (status, headers) = connection.head().unwrap();
        assert_eq!(status, 200);
        assert!(
            headers.contains(&("content-type".to_owned(), "text/event-stream".to_owned())),
            "{headers:?}"
        );
        while connection.line().unwrap() != ": watching" {}
        Watcher(connection)
    }

    /// Name and data of the next message.
    fn next(&mut self) -> Option<(String, Value)> {
        let mut what = None;
        loop {
            let line = self.0.line()?;
            if let Some(name) = line.strip_prefix("event: ") {
                what = Some(name.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((what?, serde_json::from_str(data).unwrap()));
            }
        }
    }

    /// Name of the next message and type of its event.
    fn next_type(&mut self) -> (String, String) {
        let (what, data) = self.next().unwrap();
        (what, data["type"].as_str().unwrap().to_owned())
    }
}

#[test]
fn the_stream_shows_events_published_and_done() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = database.serve(&[]);
        let mut watchers: Vec<_> = (0..10).map(|_| Watcher::new(&world, "/v1/stream")).collect();
        let id = world.publish("order.created", &json!(1));
        for watcher in &mut watchers {
            let (what, data) = watcher.next().unwrap();
            assert_eq!((what.as_str(), data["id"].as_str()), ("published", Some(id.as_str())));
            let (what, data) = watcher.next().unwrap();
            assert_eq!((what.as_str(), data["status"].as_str()), ("done", Some("done")));
        }
        let metrics = world.get("/metrics").body;
        assert!(metrics.contains("redrive_stream_clients 10"), "{metrics}");
        drop(watchers);
    }
}

#[test]
fn the_stream_filters_by_pattern() {
    let world = World::new();
    let mut watcher = Watcher::new(&world, "/v1/stream?type=order.*");
    world.publish("invoice.created", &json!(1));
    world.publish("order.created", &json!(1));
    assert_eq!(watcher.next_type(), ("published".to_owned(), "order.created".to_owned()));
    world.get("/v1/stream?type=").problem(400, "invalid_request");
    world.get("/v1/stream?type=a%20b").problem(400, "invalid_request");
}

#[test]
fn the_stream_shows_events_of_other_processes() {
    let world = World::new();
    let mut watcher = Watcher::new(&world, "/v1/stream");
    world.database.text(&["publish", "from.cli", "1"]);
    for what in ["published", "done"] {
        assert_eq!(watcher.next_type(), (what.to_owned(), "from.cli".to_owned()));
    }
}

#[test]
fn a_slow_stream_reports_lag() {
    let world = World::new();
    let mut watcher = Watcher::new(&world, "/v1/stream");
    let events: Vec<_> = (0..3000).map(|n| event("flood", n)).collect();
    world.post("/v1/events/batch", &events).ok(202);
    world.publish("last", &json!(1));
    let (mut published, mut lagged) = (0, false);
    loop {
        let (what, data) = watcher.next().unwrap();
        match (what.as_str(), data["type"].as_str()) {
            ("lagged", _) => lagged = true,
            ("published", Some("flood")) => published += 1,
            ("done", Some("last")) => break,
            _ => {}
        }
    }
    assert!(lagged || published == 3000, "{published} were shown without a lag message");
}

#[test]
fn the_stream_ends_with_its_token_and_with_the_server() {
    let database = TestDatabase::sqlite();
    let (admin, _) = database.token("admin", &[]);
    let (read, id) = database.token("read", &[]);
    let database = Arc::new(database);
    let mut world = World::start(Arc::clone(&database), &[]);
    world.token = Some(read);
    let mut watcher = Watcher::new(&world, "/v1/stream");
    database.text(&["tokens", "revoke", &id]);
    assert_eq!(watcher.next().unwrap(), ("end".to_owned(), json!({"reason": "token"})));
    world.token = Some(admin);
    let mut watcher = Watcher::new(&world, "/v1/stream");
    world.signal("TERM");
    assert_eq!(watcher.next().unwrap(), ("end".to_owned(), json!({"reason": "shutting_down"})));
    assert!(world.ended().success());
}

#[test]
fn stream_clients_are_limited() {
    let world = World::new();
    let watchers: Vec<_> = (0..256).map(|_| Watcher::new(&world, "/v1/stream")).collect();
    world.get("/v1/stream").problem(503, "unavailable");
    assert_eq!(world.get("/healthz").status, 200);
    drop(watchers);
    world.until("a stream client is accepted", || {
        let mut connection = world.connect();
        connection.send(request("GET", "/v1/stream", &[], "")).unwrap();
        connection.head().unwrap().0 == 200
    });
}
