//! Reading columns back into the types they came from.
//!
//! Only valid values are ever stored; but the tables are open to whoever has the rights. So what can be read somehow is read: one
//! event that somebody has spoilt must not keep the others from being handled, and comes to its own end like any other.

use std::sync::Arc;

use redrive_retry::{FailureClass, Timestamp};
use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::{status, text};
use crate::error::StoreError;
use crate::event::{EventId, EventType, Metadata, StoredEvent, SubscriptionName};
use crate::query::{AttemptRow, RawJson};
use crate::work::HELD;

pub(super) fn event_id(row: &Row, column: usize) -> EventId {
    EventId::from_uuid(row.get(column))
}

pub(super) fn event_type(row: &Row, column: usize) -> EventType {
    EventType::stored(row.get(column))
}

pub(super) fn subscription(row: &Row, column: usize) -> SubscriptionName {
    SubscriptionName::stored(row.get(column))
}

/// Of whoever it is for, if it is for one.
pub(super) fn addressee(row: &Row, column: usize) -> Option<SubscriptionName> {
    row.get::<_, Option<&str>>(column).map(SubscriptionName::stored)
}

/// A payload whose row somebody has deleted is empty: whoever expects something in it says so.
fn payload(row: &Row, column: usize) -> &str {
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

/// When something is due that waits. What is running keeps the time at which it was due, for its place in the order.
pub(super) fn due_at(row: &Row, column: usize, state: i16) -> Option<Timestamp> {
    let due: Option<i64> = row.get(column);
    due.filter(|_| state != status::RUNNING).map(Timestamp::from_millis).filter(|due| *due != HELD)
}

pub(super) fn metadata(row: &Row, column: usize) -> Metadata {
    let text: Option<&str> = row.get(column);
    // Written by us; if somebody changed it by hand into something else, the event is still worth more without it.
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The JSON array of errors.
pub(super) fn errors(row: &Row, column: usize) -> Vec<String> {
    let Some(all) = row.get::<_, Option<&str>>(column) else { return Vec::new() };
    let all: Vec<String> = serde_json::from_str(all).unwrap_or_else(|_| vec![all.to_owned()]);
    all.into_iter().map(text::read).collect()
}

pub(super) fn raw(row: &Row, column: usize) -> Result<Box<RawValue>, StoreError> {
    let text = payload(row, column);
    // Only JSON is ever stored; what was changed by hand is shown as text.
    let shown = RawValue::from_string(text.to_owned()).or_else(|_| serde_json::value::to_raw_value(text));
    shown.map_err(|error| StoreError::Stopped { why: error.to_string() })
}

/// Columns: id, type, payload, metadata, created_at, retry, beginning at `first`.
pub(super) fn stored_event(row: &Row, first: usize) -> StoredEvent {
    let retry: Option<&str> = row.get(first + 5);
    StoredEvent {
        id: event_id(row, first),
        event_type: event_type(row, first + 1),
        payload: Arc::from(payload(row, first + 2)),
        metadata: metadata(row, first + 3),
        created_at: timestamp(row, first + 4),
        retry: retry.and_then(|text| serde_json::from_str(text).ok()),
    }
}

/// Columns: attempt, subscription, started_at, duration_ms, class, delay_ms, error, record.
pub(super) fn attempt(row: &Row, first: usize) -> AttemptRow {
    let json = |column: usize| row.get::<_, Option<String>>(column).map(|text| Box::new(RawJson(text)));
    AttemptRow {
        attempt: small(row, first),
        subscription: row.get(first + 1),
        started_at: timestamp(row, first + 2),
        duration_ms: count(row, first + 3),
        class: serde_json::from_str(row.get(first + 4)).unwrap_or(Some(FailureClass::Transient)),
        delay_ms: count(row, first + 5),
        error: text::read(row.get(first + 6)),
        record: json(first + 7),
        detail: json(first + 8),
    }
}
