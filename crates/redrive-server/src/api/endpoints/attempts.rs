//! `GET /v1/endpoints/{id}/attempts`: the attempts to deliver webhooks.

use axum::extract::State;
use redrive::events::EventPage;
use redrive::subscription::SubscriptionName;
use redrive_api::endpoints::{AttemptRecord, EndpointAttempt};
use redrive_api::page::{Page, PageQuery};
use redrive_store::SubscriptionAttempt;
use redrive_webhook as webhook;
use redrive_webhook::EndpointId;

use crate::api::auth::MayRead;
use crate::api::body::{Named, Query};
use crate::api::page;
use crate::api::{ApiState, Reply, reply};

pub(super) fn record(record: webhook::AttemptRecord) -> AttemptRecord {
    AttemptRecord {
        url: record.url,
        status: record.status,
        latency_ms: record.latency_ms,
        headers: record.headers,
        body: record.body,
        body_base64: record.body_base64,
        is_cut: record.is_cut,
        failed: record.failed.map(|failed| failed.to_string()),
    }
}

fn attempt(found: SubscriptionAttempt) -> EndpointAttempt {
    let attempt = found.attempt;
    let detail = attempt.detail.and_then(|detail| serde_json::from_str(&detail.0).ok());
    EndpointAttempt {
        event_id: *found.event_id.as_uuid(),
        event_type: found.event_type.to_string(),
        attempt: attempt.attempt,
        started_at: attempt.started_at.into(),
        duration_ms: attempt.duration_ms,
        succeeded: attempt.class.is_none(),
        class: attempt.class.map(|class| class.to_string()),
        delay_ms: attempt.delay_ms,
        error: (!attempt.error.is_empty()).then_some(attempt.error),
        record: detail.map(record),
    }
}

/// List the attempts of an endpoint, newest first
#[utoipa::path(get, path = "/v1/endpoints/{id}/attempts", tag = "endpoints", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$"), PageQuery),
    responses((status = 200, body = Page<EndpointAttempt>)))]
pub(crate) async fn attempts(
    State(api): ApiState,
    _: MayRead,
    Named(id): Named<EndpointId>,
    Query(query): Query<PageQuery>,
) -> Reply {
    let limit = page::limit(&query)?;
    let after = query.after.as_deref().map(page::number).transpose()?;
    let name = SubscriptionName::new(id.as_str())?;
    let found = api.store.attempts_of(name, EventPage { limit: limit + 1, after }).await?;
    if found.is_empty() && after.is_none() {
        api.webhooks.endpoints().get(&id).await?; // or there is no such endpoint
    }
    Ok(reply::ok(&page::page(found, limit, |one| one.cursor.to_string(), attempt)))
}
