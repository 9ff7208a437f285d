//! Creates, changes, tests and removes endpoints.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use redrive_api::endpoints::{AttemptRecord, CreateEndpoint, CreatedEndpoint, Endpoint, UpdateEndpoint};
use redrive_webhook::EndpointId;

use super::{attempts, patch, view};
use crate::api::auth::MayAdmin;
use crate::api::body::{Json, Named};
use crate::api::{ApiState, Reply, reply};

/// Create an endpoint
///
/// It gets events that are published from now on. The answer has its secret.
#[utoipa::path(post, path = "/v1/endpoints", tag = "endpoints", security(("token" = ["admin"])),
    request_body = CreateEndpoint, responses((status = 201, body = CreatedEndpoint)))]
pub(crate) async fn create(
    State(api): ApiState,
    _: MayAdmin,
    Json(mut wanted): Json<CreateEndpoint, { 256 << 10 }>,
) -> Reply {
    let secret = patch::secret(wanted.secret.take(), wanted.signing.take())?;
    let shown = secret.for_receiver();
    let endpoint = api.webhooks.create(patch::create(wanted)?, Some(secret)).await?;
    tracing::info!(target: "redrive::endpoints", id = %endpoint.id, "an endpoint was created");
    let endpoint = view::endpoint(&api, endpoint).await?;
    Ok(reply::json(StatusCode::CREATED, &CreatedEndpoint { secret: shown, endpoint }))
}

/// Change an endpoint
#[utoipa::path(patch, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    request_body = UpdateEndpoint, responses((status = 200, body = Endpoint)))]
pub(crate) async fn update(
    State(api): ApiState,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
    Json(wanted): Json<UpdateEndpoint, { 256 << 10 }>,
) -> Reply {
    let version = wanted.version;
    let endpoint = api.webhooks.update(&id, version, patch::update(wanted)?).await?;
    tracing::info!(target: "redrive::endpoints", %id, version = endpoint.version, "an endpoint was changed");
    Ok(reply::ok(&view::endpoint(&api, endpoint).await?))
}

/// Remove an endpoint
///
/// Its open deliveries are dead-lettered with that reason.
#[utoipa::path(delete, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 204, description = "Removed")))]
pub(crate) async fn remove(State(api): ApiState, _: MayAdmin, Named(id): Named<EndpointId>) -> Reply {
    api.webhooks.remove(&id).await?;
    tracing::info!(target: "redrive::endpoints", %id, "an endpoint was removed");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Send a webhook of the type `redrive.test` to an endpoint now, and show the answer
#[utoipa::path(post, path = "/v1/endpoints/{id}/test", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = AttemptRecord)))]
pub(crate) async fn test(State(api): ApiState, _: MayAdmin, Named(id): Named<EndpointId>) -> Reply {
    Ok(reply::ok(&attempts::record(api.webhooks.test(&id).await?)))
}
