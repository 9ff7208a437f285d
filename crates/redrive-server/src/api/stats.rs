//! `GET /v1/stats`: counts events by status.

use axum::extract::State;
use redrive_api::stats::Stats;
use utoipa_axum::routes;

use super::auth::MayRead;
use super::{ApiState, Reply, Routes, reply};

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(stats))
}

/// Count events by status
///
/// Counts of the whole database, and its size. `in_flight` counts the responding process alone.
#[utoipa::path(get, path = "/v1/stats", tag = "stats", security(("token" = ["read"])),
    responses((status = 200, body = Stats)))]
async fn stats(State(api): ApiState, _: MayRead) -> Reply {
    let stats = api.store.stats().await?;
    Ok(reply::ok(&Stats {
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
