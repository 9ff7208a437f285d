//! `--json` prints the response of the HTTP API: on a database, by a server, and by HTTP itself.

use std::io::{Read, Write};
use std::net::TcpStream;

use redrive_retry::Timestamp;
use serde_json::{Map, Value, json};

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
        let (receiver, mut world) = (Receiver::start(500), World::on_file());
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
            fields.remove("last_used_at");
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
    let endpoint = &scene.endpoint;
    for (command, path) in [
        ("events list", "/v1/events"),
        (
            "events list --status dlq --type order.created --limit 2",
            "/v1/events?status=dlq&type=order.created&limit=2",
        ),
        (&format!("events show {id}"), &format!("/v1/events/{id}")),
        ("dlq list", "/v1/dlq"),
        ("dlq list --limit 1 --reason attempts_exhausted", "/v1/dlq?limit=1&reason=attempts_exhausted"),
        (&format!("dlq show {id}"), &format!("/v1/dlq/{id}")),
        ("dlq groups", "/v1/dlq/groups"),
        ("endpoints list", "/v1/endpoints"),
        (&format!("endpoints show {endpoint}"), &format!("/v1/endpoints/{endpoint}")),
        (
            &format!("endpoints attempts {endpoint} --limit 2"),
            &format!("/v1/endpoints/{endpoint}/attempts?limit=2"),
        ),
        ("tokens list", "/v1/tokens"),
        ("replay list", "/v1/replays"),
        (&format!("replay show {replay}"), &format!("/v1/replays/{replay}")),
        ("scheduler review list", "/v1/review"),
    ] {
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
    }
}

#[test]
fn every_changing_command_prints_the_answer_of_the_api() {
    let scene = Scene::new();
    let url = scene.receiver.url();
    for (command, method, path, body) in [
        ("publish order.created 7", "POST", "/v1/events", json!({"type": "order.created", "payload": 7})),
        ("dlq retry {dead}", "POST", "/v1/dlq/{dead}/retry", json!({})),
        ("dlq retry --all --dry-run", "POST", "/v1/dlq/retry", json!({"filter": {}, "dry_run": true})),
        ("dlq retry --all --yes", "POST", "/v1/dlq/retry", json!({"filter": {}})),
        ("dlq purge --older-than 1h --yes", "DELETE", "/v1/dlq?older_than=1h", Value::Null),
        (
            &format!("endpoints add {url} --pattern none"),
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
    ] {
        let by_http = shape(&scene.http(method, &scene.fill(path), &body));
        for by_server in [false, true] {
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
}
