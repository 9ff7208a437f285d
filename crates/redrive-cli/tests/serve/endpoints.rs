//! Endpoints and replays over HTTP.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use redrive_api::endpoints::{
    AttemptFilter, CircuitState, CreateEndpoint, RotateSecret, Signing, UpdateEndpoint,
};
use redrive_api::page::PageQuery;
use redrive_api::replays::{BeginReplay, ReplayEvent};
use redrive_api::retry::Retry;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

use crate::http::request;
use crate::receiver::Receiver;
use crate::world::{JSON, TestDatabase, World, endpoint, event, ok, to_json};

fn serve(database: TestDatabase) -> World {
    database.serve(&["--allow-range", "127.0.0.0/8"])
}

#[test]
fn an_endpoint_is_created_updated_tested_and_removed() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = serve(database);
        let receiver = Receiver::new();
        let body = json!({"url": receiver.url(), "patterns": ["order.*", "invoice.paid"], "description": "shop",
            "headers": {"Authorization": "Bearer s3cr3t"}, "retry": {"max_attempts": 2, "base_delay_ms": 10},
            "timeout_ms": 5000, "per_second": 1000.0, "concurrency": 4});
        let (client, path) = (world.client(), |id: &str| format!("/v1/endpoints/{id}"));
        let endpoints = client.endpoints();
        let made = ok(endpoints.create(&serde_json::from_value(body).unwrap()));
        assert!(made.secret.starts_with("whsec_"));
        let id = &made.endpoint.id;
        let shown = ok(endpoints.get(id));
        assert_eq!((shown.version, shown.enabled), (1, true));
        let retry = Retry { max_attempts: Some(2), base_delay_ms: Some(10), ..Retry::default() };
        assert_eq!(shown.retry, Some(retry));
        assert_eq!(shown.header_names, ["authorization"]);
        assert_eq!(shown.state.circuit, Some(CircuitState::Closed));
        let raw = world.get(&path(id));
        assert!(raw.ok(200).get("secret").is_none() && !raw.body.contains("s3cr3t"), "{raw:?}");

        let event = world.publish("order.created", &json!({"n": 1}));
        world.until("it is delivered", || {
            world.get(&format!("/v1/events/{event}")).ok(200)["status"] == "done"
        });
        assert_eq!(receiver.received()[0]["data"], json!({"n": 1}));
        assert_eq!(receiver.received()[0]["type"], "order.created");
        let attempt =
            ok(endpoints.attempts(id, &AttemptFilter::default(), &PageQuery::default())).data.remove(0);
        assert_eq!((attempt.succeeded, attempt.event_id.to_string()), (true, event));
        let request = attempt.request.unwrap();
        assert_eq!((request.status, request.body.as_deref()), (Some(200), Some("ok")));

        let change = UpdateEndpoint {
            version: Some(1),
            description: Some("store".to_owned()),
            retry: Some(None),
            per_second: Some(None),
            ..UpdateEndpoint::default()
        };
        let changed = ok(endpoints.update(id, &change));
        assert_eq!((changed.version, changed.description.as_str()), (2, "store"));
        assert_eq!((changed.retry, changed.per_second), (None, None));
        let late = json!({"version": 1, "description": "late"}).to_string();
        world.send("PATCH", &path(id), &[JSON], &late).problem(409, "conflict");

        assert_eq!(ok(endpoints.test(id)).status, Some(200));
        assert_eq!(receiver.received()[1]["type"], "redrive.test");

        let rotate =
            RotateSecret { signing: Some(Signing::Ed25519), overlap_s: Some(60), ..RotateSecret::default() };
        let rotated = ok(endpoints.rotate_secret(id, &rotate));
        let [newest, previous] = rotated.data.as_slice() else { panic!("{rotated:?}") };
        assert!(newest.secret.starts_with("whpk_"));
        assert!(newest.expires_at.is_none() && previous.expires_at.is_some());
        assert_eq!(ok(endpoints.secrets(id)), rotated);

        ok(endpoints.remove(id));
        let path = path(id);
        world.get(&path).problem(404, "not_found");
        world.send("DELETE", &path, &[], "").problem(404, "not_found");
        assert_eq!(world.get("/v1/endpoints").ok(200)["data"], json!([]));
        assert!(!world.log().contains("s3cr3t") && !world.log().contains("whsec_"), "{}", world.log());
    }
}

#[test]
fn proxy_variables_are_ignored_and_the_key_file_is_private() {
    let proxy = "http://127.0.0.1:9";
    let proxies =
        [("HTTP_PROXY", proxy), ("http_proxy", proxy), ("HTTPS_PROXY", proxy), ("ALL_PROXY", proxy)];
    let database = Arc::new(TestDatabase::sqlite());
    let world = World::start_with(Arc::clone(&database), &["--allow-range", "127.0.0.0/8"], &proxies);
    let receiver = Receiver::new();
    world.create_endpoint(&endpoint(receiver.url(), "*"));
    world.publish("order.created", &json!(1));
    world.until("it is delivered", || receiver.received().len() == 1);
    let key = std::fs::metadata(format!("{}.key", database.name())).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_patch_of_the_retry_policy_keeps_other_fields() {
    let world = serve(TestDatabase::sqlite());
    let retry = Some(Retry { max_attempts: Some(2), base_delay_ms: Some(10), ..Retry::default() });
    let id = world.create_endpoint(&CreateEndpoint { retry, ..endpoint(Receiver::new().url(), "*") });
    let client = world.client();
    let patch = |retry| {
        let patch = UpdateEndpoint { retry: Some(retry), ..UpdateEndpoint::default() };
        ok(client.endpoints().update(&id, &patch)).retry
    };
    let nine = Retry { max_attempts: Some(9), ..Retry::default() };
    assert_eq!(patch(Some(nine.clone())), Some(Retry { base_delay_ms: Some(10), ..nine }));
    assert_eq!(patch(None), None);
}

#[test]
fn an_endpoint_sealed_with_another_key_can_only_be_removed() {
    let database = TestDatabase::sqlite();
    let keys =
        ["b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb28=", "bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmU="];
    let start = |database: Arc<TestDatabase>, key: &str| {
        World::start_with(database, &["--allow-range", "127.0.0.0/8"], &[("REDRIVE_SECRET_KEY", key)])
    };
    let world = start(Arc::new(database), keys[0]);
    let receiver = Receiver::new();
    let id = world.create_endpoint(&endpoint(receiver.url(), "*"));
    let world = start(world.kill(), keys[1]);
    let path = format!("/v1/endpoints/{id}");
    let event = world.publish("order.created", &json!(1));
    for answer in [world.get(&path), world.send("PATCH", &path, &[JSON], r#"{"description": "x"}"#)] {
        let problem = answer.problem(409, "conflict");
        assert!(problem["detail"].as_str().unwrap().contains("encrypted with another key"), "{problem}");
    }
    assert_eq!(world.send("DELETE", &path, &[], "").status, 204);
    world.until("its deliveries are dead-lettered", || {
        world.get(&format!("/v1/events/{event}")).ok(200)["status"] == "dlq"
    });
    assert!(receiver.received().is_empty());
}

/// Running out of file descriptors is a fault of this machine, not of the receiver.
#[test]
fn deliveries_wait_uncharged_while_no_file_can_be_opened() {
    let world = serve(TestDatabase::sqlite());
    let receiver = Receiver::new();
    receiver.respond_after(Duration::from_millis(200));
    let id =
        world.create_endpoint(&CreateEndpoint { concurrency: Some(64), ..endpoint(receiver.url(), "*") });
    let pid = Pid::from_raw(i32::try_from(world.child.id()).unwrap());
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |files| prlimit(pid, Resource::Nofile, Rlimit { current: Some(files), maximum });
    let open = || std::fs::read_dir(format!("/proc/{}/fd", world.child.id())).unwrap().count() as u64;
    let mut connection = world.connect();
    connection.send(request("GET", "/healthz", &[], "")).unwrap();
    connection.answer().unwrap();
    limit(open() + 4).unwrap();
    let events: Vec<_> = (0..20).map(|n| event("order.created", n)).collect();
    connection.send(request("POST", "/v1/events/batch", &[JSON], &to_json(&events))).unwrap();
    connection.answer().unwrap().ok(202);
    world.until("all events are received", || receiver.received().len() >= 20);
    limit(1024).unwrap();
    assert!(world.log().contains("raise the limit of open files"), "{}", world.log());
    let attempts = || world.get(&format!("/v1/endpoints/{id}/attempts?limit=100")).ok(200)["data"].clone();
    world.until("all attempts are recorded", || attempts().as_array().unwrap().len() == 20);
    let all = attempts();
    assert!(all.as_array().unwrap().iter().all(|attempt| attempt["succeeded"] == true), "{all}");
    let shown = world.get(&format!("/v1/endpoints/{id}")).ok(200);
    assert_eq!(shown["state"]["circuit"], "closed");
}

#[test]
fn invalid_endpoints_are_refused_with_the_reason() {
    let world = serve(TestDatabase::sqlite());
    let body = |change: Value| {
        let mut body = json!({"url": "http://127.0.0.1:9/", "patterns": ["*"]});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        world.post("/v1/endpoints", &body).problem(400, "invalid_request")["detail"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(body(json!({"url": "http://10.0.0.1/"})).contains("--allow-range"));
    assert!(body(json!({"url": "http://169.254.169.254/latest"})).contains("not a public address"));
    assert!(body(json!({"url": "ftp://example.com"})).contains("https://"));
    assert!(body(json!({"patterns": []})).contains("order.*"));
    assert!(body(json!({"patterns": ["a b"]})).contains("not a pattern"));
    assert!(body(json!({"concurrency": 0})).contains("between 1 and 256"));
    assert!(body(json!({"per_second": 0})).contains("per_second"));
    assert!(body(json!({"timeout_ms": 60_000})).contains("timeout_ms"));
    assert!(body(json!({"headers": {"Host": "x"}})).contains("host"));
    assert!(body(json!({"secret": "hunter2"})).contains("whsec_"));
    assert!(
        body(json!({"secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "signing": "hmac"}))
            .contains("not both")
    );
    assert!(body(json!({"retry": {"max_attempts": 0}})).contains("max_attempts"));
    assert!(body(json!({"unknown": 1})).contains("unknown"));
    world.get("/v1/endpoints/ep_1").problem(400, "invalid_request");
    world.get("/v1/endpoints/ep_00000000000000000000000000000000").problem(404, "not_found");
    world.get("/v1/endpoints/ep_00000000000000000000000000000000/attempts").problem(404, "not_found");
}

#[test]
fn endpoints_are_listed_in_pages() {
    let world = serve(TestDatabase::sqlite());
    let ids: Vec<String> =
        (0..5).map(|_| world.create_endpoint(&endpoint("http://127.0.0.1:9/", "never"))).collect();
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = world.get(&format!("/v1/endpoints?limit=2{after}")).ok(200);
        seen.extend(
            page["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, ids);
}

#[test]
fn a_replay_sends_missed_events_again() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = serve(database);
        let receiver = Receiver::new();
        let retry = Some(Retry { max_attempts: Some(1), ..Retry::default() });
        let id = world.create_endpoint(&CreateEndpoint { retry, ..endpoint(receiver.url(), "order.*") });
        receiver.respond_with(500);
        let events: Vec<String> = (0..5).map(|n| world.publish("order.created", &json!({"n": n}))).collect();
        let dead =
            || world.get(&format!("/v1/dlq?subscription={id}")).ok(200)["data"].as_array().unwrap().len();
        world.until("all of them are dead-lettered", || dead() == 5);
        receiver.respond_with(200);

        let one = world
            .post(&format!("/v1/events/{}/replay", events[0]), &ReplayEvent { endpoint: id.clone() })
            .ok(202);
        assert_eq!(one["replayed"], true);
        world.until("it is delivered", || dead() == 4);

        let replays = format!("/v1/endpoints/{id}/replays");
        let dry = world.post(&replays, &BeginReplay { dry_run: true, ..BeginReplay::default() }).ok(200);
        assert_eq!((&dry["would_replay"], dead()), (&json!(4), 4));
        let future = world.post(&replays, &json!({"dry_run": true, "since": "2099-01-01T00:00:00Z"})).ok(200);
        assert_eq!(future["would_replay"], 0);
        world.post(&replays, &json!({"per_second": 0})).problem(400, "invalid_request");
        let begun = world.send("POST", &replays, &[], "").ok(202);
        let path = format!("/v1/replays/{}", begun["id"].as_str().unwrap());
        world.until("the job is done", || world.get(&path).ok(200)["state"] == "done");
        assert_eq!(world.get(&path).ok(200)["replayed"], 4);
        world.until("no dead letter is left", || dead() == 0);
        for event in &events {
            let path = format!("/v1/events/{event}");
            world.until("it is done", || world.get(&path).ok(200)["status"] == "done");
        }
        assert_eq!(receiver.received().len(), 10, "each event once more");
        // A finished replay cannot be cancelled.
        let cancelled = world.send("POST", &format!("{path}/cancel"), &[], "").ok(200);
        assert_eq!(cancelled["state"], "done");
        assert_eq!(world.get("/v1/replays").ok(200)["data"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_replay_resumes_after_a_kill_and_stops_when_cancelled() {
    let world = serve(TestDatabase::sqlite());
    let receiver = Receiver::new();
    let id = world
        .create_endpoint(&CreateEndpoint { enabled: Some(false), ..endpoint(receiver.url(), "order.*") });
    for n in 0..30 {
        world.publish("order.created", &json!({ "n": n }));
    }
    let dead = |world: &World| {
        world.get(&format!("/v1/dlq?subscription={id}")).ok(200)["data"].as_array().unwrap().len()
    };
    world.until("all of them are dead-lettered", || dead(&world) == 30);
    world.send("PATCH", &format!("/v1/endpoints/{id}"), &[JSON], r#"{"enabled": true}"#).ok(200);
    let replays = format!("/v1/endpoints/{id}/replays");
    let slow = world.post(&replays, &BeginReplay { per_second: Some(1.0), ..BeginReplay::default() }).ok(202);
    let slow = format!("/v1/replays/{}", slow["id"].as_str().unwrap());
    world.until("it has begun", || dead(&world) < 30);
    let database = world.kill();
    let world = World::start(database, &["--allow-range", "127.0.0.0/8"]);
    let before = world.get(&slow).ok(200)["replayed"].as_u64().unwrap();
    world.until("the replay resumes", || world.get(&slow).ok(200)["replayed"].as_u64().unwrap() > before + 1);
    let cancelled = world.send("POST", &format!("{slow}/cancel"), &[], "").ok(200);
    assert_eq!(cancelled["state"], "cancelled");
    let left = dead(&world);
    assert!(left > 0, "the rest stays dead");
    world.post(&replays, &BeginReplay { per_second: Some(1000.0), ..BeginReplay::default() }).ok(202);
    world.until("a new replay sends the rest", || dead(&world) == 0);
}

#[test]
fn updating_an_endpoint_closes_its_circuit() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let receiver = Receiver::new();
        receiver.respond_with(500);
        let world = database.serve(&["--allow-range", "127.0.0.0/8", "--max-attempts", "1"]);
        let id = world.create_endpoint(&endpoint(receiver.url(), "order.*"));
        let path = format!("/v1/endpoints/{id}");
        let began = std::time::Instant::now();
        world.until("its circuit is open", || {
            world.publish("order.created", &json!("early"));
            world.get(&path).ok(200)["state"]["circuit"] == "open"
        });
        let late: Vec<_> = (0..5).map(|n| world.publish("order.created", &json!({"late": n}))).collect();
        let is =
            |event: &str, status: &str| world.get(&format!("/v1/events/{event}")).ok(200)["status"] == status;
        receiver.respond_with(200);
        world.send("PATCH", &path, &[JSON], r#"{"description": "mended"}"#).ok(200);
        world.until("the parked events are delivered", || late.iter().all(|event| is(event, "done")));
        assert!(
            began.elapsed() < std::time::Duration::from_secs(30),
            "the circuit would have stayed open longer"
        );
        let received =
            receiver.received().iter().filter(|message| message["data"]["late"].is_number()).count();
        assert_eq!(received, 5, "each event once");
    }
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_draws_a_warning_at_the_start() {
    let database = Arc::new(TestDatabase::sqlite());
    let mut world = World::start(Arc::clone(&database), &[]);
    assert!(!world.log().contains("other users can read"), "{}", world.log());
    world.signal("TERM");
    world.ended();
    let key = format!("{}.key", database.name());
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let world = World::start(database, &[]);
    assert!(world.log().contains("other users can read the key"), "{}", world.log());
}
