//! Telemetry and log format of the scheduler.

use std::sync::Arc;

use serde_json::Value;

use super::broker::failure;
use super::world::Shop;
use crate::telemetry::Collector;
use crate::world::TestDatabase;

#[test]
fn attempts_and_metrics_are_exported_and_logs_are_structured() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let (collector, url) = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("REDRIVE_OTLP_INTERVAL", "100ms"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("REDRIVE_LOG_FORMAT", "json"),
        ("SERVICE_NAME", "retries-of-the-shop"),
    ];
    let mut world = shop.schedule(&database, &variables);
    shop.client.send_failure(&shop.retry_queue, &failure("m-1", &shop.orders, 0));
    shop.client.next(&shop.orders, || world.log());
    world.until("metrics are exported", || collector.number("retries_executed_total").is_some());
    world.signal("TERM");
    assert_eq!(world.ended().code(), Some(0), "{}", world.log());
    let names = collector.span_names();
    assert!(names.iter().any(|name| name.contains("retry.task")), "{names:?}");
    assert_eq!(collector.service_names(), ["retries-of-the-shop"]);
    for line in world.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
}
