//! The event as a handler sees it.

use std::sync::{Arc, Mutex, PoisonError};

use redrive_retry::{ClassifyError, Clock, Failure, Timestamp};
use redrive_store::{EventId, EventType, Metadata, StoredEvent, SubscriptionName};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::trace::TraceContext;

/// The most that is kept of what a handler tells, in bytes.
const LARGEST_DETAIL: usize = 128 << 10;

/// An event in the hands of a handler, with what it may want to know of the attempt. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Event {
    pub(crate) stored: Arc<StoredEvent>,
    pub(crate) subscription: SubscriptionName,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) deadline: Timestamp,
    /// Of the bus: virtual time stands still while a handler blocks.
    pub(crate) clock: Clock,
    /// What its handler told of the attempt.
    pub(crate) told: Arc<Mutex<Option<String>>>,
}

impl Event {
    /// Its id.
    pub fn id(&self) -> EventId {
        self.stored.id
    }

    /// Its type.
    pub fn event_type(&self) -> &EventType {
        &self.stored.event_type
    }

    /// The payload as JSON text.
    pub fn payload(&self) -> &str {
        &self.stored.payload
    }

    /// The payload as a type of yours. One that does not fit is a permanent failure: no retry could mend it.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.stored.payload).map_err(|error| {
            format!("the payload cannot be read as {}: {error}", std::any::type_name::<T>()).permanent()
        })
    }

    /// Additional facts.
    pub fn metadata(&self) -> &Metadata {
        &self.stored.metadata
    }

    /// When it was published.
    pub fn created_at(&self) -> Timestamp {
        self.stored.created_at
    }

    /// The subscription it came by.
    pub fn subscription(&self) -> &SubscriptionName {
        &self.subscription
    }

    /// Which attempt this is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How many there may be.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The time of the bus, by which its deadline goes.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// When this attempt will be cut off.
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// The place of this attempt in the trace that the event carries, if it carries one: pass it on to whatever is called.
    pub fn trace_context(&self) -> Option<TraceContext> {
        let carried = TraceContext::of(&self.stored.metadata)?;
        Some(carried.of_attempt(self.stored.id, self.subscription.as_str(), self.attempt))
    }

    /// Keeps this with the attempt, however it ends, for whoever looks at the event later: what was called, and what it answered. Told
    /// again, the last one holds. At most 128 KiB of JSON; what is larger is left out, and its size is kept instead.
    pub fn tell(&self, detail: &impl Serialize) {
        let detail = serde_json::to_string(detail)
            .unwrap_or_else(|error| serde_json::json!({"not_kept": error.to_string()}).to_string());
        let bytes = detail.len();
        let is_kept = bytes <= LARGEST_DETAIL;
        let detail = if is_kept { detail } else { format!(r#"{{"not_kept":"{bytes} bytes are too many"}}"#) };
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(detail);
    }

    /// The same for every attempt of this event by this subscription: pass it on, so that the far side can tell a
    /// repetition.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.stored.id, self.subscription)
    }
}
