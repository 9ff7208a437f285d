//! The model of an event: ids, types, names, status and limits.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use redrive_retry::{RetryOverride, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::StoreError;

/// The id of an event: a UUID, time-ordered (v7) unless the caller supplies another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(Uuid);

impl EventId {
    /// Makes a time-ordered id (v7), larger than all earlier ones of this process.
    pub fn new() -> Self {
        EventId(Uuid::now_v7())
    }

    /// Makes a random id (v4).
    pub fn random() -> Self {
        EventId(Uuid::new_v4())
    }

    /// Wraps a UUID of the caller.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        EventId(uuid)
    }

    /// Returns the UUID.
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl Default for EventId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EventId {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Uuid::from_str(text).map(EventId).map_err(|_| ModelError::EventId(text.chars().take(64).collect()))
    }
}

/// Implements access, display and conversions of a checked text type.
macro_rules! text_newtype {
    ($name:ident) => {
        impl $name {
            /// Wraps stored text without a check: a row that was changed by hand stays readable.
            pub(crate) fn stored(text: &str) -> Self {
                $name(text.into())
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = ModelError;

            fn try_from(text: String) -> Result<Self, ModelError> {
                $name::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }
    };
}

/// The type of an event, such as `order.created`: 1 to 255 bytes without white space, control characters and `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventType(Arc<str>);

impl EventType {
    /// Checks the text and wraps it.
    pub fn new(name: impl AsRef<str>) -> Result<Self, ModelError> {
        let name = name.as_ref();
        let readable = |c: char| !c.is_whitespace() && !c.is_control() && c != '*';
        if name.is_empty() || name.len() > 255 || !name.chars().all(readable) {
            return Err(ModelError::EventType(name.chars().take(64).collect()));
        }
        Ok(EventType(name.into()))
    }
}

text_newtype!(EventType);

/// The stable name of a subscription, by which its deliveries survive a restart: 1 to 255 bytes without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SubscriptionName(Arc<str>);

impl SubscriptionName {
    /// Checks the text and wraps it.
    pub fn new(name: impl AsRef<str>) -> Result<Self, ModelError> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
            return Err(ModelError::SubscriptionName(name.chars().take(64).collect()));
        }
        Ok(SubscriptionName(name.into()))
    }
}

text_newtype!(SubscriptionName);

/// Allows map lookups by text; comparison and hash are those of the text.
impl Borrow<str> for SubscriptionName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The status of an event, as the specification names it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventStatus {
    /// Waits for its first attempt.
    Pending,
    /// Being handled, or waiting for its next attempt.
    Processing,
    /// Handled.
    Done,
    /// In the dead-letter queue.
    Dlq,
}

impl EventStatus {
    /// Returns the specified name.
    pub fn as_str(self) -> &'static str {
        match self {
            EventStatus::Pending => "pending",
            EventStatus::Processing => "processing",
            EventStatus::Done => "done",
            EventStatus::Dlq => "dlq",
        }
    }
}

impl fmt::Display for EventStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for EventStatus {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        [EventStatus::Pending, EventStatus::Processing, EventStatus::Done, EventStatus::Dlq]
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| ModelError::Status(text.chars().take(64).collect()))
    }
}

/// Metadata of an event: text values by text keys.
pub type Metadata = BTreeMap<String, String>;

/// An event to be stored.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The event's id. Appending an id twice stores one event.
    pub id: EventId,
    /// The event's type.
    pub event_type: EventType,
    /// JSON text.
    pub payload: Arc<str>,
    /// Metadata.
    pub metadata: Metadata,
    /// The time at which the event was published.
    pub created_at: Timestamp,
    /// The time at which the event's first attempt is due.
    pub due_at: Timestamp,
    /// Whether `due_at` is a date that was asked for, and not a delay: a schedule keeps its date when the machine's clock is set.
    pub is_scheduled: bool,
    /// Overrides of the retry policy for this event.
    pub retry: Option<RetryOverride>,
    /// Which subscriptions it is delivered to.
    pub to: Routing,
}

/// Which subscriptions an event is delivered to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// Every subscription that matches when the event is handled; the event is tracked as one.
    #[default]
    Matching,
    /// Each of these subscriptions, tracked on its own. An empty list means [`Routing::Matching`].
    Each(Vec<SubscriptionName>),
    /// No subscription: the event is done once it is stored.
    None,
}

impl Routing {
    /// The subscriptions named one by one; empty unless [`Routing::Each`].
    pub(crate) fn subscriptions(&self) -> &[SubscriptionName] {
        match self {
            Routing::Each(names) => names,
            Routing::Matching | Routing::None => &[],
        }
    }
}

impl NewEvent {
    /// Maximum size of a payload in bytes, unless the options of the store set another.
    pub const DEFAULT_MAX_PAYLOAD_BYTES: usize = 1 << 20;

    /// Maximum number of events in one batch.
    pub const MAX_BATCH_EVENTS: usize = 10_000;

    /// Maximum size of the metadata in bytes, keys and values together.
    pub const MAX_METADATA_BYTES: usize = 64 << 10;

    /// Checks events against the limits of every store.
    pub(crate) fn check_all(events: &[NewEvent], max_payload: usize) -> Result<(), StoreError> {
        if events.len() > Self::MAX_BATCH_EVENTS {
            return Err(StoreError::BatchTooLarge { events: events.len(), limit: Self::MAX_BATCH_EVENTS });
        }
        for event in events {
            let bytes = event.payload.len();
            if bytes > max_payload {
                return Err(StoreError::PayloadTooLarge { bytes, limit: max_payload });
            }
            let bytes: usize = event.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
            if bytes > Self::MAX_METADATA_BYTES {
                return Err(StoreError::MetadataTooLarge { bytes, limit: Self::MAX_METADATA_BYTES });
            }
        }
        match Self::ambiguous_id(events) {
            Some(id) => Err(StoreError::IdTaken { id }),
            None => Ok(()),
        }
    }

    /// Returns an id that stands for different events of one batch.
    fn ambiguous_id(events: &[NewEvent]) -> Option<EventId> {
        if events.is_sorted_by(|one, next| one.id < next.id) {
            return None; // time-ordered ids
        }
        let mut seen = HashMap::with_capacity(events.len());
        for event in events {
            let content = (&event.event_type, &event.payload);
            if seen.insert(event.id, content).is_some_and(|before| before != content) {
                return Some(event.id);
            }
        }
        None
    }
}

/// The content that an id stands for. A repeated publish has the same content; another content under the same id is another event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventContent {
    /// The id.
    pub id: EventId,
    /// The type.
    pub event_type: EventType,
    /// JSON text.
    pub payload: Arc<str>,
}

impl EventContent {
    /// Returns the content of an event.
    pub fn of(event: &NewEvent) -> Self {
        let NewEvent { id, event_type, payload, .. } = event;
        EventContent { id: *id, event_type: event_type.clone(), payload: Arc::clone(payload) }
    }
}

/// A stored event. Immutable, so it is shared instead of copied.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvent {
    /// The event's id.
    pub id: EventId,
    /// The event's type.
    pub event_type: EventType,
    /// JSON text.
    pub payload: Arc<str>,
    /// Metadata.
    pub metadata: Metadata,
    /// The time at which the event was published.
    pub created_at: Timestamp,
    /// Overrides of the retry policy for this event.
    pub retry: Option<RetryOverride>,
}

/// An invalid id, type, name, cursor, key or status, with the beginning of the given text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Not a UUID.
    #[error("{0:?} is not an event id: use a UUID, such as 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19")]
    EventId(String),
    /// Not an event type.
    #[error(
        "{0:?} is not an event type: use 1 to 255 bytes without white space and `*`, such as order.created"
    )]
    EventType(String),
    /// Not a subscription name.
    #[error("{0:?} is not a subscription name: use 1 to 255 bytes without control characters")]
    SubscriptionName(String),
    /// Not a cursor.
    #[error("{0:?} is not a cursor: pass the one that came with the previous page")]
    Cursor(String),
    /// Not a key of a document.
    #[error("{0:?} is not a key of a document: use a kind and an id of up to 64 letters, such as token/7f3a")]
    DocumentKey(String),
    /// Not a status.
    #[error("{0:?} is not a status: use pending, processing, done or dlq")]
    Status(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_types_are_checked() {
        for bad in ["", "a b", "a\n", "order.*", &"x".repeat(256)] {
            let error = EventType::new(bad).unwrap_err().to_string();
            assert!(error.contains("such as order.created"), "{error}");
        }
        assert!(EventType::new("order.created").is_ok());
        assert!(EventType::new("заказ.создан").is_ok());
    }

    #[test]
    fn new_ids_are_ordered_and_other_uuids_are_accepted() {
        let ids: Vec<_> = (0..1000).map(|_| EventId::new()).collect();
        assert!(ids.is_sorted());
        assert!("4e1b2d3c-aaaa-4bbb-8ccc-123456789abc".parse::<EventId>().is_ok());
        assert!("7".parse::<EventId>().unwrap_err().to_string().contains("use a UUID"));
    }

    #[test]
    fn statuses_have_the_specified_names() {
        for name in ["pending", "processing", "done", "dlq"] {
            assert_eq!(name.parse::<EventStatus>().unwrap().to_string(), name);
        }
        assert!("dead".parse::<EventStatus>().is_err());
    }
}
