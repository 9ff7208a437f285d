//! `GET /v1/stats`: how many events there are, by where they stand.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::auth::MayRead;
use super::problem::Problem;
use super::{Api, Routes, reply};

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(stats))
}

/// Counts over the whole store.
#[derive(Debug, Serialize, ToSchema)]
struct StatsView {
    /// Waiting for their first attempt.
    pending: u64,
    /// Being handled, or waiting for another attempt.
    processing: u64,
    /// Handled, and still kept.
    done: u64,
    /// In the dead-letter queue.
    dlq: u64,
    /// Deliveries to single receivers that are not finished.
    open_deliveries: u64,
    /// In flight in this process now.
    in_flight: u64,
    /// Size of the database.
    file_bytes: u64,
    /// Size of its write-ahead log, if it is a file.
    wal_bytes: u64,
}

/// Count events by where they stand
#[utoipa::path(get, path = "/v1/stats", tag = "stats", security(("token" = ["read"])),
    responses((status = 200, body = StatsView)))]
async fn stats(State(api): State<Arc<Api>>, _: MayRead) -> Result<Response, Problem> {
    let stats = api.store.stats().await?;
    Ok(reply::ok(&StatsView {
        pending: stats.pending,
        processing: stats.processing,
        done: stats.done,
        dlq: stats.dlq,
        open_deliveries: stats.open_deliveries,
        in_flight: api.bus.dispatcher().in_flight() as u64,
        file_bytes: stats.file_bytes,
        wal_bytes: stats.wal_bytes,
    }))
}
