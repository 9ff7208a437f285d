//! Limits: slow, large or non-reading clients do not affect other clients.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::request;
use crate::world::{JSON, TestDatabase, World, event};

const SHORT_TIMEOUTS: [&str; 4] = ["--header-timeout", "1s", "--body-timeout", "1s"];

#[test]
fn an_incomplete_header_times_out() {
    let world = TestDatabase::sqlite().serve(&SHORT_TIMEOUTS);
    let mut connection = world.connect();
    connection.send("GET /healthz HTTP/1.1\r\nhost: local").unwrap();
    let began = Instant::now();
    connection.rest();
    assert!(began.elapsed() < Duration::from_secs(30), "the header timeout is 1 s");
    assert_eq!(world.get("/healthz").status, 200);
}

#[test]
fn a_slow_header_times_out() {
    let world = TestDatabase::sqlite().serve(&SHORT_TIMEOUTS);
    let mut connection = world.connect();
    let text = request("GET", "/healthz", &[("x-long", &"x".repeat(500))], "");
    let ended = text.bytes().position(|byte| {
        std::thread::sleep(Duration::from_millis(50));
        connection.send([byte]).is_err()
    });
    assert!(
        ended.is_some() || connection.answer().is_none_or(|answer| answer.status == 408),
        "the server read a header for 25 s"
    );
}

#[test]
fn an_incomplete_body_times_out() {
    let world = TestDatabase::sqlite().serve(&SHORT_TIMEOUTS);
    let mut connection = world.connect();
    let text = request("POST", "/v1/events", &[JSON], r#"{"type":"a","payload":1}"#);
    connection.send(&text[..text.len() - 5]).unwrap();
    connection.answer().unwrap().problem(408, "request_timeout");
    assert_eq!(world.get("/v1/events").ok(200)["data"], json!([]));
}

#[test]
fn an_idle_connection_is_closed_and_frees_its_slot() {
    let world = TestDatabase::sqlite().serve(&[&SHORT_TIMEOUTS[..], &["--max-connections", "1"]].concat());
    let mut idle = world.connect();
    idle.send(request("GET", "/healthz", &[], "")).unwrap();
    assert_eq!(idle.answer().unwrap().status, 200);
    assert_eq!(world.get("/healthz").status, 200, "served after the idle connection was closed");
    assert_eq!(idle.rest(), "");
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let world = TestDatabase::sqlite().serve(&SHORT_TIMEOUTS);
    let id = world.publish("a", &json!("x".repeat(1 << 20).get(2..).unwrap()));
    let mut connection = world.connect();
    let wanted = 64;
    for _ in 0..wanted {
        connection.send(request("GET", &format!("/v1/events/{id}"), &[], "")).unwrap();
    }
    // Nothing is read until the server closes the connection.
    world.until("the server closes the connection", || {
        std::thread::sleep(Duration::from_millis(500));
        let metrics = world.get("/metrics").body;
        let connections = metrics.lines().find(|line| line.starts_with("redrive_http_connections "));
        connections == Some("redrive_http_connections 1")
    });
    assert!(connection.rest().len() < wanted << 20);
}

#[test]
fn oversized_headers_are_refused() {
    let world = TestDatabase::sqlite().serve(&[]);
    let answer = |text: String| {
        let mut connection = world.connect();
        let _ = connection.send(text); // it may be refused before its end
        connection.head().map(|(status, _)| status)
    };
    let large = "x".repeat(1_000_000);
    assert!(matches!(answer(request("GET", "/healthz", &[("x-large", &large)], "")), Some(431) | None));
    let many: Vec<_> = (0..70).map(|n| (format!("x-{n}"), "1")).collect();
    let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(answer(request("GET", "/healthz", &many, "")), Some(431));
    let headers_of = |bytes: usize| request("GET", "/healthz", &[("x-large", &"x".repeat(bytes))], "");
    assert_eq!(answer(headers_of(60 << 10)), Some(200));
    assert!(matches!(answer(headers_of(200 << 10)), Some(431) | None));
    assert!(matches!(answer(request("GET", &format!("/{large}"), &[], "")), Some(414 | 431) | None));
    assert_eq!(world.get("/healthz").status, 200);
}

#[test]
fn a_chunked_body_is_read_up_to_the_limit() {
    let world = TestDatabase::sqlite().serve(&[]);
    let mut connection = world.connect();
    connection.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    connection.send("18\r\n{\"type\":\"a\",\"payload\":1}\r\n0\r\n\r\n").unwrap();
    assert_eq!(connection.answer().unwrap().status, 202);
    let mut connection = world.connect();
    connection.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..100 {
        if connection.send(&chunk).is_err() {
            break;
        }
    }
    // The response may be lost with the connection, because unread data resets it.
    if let Some(answer) = connection.answer() {
        answer.problem(413, "too_large");
    }
    assert_eq!(world.get("/v1/events").ok(200)["data"].as_array().unwrap().len(), 1);
}

#[test]
fn the_global_rate_limit_exempts_health() {
    let world = TestDatabase::sqlite().serve(&["--rate-limit", "2"]);
    let answers: Vec<_> = (0..40).map(|_| world.get("/v1/events")).collect();
    let limited =
        answers.iter().find(|answer| answer.status == 429).expect("40 requests at once exceed 2 per second");
    limited.problem(429, "rate_limited");
    assert_eq!(limited.header("retry-after"), Some("1"));
    for _ in 0..20 {
        assert_eq!(world.get("/healthz").status, 200);
        assert_eq!(world.get("/readyz").status, 200);
    }
    world.until("the token bucket is refilled", || world.get("/v1/events").status == 200);
}

/// Head and first chunk of a batch without content length.
const BATCH: &str = "POST /v1/events/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n[\r\n";
const END_OF_BATCH: &str = "18\r\n{\"type\":\"a\",\"payload\":1}\r\n1\r\n]\r\n0\r\n\r\n";

/// Chunk of blanks.
fn blanks(bytes: usize) -> String {
    format!("{bytes:x}\r\n{}\r\n", " ".repeat(bytes))
}

fn body_bytes(world: &World) -> usize {
    let metrics = world.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix("redrive_http_body_bytes "));
    line.unwrap().parse().unwrap()
}

#[test]
fn large_bodies_wait_for_body_memory() {
    let world = &TestDatabase::sqlite().serve(&["--body-memory", "32"]);
    // One batch uses the share of the caller, which is half of the memory.
    let mut holder = world.connect();
    holder.send(BATCH).unwrap();
    holder.send(blanks((16 << 20) - 100)).unwrap();
    world.until("the memory is used", || body_bytes(world) == 16 << 20);
    let waits = std::thread::scope(|scope| {
        let large = event("a", "x".repeat(100_000));
        let waiting = scope.spawn(move || world.post("/v1/events", &large).status);
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished(), "no memory is free");
        holder.send(END_OF_BATCH).unwrap();
        assert_eq!(holder.answer().unwrap().status, 202);
        waiting.join().unwrap()
    });
    assert_eq!(waits, 202);
}

#[test]
fn an_announced_body_reserves_no_memory() {
    let world = TestDatabase::sqlite().serve(&["--body-memory", "32"]);
    let mut idle: Vec<_> = (0..8).map(|_| world.connect()).collect();
    for (n, connection) in idle.iter_mut().enumerate() {
        let length = "POST /v1/events/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 16777216\r\n\r\n[";
        connection.send(if n % 2 == 0 { BATCH } else { length }).unwrap();
    }
    world.until("the requests are in flight", || body_bytes(&world) == 8 << 10);
    let began = Instant::now();
    world.publish("a", &json!(1));
    assert!(began.elapsed() < Duration::from_secs(8), "the publish waited for idle requests");
}

#[test]
fn a_body_waiting_for_memory_times_out() {
    let world = TestDatabase::sqlite().serve(&["--body-memory", "32"]);
    let part = blanks(12 << 20);
    let rest = format!("{}{END_OF_BATCH}", blanks(3 << 20));
    let mut batches = [world.connect(), world.connect()];
    let [first, second] = &mut batches;
    first.send(BATCH).unwrap();
    first.send(&part).unwrap();
    world.until("the part is read", || body_bytes(&world) >= 12 << 20);
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            second.send(BATCH).unwrap();
            let _ = second.send(&part); // may not be read completely
            second.answer().unwrap()
        });
        world.until("the share of the caller is used", || body_bytes(&world) > (16 << 20) - (256 << 10));
        std::thread::sleep(Duration::from_secs(1)); // the second waits longest
        first.send(&rest).unwrap();
        (first.answer().unwrap(), second.join().unwrap())
    });
    second.problem(503, "unavailable");
    assert_eq!(second.header("retry-after"), Some("5"));
    assert_eq!(first.status, 202, "the memory freed by the second is enough: {first:?}");
    world.until("all memory is free", || body_bytes(&world) == 0);
}
