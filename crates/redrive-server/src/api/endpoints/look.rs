//! `GET /v1/endpoints`, `GET /v1/endpoints/{id}`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use redrive_webhook::EndpointId;
use serde::Deserialize;
use utoipa::IntoParams;

use super::view::EndpointView;
use crate::api::auth::MayRead;
use crate::api::body::{Named, Query};
use crate::api::page::{self, Page};
use crate::api::problem::Problem;
use crate::api::{Api, reply};

/// Which part of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// How many at most
    #[param(minimum = 1, maximum = 200, default = 100)]
    limit: Option<u32>,
    /// Continue after this cursor: the `next` of the page before
    #[param(value_type = Option<String>, pattern = "^ep_[0-9a-f]{32}$")]
    after: Option<EndpointId>,
}

/// List endpoints, oldest first
#[utoipa::path(get, path = "/v1/endpoints", tag = "endpoints", security(("token" = ["read"])), params(ListQuery),
    responses((status = 200, body = Page<EndpointView>)))]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let limit = page::limit(query.limit)?;
    let (found, next) = api.webhooks.book().list(query.after.as_ref(), limit).await?;
    let mut data = Vec::with_capacity(found.len());
    for endpoint in found {
        data.push(EndpointView::new(&api, endpoint).await?);
    }
    Ok(reply::ok(&Page { data, next: next.map(|id| id.to_string()) }))
}

/// Show one endpoint
#[utoipa::path(get, path = "/v1/endpoints/{id}", tag = "endpoints", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = EndpointView)))]
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Named(id): Named<EndpointId>,
) -> Result<Response, Problem> {
    let endpoint = api.webhooks.book().get(&id).await?;
    Ok(reply::ok(&EndpointView::new(&api, endpoint).await?))
}
