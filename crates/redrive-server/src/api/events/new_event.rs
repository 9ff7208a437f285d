//! An event as a client sends it.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive::{EventBus, EventId, EventType, NewEvent, TraceContext};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api::problem::{Code, Problem};
use crate::api::retry::Retry;
use crate::api::time::Instant;

/// The largest payload, as the bus has it.
pub(crate) const LARGEST_PAYLOAD: usize = 1 << 20;

/// The longest wait, in milliseconds: ten years.
const LONGEST_DELAY: u64 = 10 * 365 * 24 * 3600 * 1000;

/// What the server itself has to say begins so. Nobody else says it: who believes `redrive.endpoint.disabled` must not believe a
/// forgery, and one with the id that the server will use would keep the true one from being stored.
const OURS: &str = "redrive.";

/// An event to be published.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventToPublish {
    /// What kind of event it is. Types that begin with `redrive.` are published by the server only.
    #[serde(rename = "type")]
    #[schema(value_type = String, min_length = 1, max_length = 255, pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$", example = "order.created")]
    event_type: EventType,
    /// Any JSON, kept as it is written; at most 1 MiB.
    #[schema(value_type = Value, example = json!({"order": 7}))]
    payload: Box<RawValue>,
    /// An id of your own. Publishing the same id twice is one event.
    id: Option<Uuid>,
    /// Additional facts: texts by their names, 64 KiB in all.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Not to be handled before this instant.
    due_at: Option<Instant>,
    /// Not to be handled before so many milliseconds have passed. Not together with `due_at`.
    #[schema(maximum = 315_360_000_000_u64)]
    delay_ms: Option<u64>,
    /// A retry policy of its own, over whatever its receivers want.
    retry: Option<Retry>,
}

impl EventToPublish {
    /// As it is stored: under this id if it brings none, in this trace if it names none.
    pub(crate) fn prepare(
        self,
        bus: &EventBus,
        id: EventId,
        trace: Option<TraceContext>,
    ) -> Result<NewEvent, Problem> {
        if self.event_type.as_str().starts_with(OURS) {
            return Err(Problem::new(
                Code::ReservedType,
                format!("types that begin with {OURS} are published by the server only: choose another name"),
            ));
        }
        let bytes = self.payload.get().len();
        if bytes > LARGEST_PAYLOAD {
            return Err(redrive::StoreError::PayloadTooLarge { bytes, limit: LARGEST_PAYLOAD }.into());
        }
        let mut publish = bus.publish(self.event_type.as_str(), &self.payload);
        publish = publish.id(self.id.map_or(id, EventId::from_uuid));
        if let Some(trace) = trace {
            publish = publish.traceparent(trace);
        }
        for (name, value) in self.metadata {
            publish = publish.metadata(name, value);
        }
        publish = match (self.due_at, self.delay_ms) {
            (None, None) => publish,
            (Some(at), None) => publish.due_at(at.0),
            (None, Some(millis @ 0..=LONGEST_DELAY)) => publish.delay(Duration::from_millis(millis)),
            (None, Some(_)) => {
                return Err(Problem::invalid(format!(
                    "delay_ms is at most {LONGEST_DELAY}, which is ten years"
                )));
            }
            (Some(_), Some(_)) => {
                return Err(Problem::invalid(
                    "due_at and delay_ms say the same in two ways: give one of them",
                ));
            }
        };
        if let Some(retry) = self.retry {
            publish = publish.retry(retry.into_override()?);
        }
        Ok(publish.into_event()?)
    }
}
