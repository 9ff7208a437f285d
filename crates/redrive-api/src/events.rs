//! `/v1/events`: publish events and look them up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::client::{Result, requests};
use crate::endpoints::AttemptRecord;
use crate::open_enum::open_enum;
use crate::page::{List, Page, PageQuery};
use crate::replays::{EventReplayed, ReplayEvent};
use crate::retry::Retry;
use crate::time::Time;

open_enum! {
    /// Status of an event or of one of its deliveries.
    pub enum EventStatus {
        /// Waits for its first attempt.
        Pending = "pending",
        /// Is in flight, or waits for another attempt.
        Processing = "processing",
        /// Handled by every matching subscription.
        Done = "done",
        /// In the dead-letter queue.
        Dlq = "dlq",
    }
}

/// An event to publish.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PublishEvent {
    /// Type of the event. Only the server publishes types that begin with `redrive.`.
    #[serde(rename = "type")]
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 255,
            pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$",
            example = "order.created"
        )
    )]
    pub event_type: String,
    /// Any JSON, stored as it is written; at most 1 MiB.
    #[cfg_attr(feature = "schema", schema(value_type = Value, example = json!({"order": 7})))]
    pub payload: Box<RawValue>,
    /// An id of the publisher's own. Publishing an id twice stores one event.
    pub id: Option<Uuid>,
    /// Additional texts by name, 64 KiB in total.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// The event is not handled before this time.
    pub due_at: Option<Time>,
    /// The event is not handled before this many milliseconds have passed. Excludes `due_at`.
    #[cfg_attr(feature = "schema", schema(maximum = 315_360_000_000_u64))]
    pub delay_ms: Option<u64>,
    /// Overrides the retry policies of all subscriptions for this event.
    pub retry: Option<Retry>,
}

impl PublishEvent {
    /// An event with this type and payload, and nothing else set.
    pub fn new(event_type: impl Into<String>, payload: Box<RawValue>) -> Self {
        let event_type = event_type.into();
        let metadata = BTreeMap::new();
        PublishEvent { event_type, payload, id: None, metadata, due_at: None, delay_ms: None, retry: None }
    }
}

/// An event on stable storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PublishedEvent {
    /// Id of the event.
    pub id: Uuid,
    /// Whether the id was already on record, and nothing changed.
    pub duplicate: bool,
}

/// Selects events; every given field must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct EventFilter {
    /// Only events with this status
    #[cfg_attr(feature = "schema", param(inline))]
    pub status: Option<EventStatus>,
    /// Only events of this type
    #[serde(rename = "type")]
    #[cfg_attr(
        feature = "schema",
        param(min_length = 1, max_length = 255, pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$")
    )]
    pub event_type: Option<String>,
}

/// An event in a list: without payload, deliveries and attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventSummary {
    /// Id of the event.
    pub id: Uuid,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Status of the event.
    pub status: EventStatus,
    /// Additional texts by name.
    pub metadata: BTreeMap<String, String>,
    /// Number of failed attempts.
    pub retry_count: u32,
    /// The time at which the event was published.
    pub created_at: Time,
    /// The time of the last change of the event.
    pub updated_at: Time,
    /// The time at which the event is due, if it waits.
    pub due_at: Option<Time>,
    /// Every error so far.
    pub errors: Vec<String>,
}

/// An event with payload, deliveries and attempts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Event {
    /// Id of the event.
    pub id: Uuid,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Status of the event.
    pub status: EventStatus,
    /// Additional texts by name.
    pub metadata: BTreeMap<String, String>,
    /// Number of failed attempts.
    pub retry_count: u32,
    /// The time at which the event was published.
    pub created_at: Time,
    /// The time of the last change of the event.
    pub updated_at: Time,
    /// The time at which the event is due, if it waits.
    pub due_at: Option<Time>,
    /// Every error so far.
    pub errors: Vec<String>,
    /// The payload as it was published.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub payload: Box<RawValue>,
    /// Deliveries to subscriptions that are tracked on their own.
    pub deliveries: Vec<Delivery>,
    /// Recorded attempts: every failed one, and all of webhooks.
    pub attempts: Vec<Attempt>,
}

/// The work of one subscription for one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// Name of the subscription.
    pub subscription: String,
    /// Status of the delivery.
    pub status: EventStatus,
    /// Number of failed attempts.
    pub retry_count: u32,
    /// The time at which the delivery is due, if it waits.
    pub due_at: Option<Time>,
    /// Every error so far.
    pub errors: Vec<String>,
}

/// Recorded attempt. Failed attempts are always recorded, successful ones only for webhook endpoints.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Attempt {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Name of the subscription.
    pub subscription: String,
    /// The time at which the attempt began.
    pub started_at: Time,
    /// Duration of the attempt, in milliseconds.
    pub duration_ms: u64,
    /// Class of the failure; `null` for a success.
    #[cfg_attr(feature = "schema", schema(example = "transient"))]
    pub class: Option<String>,
    /// Wait before the next attempt; 0 after the last.
    pub delay_ms: u64,
    /// The error; `null` for a success.
    pub error: Option<String>,
    /// The retry decision with its inputs; `null` for a success.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub decision: Option<Box<RawValue>>,
    /// The HTTP request and its response, if the subscription is an endpoint and a request was sent.
    pub request: Option<AttemptRecord>,
    /// JSON that the handler recorded.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub detail: Option<Box<RawValue>>,
}

requests! {
    /// Requests on `/v1/events`.
    Events,
    /// Publishes events and looks them up.
    events
}

impl Events<'_> {
    /// Publishes an event; returns when it is on stable storage.
    pub async fn publish(&self, event: &PublishEvent) -> Result<PublishedEvent> {
        self.0.post("/v1/events", event).await
    }

    /// Publishes all events or none.
    pub async fn publish_batch(&self, events: &[PublishEvent]) -> Result<List<PublishedEvent>> {
        self.0.post("/v1/events/batch", events).await
    }

    /// Returns one page of events, newest first.
    pub async fn list(&self, filter: &EventFilter, page: &PageQuery) -> Result<Page<EventSummary>> {
        self.0.page("/v1/events", filter, page).await
    }

    /// Returns one event.
    pub async fn get(&self, id: Uuid) -> Result<Event> {
        self.0.get(&format!("/v1/events/{id}"), &()).await
    }

    /// Sends an event to one endpoint again, or for the first time.
    pub async fn replay(&self, id: Uuid, to: &ReplayEvent) -> Result<EventReplayed> {
        self.0.post(&format!("/v1/events/{id}/replay"), to).await
    }
}
