//! Reads columns into the types of the model.
//!
//! The store writes only valid values, but the tables can be changed by hand. Readers are therefore lenient: one damaged row
//! must not keep the other events from being handled.

use std::sync::Arc;

use redrive_retry::{FailureClass, RetryOverride, Timestamp};
use tokio_postgres::Row;

use super::{nul_escape, status};
use crate::due::Due;
use crate::event::{EventId, EventType, Metadata, StoredEvent, SubscriptionName};
use crate::query::{AttemptRow, RawJson};

pub(super) fn event_id(row: &Row, column: usize) -> EventId {
    EventId::from_uuid(row.get(column))
}

pub(super) fn event_type(row: &Row, column: usize) -> EventType {
    EventType::stored(row.get(column))
}

pub(super) fn subscription(row: &Row, column: usize) -> SubscriptionName {
    SubscriptionName::stored(row.get(column))
}

/// The subscription a row belongs to; `None` for a whole event.
pub(super) fn optional_subscription(row: &Row, column: usize) -> Option<SubscriptionName> {
    row.get::<_, Option<&str>>(column).map(SubscriptionName::stored)
}

/// The payload; empty if its row was deleted by hand.
pub(super) fn payload(row: &Row, column: usize) -> &str {
    row.get::<_, Option<&str>>(column).unwrap_or_default()
}

pub(super) fn timestamp(row: &Row, column: usize) -> Timestamp {
    Timestamp::from_millis(row.get(column))
}

pub(super) fn count(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column).unsigned_abs()
}

pub(super) fn small(row: &Row, column: usize) -> u32 {
    row.get::<_, i32>(column).unsigned_abs()
}

/// The due time of waiting work. A running row keeps its due time only for its order.
pub(super) fn due_at(row: &Row, column: usize, state: i16) -> Option<Timestamp> {
    let due: Option<i64> = row.get(column);
    due.filter(|_| state != status::RUNNING).and_then(|due| Due::from_sql_millis(due).at())
}

pub(super) fn metadata(row: &Row, column: usize) -> Metadata {
    let text: Option<&str> = row.get(column);
    // Metadata that was damaged by hand is dropped; the event is still handled.
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The JSON array of errors.
pub(super) fn errors(row: &Row, column: usize) -> Vec<String> {
    let Some(all) = row.get::<_, Option<&str>>(column) else { return Vec::new() };
    let all: Vec<String> = serde_json::from_str(all).unwrap_or_else(|_| vec![all.to_owned()]);
    all.into_iter().map(nul_escape::unescape).collect()
}

/// The errors of earlier attempts; `None` before the first failure.
pub(super) fn errors_before(row: &Row, column: usize) -> Option<Arc<[String]>> {
    row.get::<_, Option<&str>>(column).map(|_| errors(row, column).into())
}

/// Columns: id, type, payload, metadata, created_at, retry, beginning at `first`.
pub(super) fn stored_event(row: &Row, first: usize) -> StoredEvent {
    StoredEvent {
        id: event_id(row, first),
        event_type: event_type(row, first + 1),
        payload: Arc::from(payload(row, first + 2)),
        metadata: metadata(row, first + 3),
        created_at: timestamp(row, first + 4),
        retry: retry_override(row, first + 5),
    }
}

/// The event's own changes to the retry policy; unreadable ones count as absent.
pub(super) fn retry_override(row: &Row, column: usize) -> Option<RetryOverride> {
    row.get::<_, Option<&str>>(column).and_then(|text| serde_json::from_str(text).ok())
}

/// Columns: attempt, subscription, started_at, duration_ms, class, delay_ms, error, record, detail, beginning at `first`.
pub(super) fn attempt(row: &Row, first: usize) -> AttemptRow {
    let json = |column: usize| row.get::<_, Option<String>>(column).map(|text| Box::new(RawJson(text)));
    AttemptRow {
        attempt: small(row, first),
        subscription: row.get(first + 1),
        started_at: timestamp(row, first + 2),
        duration_ms: count(row, first + 3),
        class: serde_json::from_str(row.get(first + 4)).unwrap_or(Some(FailureClass::Transient)),
        delay_ms: count(row, first + 5),
        error: nul_escape::unescape(row.get(first + 6)),
        record: json(first + 7),
        detail: json(first + 8),
    }
}
