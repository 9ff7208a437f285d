//! The event and its parts, as every store keeps them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use redrive_retry::{RetryOverride, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::StoreError;

/// An event's name in the world: a UUID. Time-ordered (v7) unless the caller brings its own.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(Uuid);

impl EventId {
    /// A new one, later than all before it.
    pub fn new() -> Self {
        EventId(Uuid::now_v7())
    }

    /// A new one without any order (v4).
    pub fn random() -> Self {
        EventId(Uuid::new_v4())
    }

    /// One of your own.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        EventId(uuid)
    }

    /// As a UUID.
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
        Uuid::from_str(text)
            .map(EventId)
            .map_err(|_| ModelError::EventId { text: text.chars().take(64).collect() })
    }
}

/// What kind of event it is: `order.created`. 1 to 255 bytes, no white space or control characters, no `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventType(Arc<str>);

impl EventType {
    /// Checks and takes it.
    pub fn new(name: impl AsRef<str>) -> Result<Self, ModelError> {
        let name = name.as_ref();
        let readable = |c: char| !c.is_whitespace() && !c.is_control() && c != '*';
        if name.is_empty() || name.len() > 255 || !name.chars().all(readable) {
            return Err(ModelError::EventType { text: name.chars().take(64).collect() });
        }
        Ok(EventType(name.into()))
    }

    /// As it stands in the store, whatever somebody has made of it: an event is worth more than its name.
    pub(crate) fn stored(name: &str) -> Self {
        EventType(name.into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for EventType {
    type Error = ModelError;

    fn try_from(name: String) -> Result<Self, ModelError> {
        EventType::new(name)
    }
}

impl From<EventType> for String {
    fn from(name: EventType) -> String {
        name.0.as_ref().to_owned()
    }
}

/// A subscription's stable name, so that what it is owed survives a restart. 1 to 255 bytes, no control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SubscriptionName(Arc<str>);

impl SubscriptionName {
    /// Checks and takes it.
    pub fn new(name: impl AsRef<str>) -> Result<Self, ModelError> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
            return Err(ModelError::SubscriptionName { text: name.chars().take(64).collect() });
        }
        Ok(SubscriptionName(name.into()))
    }

    /// As it stands in the store, whatever somebody has made of it.
    pub(crate) fn stored(name: &str) -> Self {
        SubscriptionName(name.into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// To be looked up by text. Compared and hashed as its text is.
impl Borrow<str> for SubscriptionName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SubscriptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for SubscriptionName {
    type Error = ModelError;

    fn try_from(name: String) -> Result<Self, ModelError> {
        SubscriptionName::new(name)
    }
}

impl From<SubscriptionName> for String {
    fn from(name: SubscriptionName) -> String {
        name.0.as_ref().to_owned()
    }
}

/// Where an event stands, as the specification names it.
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
    /// The name in the database and everywhere else.
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
            .ok_or_else(|| ModelError::Status { text: text.chars().take(64).collect() })
    }
}

/// Additional facts about an event: text under text.
pub type Metadata = BTreeMap<String, String>;

/// An event to be stored.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// Its id. Appending the same id twice is one event.
    pub id: EventId,
    /// Its type.
    pub event_type: EventType,
    /// JSON text.
    pub payload: Arc<str>,
    /// Additional facts.
    pub metadata: Metadata,
    /// When it was published.
    pub created_at: Timestamp,
    /// When it may be handled first.
    pub due_at: Timestamp,
    /// A retry policy of its own.
    pub retry: Option<RetryOverride>,
    /// To whom it goes.
    pub to: To,
}

/// To whom an event goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum To {
    /// To all who match when it is handled; it is tracked as one.
    #[default]
    All,
    /// To each of these, tracked on its own. Of none it is as [`To::All`].
    Each(Vec<SubscriptionName>),
    /// To nobody: it is over once it is stored.
    Nobody,
}

impl To {
    /// Who is named.
    pub(crate) fn addressees(&self) -> &[SubscriptionName] {
        match self {
            To::Each(names) => names,
            To::All | To::Nobody => &[],
        }
    }
}

impl NewEvent {
    /// The most events in one batch.
    pub const LARGEST_BATCH: usize = 10_000;

    /// The most bytes of metadata, names and values together.
    pub const LARGEST_METADATA: usize = 64 << 10;

    /// Whether events are within the limits that hold for every store.
    pub(crate) fn check_all(events: &[NewEvent], max_payload: usize) -> Result<(), StoreError> {
        if events.len() > Self::LARGEST_BATCH {
            return Err(StoreError::BatchTooLarge { events: events.len(), limit: Self::LARGEST_BATCH });
        }
        for event in events {
            let bytes = event.payload.len();
            if bytes > max_payload {
                return Err(StoreError::PayloadTooLarge { bytes, limit: max_payload });
            }
            let bytes: usize = event.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
            if bytes > Self::LARGEST_METADATA {
                return Err(StoreError::MetadataTooLarge { bytes, limit: Self::LARGEST_METADATA });
            }
        }
        Ok(())
    }
}

/// An event as it was stored. Never changes, so it is shared and not copied.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvent {
    /// Its id.
    pub id: EventId,
    /// Its type.
    pub event_type: EventType,
    /// JSON text.
    pub payload: Arc<str>,
    /// Additional facts.
    pub metadata: Metadata,
    /// When it was published.
    pub created_at: Timestamp,
    /// A retry policy of its own.
    pub retry: Option<RetryOverride>,
}

/// What cannot be part of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Not a UUID.
    #[error("{text:?} is not an event id: use a UUID, such as 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19")]
    EventId {
        /// What was given.
        text: String,
    },
    /// Not an event type.
    #[error(
        "{text:?} is not an event type: use 1 to 255 bytes without white space and `*`, such as order.created"
    )]
    EventType {
        /// What was given.
        text: String,
    },
    /// Not a subscription name.
    #[error("{text:?} is not a subscription name: use 1 to 255 bytes without control characters")]
    SubscriptionName {
        /// What was given.
        text: String,
    },
    /// Not a place in a list.
    #[error("{text:?} is not a cursor: pass on the one that came with the page before")]
    Cursor {
        /// What was given.
        text: String,
    },
    /// Not a key of a document.
    #[error(
        "{text:?} is not a key of a document: use a kind and an id of up to 64 letters, such as token/7f3a"
    )]
    DocumentKey {
        /// What was given.
        text: String,
    },
    /// Not a status.
    #[error("{text:?} is not a status: use pending, processing, done or dlq")]
    Status {
        /// What was given.
        text: String,
    },
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
    fn new_ids_are_in_order_and_foreign_ones_are_read() {
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
