//! `/v1/events`: publish events and look them up.

mod batch;
mod publish;

use axum::extract::State;
use redrive::events::{AttemptRow, DeliveryRow, EventDetail, EventPage, EventStatus};
use redrive::{EventId, EventType};
use redrive_api::events::{Attempt, Delivery, Event, EventFilter, EventSummary};
use redrive_api::page::{Page, PageQuery};
use redrive_api::time::Time;
use redrive_webhook::EndpointId;
use serde_json::value::RawValue;
use utoipa_axum::routes;

use super::auth::MayRead;
use super::body::{Listed, Named};
use super::{ApiState, Reply, Routes, endpoints, page, reply};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list_events, publish::publish))
        .routes(routes!(batch::publish_batch))
        .routes(routes!(show_event))
}

/// List events, newest first
///
/// Events without payload, deliveries and attempts; `getEvent` has these. Done events are listed until the retention has passed.
#[utoipa::path(get, path = "/v1/events", tag = "events", security(("token" = ["read"])), params(EventFilter, PageQuery),
    responses((status = 200, body = Page<EventSummary>)))]
async fn list_events(State(api): ApiState, _: MayRead, Listed(filter, query): Listed<EventFilter>) -> Reply {
    let limit = page::limit(&query)?;
    let after = query.after.as_deref().map(page::number).transpose()?;
    let filter = redrive::events::EventFilter {
        status: filter.status.map(|status| status.as_str().parse()).transpose()?,
        event_type: filter.event_type.map(EventType::new).transpose()?,
    };
    let found = api.store.event_summaries(filter, EventPage { limit: limit + 1, after }).await?;
    Ok(reply::ok(&page::page(found, limit, |event| event.cursor.to_string(), summary)))
}

/// Show one event with payload, deliveries and attempts
///
/// `attempts` has every failed attempt, and all attempts of webhook endpoints with their HTTP requests and responses.
#[utoipa::path(get, path = "/v1/events/{id}", tag = "events", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The event")),
    responses((status = 200, body = Event)))]
async fn show_event(State(api): ApiState, _: MayRead, Named(id): Named<EventId>) -> Reply {
    Ok(reply::ok(&event(api.store.event(id).await?)))
}

fn summary<P>(event: EventDetail<P>) -> EventSummary {
    EventSummary {
        id: *event.id.as_uuid(),
        event_type: event.event_type.to_string(),
        status: status(event.status),
        metadata: event.metadata,
        retry_count: event.retry_count,
        created_at: event.created_at.into(),
        updated_at: event.updated_at.into(),
        due_at: event.due_at.map(Time),
        errors: event.errors,
    }
}

fn event(event: EventDetail) -> Event {
    Event {
        id: *event.id.as_uuid(),
        event_type: event.event_type.to_string(),
        status: status(event.status),
        metadata: event.metadata,
        retry_count: event.retry_count,
        created_at: event.created_at.into(),
        updated_at: event.updated_at.into(),
        due_at: event.due_at.map(Time),
        errors: event.errors,
        payload: event.payload,
        deliveries: event.deliveries.into_iter().map(delivery).collect(),
        attempts: event.attempts.into_iter().map(attempt).collect(),
    }
}

fn delivery(row: DeliveryRow) -> Delivery {
    Delivery {
        subscription: row.subscription.to_string(),
        status: status(row.status),
        retry_count: row.retry_count,
        due_at: row.due_at.map(Time),
        errors: row.errors,
    }
}

/// Converts a recorded attempt. The handler of an endpoint records the HTTP request as its detail.
pub(crate) fn attempt(row: AttemptRow) -> Attempt {
    let is_endpoint = row.subscription.parse::<EndpointId>().is_ok();
    let request =
        row.detail.as_ref().filter(|_| is_endpoint).and_then(|detail| endpoints::request(&detail.0));
    let detail = row.detail.filter(|_| request.is_none());
    Attempt {
        attempt: row.attempt,
        subscription: row.subscription,
        started_at: row.started_at.into(),
        duration_ms: row.duration_ms,
        class: row.class.map(|class| class.to_string()),
        delay_ms: row.delay_ms,
        error: (!row.error.is_empty()).then_some(row.error),
        decision: row.record.and_then(|record| RawValue::from_string(record.0).ok()),
        request,
        detail: detail.and_then(|detail| RawValue::from_string(detail.0).ok()),
    }
}

fn status(status: EventStatus) -> redrive_api::events::EventStatus {
    status.to_string().into()
}
