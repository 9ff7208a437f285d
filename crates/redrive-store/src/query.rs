//! Looking at events: what is shown, and how it is selected.

use redrive_retry::{FailureClass, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::event::{EventId, EventStatus, EventType, Metadata, SubscriptionName};

/// Stands for a payload that was not read, and so cannot be shown.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Unread;

/// An event with all that is known of it; but for the payload, if that is [`Unread`].
#[derive(Debug, Serialize)]
pub struct EventDetail<P = Box<RawValue>> {
    /// Its id.
    pub id: EventId,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// Its payload.
    pub payload: P,
    /// Additional facts.
    pub metadata: Metadata,
    /// Where it stands.
    pub status: EventStatus,
    /// How often it was retried.
    pub retry_count: u32,
    /// Every error so far.
    pub errors: Vec<String>,
    /// When it was published.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it is due, if it waits.
    pub due_at: Option<Timestamp>,
    /// What single subscriptions are owed of it.
    pub deliveries: Vec<DeliveryRow>,
    /// Every failed attempt, and every other one of which something was told; only for a single event, not in lists.
    pub attempts: Vec<AttemptRow>,
    /// For the next page: pass it to [`EventPage::after`].
    #[serde(skip)]
    pub cursor: i64,
}

/// What one subscription is owed of an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeliveryRow {
    /// Who.
    pub subscription: SubscriptionName,
    /// Where it stands.
    pub status: EventStatus,
    /// How often it was retried.
    pub retry_count: u32,
    /// When it is due, if it waits.
    pub due_at: Option<Timestamp>,
    /// Every error so far.
    pub errors: Vec<String>,
}

/// One attempt that failed, or that succeeded and of which its handler told something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRow {
    /// Which, counted from 1.
    pub attempt: u32,
    /// Whose handler it was.
    pub subscription: String,
    /// When it began.
    pub started_at: Timestamp,
    /// How long it took.
    pub duration_ms: u64,
    /// What kind of failure it was; nothing if it succeeded.
    pub class: Option<FailureClass>,
    /// The wait before the next attempt; 0 after the last.
    pub delay_ms: u64,
    /// The error; empty if it succeeded.
    pub error: String,
    /// The decision with its inputs.
    pub record: Option<Box<RawJson>>,
    /// What its handler told of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<RawJson>>,
}

/// One attempt of a subscription, and at what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SubscriptionAttempt {
    /// The event.
    pub event_id: EventId,
    /// Its type.
    pub event_type: EventType,
    /// The attempt.
    #[serde(flatten)]
    pub attempt: AttemptRow,
    /// For the next page: pass it to [`EventPage::after`].
    #[serde(skip)]
    pub cursor: i64,
}

/// JSON text that can be compared and passed on as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct RawJson(pub String);

impl Serialize for RawJson {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let raw = RawValue::from_string(self.0.clone()).map_err(serde::ser::Error::custom)?;
        raw.serialize(s)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(d).map(|raw| RawJson(raw.get().to_owned()))
    }
}

/// Which events are meant.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Of this status.
    pub status: Option<EventStatus>,
    /// Of this type.
    pub event_type: Option<EventType>,
}

/// Which part of the list.
#[derive(Copy, Clone, Debug)]
pub struct EventPage {
    /// How many at most.
    pub limit: u32,
    /// Continue after the entry with this cursor.
    pub after: Option<i64>,
}

impl Default for EventPage {
    fn default() -> Self {
        EventPage { limit: 100, after: None }
    }
}

/// How much work waits.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Depth {
    /// Events waiting for their first attempt, or for the attempt after a death of the process.
    pub pending: u64,
    /// Events being handled.
    pub running: u64,
    /// Events waiting for another attempt.
    pub waiting: u64,
    /// Deliveries to single subscriptions that are not finished.
    pub open_deliveries: u64,
    /// Size of the database file.
    pub file_bytes: u64,
    /// Size of the write-ahead log.
    pub wal_bytes: u64,
}

impl Depth {
    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.pending + self.running + self.waiting + self.open_deliveries == 0
    }
}

/// Counts over the whole store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Events waiting for their first attempt.
    pub pending: u64,
    /// Events being handled or waiting for another attempt.
    pub processing: u64,
    /// Handled events that are still kept.
    pub done: u64,
    /// Events in the dead-letter queue.
    pub dlq: u64,
    /// Deliveries to single subscriptions that are not finished.
    pub open_deliveries: u64,
    /// Size of the database file.
    pub file_bytes: u64,
    /// Size of the write-ahead log.
    pub wal_bytes: u64,
}

/// A subscription on record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionRow {
    /// Its id.
    pub id: String,
    /// Its stable name.
    pub name: SubscriptionName,
    /// Its pattern.
    pub event_type: String,
    /// Since when.
    pub created_at: Timestamp,
}

/// What a process elsewhere has subscribed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribedElsewhere {
    /// Its stable name.
    pub name: SubscriptionName,
    /// Its pattern.
    pub event_type: String,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// Its number: later lines have larger ones.
    pub key: i64,
    /// When it was written.
    pub at: Timestamp,
    /// JSON, as in a log of JSON lines.
    pub line: String,
}
