//! `POST /v1/events`: publishes one event.

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use redrive::EventId;
use redrive::store::{Appended, NewEvent};
use redrive::trace::TraceContext;
use redrive_api::events::{PublishEvent, PublishedEvent};

use super::new_event::{MAX_PAYLOAD_BYTES, prepare};
use crate::api::auth::MayPublish;
use crate::api::idempotency::{self, Ticket};
use crate::api::problem::Problem;
use crate::api::{Api, ApiState, Reply, body};

/// Largest body: a payload and its envelope.
const MAX_BODY_BYTES: usize = MAX_PAYLOAD_BYTES + (128 << 10);

/// Publish an event
///
/// The server answers when the event is on stable storage. Every matching subscription then handles it, or it is dead-lettered.
#[utoipa::path(post, path = "/v1/events", tag = "events", security(("token" = ["publish"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated request with this key gets the first answer, for a day", min_length = 1, max_length = 200, pattern = "^[!-~]([ -~]*[!-~])?$"),
        ("traceparent" = Option<String>, Header, description = "The trace context of the event (W3C)")),
    request_body = PublishEvent, responses((status = 202, body = PublishedEvent)))]
pub(crate) async fn publish(State(api): ApiState, MayPublish(caller): MayPublish, request: Request) -> Reply {
    let headers = request.headers().clone();
    body::must_be_json(&headers)?;
    let (_room, bytes) = body::read(request, &api.http, MAX_BODY_BYTES).await?;
    let event: PublishEvent = body::parse(&bytes)?;
    let trace = trace_of(&headers);
    let ticket = match idempotency::begin(&api, &caller, "/v1/events", &headers, &bytes).await? {
        idempotency::Request::New(ticket) => ticket,
        idempotency::Request::Answered(response) => return Ok(response),
    };
    let prepared = prepare(event, &api.bus, ticket.id(0), trace).map(|event| vec![event]);
    store(&api, ticket, prepared, |published| serde_json::to_string(&published[0]).expect("an id serialises"))
        .await
}

/// Stores the prepared events and answers.
pub(super) async fn store(
    api: &Api,
    ticket: Ticket,
    prepared: Result<Vec<NewEvent>, Problem>,
    say: impl FnOnce(Vec<PublishedEvent>) -> String,
) -> Reply {
    let stored = match prepared {
        Ok(events) => {
            let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
            api.bus.append(events).await.map(|appended| (ids, appended)).map_err(Problem::from)
        }
        Err(problem) => Err(problem),
    };
    match stored {
        Ok((ids, appended)) => {
            let published = |(id, appended)| PublishedEvent {
                id: *EventId::as_uuid(&id),
                duplicate: appended == Appended::Duplicate,
            };
            api.feed.stored();
            let published = ids.into_iter().zip(appended).map(published).collect();
            Ok(ticket.done(api, say(published)).await)
        }
        Err(problem) => Err(ticket.failed(api, problem).await),
    }
}

/// Reads the trace context. The W3C recommendation says to ignore an invalid one.
pub(super) fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}
