//! Converts columns to the types of the model.
//!
//! The store writes valid values only, but any program can change the file. So these functions accept whatever can be read: one
//! damaged row must not stop the dispatch of other rows. Only an invalid id is an error.

use std::borrow::Cow;
use std::sync::Arc;

use redrive_retry::{FailureClass, RetryOverride, Timestamp};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Params, Row};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::status;
use crate::due::Due;
use crate::error::StoreError;
use crate::event::{EventId, EventType, Metadata, StoredEvent, SubscriptionName};
use crate::query::{AttemptRow, RawJson};

/// The two tables with rows to claim.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Event,
    Delivery,
}

/// Runs a query and reads all its rows.
pub(super) fn all<T>(
    connection: &Connection,
    query: &str,
    values: impl Params,
    read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    connection.prepare_cached(query)?.query_and_then(values, read)?.collect()
}

pub(super) fn event_id(row: &Row<'_>, column: usize) -> Result<EventId, StoreError> {
    let bytes: [u8; 16] = row.get(column)?;
    Ok(EventId::from_uuid(Uuid::from_bytes(bytes)))
}

/// Reads a column of any type as text.
pub(super) fn text<'r>(row: &'r Row<'_>, column: usize) -> Result<Cow<'r, str>, StoreError> {
    Ok(match row.get_ref(column)? {
        // The check for valid UTF-8 is several times as fast as the lossy conversion.
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

/// Reads a count and clamps it to the range of `u32`.
pub(super) fn count(row: &Row<'_>, column: usize) -> Result<u32, StoreError> {
    let count: i64 = row.get(column)?;
    Ok(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}

/// Reads a status code; one that is out of range counts as processing.
pub(super) fn status(row: &Row<'_>, column: usize) -> rusqlite::Result<i16> {
    Ok(i16::try_from(row.get::<_, i64>(column)?).unwrap_or(i16::MAX))
}

pub(super) fn event_type(row: &Row<'_>, column: usize) -> Result<EventType, StoreError> {
    Ok(EventType::stored(&text(row, column)?))
}

pub(super) fn subscription(row: &Row<'_>, column: usize) -> Result<SubscriptionName, StoreError> {
    Ok(SubscriptionName::stored(&text(row, column)?))
}

/// Reads the subscription that a row belongs to; `None` for a whole event.
pub(super) fn optional_subscription(
    row: &Row<'_>,
    column: usize,
) -> Result<Option<SubscriptionName>, StoreError> {
    Ok(optional_text(row, column)?.map(|name| SubscriptionName::stored(&name)))
}

pub(super) fn timestamp(row: &Row<'_>, column: usize) -> Result<Timestamp, StoreError> {
    Ok(Timestamp::from_millis(row.get(column)?))
}

/// Reads the due time of waiting work. A running row keeps its due time for the order of claims, but shows none.
pub(super) fn due_at(row: &Row<'_>, column: usize, state: i16) -> Result<Option<Timestamp>, StoreError> {
    let due: Option<i64> = row.get(column)?;
    Ok(due.filter(|_| state != status::RUNNING).and_then(|due| Due::from_sql_millis(due).at()))
}

pub(super) fn metadata(row: &Row<'_>, column: usize) -> Result<Metadata, StoreError> {
    let text = optional_text(row, column)?;
    // Metadata that was changed by hand and cannot be read is left out; the event stays usable.
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
}

/// Reads the JSON array of errors.
pub(super) fn errors(row: &Row<'_>, column: usize) -> Result<Vec<String>, StoreError> {
    let text = optional_text(row, column)?;
    Ok(text.map_or_else(Vec::new, |text| {
        serde_json::from_str(&text).unwrap_or_else(|_| vec![text.into_owned()])
    }))
}

/// Reads the errors of earlier attempts; `None` before the first failure.
pub(super) fn errors_before(row: &Row<'_>, column: usize) -> Result<Option<Arc<[String]>>, StoreError> {
    let is_there = row.get_ref(column)? != ValueRef::Null;
    is_there.then(|| errors(row, column).map(Arc::from)).transpose()
}

/// Reads an event. Columns: id, type, payload, metadata, created_at, retry, beginning at `first`.
pub(super) fn stored_event(row: &Row<'_>, first: usize) -> Result<StoredEvent, StoreError> {
    let payload = Arc::from(text(row, first + 2)?);
    Ok(StoredEvent {
        id: event_id(row, first)?,
        event_type: event_type(row, first + 1)?,
        payload,
        metadata: metadata(row, first + 3)?,
        created_at: timestamp(row, first + 4)?,
        retry: retry_override(row, first + 5)?,
    })
}

/// Reads the event's own changes to the retry policy; unreadable ones count as absent.
pub(super) fn retry_override(row: &Row<'_>, column: usize) -> Result<Option<RetryOverride>, StoreError> {
    Ok(optional_text(row, column)?.and_then(|text| serde_json::from_str(&text).ok()))
}

/// Reads a JSON column; text that is no JSON counts as absent, because it could not be embedded in other JSON.
fn optional_json(row: &Row<'_>, column: usize) -> Result<Option<Box<RawJson>>, StoreError> {
    let text = optional_text(row, column)?.filter(|text| serde_json::from_str::<&RawValue>(text).is_ok());
    Ok(text.map(|text| Box::new(RawJson(text.into_owned()))))
}

/// Reads an attempt. Columns: attempt, subscription, started_at, duration_ms, class, delay_ms, error, record, detail, beginning at `first`.
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
