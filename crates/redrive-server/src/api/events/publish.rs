//! `POST /v1/events`: stores one event with a delivery for each matching subscription, and answers 202 when both are on stable storage.
//!
//! `publish` reads the request, `prepare` validates it and builds the event, `store` appends it and records the response under the
//! request's idempotency key. The dispatcher delivers the event afterwards; the request does not wait for that.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use redrive::store::{Appended, EventContent, NewEvent, StoreError};
use redrive::trace::TraceContext;
use redrive::{EventBus, EventId, EventType};
use redrive_api::events::{PublishEvent, PublishedEvent};

use crate::api::auth::MayPublish;
use crate::api::idempotency::{self, Ticket};
use crate::api::problem::{Code, Problem};
use crate::api::{Api, ApiState, Reply, body, reply, retry};
use crate::reserved;

/// Longest delay: ten years.
const MAX_DELAY_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// Largest body: a payload and its envelope.
const MAX_BODY_BYTES: usize = NewEvent::DEFAULT_MAX_PAYLOAD_BYTES + (128 << 10);

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
    let (_reservation, bytes) = body::read(request, &api.http, MAX_BODY_BYTES).await?;
    let event: PublishEvent = body::parse(&bytes)?;
    let trace = trace_of(&headers);
    let ticket = match idempotency::begin(&api, &caller, "/v1/events", &headers, &bytes).await? {
        idempotency::Request::New(ticket) => ticket,
        idempotency::Request::Answered(response) => return Ok(response),
    };
    let has_own_id = event.id.is_some();
    let prepared = prepare(event, &api.bus, ticket.id(0), trace).map(|event| vec![event]);
    store(&api, ticket, prepared, has_own_id, |published| reply::to_json(&published[0])).await
}

/// Validates one event of a request and converts it into the event to store, without storing it.
///
/// `id` is the event's id if the request names none; `trace` is its trace context if its metadata has none.
pub(super) fn prepare(
    event: PublishEvent,
    bus: &EventBus,
    id: EventId,
    trace: Option<TraceContext>,
) -> Result<NewEvent, Problem> {
    let event_type = EventType::new(&event.event_type)?;
    reserved::check_type(&event.event_type).map_err(|refusal| Problem::new(Code::ReservedType, refusal))?;
    let bytes = event.payload.get().len();
    let limit = NewEvent::DEFAULT_MAX_PAYLOAD_BYTES;
    if bytes > limit {
        return Err(StoreError::PayloadTooLarge { bytes, limit }.into());
    }
    let mut publish = bus.publish(event_type.as_str(), &event.payload);
    publish = publish.id(event.id.map_or(id, EventId::from_uuid));
    if let Some(trace) = trace {
        publish = publish.traceparent(trace);
    }
    for (name, value) in event.metadata {
        publish = publish.metadata(name, value);
    }
    publish = match (event.due_at, event.delay_ms) {
        (None, None) => publish,
        (Some(at), None) => publish.due_at(at.0),
        (None, Some(millis @ 0..=MAX_DELAY_MS)) => publish.delay(Duration::from_millis(millis)),
        (None, Some(_)) => {
            return Err(Problem::invalid(format!("delay_ms is at most {MAX_DELAY_MS}, which is ten years")));
        }
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("due_at and delay_ms exclude each other: give one of them"));
        }
    };
    if let Some(retry) = event.retry {
        publish = publish.retry(retry::into_override(retry)?);
    }
    Ok(publish.into_event()?)
}

/// Stores the prepared events and builds the response; `body` serialises the result. `has_own_id` says whether the request names the id
/// of a single event.
pub(super) async fn store(
    api: &Api,
    ticket: Ticket,
    prepared: Result<Vec<NewEvent>, Problem>,
    has_own_id: bool,
    body: impl FnOnce(Vec<PublishedEvent>) -> String,
) -> Reply {
    let stored = async {
        let events = prepared?;
        let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
        // A fresh id belongs to no other event, and the store refuses a batch with the id of another one.
        let content = match &events[..] {
            [event] if has_own_id || ticket.has_key() => Some(EventContent::of(event)),
            _ => None,
        };
        let appended = api.bus.append(events).await?;
        if let (Some(content), [Appended::Duplicate]) = (content, &appended[..])
            && let [id] = api.store.taken_ids(vec![content]).await?[..]
        {
            return Err(StoreError::IdTaken { id }.into());
        }
        Ok::<_, Problem>((ids, appended))
    };
    match stored.await {
        Ok((ids, appended)) => {
            let published = |(id, appended)| PublishedEvent {
                id: *EventId::as_uuid(&id),
                duplicate: appended == Appended::Duplicate,
            };
            api.feed.stored();
            let published = ids.into_iter().zip(appended).map(published).collect();
            Ok(ticket.record_response(api, body(published)).await)
        }
        Err(problem) => Err(ticket.release(api, problem).await),
    }
}

/// Reads the trace context. The W3C recommendation says to ignore an invalid one.
pub(super) fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}
