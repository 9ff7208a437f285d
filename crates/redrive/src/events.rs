//! Looking events up: one with all its attempts, or lists by type, status and age.
//!
//! ```
//! # async fn look(bus: &redrive::EventBus, id: redrive::EventId) -> Result<(), redrive::BusError> {
//! use redrive::events::{EventFilter, EventPage, EventStatus};
//!
//! let event = bus.events().get(id).await?;
//! println!("{} after {} retries: {:?}", event.status, event.retry_count, event.errors);
//!
//! let pending = EventFilter { status: Some(EventStatus::Pending), ..EventFilter::default() };
//! for event in bus.events().summaries(pending, EventPage::default()).await? {
//!     println!("{} {}", event.id, event.event_type);
//! }
//! # Ok(()) }
//! ```

use std::sync::Arc;

pub use redrive_store::{
    AttemptFilter, AttemptRow, DeliveryRow, EventDetail, EventFilter, EventPage, EventStatus, Metadata,
    PayloadOmitted, RawJson, SubscriptionAttempt,
};
use redrive_store::{EventId, Store, SubscriptionName};

use crate::error::BusError;

/// Reads stored events of any status; see [`EventBus::events`](crate::EventBus::events).
#[derive(Clone, Debug)]
pub struct Events {
    pub(crate) store: Arc<dyn Store>,
}

impl Events {
    /// One event with its payload, deliveries and recorded attempts.
    pub async fn get(&self, id: EventId) -> Result<EventDetail, BusError> {
        Ok(self.store.event(id).await?)
    }

    /// Events that match a filter, newest first, with payloads and without attempts.
    pub async fn list(&self, filter: EventFilter, page: EventPage) -> Result<Vec<EventDetail>, BusError> {
        Ok(self.store.events(filter, page).await?)
    }

    /// Events that match a filter, newest first, without payloads.
    pub async fn summaries(
        &self,
        filter: EventFilter,
        page: EventPage,
    ) -> Result<Vec<EventDetail<PayloadOmitted>>, BusError> {
        Ok(self.store.event_summaries(filter, page).await?)
    }

    /// Attempts of one subscription that match a filter, newest first: failed ones, and successful ones with a recorded detail.
    pub async fn attempts(
        &self,
        subscription: SubscriptionName,
        filter: AttemptFilter,
        page: EventPage,
    ) -> Result<Vec<SubscriptionAttempt>, BusError> {
        Ok(self.store.attempts_of(subscription, filter, page).await?)
    }
}
