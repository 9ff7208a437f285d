//! Events as the HTTP API writes them.

use redrive::{
    AttemptRow, DeadLetter, DeliveryRow, DlqGroup, EventDetail, EventId, EventStatus, EventType,
    FailureClass, Metadata, SubscriptionName, Unread,
};
use redrive_store::RawJson;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api::time::Instant;

#[derive(Debug, Deserialize)]
pub(super) struct Page<T> {
    pub(super) data: Vec<T>,
    pub(super) next: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Event {
    id: EventId,
    #[serde(rename = "type")]
    event_type: EventType,
    status: EventStatus,
    metadata: Metadata,
    retry_count: u32,
    created_at: Instant,
    updated_at: Instant,
    due_at: Option<Instant>,
    errors: Vec<String>,
    /// Not in lists; nor is what follows.
    payload: Option<Box<RawValue>>,
    #[serde(default)]
    deliveries: Vec<Delivery>,
    #[serde(default)]
    attempts: Vec<Attempt>,
}

#[derive(Debug, Deserialize)]
struct Delivery {
    subscription: SubscriptionName,
    status: EventStatus,
    retry_count: u32,
    due_at: Option<Instant>,
    errors: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Attempt {
    attempt: u32,
    subscription: String,
    started_at: Instant,
    duration_ms: u64,
    class: Option<String>,
    delay_ms: u64,
    error: String,
    record: Option<Box<RawValue>>,
    detail: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Dead {
    id: EventId,
    #[serde(rename = "type")]
    event_type: EventType,
    subscription: Option<SubscriptionName>,
    metadata: Metadata,
    retry_count: u32,
    created_at: Instant,
    dlq_at: Instant,
    reason: String,
    errors: Vec<String>,
    /// Not in lists; nor is what follows.
    payload: Option<Box<RawValue>>,
    #[serde(default)]
    attempts: Vec<Attempt>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DeadEntries {
    pub(super) data: Vec<Dead>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Group {
    fingerprint: String,
    count: u64,
    example: String,
    first_at: Instant,
    last_at: Instant,
}

#[derive(Debug, Deserialize)]
pub(super) struct Groups {
    pub(super) data: Vec<Group>,
}

/// What is `null` reads as if it were not there.
fn payload(payload: &mut Option<Box<RawValue>>) -> Box<RawValue> {
    payload.take().unwrap_or_else(|| RawValue::NULL.to_owned())
}

impl Event {
    fn detail<P>(self, payload: P) -> EventDetail<P> {
        EventDetail {
            id: self.id,
            event_type: self.event_type,
            payload,
            metadata: self.metadata,
            status: self.status,
            retry_count: self.retry_count,
            errors: self.errors,
            created_at: self.created_at.0,
            updated_at: self.updated_at.0,
            due_at: self.due_at.map(|at| at.0),
            deliveries: self.deliveries.into_iter().map(DeliveryRow::from).collect(),
            attempts: self.attempts.into_iter().map(AttemptRow::from).collect(),
            cursor: 0, // a page says where the next one begins
        }
    }
}

impl From<Event> for EventDetail {
    fn from(mut event: Event) -> Self {
        let payload = payload(&mut event.payload);
        event.detail(payload)
    }
}

impl From<Event> for EventDetail<Unread> {
    fn from(event: Event) -> Self {
        event.detail(Unread)
    }
}

impl From<Delivery> for DeliveryRow {
    fn from(delivery: Delivery) -> Self {
        DeliveryRow {
            subscription: delivery.subscription,
            status: delivery.status,
            retry_count: delivery.retry_count,
            due_at: delivery.due_at.map(|at| at.0),
            errors: delivery.errors,
        }
    }
}

impl From<Attempt> for AttemptRow {
    fn from(attempt: Attempt) -> Self {
        let raw = |json: Box<RawValue>| Box::new(RawJson(json.get().to_owned()));
        AttemptRow {
            attempt: attempt.attempt,
            subscription: attempt.subscription,
            started_at: attempt.started_at.0,
            duration_ms: attempt.duration_ms,
            class: attempt.class.map(|name| class(&name)),
            delay_ms: attempt.delay_ms,
            error: attempt.error,
            record: attempt.record.map(raw),
            detail: attempt.detail.map(raw),
        }
    }
}

/// By its name. How long a throttled one was asked to wait stands in its record.
fn class(name: &str) -> FailureClass {
    match name {
        "throttled" => FailureClass::Throttled { retry_after: None },
        "timeout" => FailureClass::Timeout,
        "permanent" => FailureClass::Permanent,
        "crashed" => FailureClass::Crashed,
        _ => FailureClass::Transient,
    }
}

impl Dead {
    /// `None` if it cannot be one.
    pub(super) fn letter(mut self) -> Option<DeadLetter> {
        let payload = payload(&mut self.payload);
        Some(self.in_short()?.with(payload))
    }

    /// As lists have it.
    pub(super) fn in_short(self) -> Option<DeadLetter<Unread>> {
        Some(DeadLetter {
            id: self.id,
            event_type: self.event_type,
            payload: Unread,
            metadata: self.metadata,
            created_at: self.created_at.0,
            subscription: self.subscription,
            retry_count: self.retry_count,
            dlq_at: self.dlq_at.0,
            reason: self.reason,
            errors: self.errors,
            attempts: self.attempts.into_iter().map(AttemptRow::from).collect(),
            cursor: "0.0.0".parse().ok()?, // a page says where the next one begins
        })
    }
}

impl From<Group> for DlqGroup {
    fn from(group: Group) -> Self {
        DlqGroup {
            fingerprint: group.fingerprint,
            count: group.count,
            example: group.example,
            first_at: group.first_at.0,
            last_at: group.last_at.0,
        }
    }
}
