//! Reading columns back into the types they came from.
//!
//! Only valid values are ever stored; but the file is open to everybody. So what can be read somehow is read: one event that
//! somebody has spoilt must not keep the others from being handled. Only an id that is none is an error.

use std::borrow::Cow;
use std::sync::Arc;

use redrive_retry::{FailureClass, Timestamp};
use rusqlite::Row;
use rusqlite::types::ValueRef;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::status;
use crate::error::StoreError;
use crate::event::{EventId, EventType, Metadata, StoredEvent, SubscriptionName};
use crate::query::{AttemptRow, RawJson};
use crate::work::HELD;

pub(super) fn event_id(row: &Row<'_>, column: usize) -> Result<EventId, StoreError> {
    let bytes: [u8; 16] = row.get(column)?;
    Ok(EventId::from_uuid(Uuid::from_bytes(bytes)))
}

/// Text, whatever is in it.
pub(super) fn text<'r>(row: &'r Row<'_>, column: usize) -> Result<Cow<'r, str>, StoreError> {
    Ok(match row.get_ref(column)? {
        // Nearly always valid, and that is found out several times as fast.
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
        }
        ValueRef::Integer(number) => Cow::Owned(number.to_string()),
        ValueRef::Real(number) => Cow::Owned(number.to_string()),
        ValueRef::Null => Cow::Borrowed(""),
    })
}

pub(super) fn optional_text<'r>(row: &'r Row<'_>, column: usize) -> Result<Option<Cow<'r, str>>, StoreError> {
    let is_there = row.get_ref(column)? != ValueRef::Null;
    is_there.then(|| text(row, column)).transpose()
}

/// How often, within what can be counted.
pub(super) fn count(row: &Row<'_>, column: usize) -> Result<u32, StoreError> {
    let count: i64 = row.get(column)?;
    Ok(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}

pub(super) fn event_type(row: &Row<'_>, column: usize) -> Result<EventType, StoreError> {
    Ok(EventType::stored(&text(row, column)?))
}

pub(super) fn subscription(row: &Row<'_>, column: usize) -> Result<SubscriptionName, StoreError> {
    Ok(SubscriptionName::stored(&text(row, column)?))
}

pub(super) fn timestamp(row: &Row<'_>, column: usize) -> Result<Timestamp, StoreError> {
    Ok(Timestamp::from_millis(row.get(column)?))
}

/// When something is due that waits. What is running keeps the time at which it was due, for its place in the order.
pub(super) fn due_at(row: &Row<'_>, column: usize, state: i64) -> Result<Option<Timestamp>, StoreError> {
    let due: Option<i64> = row.get(column)?;
    Ok(due.filter(|_| state != status::RUNNING).map(Timestamp::from_millis).filter(|due| *due != HELD))
}

pub(super) fn metadata(row: &Row<'_>, column: usize) -> Result<Metadata, StoreError> {
    let text = optional_text(row, column)?;
    // Written by us; if somebody changed it by hand into something else, the event is still worth more without it.
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
}

/// The JSON array of errors.
pub(super) fn errors(row: &Row<'_>, column: usize) -> Result<Vec<String>, StoreError> {
    let text = optional_text(row, column)?;
    Ok(text.map_or_else(Vec::new, |text| {
        serde_json::from_str(&text).unwrap_or_else(|_| vec![text.into_owned()])
    }))
}

pub(super) fn raw(row: &Row<'_>, column: usize) -> Result<Box<RawValue>, StoreError> {
    let text = text(row, column)?.into_owned();
    // Only JSON is ever stored; what was changed by hand is shown as text.
    let shown = RawValue::from_string(text.clone()).or_else(|_| serde_json::value::to_raw_value(&text));
    shown.map_err(|error| StoreError::Stopped { why: error.to_string() })
}

/// Columns: id, type, payload, metadata, created_at, retry, beginning at `first`.
pub(super) fn stored_event(row: &Row<'_>, first: usize) -> Result<StoredEvent, StoreError> {
    let payload = Arc::from(text(row, first + 2)?);
    let retry = optional_text(row, first + 5)?;
    Ok(StoredEvent {
        id: event_id(row, first)?,
        event_type: event_type(row, first + 1)?,
        payload,
        metadata: metadata(row, first + 3)?,
        created_at: timestamp(row, first + 4)?,
        retry: retry.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// What is no JSON could not be shown among other JSON.
fn optional_json(row: &Row<'_>, column: usize) -> Result<Option<Box<RawJson>>, StoreError> {
    let text = optional_text(row, column)?.filter(|text| serde_json::from_str::<&RawValue>(text).is_ok());
    Ok(text.map(|text| Box::new(RawJson(text.into_owned()))))
}

/// Columns: attempt, subscription, started_at, duration_ms, class, delay_ms, error, record, detail, beginning at `first`.
pub(super) fn attempt(row: &Row<'_>, first: usize) -> Result<AttemptRow, StoreError> {
    let class = text(row, first + 4)?;
    Ok(AttemptRow {
        attempt: count(row, first)?,
        subscription: text(row, first + 1)?.into_owned(),
        started_at: timestamp(row, first + 2)?,
        duration_ms: row.get::<_, i64>(first + 3)?.unsigned_abs(),
        class: serde_json::from_str(&class).unwrap_or(Some(FailureClass::Transient)),
        delay_ms: row.get::<_, i64>(first + 5)?.unsigned_abs(),
        error: text(row, first + 6)?.into_owned(),
        record: optional_json(row, first + 7)?,
        detail: optional_json(row, first + 8)?,
    })
}
