//! `POST /v1/events`: one event in.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use redrive::{Appended, EventId, NewEvent, TraceContext};
use serde::Serialize;
use utoipa::ToSchema;

use super::new_event::{EventToPublish, LARGEST_PAYLOAD};
use crate::api::auth::MayPublish;
use crate::api::idempotency::{self, Ticket};
use crate::api::problem::Problem;
use crate::api::{Api, body};

/// A payload, and what stands around it.
const LARGEST: usize = LARGEST_PAYLOAD + (128 << 10);

/// An event that is on stable storage.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Published {
    /// Its id.
    #[schema(value_type = uuid::Uuid)]
    id: EventId,
    /// Whether there was one with this id already, and nothing was changed.
    duplicate: bool,
}

/// Publish an event
///
/// Answered when the event is on stable storage. It is then handled by everybody who wants it, or it stands in the dead-letter
/// queue.
#[utoipa::path(post, path = "/v1/events", tag = "events", security(("token" = ["publish"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "A request with the same key is answered as the first one was, for a day", min_length = 1, max_length = 200, pattern = "^[!-~]([ -~]*[!-~])?$"),
        ("traceparent" = Option<String>, Header, description = "The place in a trace that the event belongs to (W3C)")),
    request_body = EventToPublish, responses((status = 202, body = Published)))]
pub(crate) async fn publish(
    State(api): State<Arc<Api>>,
    MayPublish(caller): MayPublish,
    request: Request,
) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    body::must_be_json(&headers)?;
    let (_room, bytes) = body::read(request, &api.door, LARGEST).await?;
    let event: EventToPublish = body::parse(&bytes)?;
    let trace = trace_of(&headers);
    let ticket = match idempotency::begin(&api, &caller, "/v1/events", &headers, &bytes).await? {
        idempotency::Request::New(ticket) => ticket,
        idempotency::Request::Answered(response) => return Ok(response),
    };
    let prepared = event.prepare(&api.bus, ticket.id(0), trace).map(|event| vec![event]);
    store(&api, ticket, prepared, |published| {
        serde_json::to_string(&published[0]).expect("an id always serialises")
    })
    .await
}

/// Stores what was prepared, and answers.
pub(super) async fn store(
    api: &Api,
    ticket: Ticket,
    prepared: Result<Vec<NewEvent>, Problem>,
    say: impl FnOnce(Vec<Published>) -> String,
) -> Result<Response, Problem> {
    let stored = match prepared {
        Ok(events) => {
            let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
            api.bus.append(events).await.map(|appended| (ids, appended)).map_err(Problem::from)
        }
        Err(problem) => Err(problem),
    };
    match stored {
        Ok((ids, appended)) => {
            let published = |(id, appended)| Published { id, duplicate: appended == Appended::Duplicate };
            api.feed.stored();
            let published = ids.into_iter().zip(appended).map(published).collect();
            Ok(ticket.done(api, say(published)).await)
        }
        Err(problem) => Err(ticket.failed(api, problem).await),
    }
}

/// One that is not valid is ignored, as the recommendation says.
pub(super) fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}
