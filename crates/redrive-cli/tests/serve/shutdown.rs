//! Start and shutdown of the server.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_api::endpoints::CreateEndpoint;
use serde_json::json;

use crate::http::request;
use crate::receiver::Receiver;
use crate::world::{JSON, TestDatabase, World, endpoint, event, refused};

#[test]
fn requests_in_flight_complete_at_shutdown() {
    for signal in ["TERM", "INT"] {
        let mut world = World::new();
        let mut connection = world.connect();
        let mut idle = world.connect();
        idle.send(request("GET", "/healthz", &[], "")).unwrap();
        assert_eq!(idle.answer().unwrap().status, 200);
        let text = request("POST", "/v1/events", &[JSON], r#"{"type":"a","payload":1}"#);
        let (first, last) = text.split_at(text.len() - 5);
        connection.send(first).unwrap();
        world.until("the request is in flight", || {
            world.get("/metrics").body.contains("redrive_http_connections 3")
        });
        world.signal(signal);
        world.until("new connections are refused", || TcpStream::connect(world.address).is_err());
        assert_eq!(idle.line(), None, "an idle connection is closed");
        connection.send(last).unwrap();
        let answer = connection.answer().unwrap();
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(connection.line(), None, "the connection is closed after the response");
        assert!(world.ended().success(), "{}", world.log());
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        let database = std::sync::Arc::clone(&world.database);
        drop(world);
        assert!(database.text(&["events", "show", &id]).contains(&id));
    }
}

#[test]
fn requests_over_the_shutdown_timeout_are_aborted() {
    let mut world = TestDatabase::sqlite().serve(&["--shutdown-timeout", "1s"]);
    let mut connection = world.connect();
    connection.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    world.until("the request is in flight", || {
        world.get("/metrics").body.contains("redrive_http_connections 2")
    });
    let began = Instant::now();
    world.signal("TERM");
    assert!(world.ended().success(), "{}", world.log());
    assert!(began.elapsed() < Duration::from_secs(25), "the shutdown timeout is 1 s");
    assert!(world.log().contains("closing connections with unfinished requests"), "{}", world.log());
}

#[test]
fn requests_and_deliveries_share_the_shutdown_timeout() {
    let mut world =
        TestDatabase::sqlite().serve(&["--shutdown-timeout", "5s", "--allow-range", "127.0.0.0/8"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", silent.local_addr().unwrap());
    world.create_endpoint(&CreateEndpoint { timeout_ms: Some(30_000), ..endpoint(url, "*") });
    world.publish("order.created", &json!(1));
    world.until("it is in flight", || world.get("/metrics").body.contains("redrive_in_flight 1"));
    let mut connection = world.connect();
    connection.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    world.until("the request is in flight", || {
        world.get("/metrics").body.contains("redrive_http_connections 2")
    });
    let began = Instant::now();
    world.signal("TERM");
    assert!(world.ended().success(), "{}", world.log());
    assert!(began.elapsed() < Duration::from_secs(9), "each took five seconds: {}", world.log());
    assert!(world.log().contains("the shutdown timeout ended running handlers"), "{}", world.log());
}

#[test]
fn events_published_during_shutdown_are_delivered_after_the_restart() {
    const LOCAL: [&str; 2] = ["--allow-range", "127.0.0.0/8"];
    let mut world = TestDatabase::sqlite().serve(&LOCAL);
    let receiver = Receiver::new();
    world.create_endpoint(&endpoint(receiver.url(), "*"));
    let text = request("POST", "/v1/events", &[JSON], r#"{"type":"a","payload":1}"#);
    let (first, last) = text.split_at(text.len() - 5);
    let mut connections = [world.connect(), world.connect()];
    for connection in &mut connections {
        connection.send(first).unwrap();
    }
    world.until("the requests are in flight", || {
        world.get("/metrics").body.contains("redrive_http_connections 3")
    });
    world.signal("TERM");
    world.until("new connections are refused", || TcpStream::connect(world.address).is_err());
    for connection in &mut connections {
        connection.send(last).unwrap();
        assert_eq!(connection.answer().unwrap().status, 202);
        std::thread::sleep(Duration::from_millis(300)); // the other request keeps the server running
    }
    assert!(world.ended().success(), "{}", world.log());
    assert_eq!(receiver.received().len(), 0, "no delivery starts during shutdown");
    let world = World::start(Arc::clone(&world.database), &LOCAL);
    world.until("both are delivered", || receiver.received().len() == 2);
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut world = World::new();
    let mut connection = world.connect();
    connection.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    world.until("the request is in flight", || {
        world.get("/metrics").body.contains("redrive_http_connections 2")
    });
    world.signal("TERM");
    world.until("the shutdown has started", || world.log().contains("shutting down"));
    world.signal("TERM");
    assert_eq!(world.ended().code(), Some(1));
}

#[test]
fn a_file_and_a_port_have_one_server() {
    let world = World::new();
    let said = refused(&world.database, &["--listen", "127.0.0.1:0"]);
    assert!(said.contains("is in use by"), "{said}");
    let taken = world.address.to_string();
    let said = refused(&TestDatabase::sqlite(), &["--listen", &taken]);
    assert!(said.contains("choose another one with --listen"), "{said}");
}

#[test]
fn several_servers_share_a_database() {
    let one = TestDatabase::postgres().serve(&[]);
    let two = World::start(std::sync::Arc::clone(&one.database), &[]);
    let id = one.publish("a", &json!(1));
    assert_eq!(two.get(&format!("/v1/events/{id}")).status, 200);
}

#[test]
fn json_log_lines_are_json() {
    let world = TestDatabase::sqlite().serve(&["--log-format", "json"]);
    world.until("the server is running", || world.log().contains("serving"));
    let log = world.log();
    let mut lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    assert!(lines.any(|line| line["level"] == "INFO" && line["message"] == "serving"), "{log}");
}

#[test]
fn readiness_fails_while_the_database_is_down() {
    let server = redrive_servers::Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
    let database = TestDatabase::on(redrive_servers::Schema::of_another(server.url(), "away".to_owned()));
    let world = database.serve(&[]);
    let id = world.publish("a", &json!(1));
    assert_eq!(world.get("/readyz").status, 200);
    server.crash().unwrap();
    let problem = world.get("/readyz").problem(503, "unavailable");
    assert!(!problem.to_string().contains("127.0.0.1"), "the store's address is not shown: {problem}");
    assert_eq!(world.get("/healthz").status, 200, "the process is alive");
    let answer = world.post("/v1/events", &event("a", 1));
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    server.resume().unwrap();
    world.until("it is ready again", || world.get("/readyz").status == 200);
    world.until("events are accepted again", || world.post("/v1/events", &event("a", 1)).status == 202);
    assert_eq!(world.get(&format!("/v1/events/{id}")).status, 200);
}
