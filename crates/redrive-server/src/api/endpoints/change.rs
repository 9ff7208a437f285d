//! Making, changing, trying and removing an endpoint.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use redrive_webhook::EndpointId;

use super::attempts::RecordView;
use super::view::{CreatedEndpoint, EndpointView};
use super::wish::{ChangeEndpoint, CreateEndpoint, secret};
use crate::api::auth::MayAdmin;
use crate::api::body::{Json, Named};
use crate::api::problem::Problem;
use crate::api::{Api, reply};

/// Make an endpoint
///
/// It is sent what is published from now on. Its secret is in the answer.
#[utoipa::path(post, path = "/v1/endpoints", tag = "endpoints", security(("token" = ["admin"])),
    request_body = CreateEndpoint, responses((status = 201, body = CreatedEndpoint)))]
pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Json(mut wanted): Json<CreateEndpoint, { 256 << 10 }>,
) -> Result<Response, Problem> {
    let secret = secret(wanted.secret.take(), wanted.signing.take())?;
    let shown = secret.for_receiver();
    let endpoint = api.webhooks.create(wanted.into_wish()?, Some(secret)).await?;
    tracing::info!(target: "redrive::endpoints", id = %endpoint.id, "an endpoint was made");
    let endpoint = EndpointView::new(&api, endpoint).await?;
    Ok(reply::json(StatusCode::CREATED, &CreatedEndpoint { secret: shown, endpoint }))
}

/// Change an endpoint
#[utoipa::path(patch, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    request_body = ChangeEndpoint, responses((status = 200, body = EndpointView)))]
pub(crate) async fn update(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
    Json(wanted): Json<ChangeEndpoint, { 256 << 10 }>,
) -> Result<Response, Problem> {
    let version = wanted.version;
    let endpoint = api.webhooks.update(&id, version, wanted.into_wish()?).await?;
    tracing::info!(target: "redrive::endpoints", %id, version = endpoint.version, "an endpoint was changed");
    Ok(reply::ok(&EndpointView::new(&api, endpoint).await?))
}

/// Remove an endpoint
///
/// What it is still owed goes to the dead-letter queue, with that as the reason.
#[utoipa::path(delete, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 204, description = "It is gone")))]
pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
) -> Result<Response, Problem> {
    api.webhooks.remove(&id).await?;
    tracing::info!(target: "redrive::endpoints", %id, "an endpoint was removed");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Send a message of the type `redrive.test` to an endpoint at once, and show what came of it
#[utoipa::path(post, path = "/v1/endpoints/{id}/test", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = RecordView)))]
pub(crate) async fn test(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
) -> Result<Response, Problem> {
    Ok(reply::ok(&RecordView::from(api.webhooks.test(&id).await?)))
}
