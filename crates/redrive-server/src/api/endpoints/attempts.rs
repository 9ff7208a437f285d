//! `GET /v1/endpoints/{id}/attempts`: what was sent, and what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use redrive::{EventPage, SubscriptionName};
use redrive_store::SubscriptionAttempt;
use redrive_webhook::{AttemptRecord, EndpointId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::api::auth::MayRead;
use crate::api::body::{Named, Query};
use crate::api::page::{self, Page};
use crate::api::problem::Problem;
use crate::api::time::Instant;
use crate::api::{Api, reply};

/// Which part of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AttemptsQuery {
    /// How many at most
    #[param(minimum = 1, maximum = 200, default = 100)]
    limit: Option<u32>,
    /// Continue after this cursor: the `next` of the page before
    #[param(max_length = 20, pattern = "^[0-9]{1,18}$")]
    after: Option<String>,
}

/// One attempt.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndpointAttempt {
    #[schema(value_type = uuid::Uuid)]
    event_id: String,
    event_type: String,
    /// Which, counted from 1.
    attempt: u32,
    started_at: Instant,
    duration_ms: u64,
    /// Whether the endpoint has the event.
    succeeded: bool,
    /// What kind of failure it was.
    class: Option<String>,
    /// The wait before the next attempt; 0 after the last.
    delay_ms: u64,
    error: Option<String>,
    /// What was sent where, and what was answered; nothing if nothing was sent.
    #[schema(value_type = Option<RecordView>)]
    record: Option<RecordView>,
}

/// What was sent where, and what was answered.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RecordView {
    url: String,
    status: Option<u16>,
    latency_ms: u64,
    headers: BTreeMap<String, String>,
    /// The answer's body, as far as it was read, if it is text.
    body: Option<String>,
    /// The same in base64, if it is not.
    body_base64: Option<String>,
    /// Whether there was more of it.
    is_cut: bool,
    /// Why it is no success.
    failed: Option<String>,
}

impl From<AttemptRecord> for RecordView {
    fn from(record: AttemptRecord) -> Self {
        RecordView {
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
}

impl From<SubscriptionAttempt> for EndpointAttempt {
    fn from(found: SubscriptionAttempt) -> Self {
        let attempt = found.attempt;
        let record = attempt.detail.and_then(|detail| serde_json::from_str::<AttemptRecord>(&detail.0).ok());
        EndpointAttempt {
            event_id: found.event_id.to_string(),
            event_type: found.event_type.to_string(),
            attempt: attempt.attempt,
            started_at: attempt.started_at.into(),
            duration_ms: attempt.duration_ms,
            succeeded: attempt.class.is_none(),
            class: attempt.class.map(|class| class.to_string()),
            delay_ms: attempt.delay_ms,
            error: (!attempt.error.is_empty()).then_some(attempt.error),
            record: record.map(RecordView::from),
        }
    }
}

/// List the attempts of an endpoint, newest first
#[utoipa::path(get, path = "/v1/endpoints/{id}/attempts", tag = "endpoints", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$"), AttemptsQuery),
    responses((status = 200, body = Page<EndpointAttempt>)))]
pub(crate) async fn attempts(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Named(id): Named<EndpointId>,
    Query(query): Query<AttemptsQuery>,
) -> Result<Response, Problem> {
    let limit = page::limit(query.limit)?;
    let after = query.after.as_deref().map(page::number).transpose()?;
    let name = SubscriptionName::new(id.as_str()).map_err(|error| Problem::invalid(error.to_string()))?;
    let found = api.store.attempts_of(name, EventPage { limit: limit + 1, after }).await?;
    if found.is_empty() && after.is_none() {
        api.webhooks.book().get(&id).await?; // or there is no such endpoint
    }
    Ok(reply::ok(&Page::of(found, limit, |one| one.cursor.to_string(), EndpointAttempt::from)))
}
