//! `GET /v1/events` and `GET /v1/events/{id}`.

use axum::extract::State;
use redrive::events::EventPage;
use redrive::{EventId, EventType};
use redrive_api::events::{Event, EventFilter, EventSummary};
use redrive_api::page::{Page, PageQuery};

use super::view;
use crate::api::auth::MayRead;
use crate::api::body::{Listed, Named};
use crate::api::page;
use crate::api::{ApiState, Reply, reply};

/// List events, newest first
#[utoipa::path(get, path = "/v1/events", tag = "events", security(("token" = ["read"])), params(EventFilter, PageQuery),
    responses((status = 200, body = Page<EventSummary>)))]
pub(crate) async fn list(
    State(api): ApiState,
    _: MayRead,
    Listed(filter, query): Listed<EventFilter>,
) -> Reply {
    let limit = page::limit(&query)?;
    let after = query.after.as_deref().map(page::number).transpose()?;
    let filter = redrive::events::EventFilter {
        status: filter.status.map(|status| status.as_str().parse()).transpose()?,
        event_type: filter.event_type.map(EventType::new).transpose()?,
    };
    let found = api.store.event_summaries(filter, EventPage { limit: limit + 1, after }).await?;
    Ok(reply::ok(&page::page(found, limit, |event| event.cursor.to_string(), view::summary)))
}

/// Show one event with payload, deliveries and attempts
#[utoipa::path(get, path = "/v1/events/{id}", tag = "events", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The event")),
    responses((status = 200, body = Event)))]
pub(crate) async fn show(State(api): ApiState, _: MayRead, Named(id): Named<EventId>) -> Reply {
    Ok(reply::ok(&view::event(api.store.event(id).await?)))
}
