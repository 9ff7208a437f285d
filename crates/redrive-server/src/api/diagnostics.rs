//! `GET /v1/diagnostics`: counts the work that waits, by subscription.

use axum::extract::State;
use redrive::retry::Timestamp;
use redrive_api::diagnostics::{Diagnostics, WaitingDeliveries};
use redrive_api::time::Time;
use redrive_store as store;
use utoipa_axum::routes;

use super::auth::MayRead;
use super::{ApiState, Reply, Routes, reply};

/// Time after its due time at which work counts as overdue.
const OVERDUE_AFTER_MS: i64 = 60_000;

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(diagnostics))
}

/// Count the work that waits, by subscription
///
/// Reads all waiting work: for people and for checks every few minutes.
#[utoipa::path(get, path = "/v1/diagnostics", tag = "stats", security(("token" = ["read"])),
    responses((status = 200, body = Diagnostics)))]
async fn diagnostics(State(api): ApiState, _: MayRead) -> Reply {
    let now = api.store.clock().now();
    let overdue_before = Timestamp::from_millis(now.as_millis().saturating_sub(OVERDUE_AFTER_MS));
    let found = api.store.waiting(now, overdue_before).await?;
    let waiting = found.subscriptions.into_iter().map(waiting).collect();
    let unreadable_endpoints = api.webhooks.unreadable() as u64;
    Ok(reply::ok(&Diagnostics { now: now.into(), overdue: found.overdue, unreadable_endpoints, waiting }))
}

fn waiting(of_one: store::WaitingDeliveries) -> WaitingDeliveries {
    WaitingDeliveries {
        subscription: of_one.subscription,
        on_record: of_one.is_on_record,
        due: of_one.due,
        parked: of_one.parked,
        oldest_parked_at: of_one.oldest_parked_at.map(Time),
        retrying: of_one.retrying,
        backlogged: of_one.backlogged,
        oldest_backlogged_at: of_one.oldest_backlogged_at.map(Time),
    }
}
