//! Replays: an event to one endpoint again, or everything that an endpoint has given up.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use redrive::{EventId, Replayed, SubscriptionName};
use redrive_webhook::{EndpointId, Replay, ReplayId, ReplayState, ReplayWish};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::auth::{MayAdmin, MayRead};
use super::body::{Json, MaybeJson, Named, Query};
use super::page::{self, Page};
use super::problem::Problem;
use super::time::Instant;
use super::{Api, Routes, reply};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(replay_event))
        .routes(routes!(begin))
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(cancel))
}

/// To whom an event goes again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReplayEvent {
    /// The endpoint.
    #[schema(value_type = String, pattern = "^ep_[0-9a-f]{32}$")]
    endpoint: EndpointId,
}

/// Whether an event goes to an endpoint again.
#[derive(Debug, Serialize, ToSchema)]
struct EventReplayed {
    /// `false` if it is still on its way to it anyway.
    replayed: bool,
}

/// Which of the events that an endpoint has given up go to it again.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BeginReplay {
    /// Only those published at or after this.
    since: Option<Instant>,
    /// Only those published before this.
    until: Option<Instant>,
    /// How many in a second; 100 if nothing is said.
    #[schema(minimum = 0.1, maximum = 10_000)]
    per_second: Option<f64>,
    /// Only count them.
    #[serde(default)]
    dry_run: bool,
}

/// How many would go again.
#[derive(Debug, Serialize, ToSchema)]
struct ReplayCount {
    would_replay: u64,
}

/// A replay: a job that goes on whatever happens to the server.
#[derive(Debug, Serialize, ToSchema)]
struct ReplayView {
    #[schema(example = "rp_0190b3c47d2e7a118f006d5e4c3b2a19")]
    id: String,
    endpoint: String,
    since: Option<Instant>,
    until: Option<Instant>,
    per_second: f64,
    /// `running`, `done` or `cancelled`.
    #[schema(value_type = String, pattern = "^(running|done|cancelled)$")]
    state: ReplayState,
    /// How many have gone to the endpoint again so far.
    replayed: u64,
    created_at: Instant,
    updated_at: Instant,
}

impl From<Replay> for ReplayView {
    fn from(replay: Replay) -> Self {
        ReplayView {
            id: replay.id.to_string(),
            endpoint: replay.endpoint.to_string(),
            since: replay.since.map(Instant),
            until: replay.until.map(Instant),
            per_second: replay.per_second,
            state: replay.state,
            replayed: replay.replayed,
            created_at: replay.created_at.into(),
            updated_at: replay.updated_at.into(),
        }
    }
}

/// Send an event to one endpoint again, or for the first time, whatever has become of it
#[utoipa::path(post, path = "/v1/events/{id}/replay", tag = "replays", security(("token" = ["admin"])),
    params(("id" = uuid::Uuid, Path, description = "The event")),
    request_body = ReplayEvent, responses((status = 202, body = EventReplayed)))]
async fn replay_event(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<EventId>,
    Json(wanted): Json<ReplayEvent>,
) -> Result<Response, Problem> {
    api.webhooks.book().get(&wanted.endpoint).await?;
    let to = SubscriptionName::new(wanted.endpoint.as_str())
        .map_err(|error| Problem::invalid(error.to_string()))?;
    let replayed = api.store.replay(id, to, api.store.clock().now()).await? == Replayed::Again;
    Ok(reply::json(StatusCode::ACCEPTED, &EventReplayed { replayed }))
}

/// Send everything that an endpoint has given up to it again
///
/// The answer to a dry run is 200 with the count.
#[utoipa::path(post, path = "/v1/endpoints/{id}/replays", tag = "replays", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    request_body = Option<BeginReplay>,
    responses((status = 202, body = ReplayView), (status = 200, body = ReplayCount)))]
async fn begin(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
    MaybeJson(wanted): MaybeJson<BeginReplay>,
) -> Result<Response, Problem> {
    api.webhooks.book().get(&id).await?;
    let BeginReplay { since, until, per_second, dry_run } = wanted.unwrap_or_default();
    let wish = ReplayWish { since: since.map(|at| at.0), until: until.map(|at| at.0), per_second };
    let replays = api.webhooks.replays();
    if dry_run {
        return Ok(reply::ok(&ReplayCount { would_replay: replays.count(&id, &wish).await? }));
    }
    let replay = replays.begin(id, wish).await?;
    Ok(reply::json(StatusCode::ACCEPTED, &ReplayView::from(replay)))
}

/// Which part of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReplaysQuery {
    /// How many at most
    #[param(minimum = 1, maximum = 200, default = 100)]
    limit: Option<u32>,
    /// Continue after this cursor: the `next` of the page before
    #[param(value_type = Option<String>, pattern = "^rp_[0-9a-f]{32}$")]
    after: Option<String>,
}

/// List replays, oldest first
#[utoipa::path(get, path = "/v1/replays", tag = "replays", security(("token" = ["read"])), params(ReplaysQuery),
    responses((status = 200, body = Page<ReplayView>)))]
async fn list(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Query(query): Query<ReplaysQuery>,
) -> Result<Response, Problem> {
    let limit = page::limit(query.limit)?;
    let after: Option<ReplayId> = query.after.as_deref().map(str::parse).transpose()?;
    let found = api.webhooks.replays().list(after.as_ref(), limit + 1).await?;
    Ok(reply::ok(&Page::of(found, limit, |replay| replay.id.to_string(), ReplayView::from)))
}

/// Show one replay
#[utoipa::path(get, path = "/v1/replays/{id}", tag = "replays", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The replay", pattern = "^rp_[0-9a-f]{32}$")),
    responses((status = 200, body = ReplayView)))]
async fn show(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Named(id): Named<ReplayId>,
) -> Result<Response, Problem> {
    Ok(reply::ok(&ReplayView::from(api.webhooks.replays().get(&id).await?)))
}

/// Stop a replay; what has gone to the endpoint stays gone
#[utoipa::path(post, path = "/v1/replays/{id}/cancel", tag = "replays", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The replay", pattern = "^rp_[0-9a-f]{32}$")),
    responses((status = 200, body = ReplayView)))]
async fn cancel(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<ReplayId>,
) -> Result<Response, Problem> {
    Ok(reply::ok(&ReplayView::from(api.webhooks.replays().cancel(&id).await?)))
}
