//! Appending events and looking them up.

use redrive_retry::Timestamp;

use super::{Sealed, StoreFuture};
use crate::event::{EventId, NewEvent, SubscriptionName};
use crate::query::{Depth, EventDetail, EventFilter, EventPage, PayloadOmitted, Stats, SubscriptionAttempt};

/// Appends events and looks them up.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
#[allow(private_bounds)] // the private supertrait is the seal
pub trait EventStore: Sealed {
    /// Stores events, all or none, and returns for each whether it was new.
    fn append(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Appended>>;

    /// Returns one event with its deliveries and recorded attempts.
    fn event(&self, id: EventId) -> StoreFuture<'_, EventDetail>;

    /// Lists events, newest first.
    fn events(&self, filter: EventFilter, page: EventPage) -> StoreFuture<'_, Vec<EventDetail>>;

    /// Lists events without their payloads, newest first.
    fn event_summaries(
        &self,
        filter: EventFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<EventDetail<PayloadOmitted>>>;

    /// Lists the recorded attempts of one subscription, newest first: failed ones, and successes with a detail.
    fn attempts_of(
        &self,
        name: SubscriptionName,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>>;

    /// Counts open work by the index over it, at a cost that does not depend on finished events.
    fn depth(&self) -> StoreFuture<'_, Depth>;

    /// Counts all events by status. Reads every row of a large store.
    fn stats(&self) -> StoreFuture<'_, Stats>;

    /// Deletes at most `limit` handled events that were finished before this instant.
    fn purge_done(&self, finished_before: Timestamp, limit: u32) -> StoreFuture<'_, u64>;
}

/// Result of appending one event.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The event is stored.
    New,
    /// An event with this id exists already; nothing was changed.
    Duplicate,
}
