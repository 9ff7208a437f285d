//! Events as the API shows them.

use redrive::{
    AttemptRow, DeliveryRow, EventDetail, EventId, EventStatus, EventType, Metadata, SubscriptionName,
};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::look::Status;
use crate::api::time::Instant;

/// An event in a list: without its payload and its attempts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventSummary {
    #[schema(value_type = uuid::Uuid)]
    id: EventId,
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    event_type: EventType,
    #[schema(value_type = Status, inline)]
    status: EventStatus,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    metadata: Metadata,
    /// How often it was retried.
    retry_count: u32,
    /// When it was published.
    created_at: Instant,
    /// When it last changed.
    updated_at: Instant,
    /// When it is due, if it waits.
    due_at: Option<Instant>,
    /// Every error so far.
    errors: Vec<String>,
}

/// An event with all that is known of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventView {
    #[serde(flatten)]
    summary: EventSummary,
    /// As it was published.
    #[schema(value_type = Value)]
    payload: Box<RawValue>,
    /// What single receivers are owed of it.
    deliveries: Vec<DeliveryView>,
    /// Every failed attempt.
    attempts: Vec<AttemptView>,
}

/// What one receiver is owed of an event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryView {
    #[schema(value_type = String)]
    subscription: SubscriptionName,
    #[schema(value_type = Status, inline)]
    status: EventStatus,
    retry_count: u32,
    /// When it is due, if it waits.
    due_at: Option<Instant>,
    errors: Vec<String>,
}

/// One attempt: every one that failed, and to endpoints every other one as well.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AttemptView {
    /// Which, counted from 1.
    attempt: u32,
    subscription: String,
    started_at: Instant,
    duration_ms: u64,
    /// What kind of failure it was; `null` if it succeeded.
    #[schema(example = "transient")]
    class: Option<String>,
    /// The wait before the next attempt; 0 after the last.
    delay_ms: u64,
    error: String,
    /// The decision with its inputs.
    #[schema(value_type = Value)]
    record: Option<Box<RawValue>>,
    /// What was sent where, and what the endpoint answered.
    #[schema(value_type = Value)]
    detail: Option<Box<RawValue>>,
}

impl<P> From<EventDetail<P>> for EventSummary {
    fn from(event: EventDetail<P>) -> Self {
        EventSummary {
            id: event.id,
            event_type: event.event_type,
            status: event.status,
            metadata: event.metadata,
            retry_count: event.retry_count,
            created_at: event.created_at.into(),
            updated_at: event.updated_at.into(),
            due_at: event.due_at.map(Instant),
            errors: event.errors,
        }
    }
}

impl From<EventDetail> for EventView {
    fn from(mut event: EventDetail) -> Self {
        let payload = std::mem::replace(&mut event.payload, RawValue::NULL.to_owned());
        let deliveries = event.deliveries.drain(..).map(DeliveryView::from).collect();
        let attempts = event.attempts.drain(..).map(AttemptView::from).collect();
        EventView { summary: event.into(), payload, deliveries, attempts }
    }
}

impl From<DeliveryRow> for DeliveryView {
    fn from(row: DeliveryRow) -> Self {
        DeliveryView {
            subscription: row.subscription,
            status: row.status,
            retry_count: row.retry_count,
            due_at: row.due_at.map(Instant),
            errors: row.errors,
        }
    }
}

impl From<AttemptRow> for AttemptView {
    fn from(row: AttemptRow) -> Self {
        AttemptView {
            attempt: row.attempt,
            subscription: row.subscription,
            started_at: row.started_at.into(),
            duration_ms: row.duration_ms,
            class: row.class.map(|class| class.to_string()),
            delay_ms: row.delay_ms,
            error: row.error,
            record: row.record.and_then(|record| RawValue::from_string(record.0).ok()),
            detail: row.detail.and_then(|detail| RawValue::from_string(detail.0).ok()),
        }
    }
}
