//! How a server ends.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::request;
use crate::receiver::Receiver;
use crate::world::{JSON, Place, World, refused};

#[test]
fn what_was_begun_is_finished() {
    for signal in ["TERM", "INT"] {
        let mut world = World::new();
        let mut connection = world.connect();
        let mut idle = world.connect();
        idle.send(request("GET", "/healthz", &[], "")).unwrap();
        assert_eq!(idle.answer().unwrap().status, 200);
        let text = request("POST", "/v1/events", &[JSON], r#"{"type":"a","payload":1}"#);
        let (first, last) = text.split_at(text.len() - 5);
        connection.send(first).unwrap();
        world.until("the request is under way", || {
            world.get("/metrics").body.contains("redrive_http_connections 3")
        });
        world.signal(signal);
        world.until("nobody else is let in", || TcpStream::connect(world.address).is_err());
        assert_eq!(idle.line(), None, "who asks for nothing is let go");
        connection.send(last).unwrap();
        let answer = connection.answer().unwrap();
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(connection.line(), None, "and then the connection ends");
        assert!(world.ended().success(), "{}", world.log());
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        let place = std::sync::Arc::clone(&world.place);
        drop(world);
        assert!(place.text(&["events", "show", &id]).contains(&id));
    }
}

#[test]
fn who_takes_too_long_is_cut_off() {
    let mut world = Place::file().serve(&["--shutdown-timeout", "1s"]);
    let mut connection = world.connect();
    connection.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    world.until("the request is under way", || {
        world.get("/metrics").body.contains("redrive_http_connections 2")
    });
    let began = Instant::now();
    world.signal("TERM");
    assert!(world.ended().success(), "{}", world.log());
    assert!(began.elapsed() < Duration::from_secs(25), "that was not a second");
    assert!(world.log().contains("cut off"), "{}", world.log());
}

#[test]
fn requests_and_deliveries_share_the_time_for_shutting_down() {
    let mut world = Place::file().serve(&["--shutdown-timeout", "5s", "--allow-range", "127.0.0.0/8"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", silent.local_addr().unwrap());
    world.post("/v1/endpoints", &json!({"url": url, "patterns": ["*"], "timeout_ms": 30_000})).ok(201);
    world.publish("order.created", &json!(1));
    world.until("it is on its way", || world.get("/metrics").body.contains("redrive_in_flight 1"));
    let mut connection = world.connect();
    connection.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    world.until("the request is under way", || {
        world.get("/metrics").body.contains("redrive_http_connections 2")
    });
    let began = Instant::now();
    world.signal("TERM");
    assert!(world.ended().success(), "{}", world.log());
    assert!(began.elapsed() < Duration::from_secs(9), "each has taken five seconds: {}", world.log());
    assert!(world.log().contains("before everything was handled"), "{}", world.log());
}

#[test]
fn what_is_published_while_a_server_ends_is_delivered_by_the_next() {
    const LOCAL: [&str; 2] = ["--allow-range", "127.0.0.0/8"];
    let mut world = Place::file().serve(&LOCAL);
    let receiver = Receiver::new();
    world.post("/v1/endpoints", &json!({"url": receiver.url(), "patterns": ["*"]})).ok(201);
    let text = request("POST", "/v1/events", &[JSON], r#"{"type":"a","payload":1}"#);
    let (first, last) = text.split_at(text.len() - 5);
    let mut connections = [world.connect(), world.connect()];
    for connection in &mut connections {
        connection.send(first).unwrap();
    }
    world.until("the requests are under way", || {
        world.get("/metrics").body.contains("redrive_http_connections 3")
    });
    world.signal("TERM");
    world.until("nobody else is let in", || TcpStream::connect(world.address).is_err());
    for connection in &mut connections {
        connection.send(last).unwrap();
        assert_eq!(connection.answer().unwrap().status, 202);
        std::thread::sleep(Duration::from_millis(300)); // the other one keeps the server from ending
    }
    assert!(world.ended().success(), "{}", world.log());
    assert_eq!(receiver.heard().len(), 0, "nothing is begun that may not be finished");
    let world = World::start(Arc::clone(&world.place), &LOCAL);
    world.until("both are delivered", || receiver.heard().len() == 2);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut world = World::new();
    let mut connection = world.connect();
    connection.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    world.until("the request is under way", || {
        world.get("/metrics").body.contains("redrive_http_connections 2")
    });
    world.signal("TERM");
    world.until("it was heard", || world.log().contains("shutting down"));
    world.signal("TERM");
    assert_eq!(world.ended().code(), Some(1));
}

#[test]
fn a_file_has_one_server_and_a_port_as_well() {
    let world = World::new();
    let said = refused(&world.place, &["--listen", "127.0.0.1:0"]);
    assert!(said.contains("is in use by"), "{said}");
    let taken = world.address.to_string();
    let said = refused(&Place::file(), &["--listen", &taken]);
    assert!(said.contains("choose another one with --listen"), "{said}");
}

#[test]
fn several_servers_share_a_database() {
    let one = Place::server().serve(&[]);
    let two = World::start(std::sync::Arc::clone(&one.place), &[]);
    let id = one.publish("a", &json!(1));
    assert_eq!(two.get(&format!("/v1/events/{id}")).status, 200);
}

#[test]
fn logs_are_for_people_or_for_machines() {
    let world = Place::file().serve(&["--log-format", "json"]);
    world.until("it says that it serves", || world.log().contains("serving"));
    let log = world.log();
    let mut lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    assert!(lines.any(|line| line["level"] == "INFO" && line["message"] == "serving"), "{log}");
}

#[test]
fn while_the_database_is_away_nobody_is_told_that_all_is_well() {
    let server = redrive_servers::Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
    let place = Place::on(redrive_servers::Schema::of_another(server.url(), "away".to_owned()));
    let world = place.serve(&[]);
    let id = world.publish("a", &json!(1));
    assert_eq!(world.get("/readyz").status, 200);
    server.crash().unwrap();
    let problem = world.get("/readyz").problem(503, "unavailable");
    assert!(
        !problem.to_string().contains("127.0.0.1"),
        "where the store is, is nobody's business: {problem}"
    );
    assert_eq!(world.get("/healthz").status, 200, "but the process lives");
    let answer = world.post("/v1/events", &json!({"type": "a", "payload": 1}));
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    server.resume().unwrap();
    world.until("it is ready again", || world.get("/readyz").status == 200);
    world.until("events are taken again", || {
        world.post("/v1/events", &json!({"type": "a", "payload": 1})).status == 202
    });
    assert_eq!(world.get(&format!("/v1/events/{id}")).status, 200);
}
