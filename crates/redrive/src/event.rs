//! The event as its handler receives it.

use std::sync::{Arc, Mutex};

use redrive_retry::{ClassifyError, Clock, Failure, Timestamp};
use redrive_store::{EventId, EventStatus, EventType, Metadata, StoredEvent, SubscriptionName};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handover::Handover;
use crate::lock::lock;
use crate::trace::TraceContext;

/// The largest detail that is stored with an attempt, in bytes.
const MAX_DETAIL_BYTES: usize = 128 << 10;

/// A delivered event: payload, metadata, attempt number and deadline. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Event {
    pub(crate) stored: Arc<StoredEvent>,
    pub(crate) subscription: SubscriptionName,
    pub(crate) attempt: u32,
    /// The errors of the earlier attempts; `None` at the first.
    pub(crate) errors: Option<Arc<[String]>>,
    pub(crate) max_attempts: u32,
    /// In steady time.
    pub(crate) deadline: Timestamp,
    /// The clock of the bus: virtual time stands still while a handler blocks.
    pub(crate) clock: Clock,
    pub(crate) recorded: Arc<Mutex<Recorded>>,
}

/// Recorded by a handler beside its result.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// A detail of the attempt, as JSON.
    pub(crate) detail: Option<String>,
    /// Only by the handler of a pull queue.
    pub(crate) handover: Option<Handover>,
}

impl Event {
    /// The id.
    pub fn id(&self) -> EventId {
        self.stored.id
    }

    /// The type.
    pub fn event_type(&self) -> &EventType {
        &self.stored.event_type
    }

    /// The payload as JSON text.
    pub fn payload(&self) -> &str {
        &self.stored.payload
    }

    /// Deserialises the payload. A mismatch is a permanent failure, because a retry cannot fix it.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.stored.payload).map_err(|error| {
            format!("the payload cannot be read as {}: {error}", std::any::type_name::<T>()).permanent()
        })
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.stored.metadata
    }

    /// The time at which the event was published.
    pub fn created_at(&self) -> Timestamp {
        self.stored.created_at
    }

    /// The subscription that it was delivered to.
    pub fn subscription(&self) -> &SubscriptionName {
        &self.subscription
    }

    /// The number of this attempt, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The status: [`EventStatus::Processing`] while a handler has the event. [`Events::get`](crate::events::Events::get) reads the
    /// stored one later.
    pub fn status(&self) -> EventStatus {
        EventStatus::Processing
    }

    /// The number of failed attempts before this one.
    pub fn retry_count(&self) -> u32 {
        self.attempt.saturating_sub(1)
    }

    /// The errors of the failed attempts before this one, oldest first.
    ///
    /// ```
    /// # use redrive::{Event, HandlerResult};
    /// async fn ship(event: Event) -> HandlerResult {
    ///     if let Some(error) = event.previous_errors().last() {
    ///         println!("attempt {} after: {error}", event.attempt());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn previous_errors(&self) -> &[String] {
        self.errors.as_deref().unwrap_or_default()
    }

    /// The largest number of attempts.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The time of the bus, to compare with the deadline.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// When the timeout will end this attempt.
    pub fn deadline(&self) -> Timestamp {
        self.clock.at_steady(self.deadline)
    }

    /// The trace context of this attempt, if the event carries one: pass it on to the services that the handler calls.
    pub fn trace_context(&self) -> Option<TraceContext> {
        let carried = TraceContext::of(&self.stored.metadata)?;
        Some(carried.of_attempt(self.stored.id, self.subscription.as_str(), self.attempt))
    }

    /// Stores a detail with this attempt, such as the request and the response, shown with the event later. The last call counts.
    ///
    /// At most 128 KiB of JSON; of a larger detail only the size is stored.
    pub fn record_detail(&self, detail: &impl Serialize) {
        let detail = serde_json::to_string(detail)
            .unwrap_or_else(|error| serde_json::json!({"not_kept": error.to_string()}).to_string());
        let bytes = detail.len();
        let is_kept = bytes <= MAX_DETAIL_BYTES;
        let detail = if is_kept { detail } else { format!(r#"{{"not_kept":"{bytes} bytes are too many"}}"#) };
        lock(&self.recorded).detail = Some(detail);
    }

    /// A key that is equal for all attempts of this event by this subscription: pass it on, so that the receiver detects repetitions.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.stored.id, self.subscription)
    }
}
