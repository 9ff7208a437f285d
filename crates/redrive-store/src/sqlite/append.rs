//! Storing events. What is due at once and finds room in flight is stored as running already: one statement less.

use std::sync::Arc;

use redrive_retry::Timestamp;
use rusqlite::{Connection, params};

use super::status;
use super::writer::{Pending, savepoint};
use crate::error::StoreError;
use crate::event::{NewEvent, StoredEvent};
use crate::store::Appended;
use crate::work::{ClaimSink, Claimed, UnitKey};

const INSERT_EVENT: &str = "
    INSERT INTO event (id, type, payload, metadata, status, due_at, retry, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8) ON CONFLICT (id) DO NOTHING";

const INSERT_DELIVERY: &str = "
    INSERT INTO delivery (event_key, subscription, status, due_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)";

pub(super) fn append(
    connection: &Connection,
    events: &[NewEvent],
    sink: Option<&ClaimSink>,
    pending: &mut Pending,
) -> Result<Vec<Appended>, StoreError> {
    match events {
        // A single statement undoes itself if it fails.
        [event] if event.addressees.is_empty() => Ok(vec![append_one(connection, event, sink, pending)?]),
        events => savepoint(connection, |connection| {
            events.iter().map(|event| append_one(connection, event, sink, pending)).collect()
        }),
    }
}

/// Stores events inside a transaction of the caller's own, to the same file. They are handled once it is committed.
///
/// ```no_run
/// # use redrive_store::{EventId, EventType, NewEvent, sqlite::append_in};
/// # fn publish(connection: &mut rusqlite::Connection, event: NewEvent) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
/// transaction.execute("UPDATE account SET balance = balance - 1 WHERE id = 7", [])?;
/// append_in(&transaction, &[event])?;
/// transaction.commit()?;
/// # Ok(()) }
/// ```
pub fn append_in(
    transaction: &rusqlite::Transaction<'_>,
    events: &[NewEvent],
) -> Result<Vec<Appended>, StoreError> {
    append(transaction, events, None, &mut Pending::default())
}

fn append_one(
    connection: &Connection,
    event: &NewEvent,
    sink: Option<&ClaimSink>,
    pending: &mut Pending,
) -> Result<Appended, StoreError> {
    let due_now = event.due_at <= event.created_at;
    let slot = sink.filter(|_| due_now && event.addressees.is_empty()).and_then(ClaimSink::take);
    let (state, due_at) = match (&slot, event.addressees.is_empty()) {
        (_, false) => (status::DELIVERING, None),
        (Some(_), true) => (status::RUNNING, Some(event.due_at)),
        (None, true) => (status::PENDING, Some(event.due_at)),
    };
    let metadata = (!event.metadata.is_empty()).then(|| json(&event.metadata));
    let retry = event.retry.as_ref().map(json);
    let inserted = connection.prepare_cached(INSERT_EVENT)?.execute(params![
        event.id.as_uuid().as_bytes(),
        event.event_type.as_str(),
        &*event.payload,
        metadata,
        state,
        due_at.map(Timestamp::as_millis),
        retry,
        event.created_at.as_millis(),
    ])?;
    if inserted == 0 {
        return Ok(Appended::Duplicate);
    }
    let key = connection.last_insert_rowid();
    if let Some(slot) = slot {
        pending.claimed.push(Claimed {
            event: Arc::new(stored(event)),
            addressee: None,
            attempt: 1,
            started_at: event.created_at,
            unit: UnitKey::Event(key),
            _slot: slot,
        });
    } else if event.addressees.is_empty() {
        pending.due(event.due_at);
    }
    if !event.addressees.is_empty() {
        append_deliveries(connection, key, event, sink.filter(|_| due_now), pending)?;
    }
    Ok(Appended::New)
}

fn append_deliveries(
    connection: &Connection,
    event_key: i64,
    event: &NewEvent,
    sink: Option<&ClaimSink>,
    pending: &mut Pending,
) -> Result<(), StoreError> {
    let stored = Arc::new(stored(event));
    for addressee in &event.addressees {
        let slot = sink.and_then(ClaimSink::take);
        let state = if slot.is_some() { status::RUNNING } else { status::PENDING };
        connection.prepare_cached(INSERT_DELIVERY)?.execute(params![
            event_key,
            addressee.as_str(),
            state,
            event.due_at.as_millis(),
            event.created_at.as_millis()
        ])?;
        match slot {
            Some(slot) => pending.claimed.push(Claimed {
                event: Arc::clone(&stored),
                addressee: Some(addressee.clone()),
                attempt: 1,
                started_at: event.created_at,
                unit: UnitKey::Delivery { delivery: connection.last_insert_rowid(), event: event_key },
                _slot: slot,
            }),
            None => pending.due(event.due_at),
        }
    }
    Ok(())
}

fn stored(event: &NewEvent) -> StoredEvent {
    StoredEvent {
        id: event.id,
        event_type: event.event_type.clone(),
        payload: Arc::clone(&event.payload),
        metadata: event.metadata.clone(),
        created_at: event.created_at,
        retry: event.retry.clone(),
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("maps of text and numbers always serialise")
}
