//! `GET /metrics`.

use std::collections::BTreeSet;
use std::sync::Arc;

use redrive_retry::audit::{AuditSink, Fanout};
use redrive_retry::{Category, RetryManager, VirtualTime};
use redrive_store::{SqliteOptions, SqliteStore};
use serde_json::json;

use crate::receiver::Receiver;
use crate::world::{TestDatabase, World, endpoint};

#[test]
fn metrics_are_counted_and_well_formed() {
    let world = World::new();
    world.publish("order.created", &json!(1));
    world.publish("quote\"back\\slash", &json!(1));
    world.get("/nothing/that/makes/a/label");
    world.until("both are done", || world.get("/metrics").body.contains("redrive_events_done_total 2"));
    let answer = world.get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let (mut families, mut samples) = (BTreeSet::new(), 0);
    for line in answer.body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(rest.split(' ').next().unwrap()), "{rest} is listed twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
        let name = name.split('{').next().unwrap();
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(families.contains(family) || families.contains(name), "{line} has no family");
        samples += 1;
    }
    assert!(samples > 50);
    world.until("earlier connections are closed", || {
        world.get("/metrics").body.contains("redrive_http_connections 1\n")
    });
    for line in [
        "redrive_events_published_total 2",
        "redrive_type_finished_total{type=\"order.created\",outcome=\"done_at_once\"} 1",
        "redrive_type_finished_total{type=\"quote\\\"back\\\\slash\",outcome=\"done_at_once\"} 1",
        "redrive_http_requests_total{method=\"POST\",route=\"/v1/events\",status=\"202\"} 2",
        "redrive_http_requests_total{method=\"GET\",route=\"(none)\",status=\"404\"} 1",
        "redrive_http_request_duration_seconds_count{route=\"/v1/events\"} 2",
    ] {
        assert!(answer.body.lines().any(|found| found == line), "{line} is not in {}", answer.body);
    }
}

#[test]
fn retries_are_counted_by_event_type() {
    let receiver = Receiver::new();
    let world = TestDatabase::sqlite().serve(&[
        "--allow-range",
        "127.0.0.0/8",
        "--max-attempts",
        "2",
        "--base-delay",
        "500ms",
    ]);
    world.create_endpoint(&endpoint(receiver.url(), "order.*"));
    let has = |line: &str| world.get("/metrics").body.lines().any(|found| found == line);
    receiver.respond_with(500);
    world.publish("order.lost", &json!(1));
    world.until("it is dead", || has("redrive_type_dead_after_retry_total{type=\"order.lost\"} 1"));
    world.publish("order.late", &json!(1));
    world.until("it failed", || has("redrive_attempts_total 3"));
    receiver.respond_with(200);
    let late = "redrive_type_finished_total{type=\"order.late\",outcome=\"done_after_retry\"} 1";
    world.until("its retry succeeds", || has(late));
    for line in [
        "redrive_type_dead_after_retry_total{type=\"order.late\"} 0",
        "redrive_type_finished_total{type=\"order.lost\",outcome=\"dead\"} 1",
        "redrive_type_retries_total{type=\"order.lost\"} 1",
        "redrive_type_retries_total{type=\"order.late\"} 1",
    ] {
        assert!(has(line), "{line} is not in {}", world.get("/metrics").body);
    }
}

#[test]
fn an_endpoint_has_series_until_it_is_removed() {
    let receiver = Receiver::new();
    let world = TestDatabase::sqlite().serve(&["--allow-range", "127.0.0.0/8", "--max-attempts", "1"]);
    let id = world.create_endpoint(&endpoint(receiver.url(), "order.*"));
    let has = |line: &str| world.get("/metrics").body.lines().any(|found| found == line);
    let delivered = |outcome: &str, count: u32| {
        format!("redrive_deliveries_total{{subscription=\"{id}\",outcome=\"{outcome}\"}} {count}")
    };
    world.publish("order.created", &json!(1));
    world.until("it is delivered", || has(&delivered("done", 1)));
    receiver.respond_with(500);
    world.publish("order.created", &json!(2));
    world.until("it is dead-lettered", || has(&delivered("dead", 1)));
    for line in [
        delivered("retry", 0),
        delivered("parked", 0),
        delivered("backlogged", 0),
        format!("redrive_delivery_duration_seconds_count{{subscription=\"{id}\"}} 2"),
        format!("redrive_delivery_duration_seconds_bucket{{subscription=\"{id}\",le=\"+Inf\"}} 2"),
        format!("redrive_circuit_state{{subscription=\"{id}\",state=\"closed\"}} 1"),
        format!("redrive_circuit_state{{subscription=\"{id}\",state=\"open\"}} 0"),
        "redrive_deliveries_backlogged_total 0".to_owned(),
    ] {
        assert!(has(&line), "{line} is not in {}", world.get("/metrics").body);
    }
    // Series survive an update and end with the endpoint.
    let path = format!("/v1/endpoints/{id}");
    assert_eq!(world.send("PATCH", &path, &[crate::world::JSON], r#"{"description":"x"}"#).status, 200);
    assert!(has(&delivered("done", 1)));
    assert_eq!(world.send("DELETE", &path, &[], "").status, 204);
    assert!(!world.get("/metrics").body.contains(&id));
}

#[test]
fn guarded_calls_of_other_programs_are_counted_by_category() {
    let world = World::new();
    assert!(!world.get("/metrics").body.contains("redrive_audit_calls_total{"));
    // Another program keeps its audit log in the server's database.
    let options = SqliteOptions { owner: false, ..SqliteOptions::default() };
    let store = Arc::new(SqliteStore::open(world.database.name(), options).unwrap());
    let sink = Fanout::new([Arc::clone(&store) as Arc<dyn AuditSink>]);
    let manager = RetryManager::builder().audit(sink).clock(VirtualTime::new().clock()).build();
    for failures in [1, 9] {
        let _ = manager
            .execute(&Category::ApiRequest, "Fetch")
            .run_blocking(|attempt| if attempt.number() <= failures { Err("down") } else { Ok(()) });
    }
    for line in [
        "redrive_audit_calls_total{category=\"RETRY_API_REQUEST\",outcome=\"succeeded\"} 1",
        "redrive_audit_calls_total{category=\"RETRY_API_REQUEST\",outcome=\"failed\"} 1",
        "redrive_audit_attempts_total{category=\"RETRY_API_REQUEST\"} 5",
    ] {
        world.until(line, || world.get("/metrics").body.lines().any(|found| found == line));
    }
}
