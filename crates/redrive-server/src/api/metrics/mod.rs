//! `GET /metrics`: what has happened since the start, as Prometheus reads it.

mod exposition;
pub(crate) mod meter;

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use redrive::{BreakerSnapshot, Histogram, Metrics};
use utoipa_axum::routes;

use self::exposition::Exposition;
use super::auth::MayRead;
use super::problem::Problem;
use super::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(metrics))
}

/// Show the metrics in the text format of Prometheus
#[utoipa::path(get, path = "/metrics", tag = "metrics", security(("token" = ["read"])),
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(api): State<Arc<Api>>, _: MayRead) -> Result<Response, Problem> {
    let mut text = Exposition::default();
    of_bus(&mut text, &api.bus.metrics().await?);
    api.meter.write(&mut text);
    text.gauge("redrive_http_connections", "Connections that are open.", api.limits.connections.count());
    text.gauge(
        "redrive_http_body_bytes",
        "Memory set aside for bodies of requests.",
        api.limits.body_bytes(),
    );
    text.gauge("redrive_stream_clients", "Clients of /v1/stream.", api.feed.clients() as u64);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text.into_text()).into_response())
}

fn of_bus(text: &mut Exposition, metrics: &Metrics) {
    for (name, help, value) in [
        ("redrive_events_published_total", "Events stored.", metrics.published),
        ("redrive_events_duplicate_total", "Events that were there already.", metrics.duplicates),
        ("redrive_events_done_total", "Events finished.", metrics.done),
        ("redrive_events_dead_total", "Events given up.", metrics.dead),
        ("redrive_events_unmatched_total", "Events that nobody wanted.", metrics.unmatched),
        ("redrive_attempts_total", "Attempts, whatever their outcome.", metrics.attempts),
        ("redrive_deliveries_parked_total", "Deliveries put off by an open circuit.", metrics.parked),
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
    ] {
        text.counter(name, help, value);
    }
    let depth = &metrics.depth;
    for (name, help, value) in [
        ("redrive_in_flight", "Units of work in flight.", metrics.in_flight as u64),
        ("redrive_events_pending", "Events waiting for their first attempt.", depth.pending),
        ("redrive_events_running", "Events being handled.", depth.running),
        ("redrive_events_waiting", "Events waiting for another attempt.", depth.waiting),
        (
            "redrive_deliveries_open",
            "Deliveries to single receivers that are not finished.",
            depth.open_deliveries,
        ),
        ("redrive_database_bytes", "Size of the database.", depth.file_bytes),
        ("redrive_database_wal_bytes", "Size of its write-ahead log.", depth.wal_bytes),
    ] {
        text.gauge(name, help, value);
    }
    by_type(text, metrics);
    by_subscription(text, metrics);
    histogram(
        text,
        "redrive_dispatch_latency_seconds",
        "From stored to the start of the first attempt.",
        &metrics.dispatch_latency,
    );
    histogram(text, "redrive_attempt_duration_seconds", "How long attempts took.", &metrics.handler_duration);
}

fn by_type(text: &mut Exposition, metrics: &Metrics) {
    text.family("redrive_type_finished_total", "Events finished, by type and by how.", "counter");
    for (name, of_type) in &metrics.by_type {
        for (outcome, value) in [
            ("done_at_once", of_type.done_at_once),
            ("done_after_retry", of_type.done_after_retry),
            ("dead", of_type.dead),
        ] {
            text.sample("redrive_type_finished_total", &[("type", name), ("outcome", outcome)], value);
        }
    }
    text.family("redrive_type_retries_total", "Attempts after the first, by type.", "counter");
    for (name, of_type) in &metrics.by_type {
        text.sample("redrive_type_retries_total", &[("type", name)], of_type.retries);
    }
}

fn by_subscription(text: &mut Exposition, metrics: &Metrics) {
    text.family("redrive_circuit_open", "Whether a receiver's circuit is open.", "gauge");
    for (name, breaker) in &metrics.breakers {
        let is_open = matches!(breaker, BreakerSnapshot::Open { .. });
        text.sample("redrive_circuit_open", &[("subscription", name)], u64::from(is_open));
    }
    text.family("redrive_budget_retries", "Retries that a receiver's budget has saved up.", "gauge");
    for (name, retries) in &metrics.budgets {
        text.sample("redrive_budget_retries", &[("subscription", name)], u64::from(*retries));
    }
}

fn histogram(text: &mut Exposition, name: &str, help: &str, histogram: &Histogram) {
    text.family(name, help, "histogram");
    let buckets = histogram.buckets.iter().map(|bucket| (bucket.up_to_us, bucket.count));
    text.histogram(name, &[], buckets, histogram.sum_us);
}
