//! `GET /v1/endpoints`, `GET /v1/endpoints/{id}`.

use axum::extract::State;
use redrive_api::endpoints::Endpoint;
use redrive_api::page::{Page, PageQuery};
use redrive_webhook::EndpointId;

use super::view;
use crate::api::auth::MayRead;
use crate::api::body::{Named, Query};
use crate::api::page;
use crate::api::{ApiState, Reply, reply};

/// List endpoints, oldest first
#[utoipa::path(get, path = "/v1/endpoints", tag = "endpoints", security(("token" = ["read"])), params(PageQuery),
    responses((status = 200, body = Page<Endpoint>)))]
pub(crate) async fn list(State(api): ApiState, _: MayRead, Query(query): Query<PageQuery>) -> Reply {
    let limit = page::limit(&query)?;
    let after: Option<EndpointId> =
        query.after.map(|id| id.parse()).transpose().map_err(|_| page::no_cursor())?;
    let (found, next) = api.webhooks.endpoints().list(after.as_ref(), limit).await?;
    let mut data = Vec::with_capacity(found.len());
    for endpoint in found {
        data.push(view::endpoint(&api, endpoint).await?);
    }
    Ok(reply::ok(&Page { data, next: next.map(|id| id.to_string()) }))
}

/// Show one endpoint
#[utoipa::path(get, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = Endpoint)))]
pub(crate) async fn show(State(api): ApiState, _: MayRead, Named(id): Named<EndpointId>) -> Reply {
    let endpoint = api.webhooks.endpoints().get(&id).await?;
    Ok(reply::ok(&view::endpoint(&api, endpoint).await?))
}
