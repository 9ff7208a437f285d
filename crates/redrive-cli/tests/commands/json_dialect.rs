//! `--json` prints the response of the HTTP API: on a database, by a server, and by HTTP itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use redrive::dlq::{DlqFilter, DlqInspector};
use redrive_retry::Timestamp;
use serde_json::{Map, Value, json};

use super::output::with_reviews;
use super::receiver::Receiver;
use super::world::{World, until};

/// A server with one endpoint that refuses everything, and the token that every request needs.
struct Scene {
    world: World,
    receiver: Receiver,
    token: String,
    endpoint: String,
}

impl Scene {
    fn new() -> Self {
        Scene::on(World::on_file())
    }

    fn on(mut world: World) -> Self {
        let receiver = Receiver::start(500);
        let created = world.json(&["tokens", "create", "--name", "admin", "--scope", "admin"]);
        world.serve(&["--allow-range", "127.0.0.0/8", "--max-attempts", "1"]);
        let mut scene = Scene { world, receiver, token: text(&created["token"]), endpoint: String::new() };
        let endpoint = json!({"url": scene.receiver.url(), "patterns": ["order.*"]});
        scene.endpoint = text(&scene.http("POST", "/v1/endpoints", &endpoint)["id"]);
        scene
    }

    /// The answer of the server to a plain request.
    fn http(&self, method: &str, path: &str, body: &Value) -> Value {
        let (address, token) = (self.world.address(), &self.token);
        let host = address.trim_start_matches("http://");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(host).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
        if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() }
    }

    /// The output of a command with `--json`: on the database, or by the server.
    fn command(&self, arguments: &[&str], by_server: bool) -> Value {
        let mut command = self.world.command(arguments);
        command.arg("--json").env("REDRIVE_TOKEN", &self.token);
        if by_server {
            command.args(["--server", &self.world.address()]);
        } else if arguments[0] == "endpoints" {
            command.args(["--allow-range", "127.0.0.0/8"]);
        }
        let output = command.output().unwrap();
        // `endpoints test` fails with the endpoint, and prints the answer nevertheless.
        assert!(output.status.success() || arguments[1] == "test", "{arguments:?}: {output:?}");
        if output.stdout.is_empty() { Value::Null } else { serde_json::from_slice(&output.stdout).unwrap() }
    }

    /// Publishes an event for an endpoint of its own, whose circuit is closed, and waits until it is dead.
    fn dead(&self) -> String {
        let event_type = format!("dead.{}", self.receiver.requests().len());
        let endpoint = json!({"url": self.receiver.url(), "patterns": [event_type]});
        self.http("POST", "/v1/endpoints", &endpoint);
        self.publish_until_dead(&event_type)
    }

    /// Publishes an event and waits until it is in the dead-letter queue.
    fn publish_until_dead(&self, event_type: &str) -> String {
        let event = json!({"type": event_type, "payload": {"order": 7}});
        let id = text(&self.http("POST", "/v1/events", &event)["id"]);
        until("the event is dead", || {
            let event = self.http("GET", &format!("/v1/events/{id}"), &Value::Null);
            (event["status"] == "dlq").then_some(())
        });
        id
    }

    /// Replaces `{dead}`, `{endpoint}`, `{other}`, `{replay}` and `{token}` by ids; all but `{endpoint}` are new ones.
    fn fill(&self, template: &str) -> String {
        let create = |path: &str, body: Value| text(&self.http("POST", path, &body)["id"]);
        match template {
            text if text.contains("{dead}") => text.replace("{dead}", &self.dead()),
            text if text.contains("{other}") => {
                let other = json!({"url": self.receiver.url(), "patterns": ["none"]});
                text.replace("{other}", &create("/v1/endpoints", other))
            }
            text if text.contains("{replay}") => {
                let path = format!("/v1/endpoints/{}/replays", self.endpoint);
                text.replace("{replay}", &create(&path, json!({})))
            }
            text if text.contains("{token}") => {
                text.replace("{token}", &create("/v1/tokens", json!({"name": "x", "scopes": ["read"]})))
            }
            text => text.replace("{endpoint}", &self.endpoint),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Whether a field is the health of an endpoint, which depends on the answering process. The state of a replay is a text.
fn is_health(name: &str, value: &Value) -> bool {
    name == "state" && value.is_object()
}

/// Removes the fields that depend on the answering process or on the time of a request.
fn stable(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for name in ["last_used_at", "file_bytes", "wal_bytes"] {
                fields.remove(name);
            }
            fields.retain(|name, value| !is_health(name, value));
            fields.values_mut().for_each(|field| *field = stable(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = stable(item.take())),
        _ => {}
    }
    value
}

/// The names and types of an answer.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, value)| *name != "headers" && !is_health(name, value));
            Value::Object(fields.map(|(name, value)| (name.clone(), shape(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().take(1).map(shape).collect()),
        Value::String(_) => json!("text"),
        Value::Number(_) => json!(0),
        other => other.clone(),
    }
}

/// Asserts that every time in an answer is RFC 3339 in UTC.
fn check_times(value: &Value) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
            Some(time) if name.ends_with("_at") => {
                assert!(time.ends_with('Z') && time.parse::<Timestamp>().is_ok(), "{name}: {time}");
            }
            _ => check_times(value),
        }),
        Value::Array(items) => items.iter().for_each(check_times),
        _ => {}
    }
}

/// Commands that read, and the requests with the same answer.
const READING: [(&str, &str); 15] = [
    ("stats", "/v1/stats"),
    ("events list", "/v1/events"),
    (
        "events list --status dlq --type order.created --limit 2",
        "/v1/events?status=dlq&type=order.created&limit=2",
    ),
    ("events show {id}", "/v1/events/{id}"),
    ("dlq list", "/v1/dlq"),
    ("dlq list --limit 1 --reason attempts_exhausted", "/v1/dlq?limit=1&reason=attempts_exhausted"),
    ("dlq show {id}", "/v1/dlq/{id}"),
    ("dlq groups", "/v1/dlq/groups"),
    ("endpoints list", "/v1/endpoints"),
    ("endpoints show {endpoint}", "/v1/endpoints/{endpoint}"),
    ("endpoints attempts {endpoint} --limit 2", "/v1/endpoints/{endpoint}/attempts?limit=2"),
    ("tokens list", "/v1/tokens"),
    ("replay list", "/v1/replays"),
    ("replay show {job}", "/v1/replays/{job}"),
    ("scheduler review list", "/v1/review"),
];

/// Commands that change something, and the requests with an answer of the same shape.
fn changing(url: &str) -> Vec<(&'static str, &'static str, &'static str, Value)> {
    vec![
        ("publish order.created 7", "POST", "/v1/events", json!({"type": "order.created", "payload": 7})),
        ("dlq retry {dead}", "POST", "/v1/dlq/{dead}/retry", json!({})),
        ("dlq retry {dead} --payload 8", "POST", "/v1/dlq/{dead}/retry", json!({"payload": 8})),
        ("dlq retry --all --dry-run", "POST", "/v1/dlq/retry", json!({"filter": {}, "dry_run": true})),
        ("dlq retry --all --yes", "POST", "/v1/dlq/retry", json!({"filter": {}})),
        ("dlq purge --older-than 1h --yes", "DELETE", "/v1/dlq?older_than=1h", Value::Null),
        (
            "endpoints add {url} --pattern none",
            "POST",
            "/v1/endpoints",
            json!({"url": url, "patterns": ["none"]}),
        ),
        (
            "endpoints update {endpoint} --description x",
            "PATCH",
            "/v1/endpoints/{endpoint}",
            json!({"description": "x"}),
        ),
        ("endpoints disable {other}", "PATCH", "/v1/endpoints/{other}", json!({"enabled": false})),
        ("endpoints enable {other}", "PATCH", "/v1/endpoints/{other}", json!({"enabled": true})),
        ("endpoints remove {other}", "DELETE", "/v1/endpoints/{other}", Value::Null),
        ("endpoints rotate-secret {other}", "POST", "/v1/endpoints/{other}/secret/rotate", json!({})),
        ("endpoints test {endpoint}", "POST", "/v1/endpoints/{endpoint}/test", json!({})),
        (
            "tokens create --name x --scope read",
            "POST",
            "/v1/tokens",
            json!({"name": "x", "scopes": ["read"]}),
        ),
        ("tokens revoke {token}", "DELETE", "/v1/tokens/{token}", Value::Null),
        ("replay endpoint {endpoint}", "POST", "/v1/endpoints/{endpoint}/replays", json!({})),
        (
            "replay endpoint {endpoint} --dry-run",
            "POST",
            "/v1/endpoints/{endpoint}/replays",
            json!({"dry_run": true}),
        ),
        ("replay cancel {replay}", "POST", "/v1/replays/{replay}/cancel", Value::Null),
    ]
}

/// Commands with `--json` that no table above compares, with the reason.
const OTHERS: [(&str, &str); 19] = [
    ("dlq export", "compared line by line in a test of its own"),
    ("replay event", "needs a dead event of its own: compared below the table"),
    ("scheduler review groups", "computed from the list"),
    ("scheduler review show", "compared in a test of its own"),
    ("scheduler review retry", "compared in a test of its own"),
    ("scheduler review discard", "compared in a test of its own"),
    ("events tail", "a stream"),
    ("audit list", "reads files and databases that no server has open"),
    ("audit stats", "reads files and databases that no server has open"),
    ("audit verify", "reads files and databases that no server has open"),
    ("policy advise", "reads files and databases that no server has open"),
    ("policy explain", "computes"),
    ("policy simulate", "computes"),
    ("config check", "reads files of the machine"),
    ("doctor", "checks the machine and the server"),
    ("backup", "copies a file"),
    ("migrate", "copies a database"),
    ("demo", "runs a program of its own"),
    ("bench", "runs a program of its own"),
];

/// Every command with `--json`, found through `--help`.
fn commands_with_json(path: &[String], found: &mut Vec<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_redrive")).args(path).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let subcommands =
        help.split("\nCommands:\n").nth(1).map_or("", |rest| rest.split("\n\n").next().unwrap());
    let mut is_group = false;
    for line in subcommands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let name = line.split_whitespace().next().unwrap();
        is_group = true;
        if name != "help" {
            commands_with_json(&[path, &[name.to_owned()]].concat(), found);
        }
    }
    if !is_group && help.contains("--json") {
        found.push(path.join(" "));
    }
}

#[test]
fn every_command_with_json_is_compared_with_the_api() {
    let mut found = Vec::new();
    commands_with_json(&[], &mut found);
    assert!(found.len() > 25, "{found:?}");
    let changing = changing("");
    let compared: Vec<&str> =
        READING.iter().map(|(command, _)| *command).chain(changing.iter().map(|row| row.0)).collect();
    let is_compared = |command: &String| {
        let is_in = |row: &str| row == command || row.starts_with(&format!("{command} "));
        compared.iter().any(|row| is_in(row)) || OTHERS.iter().any(|(row, _)| is_in(row))
    };
    let missing: Vec<&String> = found.iter().filter(|command| !is_compared(command)).collect();
    assert!(missing.is_empty(), "neither compared with the API nor listed in OTHERS: {missing:?}");
    let stale: Vec<&str> = OTHERS
        .iter()
        .map(|(command, _)| *command)
        .filter(|command| !found.iter().any(|f| f == command))
        .collect();
    assert!(stale.is_empty(), "no such command has --json: {stale:?}");
}

#[test]
fn every_reading_command_prints_the_answer_of_the_api() {
    let scene = Scene::new();
    let id = [0, 1, 2].map(|_| scene.publish_until_dead("order.created"))[0].clone();
    let replay = scene.fill("{replay}");
    until("the replay is done", || {
        let job = scene.http("GET", &format!("/v1/replays/{replay}"), &Value::Null);
        (job["state"] == "done").then_some(())
    });
    let is_dead = || scene.http("GET", "/v1/stats", &Value::Null)["dlq"] == 3;
    until("everything is dead again", || is_dead().then_some(()));
    for (command, path) in READING {
        let fill = |text: &str| {
            text.replace("{id}", &id).replace("{job}", &replay).replace("{endpoint}", &scene.endpoint)
        };
        let (command, path) = (&fill(command), &fill(path));
        let arguments: Vec<&str> = command.split(' ').collect();
        let by_http = stable(scene.http("GET", path, &Value::Null));
        let is_list = ["list", "groups", "attempts"].iter().any(|verb| arguments.contains(verb));
        assert!(!is_list || by_http["data"].is_array(), "{command}: {by_http}");
        check_times(&by_http);
        assert_eq!(stable(scene.command(&arguments, false)), by_http, "{command} on the database");
        assert_eq!(stable(scene.command(&arguments, true)), by_http, "{command} by the server");
    }
}

#[test]
fn an_attempt_has_the_same_fields_in_its_event_in_the_dead_letter_and_at_its_endpoint() {
    let scene = Scene::new();
    let (id, endpoint) = (scene.publish_until_dead("order.created"), &scene.endpoint);
    for by_server in [false, true] {
        let of_event = scene.command(&["events", "show", &id], by_server)["attempts"][0].take();
        let dead = scene.command(&["dlq", "show", &id], by_server)["data"][0]["attempts"][0].take();
        let of_endpoint = scene.command(&["endpoints", "attempts", endpoint], by_server)["data"][0].take();
        assert_eq!((&of_event, of_event["subscription"].as_str()), (&dead, Some(endpoint.as_str())));
        assert_eq!(of_endpoint["event_id"], id);
        let common =
            ["attempt", "started_at", "duration_ms", "class", "delay_ms", "error", "decision", "request"];
        for name in common {
            assert!(of_event.get(name).is_some(), "{name}: {of_event}");
            assert_eq!(of_event[name], of_endpoint[name], "{name}");
        }
        assert_eq!((&of_event["request"]["status"], &of_event["detail"]), (&json!(500), &Value::Null));
        assert!(of_event["request"]["failed"].is_string() && of_event["decision"].is_object(), "{of_event}");
        let text = scene.world.command(&["dlq", "show", &id]).output().unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.contains("response 500"), "{text}");
    }
}

#[test]
fn every_changing_command_prints_the_answer_of_the_api() {
    let scene = Scene::new();
    let url = scene.receiver.url();
    for (command, method, path, body) in changing(&url) {
        let by_http = shape(&scene.http(method, &scene.fill(path), &body));
        for by_server in [false, true] {
            let command = command.replace("{url}", &url);
            let words: Vec<String> = command.split(' ').map(|word| scene.fill(word)).collect();
            let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
            let printed = scene.command(&arguments, by_server);
            check_times(&printed);
            assert_eq!(shape(&printed), by_http, "{command}, by the server: {by_server}");
        }
    }
    let (event, endpoint) = (scene.dead(), &scene.endpoint);
    let replay = json!({ "endpoint": endpoint });
    let by_http = scene.http("POST", &format!("/v1/events/{event}/replay"), &replay);
    for by_server in [false, true] {
        let event = scene.dead();
        let printed = scene.command(&["replay", "event", &event, "--endpoint", endpoint], by_server);
        assert_eq!(printed, by_http);
    }
}

#[test]
fn every_command_of_the_review_queue_prints_the_answer_of_the_api() {
    let world = World::on_file();
    with_reviews(&world, &[("orders", "timeout"); 9]);
    let scene = Scene::on(world);
    let list = scene.http("GET", "/v1/review", &Value::Null);
    let ids: Vec<String> =
        list["data"].as_array().unwrap().iter().map(|review| text(&review["id"])).collect();
    assert_eq!(ids.len(), 9);
    let show = format!("scheduler review show {}", ids[0]);
    for (command, path) in [
        ("scheduler review list --limit 2", "/v1/review?limit=2"),
        (show.as_str(), &format!("/v1/review/{}", ids[0])),
    ] {
        let arguments: Vec<&str> = command.split(' ').collect();
        let by_http = scene.http("GET", path, &Value::Null);
        check_times(&by_http);
        assert_eq!(scene.command(&arguments, false), by_http, "{command} on the database");
        assert_eq!(scene.command(&arguments, true), by_http, "{command} by the server");
    }
    let mut ids = ids.into_iter();
    for (verb, body) in [("retry", json!({})), ("discard", json!({"why": "no"}))] {
        let path = format!("/v1/review/{}/{verb}", ids.next().unwrap());
        let by_http = shape(&scene.http("POST", &path, &body));
        for by_server in [false, true] {
            let id = ids.next().unwrap();
            let mut arguments = vec!["scheduler", "review", verb, &id];
            if verb == "discard" {
                arguments.extend(["--why", "no"]);
            }
            let printed = scene.command(&arguments, by_server);
            assert_eq!(shape(&printed), by_http, "{verb}, by the server: {by_server}");
        }
    }
}

#[test]
fn an_export_has_each_dead_letter_as_the_api_answers_it() {
    let scene = Scene::new();
    let ids = [0, 1].map(|_| scene.publish_until_dead("order.created"));
    let by_http: Vec<Value> = ids
        .iter()
        .rev()
        .map(|id| scene.http("GET", &format!("/v1/dlq/{id}"), &Value::Null)["data"][0].take())
        .collect();
    let address = scene.world.address();
    for side in [&[][..], &["--server", &address]] {
        let mut command = scene.world.command(&["dlq", "export"]);
        let output = command.args(side).env("REDRIVE_TOKEN", &scene.token).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter().for_each(check_times);
        assert_eq!(lines, by_http, "{side:?}");
    }
    // The export of the library knows no endpoints: the request is the detail that their handler recorded.
    let path = scene.world.folder.path().join("redrive.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut lines = Vec::new();
    runtime.block_on(async {
        let dlq = DlqInspector::open(path).await.unwrap();
        assert_eq!(dlq.export(DlqFilter::default(), &mut lines).await.unwrap(), 2);
    });
    let without_requests = |mut line: Value| {
        check_times(&line);
        for attempt in line["attempts"].as_array_mut().unwrap() {
            let attempt = attempt.as_object_mut().unwrap();
            let fields = [
                attempt.insert("request".to_owned(), Value::Null),
                attempt.insert("detail".to_owned(), Value::Null),
            ];
            assert_eq!(fields.iter().flatten().filter(|field| field.is_object()).count(), 1, "{attempt:?}");
        }
        line
    };
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let lines: Vec<Value> =
        lines.map(|line| without_requests(serde_json::from_slice(line).unwrap())).collect();
    assert_eq!(lines, by_http.into_iter().map(without_requests).collect::<Vec<_>>(), "by the library");
}
