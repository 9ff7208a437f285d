//! `/v1/endpoints`: the receivers of webhooks.

mod convert;

pub(super) use self::convert::request;

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use redrive::events::{self, EventPage};
use redrive::subscription::SubscriptionName;
use redrive_api::endpoints::{
    AttemptFilter, AttemptRecord, CreateEndpoint, CreatedEndpoint, Endpoint, EndpointAttempt, EndpointSecret,
    RotateSecret, UpdateEndpoint,
};
use redrive_api::page::{List, Page, PageQuery};
use redrive_webhook::{EndpointId, EndpointStoreError, ReplayError, WebhooksError};
use utoipa_axum::routes;

use super::auth::{MayAdmin, MayRead};
use super::body::{Json, Listed, MaybeJson, Named, Query};
use super::problem::{Code, Problem};
use super::{ApiState, Reply, Routes, page, reply};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list_endpoints, create_endpoint))
        .routes(routes!(show_endpoint, update_endpoint, remove_endpoint))
        .routes(routes!(test))
        .routes(routes!(attempts))
        .routes(routes!(secrets))
        .routes(routes!(rotate))
}

impl From<EndpointStoreError> for Problem {
    fn from(error: EndpointStoreError) -> Self {
        let said = error.to_string();
        match error {
            EndpointStoreError::Endpoint(_) | EndpointStoreError::Unreachable(_) => Problem::invalid(said),
            EndpointStoreError::NotFound { .. } => Problem::new(Code::NotFound, said),
            EndpointStoreError::Store(error) => error.into(),
            // An unreadable stored endpoint is at fault, not the server: the message says what to do.
            EndpointStoreError::Changed { .. }
            | EndpointStoreError::TooMany
            | EndpointStoreError::Sealed { .. }
            | EndpointStoreError::Unreadable { .. } => Problem::new(Code::Conflict, said),
            _ => Problem::new(Code::Internal, said),
        }
    }
}

impl From<WebhooksError> for Problem {
    fn from(error: WebhooksError) -> Self {
        match error {
            WebhooksError::Endpoints(error) => error.into(),
            WebhooksError::Bus(error) => error.into(),
            WebhooksError::Store(error) => error.into(),
            error => Problem::new(Code::Internal, error.to_string()),
        }
    }
}

impl From<ReplayError> for Problem {
    fn from(error: ReplayError) -> Self {
        let said = error.to_string();
        match error {
            ReplayError::NotFound { .. } => Problem::new(Code::NotFound, said),
            ReplayError::Id { .. } | ReplayError::Rate => Problem::invalid(said),
            ReplayError::TooMany => Problem::new(Code::Conflict, said),
            ReplayError::Store(error) => error.into(),
            error => Problem::new(Code::Internal, error.to_string()),
        }
    }
}

/// List endpoints, oldest first
///
/// `state` is the health as the responding process knows it. Secrets and header values are never listed.
#[utoipa::path(get, path = "/v1/endpoints", tag = "endpoints", security(("token" = ["read"])), params(PageQuery),
    responses((status = 200, body = Page<Endpoint>)))]
async fn list_endpoints(State(api): ApiState, _: MayRead, Query(query): Query<PageQuery>) -> Reply {
    let limit = page::limit(&query)?;
    let after: Option<EndpointId> =
        query.after.map(|id| id.parse()).transpose().map_err(|_| page::no_cursor())?;
    let (found, next) = api.webhooks.endpoints().list(after.as_ref(), limit).await?;
    let mut data = Vec::with_capacity(found.len());
    for endpoint in found {
        data.push(convert::endpoint(&api, endpoint).await?);
    }
    Ok(reply::ok(&Page { data, next: next.map(|id| id.to_string()) }))
}

/// Show one endpoint
///
/// The response has no secret and no header values; `listEndpointSecrets` has the secrets.
#[utoipa::path(get, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = Endpoint)))]
async fn show_endpoint(State(api): ApiState, _: MayRead, Named(id): Named<EndpointId>) -> Reply {
    let endpoint = api.webhooks.endpoints().get(&id).await?;
    Ok(reply::ok(&convert::endpoint(&api, endpoint).await?))
}

/// Create an endpoint
///
/// The endpoint receives events published after this call. The response has its secret.
#[utoipa::path(post, path = "/v1/endpoints", tag = "endpoints", security(("token" = ["admin"])),
    request_body = CreateEndpoint, responses((status = 201, body = CreatedEndpoint)))]
async fn create_endpoint(
    State(api): ApiState,
    _: MayAdmin,
    Json(mut wanted): Json<CreateEndpoint, { 256 << 10 }>,
) -> Reply {
    let secret = convert::secret(wanted.secret.take(), wanted.signing.take())?;
    let shown = secret.for_receiver();
    let endpoint = api.webhooks.create(convert::create(wanted)?, Some(secret)).await?;
    tracing::info!(target: "redrive::endpoints", id = %endpoint.id, "an endpoint was created");
    let endpoint = convert::endpoint(&api, endpoint).await?;
    Ok(reply::json(StatusCode::CREATED, &CreatedEndpoint { secret: shown, endpoint }))
}

/// Change an endpoint
///
/// Missing fields stay as they are. With `version`, nothing changes if another change came first (`conflict`).
#[utoipa::path(patch, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    request_body = UpdateEndpoint, responses((status = 200, body = Endpoint)))]
async fn update_endpoint(
    State(api): ApiState,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
    Json(wanted): Json<UpdateEndpoint, { 256 << 10 }>,
) -> Reply {
    let version = wanted.version;
    let endpoint = api.webhooks.update(&id, version, convert::update(wanted)?).await?;
    tracing::info!(target: "redrive::endpoints", %id, version = endpoint.version, "an endpoint was changed");
    Ok(reply::ok(&convert::endpoint(&api, endpoint).await?))
}

/// Remove an endpoint
///
/// The endpoint's open deliveries are dead-lettered; their error says that the endpoint was removed.
#[utoipa::path(delete, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 204, description = "Removed")))]
async fn remove_endpoint(State(api): ApiState, _: MayAdmin, Named(id): Named<EndpointId>) -> Reply {
    api.webhooks.remove(&id).await?;
    tracing::info!(target: "redrive::endpoints", %id, "an endpoint was removed");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Send a message of the type `redrive.test` to an endpoint now, and show the response
///
/// One attempt without retries, also to a disabled endpoint. The answer is 200 whether or not the endpoint accepted the message.
#[utoipa::path(post, path = "/v1/endpoints/{id}/test", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = AttemptRecord)))]
async fn test(State(api): ApiState, _: MayAdmin, Named(id): Named<EndpointId>) -> Reply {
    Ok(reply::ok(&convert::record(api.webhooks.test(&id).await?)))
}

/// List the attempts of an endpoint, newest first
///
/// Successful and failed attempts with their HTTP requests and responses. `failed=true` selects failed ones.
#[utoipa::path(get, path = "/v1/endpoints/{id}/attempts", tag = "endpoints", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$"), AttemptFilter, PageQuery),
    responses((status = 200, body = Page<EndpointAttempt>)))]
async fn attempts(
    State(api): ApiState,
    _: MayRead,
    Named(id): Named<EndpointId>,
    Listed(AttemptFilter { failed }, query): Listed<AttemptFilter>,
) -> Reply {
    let limit = page::limit(&query)?;
    let after = query.after.as_deref().map(page::number).transpose()?;
    let name = SubscriptionName::new(id.as_str())?;
    let filter = events::AttemptFilter { failed };
    let found = api.store.attempts_of(name, filter, EventPage { limit: limit + 1, after }).await?;
    if found.is_empty() && after.is_none() {
        api.webhooks.endpoints().get(&id).await?; // or there is no such endpoint
    }
    Ok(reply::ok(&page::page(found, limit, |one| one.cursor.to_string(), convert::attempt)))
}

/// Time for which the previous secret signs as well: by default a day, at most 30.
const DEFAULT_OVERLAP_S: u64 = 24 * 3600;
const MAX_OVERLAP_S: u64 = 30 * 24 * 3600;

/// Show the secrets of an endpoint, the newest first
///
/// The newest secret, and older ones that still sign after a rotation. An Ed25519 endpoint shows public keys.
#[utoipa::path(get, path = "/v1/endpoints/{id}/secret", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = List<EndpointSecret>)))]
async fn secrets(State(api): ApiState, _: MayAdmin, Named(id): Named<EndpointId>) -> Reply {
    Ok(reply::ok(&convert::secrets(&api.webhooks.endpoints().get(&id).await?)))
}

/// Rotate the secret of an endpoint; the previous one signs as well for a while
///
/// Messages carry a signature of each secret until the previous one expires after `overlap_s`.
#[utoipa::path(post, path = "/v1/endpoints/{id}/secret/rotate", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    request_body = Option<RotateSecret>, responses((status = 200, body = List<EndpointSecret>)))]
async fn rotate(
    State(api): ApiState,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
    MaybeJson(wanted): MaybeJson<RotateSecret>,
) -> Reply {
    let wanted = wanted.unwrap_or_default();
    let overlap = wanted.overlap_s.unwrap_or(DEFAULT_OVERLAP_S);
    if overlap > MAX_OVERLAP_S {
        return Err(Problem::invalid(format!("overlap_s is at most {MAX_OVERLAP_S}")));
    }
    let secret = convert::secret(wanted.secret, wanted.signing)?;
    let endpoint = api.webhooks.rotate(&id, Some(secret), Duration::from_secs(overlap)).await?;
    tracing::info!(target: "redrive::endpoints", %id, "the secret of an endpoint was rotated");
    Ok(reply::ok(&convert::secrets(&endpoint)))
}
