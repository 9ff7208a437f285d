//! Query results and filters for events, deliveries, attempts and counts.

use redrive_retry::{FailureClass, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::event::{EventId, EventStatus, EventType, Metadata, SubscriptionName};

/// Stands for a payload that a summary leaves out.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PayloadOmitted;

/// An event with its deliveries and attempts; a summary has [`PayloadOmitted`] instead of the payload.
#[derive(Debug, Serialize)]
pub struct EventDetail<P = Box<RawValue>> {
    /// The event's id.
    pub id: EventId,
    /// The event's type.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// The event's payload.
    pub payload: P,
    /// Metadata.
    pub metadata: Metadata,
    /// Status.
    pub status: EventStatus,
    /// Number of retries.
    pub retry_count: u32,
    /// The error of every failed attempt, oldest first.
    pub errors: Vec<String>,
    /// The time at which the event was published.
    pub created_at: Timestamp,
    /// The time of the last change of the event.
    pub updated_at: Timestamp,
    /// The time at which the event is due, if it waits outside of the backlog.
    pub due_at: Option<Timestamp>,
    /// Deliveries to single subscriptions.
    pub deliveries: Vec<DeliveryRow>,
    /// Every failed attempt, and every success with a detail; only for a single event, not in lists.
    pub attempts: Vec<AttemptRow>,
    /// Cursor for [`EventPage::after`], which continues the list behind this entry.
    #[serde(skip)]
    pub cursor: i64,
}

/// The delivery of an event to one subscription.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeliveryRow {
    /// The subscription.
    pub subscription: SubscriptionName,
    /// Status.
    pub status: EventStatus,
    /// Number of retries.
    pub retry_count: u32,
    /// The time at which the delivery is due, if it waits outside of the backlog.
    pub due_at: Option<Timestamp>,
    /// Whether an attempt is in flight. An open delivery that is neither running nor has a due time is in the backlog.
    #[serde(skip)]
    pub is_running: bool,
    /// Whether a pull consumer has it, until its due time.
    pub is_leased: bool,
    /// The error of every failed attempt, oldest first.
    pub errors: Vec<String>,
}

/// A recorded attempt: a failed one, or a success with a detail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRow {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The subscription whose handler ran.
    pub subscription: String,
    /// When the attempt began.
    pub started_at: Timestamp,
    /// Duration of the attempt.
    pub duration_ms: u64,
    /// Class of the failure; `None` for a success.
    pub class: Option<FailureClass>,
    /// Delay before the next attempt; 0 after the last.
    pub delay_ms: u64,
    /// The error; empty for a success.
    pub error: String,
    /// The retry decision with its inputs.
    pub record: Option<Box<RawJson>>,
    /// The detail that the handler recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<RawJson>>,
}

/// An attempt of a subscription with its event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SubscriptionAttempt {
    /// The event.
    pub event_id: EventId,
    /// The event's type.
    pub event_type: EventType,
    /// The attempt.
    #[serde(flatten)]
    pub attempt: AttemptRow,
    /// Cursor for [`EventPage::after`], which continues the list behind this entry.
    #[serde(skip)]
    pub cursor: i64,
}

/// JSON text, compared and serialised verbatim.
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

/// Selects events. Every field that is set must match.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Status of the event.
    pub status: Option<EventStatus>,
    /// Type of the event.
    pub event_type: Option<EventType>,
}

/// Selects recorded attempts. Every field that is set must match.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptFilter {
    /// Only failed attempts.
    pub failed: bool,
}

/// Selects a part of a list.
#[derive(Copy, Clone, Debug)]
pub struct EventPage {
    /// Maximum number of entries.
    pub limit: u32,
    /// Cursor of the entry to continue behind.
    pub after: Option<i64>,
}

impl Default for EventPage {
    fn default() -> Self {
        EventPage { limit: 100, after: None }
    }
}

/// Counts of open work.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Depth {
    /// Events waiting for their first attempt, or for the attempt after a crash.
    pub pending: u64,
    /// Events being handled.
    pub running: u64,
    /// Events waiting for another attempt.
    pub waiting: u64,
    /// Deliveries to single subscriptions that are not finished.
    pub open_deliveries: u64,
    /// Size of the database file, in bytes.
    pub file_bytes: u64,
    /// Size of the write-ahead log, in bytes.
    pub wal_bytes: u64,
}

impl Depth {
    /// Returns whether no work is open.
    pub fn is_idle(&self) -> bool {
        self.pending + self.running + self.waiting + self.open_deliveries == 0
    }
}

/// Counts of all events by status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Events waiting for their first attempt.
    pub pending: u64,
    /// Events being handled or waiting for another attempt.
    pub processing: u64,
    /// Handled events within their retention.
    pub done: u64,
    /// Events in the dead-letter queue.
    pub dlq: u64,
    /// Deliveries to single subscriptions that are not finished.
    pub open_deliveries: u64,
    /// Size of the database file, in bytes.
    pub file_bytes: u64,
    /// Size of the write-ahead log, in bytes.
    pub wal_bytes: u64,
}

/// Work that waits, for diagnostics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingWork {
    /// Events and deliveries that have been due since before the threshold.
    pub overdue: u64,
    /// Waiting deliveries by subscription: at most 100 subscriptions, those with the most deliveries first.
    pub subscriptions: Vec<WaitingDeliveries>,
}

/// Deliveries of one subscription that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingDeliveries {
    /// Name of the subscription.
    pub subscription: String,
    /// Whether the subscription is on record.
    pub is_on_record: bool,
    /// Number of deliveries that are due now.
    pub due: u64,
    /// Number of deliveries without a failed attempt that are due later: parked, snoozed or published with a delay.
    pub parked: u64,
    /// When the oldest event among the parked ones was published.
    pub oldest_parked_at: Option<Timestamp>,
    /// Number of deliveries that wait between two attempts.
    pub retrying: u64,
    /// Number of deliveries in the backlog.
    pub backlogged: u64,
    /// When the oldest event in the backlog was published.
    pub oldest_backlogged_at: Option<Timestamp>,
}

/// A subscription on record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionRow {
    /// The subscription's id.
    pub id: String,
    /// The subscription's stable name.
    pub name: SubscriptionName,
    /// The subscription's pattern.
    pub event_type: String,
    /// The time at which the subscription was first registered.
    pub created_at: Timestamp,
}

/// A subscription that this process has not registered: one of another process, or one that is only on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSubscription {
    /// The subscription's stable name.
    pub name: SubscriptionName,
    /// The subscription's pattern.
    pub event_type: String,
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// Number of the line; later lines have larger numbers.
    pub key: i64,
    /// The time at which the line was written.
    pub at: Timestamp,
    /// The audit event as JSON.
    pub line: String,
}
