//! Callers that may not, or may no longer, do what they ask for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::request;
use crate::world::{JSON, TestDatabase, World};

/// A second, and what a busy machine adds.
const WITHIN_A_SECOND: Duration = Duration::from_millis(1500);

const PULL: &str = "/v1/subscriptions/billing/pull";
const WAIT: &str = r#"{"wait_ms": 30000}"#;

/// Starts a server with a pull subscription.
fn serve(database: Arc<TestDatabase>) -> World {
    let (admin, _) = database.token("admin", &[]);
    let mut world = World::start(database, &[]);
    world.token = Some(admin);
    world.send("PUT", "/v1/subscriptions/billing", &[JSON], r#"{"patterns": ["order.*"]}"#).ok(200);
    world
}

fn connections(world: &World) -> u32 {
    let metrics = world.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix("redrive_http_connections "));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_revoked_token_ends_a_waiting_pull_and_gets_nothing() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let database = Arc::new(database);
        let (consumer, id) = database.token("consume", &[]);
        let world = serve(Arc::clone(&database));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| world.send_as(&consumer, "POST", PULL, WAIT));
            world.until("the pull waits", || connections(&world) == 2);
            // By another process: the server has to find out.
            database.text(&["tokens", "revoke", &id]);
            let revoked = Instant::now();
            waiting.join().unwrap().problem(401, "invalid_token");
            assert!(revoked.elapsed() < WITHIN_A_SECOND, "{:?}", revoked.elapsed());
        });
        world.publish("order.created", &json!(1));
        world.send_as(&consumer, "POST", PULL, WAIT).problem(401, "invalid_token");
        let other = world.send("POST", PULL, &[JSON], WAIT).ok(200);
        assert_eq!(other["data"][0]["attempt"], 1, "nothing was handed out: {other}");
    }
}

#[test]
fn an_expired_token_ends_a_waiting_pull() {
    let database = Arc::new(TestDatabase::sqlite());
    let world = serve(Arc::clone(&database));
    let (consumer, _) = database.token("consume", &["--expires-in", "3s"]);
    let created = Instant::now();
    world.until("the token is known", || world.send_as(&consumer, "POST", PULL, "{}").status == 200);
    let problem = world.send_as(&consumer, "POST", PULL, WAIT).problem(401, "invalid_token");
    assert!(problem["detail"].as_str().unwrap().contains("while the request waited"), "{problem}");
    assert!(created.elapsed() < Duration::from_secs(3) + WITHIN_A_SECOND, "{:?}", created.elapsed());
}

#[test]
fn only_the_command_line_creates_the_first_token() {
    let mut world = World::new();
    let body = json!({"name": "mine", "scopes": ["admin"]});
    let problem = world.post("/v1/tokens", &body).problem(401, "token_required");
    assert!(problem["detail"].as_str().unwrap().contains("redrive tokens create"), "{problem}");
    world.get("/v1/tokens").ok(200);
    let (admin, _) = world.database.token("admin", &[]);
    world.token = Some(admin);
    world.until("the token is known", || world.get("/v1/tokens").status == 200);
    world.post("/v1/tokens", &body).ok(201);
}

#[test]
fn a_request_through_a_proxy_is_not_local() {
    let world = World::new();
    assert_eq!(world.get("/v1/events").status, 200, "a local request");
    for (name, value) in [
        ("forwarded", "for=10.0.0.7"),
        ("via", "1.1 proxy"),
        ("x-forwarded-for", "10.0.0.7"),
        ("x-forwarded-proto", "https"),
        ("X-Forwarded-Anything", ""),
        ("x-real-ip", "10.0.0.7"),
        ("cf-connecting-ip", "10.0.0.7"),
        ("CF-Ray", "1"),
        ("true-client-ip", "10.0.0.7"),
    ] {
        world.send("GET", "/v1/events", &[(name, value)], "").problem(401, "token_required");
    }
    // `proxy_pass http://localhost:8080;` and nothing else: nginx before 1.29.7 sends HTTP/1.0 and the name of its upstream.
    let by_nginx = format!("GET /v1/events HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", world.address);
    let mut connection = world.connect();
    connection.send(by_nginx).unwrap();
    connection.answer().unwrap().problem(401, "token_required");
    let mut connection = world.connect();
    connection.send(request("GET", "/v1/events", &[("host", &world.address.to_string())], "")).unwrap();
    assert_eq!(connection.answer().unwrap().status, 200, "the same without a proxy");
}

/// nginx since 1.29.7 sends HTTP/1.1 and no header of a proxy: its workers are recognised by their user.
#[cfg(target_os = "linux")]
#[test]
fn a_request_of_another_user_is_not_local() {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    /// The user `nobody` on most systems.
    const OTHER_USER: u32 = 65_534;

    let world = World::new();
    let socket = format!("/dev/tcp/{}/{}", world.address.ip(), world.address.port());
    let script = format!(r#"exec 3<>{socket}; printf '%s' "$REQUEST" >&3; cat <&3"#);
    let sent = request("GET", "/v1/events", &[("connection", "close")], "");
    let mut client = Command::new("bash");
    client.args(["-c", &script]).env("REQUEST", &sent).current_dir("/").stdin(Stdio::null());
    let own = client.output().unwrap();
    assert!(own.stdout.starts_with(b"HTTP/1.1 200"), "the user of the server: {own:?}");
    match client.uid(OTHER_USER).gid(OTHER_USER).output() {
        Ok(other) => {
            let answer = String::from_utf8(other.stdout).unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 401") && answer.contains("redrive tokens create"),
                "{answer}"
            );
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!(
                "not tested, because only root runs a program as another user; the unit test of peer.rs covers it"
            );
        }
        Err(error) => panic!("{error}"),
    }
}
