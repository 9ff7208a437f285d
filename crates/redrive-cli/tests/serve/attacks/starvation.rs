//! Callers that use up connections, memory or rate. Others are served meanwhile, and `/healthz` answers within a second.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpSocket;

use crate::http::{Connection, request};
use crate::world::{JSON, TestDatabase, World, event, to_json};

/// Asserts that a health check on a new connection is answered within a second.
fn is_healthy(world: &World) {
    let began = Instant::now();
    assert_eq!(world.get("/healthz").status, 200);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// Head of a batch by this token, without content length.
fn batch_head(token: &str) -> String {
    format!(
        "POST /v1/events/batch HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n[\r\n"
    )
}

/// Chunk of blanks.
fn blanks(bytes: usize) -> String {
    format!("{bytes:x}\r\n{}\r\n", " ".repeat(bytes))
}

#[test]
fn one_caller_cannot_take_the_body_memory_of_others() {
    let database = TestDatabase::sqlite();
    let (greedy, _) = database.token("publish", &[]);
    let (other, _) = database.token("publish", &[]);
    let (read, _) = database.token("read", &[]);
    let world = database.serve(&["--body-memory", "32"]);
    let reserved = || {
        let metrics = world.send_as(&read, "GET", "/metrics", "").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("redrive_http_body_bytes "));
        line.unwrap().parse::<usize>().unwrap()
    };
    // Six bodies of 5 MiB: of the 32 MiB the caller gets 16, and the rest of its bodies waits.
    let mut attack: Vec<_> = (0..6).map(|_| world.connect()).collect();
    std::thread::scope(|scope| {
        for connection in &mut attack {
            let greedy = &greedy;
            scope.spawn(move || {
                connection.send(batch_head(greedy)).unwrap();
                let _ = connection.send(blanks(5 << 20)); // may not be read completely
            });
        }
        world.until("the share of the caller is used", || reserved() > 15 << 20);
        is_healthy(&world);
        let small = to_json(&event("a", 1));
        let began = Instant::now();
        assert_eq!(
            world.send_as(&greedy, "POST", "/v1/events", &small).status,
            202,
            "a small body of the same caller"
        );
        let large = [event("a", "x".repeat((1 << 20) - 2)), event("b", " ".repeat(900_000))];
        let answer = world.send_as(&other, "POST", "/v1/events/batch", &to_json(&large));
        assert_eq!(answer.status, 202, "a large body of another caller: {answer:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(reserved() < 18 << 20, "{}", reserved());
    });
}

#[test]
fn a_dripping_body_is_ended() {
    let world = World::new();
    let mut drip = world.connect();
    let text = request("POST", "/v1/events", &[JSON, ("content-length", "1000")], "");
    drip.send(text).unwrap();
    let began = Instant::now();
    let ended = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(100)); // the attack
        drip.send(" ").is_err() || began.elapsed() > Duration::from_secs(8)
    });
    is_healthy(&world);
    assert!(ended);
    if let Some(answer) = drip.answer() {
        answer.problem(408, "request_timeout");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "the body timeout is 30 s: {:?}", began.elapsed());
}

/// Opens connections from this address, as many as the server accepts.
async fn flood(server: SocketAddr, from: &str, count: usize) -> Vec<std::net::TcpStream> {
    let mut held = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let connecting = tokio::time::timeout(Duration::from_secs(5), socket.connect(server)).await;
        if let Ok(Ok(stream)) = connecting {
            held.push(stream.into_std().unwrap());
        }
    }
    held
}

#[tokio::test]
async fn connections_of_one_address_leave_room_for_others() {
    let world = TestDatabase::sqlite().serve(&["--max-connections", "20"]);
    let mut held = flood(world.address, "127.0.0.2", 60).await;
    assert!(held.len() > 10, "{}", held.len());
    is_healthy(&world);
    world.publish("a", &json!(1));
    world.until("ten of the attack and this one are open", || {
        world.get("/metrics").body.contains("\nredrive_http_connections 11\n")
    });
    for stream in held.split_off(10) {
        stream.set_nonblocking(false).unwrap();
        let (status, _) = Connection::of(stream).head().expect("a refused connection is told so");
        assert_eq!(status, 429);
    }
}

#[tokio::test]
async fn connections_are_clamped_to_the_limit_of_open_files() {
    let database = Arc::new(TestDatabase::sqlite());
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "ulimit -n 128 && exec \"$0\" serve --listen 127.0.0.1:0",
            env!("CARGO_BIN_EXE_redrive"),
        ])
        .env("REDRIVE_DB", database.name())
        .stdin(Stdio::null());
    let world = World::run(database, command);
    let _held = flood(world.address, "127.0.0.2", 200).await;
    is_healthy(&world);
    world.publish("a", &json!(1));
    assert!(world.log().contains("the limit of open files is 128"), "{}", world.log());
}

#[test]
fn bad_tokens_take_nothing_from_valid_ones() {
    let database = TestDatabase::sqlite();
    let (publish, _) = database.token("publish", &[]);
    let world = database.serve(&["--rate-limit", "5"]);
    let mut attack = world.connect();
    for n in 0..100 {
        let authorization = format!("Bearer rdt_{n}");
        attack.send(request("GET", "/v1/events", &[("authorization", &authorization)], "")).unwrap();
        attack.answer().unwrap().problem(401, "invalid_token");
        attack.send(request("GET", "/nothing", &[], "")).unwrap();
        attack.answer().unwrap().problem(404, "not_found");
    }
    is_healthy(&world);
    let answer = world.send_as(&publish, "POST", "/v1/events", r#"{"type":"a","payload":1}"#);
    assert_eq!(answer.status, 202, "{answer:?}");
}
