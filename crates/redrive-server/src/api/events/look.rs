//! `GET /v1/events` and `GET /v1/events/{id}`: what has become of events.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use redrive::{EventFilter, EventId, EventPage, EventStatus, EventType};
use serde::Deserialize;
use utoipa::IntoParams;

use super::view::{EventSummary, EventView};
use crate::api::auth::MayRead;
use crate::api::body::{Named, Query};
use crate::api::page::{self, Page};
use crate::api::problem::Problem;
use crate::api::{Api, reply};

/// Which events, and which part of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only those of this status
    #[param(value_type = Option<Status>, inline)]
    status: Option<EventStatus>,
    /// Only those of this type
    #[serde(rename = "type")]
    #[param(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$")]
    event_type: Option<EventType>,
    /// How many at most
    #[param(minimum = 1, maximum = 200, default = 100)]
    limit: Option<u32>,
    /// Continue after this cursor: the `next` of the page before
    #[param(max_length = 18, pattern = "^[0-9]+$")]
    after: Option<String>,
}

/// Where an event stands.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code)] // names for the document
pub(crate) enum Status {
    Pending,
    Processing,
    Done,
    Dlq,
}

/// List events, newest first
#[utoipa::path(get, path = "/v1/events", tag = "events", security(("token" = ["read"])), params(ListQuery),
    responses((status = 200, body = Page<EventSummary>)))]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let limit = page::limit(query.limit)?;
    let after = query.after.as_deref().map(page::number).transpose()?;
    let filter = EventFilter { status: query.status, event_type: query.event_type };
    let found = api.store.events_in_short(filter, EventPage { limit: limit + 1, after }).await?;
    Ok(reply::ok(&Page::of(found, limit, |event| event.cursor.to_string(), EventSummary::from)))
}

/// Show one event with all that is known of it
#[utoipa::path(get, path = "/v1/events/{id}", tag = "events", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The event")),
    responses((status = 200, body = EventView)))]
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Named(id): Named<EventId>,
) -> Result<Response, Problem> {
    Ok(reply::ok(&EventView::from(api.store.event(id).await?)))
}
