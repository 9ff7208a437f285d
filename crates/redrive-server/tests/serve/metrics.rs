//! What Prometheus reads.

use std::collections::BTreeSet;

use serde_json::json;

use crate::world::World;

#[test]
fn everything_is_counted_and_every_line_can_be_read() {
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
            assert!(families.insert(rest.split(' ').next().unwrap()), "{rest} is there twice");
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
    world.until("the connections before this one are gone", || {
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
