//! Metrics of `redrive serve`: [`families`] collects them, `GET /metrics` shows them to Prometheus, and
//! [`telemetry`](crate::telemetry) exports them to a collector.

pub(crate) mod audit_log;
mod exposition;
pub(crate) mod meter;
mod receivers;
mod retries;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use redrive::metrics::{Histogram, Metrics};
use redrive::retry::get_retry_manager;
use redrive::store::Depth;
use utoipa_axum::routes;

use super::auth::MayRead;
use super::{Api, ApiState, Limits, Reply, Routes};
use crate::metric_family::{Family, Kind, Times};
use crate::telemetry::MetricSource;

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(metrics))
}

/// Show the metrics in the text format of Prometheus
///
/// Counters and gauges of the responding process, and the depth of the queues in the database.
#[utoipa::path(get, path = "/metrics", tag = "metrics", security(("token" = ["read"])),
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(api): ApiState, _: MayRead) -> Reply {
    let metrics = api.bus.metrics().await?;
    Ok(page(&families(&api, &metrics, Some(&metrics.depth)).await))
}

/// Response in the Prometheus text format.
pub(crate) fn page(families: &[Family]) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], exposition::text(families)).into_response()
}

impl MetricSource for Api {
    async fn families(&self) -> Vec<Family> {
        match self.bus.metrics().await {
            Ok(metrics) => families(self, &metrics, Some(&metrics.depth)).await,
            Err(_) => families(self, &self.bus.metrics_in_memory(), None).await,
        }
    }
}

/// All metrics. `depth` is missing while the store is unavailable.
async fn families(api: &Api, metrics: &Metrics, depth: Option<&Depth>) -> Vec<Family> {
    let mut families = totals(metrics);
    families.push(Family::gauge("redrive_in_flight", "Deliveries in flight.", metrics.in_flight as u64));
    families.extend(depth.into_iter().flat_map(waiting));
    families.extend(depth.into_iter().flat_map(stored));
    families.extend(by_type(metrics));
    families.extend(receivers::families(metrics));
    families.extend(retries::families(&get_retry_manager().metrics()));
    families.extend(audit_log::families(&api.audit_log.rows(&*api.store).await));
    families.push(durations(
        "redrive_dispatch_latency_seconds",
        "Time from stored to the start of the first attempt.",
        &metrics.dispatch_latency,
    ));
    families.push(durations(
        "redrive_attempt_duration_seconds",
        "Duration of attempts.",
        &metrics.handler_duration,
    ));
    families.extend(api.http.meter.families());
    families.extend(connections(&api.http.limits));
    families.push(Family::gauge(
        "redrive_stream_clients",
        "Clients connected to /v1/stream.",
        api.feed.clients() as u64,
    ));
    families
}

/// Resources used by HTTP requests.
pub(crate) fn connections(limits: &Limits) -> [Family; 2] {
    [
        Family::gauge("redrive_http_connections", "Open HTTP connections.", limits.connections.count()),
        Family::gauge(
            "redrive_http_body_bytes",
            "Memory reserved for request bodies.",
            limits.bodies.reserved_bytes(),
        ),
    ]
}

fn totals(metrics: &Metrics) -> Vec<Family> {
    [
        ("redrive_events_published_total", "Events stored.", metrics.published),
        (
            "redrive_events_duplicate_total",
            "Publishes of an event that was already stored.",
            metrics.duplicates,
        ),
        ("redrive_events_done_total", "Events handled by every matching subscription.", metrics.done),
        ("redrive_events_dead_total", "Events moved to the dead-letter queue.", metrics.dead),
        ("redrive_events_unmatched_total", "Events without a matching subscription.", metrics.unmatched),
        ("redrive_attempts_total", "Attempts, successful and failed.", metrics.attempts),
        (
            "redrive_deliveries_parked_total",
            "Deliveries deferred by an open circuit or a snooze.",
            metrics.parked,
        ),
        (
            "redrive_deliveries_backlogged_total",
            "Deliveries deferred to the backlog by a concurrency or rate limit.",
            metrics.backlogged,
        ),
        (
            "redrive_budget_deferrals_total",
            "Retries deferred by a spent retry budget.",
            metrics.budget_deferred,
        ),
        (
            "redrive_deliveries_orphaned_total",
            "Events and deliveries that were deferred because no process has registered their subscription.",
            metrics.orphaned,
        ),
        (
            "redrive_recovered_total",
            "Deliveries recovered because the process that ran them had ended.",
            metrics.recovered,
        ),
    ]
    .map(|(name, help, value)| Family::counter(name, help, value))
    .into()
}

fn waiting(depth: &Depth) -> [Family; 4] {
    [
        ("redrive_events_pending", "Events waiting for their first attempt.", depth.pending),
        ("redrive_events_running", "Events in flight.", depth.running),
        ("redrive_events_waiting", "Events waiting for a retry.", depth.waiting),
        (
            "redrive_deliveries_open",
            "Deliveries to a single subscription that are not settled.",
            depth.open_deliveries,
        ),
    ]
    .map(|(name, help, value)| Family::gauge(name, help, value))
}

/// Size of the database.
pub(crate) fn stored(depth: &Depth) -> [Family; 2] {
    [
        Family::gauge("redrive_database_bytes", "Size of the database.", depth.file_bytes),
        Family::gauge("redrive_database_wal_bytes", "Size of the write-ahead log.", depth.wal_bytes),
    ]
}

fn by_type(metrics: &Metrics) -> [Family; 3] {
    let mut finished =
        Family::new("redrive_type_finished_total", "Events settled, by type and outcome.", Kind::Counter);
    let mut retries =
        Family::new("redrive_type_retries_total", "Attempts after the first, by type.", Kind::Counter);
    let mut dead_after_retry = Family::new(
        "redrive_type_dead_after_retry_total",
        "Dead events that had been retried, by type.",
        Kind::Counter,
    );
    for (name, of_type) in &metrics.by_type {
        for (outcome, value) in [
            ("done_at_once", of_type.done_at_once),
            ("done_after_retry", of_type.done_after_retry),
            ("dead", of_type.dead),
        ] {
            finished = finished.with(vec![("type", name.clone()), ("outcome", outcome.to_owned())], value);
        }
        let of = || vec![("type", name.clone())];
        dead_after_retry = dead_after_retry.with(of(), of_type.dead_after_retry);
        retries = retries.with(of(), of_type.retries);
    }
    [finished, dead_after_retry, retries]
}

pub(crate) fn durations(name: &'static str, help: &'static str, histogram: &Histogram) -> Family {
    Family::new(name, help, Kind::Histogram).with_times(Vec::new(), times(histogram))
}

fn times(histogram: &Histogram) -> Times {
    let buckets = histogram.buckets.iter().map(|bucket| (bucket.up_to_us, bucket.count)).collect();
    Times { buckets, sum_us: histogram.sum_us }
}
