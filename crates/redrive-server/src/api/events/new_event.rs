//! Turns an event of a request into one to store.

use std::time::Duration;

use redrive::store::NewEvent;
use redrive::trace::TraceContext;
use redrive::{EventBus, EventId, EventType};
use redrive_api::events::PublishEvent;

use crate::api::problem::{Code, Problem};
use crate::api::retry;

/// Largest payload, as the bus has it.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 1 << 20;

/// Longest delay: ten years.
const MAX_DELAY_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// Event types that begin so are published by the server only. A receiver of `redrive.endpoint.disabled` must not get a forgery, and a
/// forgery under the id that the server will use would suppress the true event.
const RESERVED_PREFIX: &str = "redrive.";

/// Prepares an event for the store: with this id if it has none, in this trace if it names none.
pub(crate) fn prepare(
    event: PublishEvent,
    bus: &EventBus,
    id: EventId,
    trace: Option<TraceContext>,
) -> Result<NewEvent, Problem> {
    let event_type = EventType::new(&event.event_type)?;
    if event.event_type.starts_with(RESERVED_PREFIX) {
        return Err(Problem::new(
            Code::ReservedType,
            format!(
                "types that begin with {RESERVED_PREFIX} are published by the server only: choose another name"
            ),
        ));
    }
    let bytes = event.payload.get().len();
    if bytes > MAX_PAYLOAD_BYTES {
        return Err(redrive::store::StoreError::PayloadTooLarge { bytes, limit: MAX_PAYLOAD_BYTES }.into());
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
