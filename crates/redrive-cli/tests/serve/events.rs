//! Publishing, batches, listing and filters over HTTP.

use std::collections::BTreeSet;

use redrive_api::events::{EventFilter, PublishEvent, PublishedEvent};
use redrive_api::page::PageQuery;
use serde_json::{Value, json};

use crate::world::{JSON, TestDatabase, World, ok};

fn both(test: impl Fn(World)) {
    test(TestDatabase::sqlite().serve(&[]));
    test(TestDatabase::postgres().serve(&[]));
}

#[test]
fn a_published_event_is_read_back_unchanged() {
    both(|world| {
        let payload = r#"{"z": 1.10, "a": [1e3, "\u0000ключ"]}"#;
        let body = format!(
            r#"{{"type": "order.created", "payload": {payload}, "metadata": {{"source": "shop \"1\""}}, "delay_ms": 3600000}}"#
        );
        let published = world.send("POST", "/v1/events", &[JSON], &body).ok(202);
        assert_eq!(published["duplicate"], false);
        let id = published["id"].as_str().unwrap();
        let answer = world.get(&format!("/v1/events/{id}"));
        assert!(answer.body.contains(payload), "{answer:?}");
        let event = answer.ok(200);
        assert_eq!((&event["type"], &event["status"]), (&json!("order.created"), &json!("pending")));
        assert_eq!(event["metadata"], json!({"source": "shop \"1\""}));
        let (created, due) = (event["created_at"].as_str().unwrap(), event["due_at"].as_str().unwrap());
        assert!(created < due && created.ends_with('Z'), "{event}");
    });
}

#[test]
fn publishing_an_id_twice_stores_one_event() {
    let world = World::new();
    let client = world.client();
    let id: uuid::Uuid = "4e1b2d3c-aaaa-4bbb-8ccc-123456789abc".parse().unwrap();
    let mut event = PublishEvent::new("a", serde_json::from_str("1").unwrap());
    event.id = Some(id);
    assert_eq!(ok(client.events().publish(&event)), PublishedEvent { id, duplicate: false });
    assert_eq!(ok(client.events().publish(&event)), PublishedEvent { id, duplicate: true });
    let listed = ok(client.events().list(&EventFilter::default(), &PageQuery::default()));
    assert_eq!(listed.data.len(), 1);
}

#[test]
fn due_time_retry_policy_and_trace_are_stored() {
    let world = World::new();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let event = json!({"type": "a", "payload": 1, "due_at": "2099-01-31T13:00:00+01:00",
        "retry": {"max_attempts": 9, "base_delay_ms": 5, "max_delay_ms": 50, "multiplier": 1.5, "jitter": "full"}});
    let answer =
        world.send("POST", "/v1/events", &[JSON, ("traceparent", trace)], &event.to_string()).ok(202);
    let shown = world.get(&format!("/v1/events/{}", answer["id"].as_str().unwrap())).ok(200);
    assert_eq!(shown["due_at"], "2099-01-31T12:00:00Z");
    assert_eq!(shown["metadata"]["traceparent"], trace);
    let own = json!({"type": "a", "payload": 1, "metadata": {"traceparent": "mine"}});
    let answer = world.send("POST", "/v1/events", &[JSON, ("traceparent", trace)], &own.to_string()).ok(202);
    let shown = world.get(&format!("/v1/events/{}", answer["id"].as_str().unwrap())).ok(200);
    assert_eq!(shown["metadata"]["traceparent"], "mine", "the body overrides the header");
    let answer = world.send("POST", "/v1/events", &[JSON, ("traceparent", "nonsense")], &own.to_string());
    assert_eq!(answer.status, 202, "an invalid trace is ignored");
}

#[test]
fn invalid_events_are_refused() {
    let world = World::new();
    for (bad, word) in [
        (json!({"type": "a"}), "missing field `payload`"),
        (json!({"payload": 1}), "missing field `type`"),
        (json!({"type": "a b", "payload": 1}), "not an event type"),
        (json!({"type": "a.*", "payload": 1}), "not an event type"),
        (json!({"type": "x".repeat(256), "payload": 1}), "not an event type"),
        (json!({"type": "a", "payload": 1, "id": "7"}), "UUID"),
        (json!({"type": "a", "payload": 1, "metadata": {"n": 1}}), "expected a string"),
        (json!({"type": "a", "payload": 1, "due_at": "tomorrow"}), "use RFC 3339"),
        (
            json!({"type": "a", "payload": 1, "due_at": "2099-01-01T00:00:00Z", "delay_ms": 1}),
            "give one of them",
        ),
        (json!({"type": "a", "payload": 1, "delay_ms": 9_000_000_000_000_000_u64}), "ten years"),
        (json!({"type": "a", "payload": 1, "delay_ms": -1}), "expected u64"),
        (json!({"type": "a", "payload": 1, "retry": {"max_attempts": 0}}), "from 1 to 100"),
        (json!({"type": "a", "payload": 1, "retry": {"multiplier": 0.5}}), "from 1 to 100"),
        (json!({"type": "a", "payload": 1, "retry": {"base_delay_ms": 10, "max_delay_ms": 5}}), "delay"),
        (json!({"type": "a", "payload": 1, "retry": {"jitter": "some"}}), "retry.jitter"),
        (json!({"type": "a", "payload": 1, "retries": 7}), "unknown field `retries`"),
        (json!([]), "JSON is not what is expected"),
    ] {
        let problem = world.post("/v1/events", &bad).problem(400, "invalid_request");
        assert!(problem["detail"].as_str().unwrap().contains(word), "{bad}: {problem}");
    }
    assert_eq!(world.get("/v1/events").ok(200), json!({"data": [], "next": null}));
}

#[test]
fn a_payload_over_one_mebibyte_is_refused() {
    let world = World::new();
    let largest = json!("x".repeat((1 << 20) - 2));
    world.publish("a", &largest);
    let answer = world.post("/v1/events", &json!({"type": "a", "payload": "x".repeat((1 << 20) - 1)}));
    answer.problem(413, "too_large");
    let answer = world.post("/v1/events", &json!({"type": "a", "payload": "x".repeat(2 << 20)}));
    answer.problem(413, "too_large");
    let metadata = json!({"type": "a", "payload": 1, "metadata": {"x": "y".repeat(70_000)}});
    world.post("/v1/events", &metadata).problem(413, "too_large");
}

#[test]
fn a_batch_is_stored_in_its_order() {
    both(|world| {
        let events: Vec<Value> =
            (0..500).map(|n| json!({"type": "a", "payload": n, "delay_ms": 3_600_000})).collect();
        let lines = events.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
        let array = world.post("/v1/events/batch", &json!(events)).ok(202);
        let lines = world.send(
            "POST",
            "/v1/events/batch",
            &[("content-type", "application/x-ndjson")],
            &format!("{lines}\r\n\n"),
        );
        for answer in [array, lines.ok(202)] {
            let data = answer["data"].as_array().unwrap();
            assert_eq!(data.len(), 500);
            let last = world.get(&format!("/v1/events/{}", data[499]["id"].as_str().unwrap())).ok(200);
            assert_eq!(last["payload"], 499);
        }
    });
}

#[test]
fn an_invalid_batch_stores_nothing_and_lists_its_errors() {
    let world = World::new();
    let lines =
        "{\"type\":\"a\",\"payload\":1}\n{\"type\":\"a\"}\nnonsense\n{\"type\":\"a\",\"payload\":2}\n";
    let answer = world.send("POST", "/v1/events/batch", &[("content-type", "application/x-ndjson")], lines);
    let problem = answer.problem(400, "invalid_batch");
    let named: Vec<_> =
        problem["errors"].as_array().unwrap().iter().map(|error| error["index"].clone()).collect();
    assert_eq!(named, [json!(1), json!(2)], "{problem}");
    let array = json!([{"type": "a", "payload": 1}, 7, {"type": "a", "payload": 1, "due_at": "2099-01-01T00:00:00Z", "delay_ms": 1}]);
    let problem = world.post("/v1/events/batch", &array).problem(400, "invalid_batch");
    assert_eq!(problem["errors"][0]["index"], 1);
    let problem = world.post(
        "/v1/events/batch",
        &json!([{"type": "a", "payload": 1}, {"type": "a", "payload": "x".repeat(1 << 20)}]),
    );
    assert_eq!(problem.problem(400, "invalid_batch")["errors"][0]["index"], 1);
    world.post("/v1/events/batch", &json!([])).problem(400, "invalid_request");
    world.post("/v1/events/batch", &json!({"type": "a", "payload": 1})).problem(400, "invalid_request");
    let many: Vec<_> = (0..10_001).map(|_| json!({"type": "a", "payload": 1})).collect();
    world.post("/v1/events/batch", &json!(many)).problem(413, "too_large");
    let huge = world.post("/v1/events/batch", &json!(["x".repeat(17 << 20)]));
    huge.problem(413, "too_large");
    assert_eq!(world.get("/v1/events").ok(200)["data"], json!([]));
}

/// Parsed, the batch would need a hundred times its size.
#[test]
fn an_oversized_batch_is_refused_without_being_parsed() {
    let world = World::new();
    let lines = "x\n".repeat(8 << 20);
    let answer = world.send("POST", "/v1/events/batch", &[("content-type", "application/x-ndjson")], &lines);
    let problem = answer.problem(413, "too_large");
    assert!(problem["detail"].as_str().unwrap().contains("8388608 events"), "{problem}");
    let array = format!("[0{}]", ",0".repeat((8 << 20) - 2));
    let problem = world.send("POST", "/v1/events/batch", &[JSON], &array).problem(413, "too_large");
    assert!(problem["detail"].as_str().unwrap().contains("8388607 events"), "{problem}");
    #[cfg(target_os = "linux")]
    assert!(world.peak_memory_bytes() < 200 << 20, "{} bytes", world.peak_memory_bytes());
}

#[test]
fn reserved_event_types_are_refused() {
    let world = World::new();
    for reserved in ["redrive.endpoint.disabled", "redrive.test", "redrive.", "retry.task"] {
        let forged = json!({"type": reserved, "payload": 1});
        let problem = world.post("/v1/events", &forged).problem(422, "reserved_type");
        assert!(problem["detail"].as_str().unwrap().contains("another name"), "{problem}");
        let batch = json!([{"type": "a", "payload": 1}, forged]);
        let problem = world.post("/v1/events/batch", &batch).problem(400, "invalid_batch");
        assert_eq!(problem["errors"][0]["index"], 1, "{problem}");
        assert!(problem["errors"][0]["detail"].as_str().unwrap().contains("another name"), "{problem}");
    }
    assert_eq!(world.get("/v1/events").ok(200)["data"], json!([]));
    for near in ["redrive", "redrives.made", "my.redrive.test", "retry.tasks"] {
        world.publish(near, &json!(1));
    }
}

#[test]
fn pages_list_every_event_once_during_publishes() {
    both(|world| {
        let mut expected = BTreeSet::new();
        for n in 0..25 {
            expected.insert(world.publish("a", &json!(n)));
        }
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = world.get(&format!("/v1/events?limit=10{after}")).ok(200);
            seen.extend(
                page["data"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap().to_owned()),
            );
            world.publish("a", &json!("meanwhile"));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(seen.len(), 25, "no event twice");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected, "no event left out");
    });
}

#[test]
fn events_are_filtered() {
    let world = World::new();
    let waiting =
        world.post("/v1/events", &json!({"type": "a", "payload": 1, "delay_ms": 3_600_000})).ok(202);
    let done = world.publish("b", &json!(1));
    let ids = |query: &str| -> Vec<String> {
        let page = world.get(&format!("/v1/events?{query}")).ok(200);
        page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["id"].as_str().unwrap().to_owned())
            .collect()
    };
    world.until("the unmatched event is done", || ids("status=done") == [done.as_str()]);
    assert_eq!(ids("status=pending"), [waiting["id"].as_str().unwrap()]);
    assert_eq!(ids("type=b"), [done.as_str()]);
    assert!(ids("type=b&status=pending").is_empty());
    for bad in [
        "status=dead",
        "type=a%20b",
        "limit=0",
        "limit=201",
        "limit=x",
        "after=x",
        "stat=done",
        "limit=1&limit=2",
    ] {
        world.get(&format!("/v1/events?{bad}")).problem(400, "invalid_request");
    }
    world.get("/v1/events/0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19").problem(404, "not_found");
    world.get("/v1/events/x").problem(400, "invalid_request");
    let stats = world.get("/v1/stats").ok(200);
    assert_eq!(
        (&stats["pending"], &stats["done"], &stats["dlq"]),
        (&json!(1), &json!(1), &json!(0)),
        "{stats}"
    );
}
