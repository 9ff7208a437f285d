//! Reading columns back into the types they came from.

use std::sync::Arc;

use redrive_retry::{FailureClass, Timestamp};
use rusqlite::Row;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::status;
use crate::error::StoreError;
use crate::event::{EventId, EventType, Metadata, StoredEvent};
use crate::query::{AttemptRow, RawJson};

pub(super) fn event_id(row: &Row<'_>, column: usize) -> Result<EventId, StoreError> {
    let bytes: [u8; 16] = row.get(column)?;
    Ok(EventId::from_uuid(Uuid::from_bytes(bytes)))
}

pub(super) fn event_type(row: &Row<'_>, column: usize) -> Result<EventType, StoreError> {
    Ok(EventType::new(row.get_ref(column)?.as_str().map_err(rusqlite::Error::from)?)?)
}

pub(super) fn timestamp(row: &Row<'_>, column: usize) -> Result<Timestamp, StoreError> {
    Ok(Timestamp::from_millis(row.get(column)?))
}

/// When something is due that waits. What is running keeps the time at which it was due, for its place in the order.
pub(super) fn due_at(row: &Row<'_>, column: usize, state: i64) -> Result<Option<Timestamp>, StoreError> {
    let due: Option<i64> = row.get(column)?;
    Ok(due.filter(|_| state != status::RUNNING).map(Timestamp::from_millis))
}

pub(super) fn metadata(row: &Row<'_>, column: usize) -> Result<Metadata, StoreError> {
    let text: Option<String> = row.get(column)?;
    // Written by us; if somebody changed it by hand into something else, the event is still worth more without it.
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
}

/// The JSON array of errors.
pub(super) fn errors(row: &Row<'_>, column: usize) -> Result<Vec<String>, StoreError> {
    let text: Option<String> = row.get(column)?;
    Ok(text.map_or_else(Vec::new, |text| serde_json::from_str(&text).unwrap_or_else(|_| vec![text])))
}

pub(super) fn raw(row: &Row<'_>, column: usize) -> Result<Box<RawValue>, StoreError> {
    let text: String = row.get(column)?;
    // Only JSON is ever stored; what was changed by hand is shown as text.
    let shown = RawValue::from_string(text.clone()).or_else(|_| serde_json::value::to_raw_value(&text));
    shown.map_err(|error| StoreError::Stopped { why: error.to_string() })
}

/// Columns: id, type, payload, metadata, created_at, retry, beginning at `first`.
pub(super) fn stored_event(row: &Row<'_>, first: usize) -> Result<StoredEvent, StoreError> {
    let payload = Arc::from(row.get_ref(first + 2)?.as_str().map_err(rusqlite::Error::from)?);
    let retry: Option<String> = row.get(first + 5)?;
    Ok(StoredEvent {
        id: event_id(row, first)?,
        event_type: event_type(row, first + 1)?,
        payload,
        metadata: metadata(row, first + 3)?,
        created_at: timestamp(row, first + 4)?,
        retry: retry.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// Columns: attempt, subscription, started_at, duration_ms, class, delay_ms, error, record.
pub(super) fn attempt(row: &Row<'_>) -> Result<AttemptRow, StoreError> {
    let class: String = row.get(4)?;
    let record: Option<String> = row.get(7)?;
    Ok(AttemptRow {
        attempt: row.get(0)?,
        subscription: row.get(1)?,
        started_at: timestamp(row, 2)?,
        duration_ms: row.get::<_, i64>(3)?.unsigned_abs(),
        class: serde_json::from_str(&class).unwrap_or(FailureClass::Transient),
        delay_ms: row.get::<_, i64>(5)?.unsigned_abs(),
        error: row.get(6)?,
        record: record.map(|record| Box::new(RawJson(record))),
    })
}
