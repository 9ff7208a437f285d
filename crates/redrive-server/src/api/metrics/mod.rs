//! What has happened since the start, and how things stand: [`families`] says it, `GET /metrics` shows it to Prometheus, and
//! [`telemetry`](crate::telemetry) sends it to a collector.

mod exposition;
pub(crate) mod family;
pub(crate) mod meter;
mod receivers;

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use redrive::{Depth, Histogram, Metrics};
use utoipa_axum::routes;

use self::family::{Family, Kind, Times};
use super::auth::MayRead;
use super::problem::Problem;
use super::{Api, Limits, Routes};
use crate::telemetry::Measured;

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(metrics))
}

/// Show the metrics in the text format of Prometheus
#[utoipa::path(get, path = "/metrics", tag = "metrics", security(("token" = ["read"])),
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(api): State<Arc<Api>>, _: MayRead) -> Result<Response, Problem> {
    let metrics = api.bus.metrics().await?;
    Ok(page(&families(&api, &metrics, Some(&metrics.depth))))
}

/// In the text format of Prometheus.
pub(crate) fn page(families: &[Family]) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], exposition::text(families)).into_response()
}

impl Measured for Api {
    async fn families(&self) -> Vec<Family> {
        match self.bus.metrics().await {
            Ok(metrics) => families(self, &metrics, Some(&metrics.depth)),
            Err(_) => families(self, &self.bus.counted(), None),
        }
    }
}

/// Everything that is counted. How much waits is known only as long as the store can be asked.
fn families(api: &Api, metrics: &Metrics, depth: Option<&Depth>) -> Vec<Family> {
    let mut families = totals(metrics);
    families.push(Family::gauge("redrive_in_flight", "Units of work in flight.", metrics.in_flight as u64));
    families.extend(depth.into_iter().flat_map(waiting));
    families.extend(depth.into_iter().flat_map(stored));
    families.extend(by_type(metrics));
    families.extend(receivers::families(metrics));
    families.push(durations(
        "redrive_dispatch_latency_seconds",
        "From stored to the start of the first attempt.",
        &metrics.dispatch_latency,
    ));
    families.push(durations(
        "redrive_attempt_duration_seconds",
        "How long attempts took.",
        &metrics.handler_duration,
    ));
    families.extend(api.door.meter.families());
    families.extend(connections(&api.door.limits));
    families.push(Family::gauge(
        "redrive_stream_clients",
        "Clients of /v1/stream.",
        api.feed.clients() as u64,
    ));
    families
}

/// What requests take up.
pub(crate) fn connections(limits: &Limits) -> [Family; 2] {
    [
        Family::gauge("redrive_http_connections", "Connections that are open.", limits.connections.count()),
        Family::gauge(
            "redrive_http_body_bytes",
            "Memory set aside for bodies of requests.",
            limits.body_bytes(),
        ),
    ]
}

fn totals(metrics: &Metrics) -> Vec<Family> {
    [
        ("redrive_events_published_total", "Events stored.", metrics.published),
        ("redrive_events_duplicate_total", "Events that were there already.", metrics.duplicates),
        ("redrive_events_done_total", "Events finished.", metrics.done),
        ("redrive_events_dead_total", "Events given up.", metrics.dead),
        ("redrive_events_unmatched_total", "Events that nobody wanted.", metrics.unmatched),
        ("redrive_attempts_total", "Attempts, whatever their outcome.", metrics.attempts),
        ("redrive_deliveries_parked_total", "Deliveries put off by an open circuit.", metrics.parked),
        (
            "redrive_deliveries_held_total",
            "Deliveries put off because their receiver had no room.",
            metrics.held,
        ),
        ("redrive_retries_held_back_total", "Retries put off by a spent budget.", metrics.held_back),
        (
            "redrive_deliveries_orphaned_total",
            "Looks at deliveries whose receiver is not there.",
            metrics.orphaned,
        ),
        (
            "redrive_recovered_total",
            "What was running when a process before this one ended.",
            metrics.recovered,
        ),
    ]
    .map(|(name, help, value)| Family::counter(name, help, value))
    .into()
}

fn waiting(depth: &Depth) -> [Family; 4] {
    [
        ("redrive_events_pending", "Events waiting for their first attempt.", depth.pending),
        ("redrive_events_running", "Events being handled.", depth.running),
        ("redrive_events_waiting", "Events waiting for another attempt.", depth.waiting),
        (
            "redrive_deliveries_open",
            "Deliveries to single receivers that are not finished.",
            depth.open_deliveries,
        ),
    ]
    .map(|(name, help, value)| Family::gauge(name, help, value))
}

/// What the database takes up.
pub(crate) fn stored(depth: &Depth) -> [Family; 2] {
    [
        Family::gauge("redrive_database_bytes", "Size of the database.", depth.file_bytes),
        Family::gauge("redrive_database_wal_bytes", "Size of its write-ahead log.", depth.wal_bytes),
    ]
}

fn by_type(metrics: &Metrics) -> [Family; 2] {
    let mut finished =
        Family::new("redrive_type_finished_total", "Events finished, by type and by how.", Kind::Counter);
    let mut retries =
        Family::new("redrive_type_retries_total", "Attempts after the first, by type.", Kind::Counter);
    for (name, of_type) in &metrics.by_type {
        for (outcome, value) in [
            ("done_at_once", of_type.done_at_once),
            ("done_after_retry", of_type.done_after_retry),
            ("dead", of_type.dead),
        ] {
            finished = finished.with(vec![("type", name.clone()), ("outcome", outcome.to_owned())], value);
        }
        retries = retries.with(vec![("type", name.clone())], of_type.retries);
    }
    [finished, retries]
}

pub(crate) fn durations(name: &'static str, help: &'static str, histogram: &Histogram) -> Family {
    Family::new(name, help, Kind::Histogram).with_times(Vec::new(), times(histogram))
}

fn times(histogram: &Histogram) -> Times {
    let buckets = histogram.buckets.iter().map(|bucket| (bucket.up_to_us, bucket.count)).collect();
    Times { buckets, sum_us: histogram.sum_us }
}
