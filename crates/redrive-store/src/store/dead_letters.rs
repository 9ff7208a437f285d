//! Listing dead letters, redriving, replaying and purging them.

use redrive_retry::Timestamp;

use super::{Sealed, StoreFuture};
use crate::dead_letter::{DeadLetter, DlqFilter, DlqGroup, DlqPage, Redrive};
use crate::event::{EventId, SubscriptionName};
use crate::query::PayloadOmitted;

/// Lists dead letters and puts them back to work.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
#[allow(private_bounds)] // the private supertrait is the seal
pub trait DeadLetters: Sealed {
    /// Lists dead letters, newest first by the time of publishing.
    fn dead_letters(&self, filter: DlqFilter, page: DlqPage) -> StoreFuture<'_, Vec<DeadLetter>>;

    /// Lists dead letters without their payloads, newest first by the time of publishing.
    fn dead_letter_summaries(
        &self,
        filter: DlqFilter,
        page: DlqPage,
    ) -> StoreFuture<'_, Vec<DeadLetter<PayloadOmitted>>>;

    /// Returns the dead letters of one event with every failed attempt: one for the whole event, or one for each dead delivery.
    fn dead_letter(&self, id: EventId) -> StoreFuture<'_, Vec<DeadLetter>>;

    /// Groups dead letters by the fingerprint of their error, largest group first.
    fn dead_groups(&self, filter: DlqFilter) -> StoreFuture<'_, Vec<DlqGroup>>;

    /// Redrives one dead event: pending, without retries or errors, with a new payload if one is given.
    fn redrive(&self, id: EventId, redrive: Redrive) -> StoreFuture<'_, ()>;

    /// Redrives the dead letters of one event that match a filter and leaves its other ones dead. A dead letter for the whole
    /// event redrives the whole event. Fails with [`StoreError::NotDead`](crate::StoreError::NotDead) if none matches.
    fn redrive_matching(&self, id: EventId, filter: DlqFilter, at: Timestamp) -> StoreFuture<'_, ()>;

    /// Delivers an event to one subscription again, or for the first time, whatever its status.
    fn replay(&self, id: EventId, to: SubscriptionName, at: Timestamp) -> StoreFuture<'_, Replayed>;

    /// Deletes dead events published at or before this instant.
    fn purge_dead(&self, published_until: Timestamp) -> StoreFuture<'_, u64>;
}

/// Result of a replay.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// A new delivery to the subscription is due, with all its attempts.
    Again,
    /// The delivery to the subscription was open already and stays as it is.
    Open,
}
