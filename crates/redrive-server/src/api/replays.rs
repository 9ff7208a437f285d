//! Replays: send one event, or all dead letters of an endpoint, to the endpoint again.

use axum::extract::State;
use axum::http::StatusCode;
use redrive::EventId;
use redrive::store::Replayed;
use redrive::subscription::SubscriptionName;
use redrive_api::page::{Page, PageQuery};
use redrive_api::replays::{BeginReplay, EventReplayed, Replay, ReplayCount, ReplayEvent};
use redrive_api::time::Time;
use redrive_webhook as webhook;
use redrive_webhook::{EndpointId, EndpointStoreError, ReplayId, ReplayRequest};
use utoipa_axum::routes;

use super::auth::{MayAdmin, MayRead};
use super::body::{Json, MaybeJson, Named, Query};
use super::problem::Problem;
use super::{ApiState, Reply, Routes, page, reply};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(replay_event))
        .routes(routes!(begin_replay))
        .routes(routes!(list_replays))
        .routes(routes!(show_replay))
        .routes(routes!(cancel_replay))
}

fn view(replay: webhook::Replay) -> Replay {
    Replay {
        id: replay.id.to_string(),
        endpoint: replay.endpoint.to_string(),
        since: replay.since.map(Time),
        until: replay.until.map(Time),
        per_second: replay.per_second,
        state: replay.state.as_str().into(),
        replayed: replay.replayed,
        created_at: replay.created_at.into(),
        updated_at: replay.updated_at.into(),
    }
}

/// Send an event to one endpoint again, or for the first time, whatever its status
///
/// A delivery that has ended becomes due anew; an open one stays as it is. Needs no matching pattern of the endpoint.
#[utoipa::path(post, path = "/v1/events/{id}/replay", tag = "replays", security(("token" = ["admin"])),
    params(("id" = uuid::Uuid, Path, description = "The event")),
    request_body = ReplayEvent, responses((status = 202, body = EventReplayed)))]
async fn replay_event(
    State(api): ApiState,
    _: MayAdmin,
    Named(id): Named<EventId>,
    Json(wanted): Json<ReplayEvent>,
) -> Reply {
    let endpoint: EndpointId = wanted.endpoint.parse().map_err(Problem::invalid)?;
    api.webhooks.endpoints().get(&endpoint).await.map_err(|error| match error {
        // The resource of the path is the event, so 404 would be about the event.
        EndpointStoreError::NotFound { .. } => Problem::invalid(error),
        error => error.into(),
    })?;
    let to = SubscriptionName::new(endpoint.as_str())?;
    let replayed = api.store.replay(id, to, api.store.clock().now()).await? == Replayed::Again;
    Ok(reply::json(StatusCode::ACCEPTED, &EventReplayed { replayed }))
}

/// Replay the dead letters of an endpoint
///
/// The answer to a dry run is 200 with the count.
#[utoipa::path(post, path = "/v1/endpoints/{id}/replays", tag = "replays", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    request_body = Option<BeginReplay>,
    responses((status = 202, body = Replay), (status = 200, body = ReplayCount)))]
async fn begin_replay(
    State(api): ApiState,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
    MaybeJson(wanted): MaybeJson<BeginReplay>,
) -> Reply {
    api.webhooks.endpoints().get(&id).await?;
    let BeginReplay { since, until, per_second, dry_run } = wanted.unwrap_or_default();
    let request = ReplayRequest { since: since.map(|at| at.0), until: until.map(|at| at.0), per_second };
    let replays = api.webhooks.replays();
    if dry_run {
        return Ok(reply::ok(&ReplayCount { would_replay: replays.count(&id, &request).await? }));
    }
    let replay = replays.begin(id, request).await?;
    Ok(reply::json(StatusCode::ACCEPTED, &view(replay)))
}

/// List replays, oldest first
///
/// Replays of all endpoints, running and ended.
#[utoipa::path(get, path = "/v1/replays", tag = "replays", security(("token" = ["read"])), params(PageQuery),
    responses((status = 200, body = Page<Replay>)))]
async fn list_replays(State(api): ApiState, _: MayRead, Query(query): Query<PageQuery>) -> Reply {
    let limit = page::limit(&query)?;
    let after: Option<ReplayId> = query.after.as_deref().map(str::parse).transpose()?;
    let found = api.webhooks.replays().list(after.as_ref(), limit + 1).await?;
    Ok(reply::ok(&page::page(found, limit, |replay| replay.id.to_string(), view)))
}

/// Show one replay
///
/// `replayed` counts the events that were sent so far.
#[utoipa::path(get, path = "/v1/replays/{id}", tag = "replays", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The replay", pattern = "^rp_[0-9a-f]{32}$")),
    responses((status = 200, body = Replay)))]
async fn show_replay(State(api): ApiState, _: MayRead, Named(id): Named<ReplayId>) -> Reply {
    Ok(reply::ok(&view(api.webhooks.replays().get(&id).await?)))
}

/// Cancel a replay; sent events stay sent
///
/// Cancelling a replay that has ended changes nothing.
#[utoipa::path(post, path = "/v1/replays/{id}/cancel", tag = "replays", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The replay", pattern = "^rp_[0-9a-f]{32}$")),
    responses((status = 200, body = Replay)))]
async fn cancel_replay(State(api): ApiState, _: MayAdmin, Named(id): Named<ReplayId>) -> Reply {
    Ok(reply::ok(&view(api.webhooks.replays().cancel(&id).await?)))
}
