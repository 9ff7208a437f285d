//! The event as a handler sees it.

use std::sync::Arc;

use redrive_retry::{ClassifyError, Clock, Failure, Timestamp};
use redrive_store::{EventId, EventType, Metadata, StoredEvent, SubscriptionName};
use serde::de::DeserializeOwned;

use crate::trace::TraceContext;

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

    /// When this attempt will be cut off.
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// The place of this attempt in the trace that the event carries, if it carries one: pass it on to whatever is called.
    pub fn trace_context(&self) -> Option<TraceContext> {
        let carried = TraceContext::of(&self.stored.metadata)?;
        Some(carried.of_attempt(self.stored.id, self.subscription.as_str(), self.attempt))
    }

    /// The same for every attempt of this event by this subscription: pass it on, so that the far side can tell a
    /// repetition.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.stored.id, self.subscription)
    }
}
