//! The one seam to a database.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::{CircuitState, Clock, Timestamp};

use crate::budget::{BudgetReport, BudgetView};
use crate::circuit::{CircuitReport, CircuitView};
use crate::dead_letter::{DeadLetter, DlqFilter, DlqGroup, DlqPage, Redrive};
use crate::document::Documents;
use crate::error::StoreError;
use crate::event::{EventId, NewEvent, SubscriptionName};
use crate::query::{
    Depth, EventDetail, EventFilter, EventPage, Stats, SubscribedElsewhere, SubscriptionAttempt,
    SubscriptionRow, Unread,
};
use crate::work::{ClaimSink, Claimed, DueHint, Recovered, Settlement};

/// How often finished events are cleaned up, and how many at a time.
pub(crate) const CLEAN_UP_EVERY: Duration = Duration::from_secs(60);
pub(crate) const CLEAN_UP_BATCH: u32 = 1000;

/// What was finished before this is kept no longer.
pub(crate) fn kept_since(now: Timestamp, retention: Duration) -> Timestamp {
    let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(retention))
}

/// What the methods of a store return.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps events and what has become of them.
///
/// A future of a writing method resolves to `Ok` only when the change is committed; for [`append`](Self::append) and the
/// dead-letter methods also when it is on stable storage. An error that is not [`StoreError::Unknown`] or
/// [`StoreError::Stopped`] means that nothing was changed.
pub trait Store: Documents {
    /// The time that counts here. Whoever says when something is due, or looks whether it is, goes by this clock, so that all
    /// who share the store mean the same.
    fn clock(&self) -> Clock;

    /// Where to hand work that is claimed the moment it is stored. Without it, everything waits on disk.
    fn attach(&self, sink: Option<ClaimSink>);

    /// Stores events, all or none, and says for each whether it was new.
    fn append(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Appended>>;

    /// Claims what is due, as much as the attached sink has room for, and says how much that was.
    ///
    /// What single subscriptions are owed comes before whole events, each in the order of the due times, and of storing where
    /// these are the same. A file takes what has waited for its backoff first, because its index begins with the status; that of
    /// a server does not, because the status changes too often.
    fn claim(&self, now: Timestamp) -> StoreFuture<'_, usize>;

    /// Claims one unit that was running when the process died, more than once. It may be what kills the process, so it is
    /// run alone, before anything else: its neighbours must not be charged for it again.
    fn claim_suspect(&self, now: Timestamp, sink: ClaimSink) -> StoreFuture<'_, Option<Claimed>>;

    /// Whether there is something for this process that is to run alone, and its time has come: what could not be tried at the
    /// start, and where several processes share a store, what others died over.
    fn has_suspects(&self, now: Timestamp) -> StoreFuture<'_, bool>;

    /// When the next work on disk is due.
    fn due_hint(&self) -> Arc<DueHint>;

    /// How often to look whether another process has put something there; `None` where no other can.
    fn look_again(&self) -> Option<Duration>;

    /// Whether other processes may bring an event to its end that was stored here.
    fn is_shared(&self) -> bool {
        false
    }

    /// Finds out anew when the next work is due, for changes by other processes.
    fn refresh_due(&self) -> StoreFuture<'_, Option<Timestamp>>;

    /// Puts off what these subscriptions are owed and is due now, until it is [called up](Self::call_up), and says for each how much
    /// that was: so that what they cannot take yet is neither claimed nor in the way of others. Looks at what would be claimed next, and
    /// at a few thousand at most.
    fn hold(&self, names: Vec<SubscriptionName>, now: Timestamp) -> StoreFuture<'_, Vec<usize>>;

    /// Claims what is held for subscriptions, at most so many for each, oldest first, as far as the attached sink has room for them.
    fn call_up(&self, calls: Vec<Call>, now: Timestamp) -> StoreFuture<'_, Vec<CalledUp>>;

    /// Ends a claim.
    fn settle(&self, claimed: Claimed, settlement: Settlement) -> StoreFuture<'_, Finished>;

    /// Says that this process lives, so that what it has claimed stays its own, and when it must say so again; `None` where
    /// that is known without saying, because one process owns everything.
    fn heartbeat(&self) -> StoreFuture<'_, Option<Duration>>;

    /// Takes back what was running when the process died: charges the attempt and makes it due now.
    fn recover(&self, now: Timestamp) -> StoreFuture<'_, Vec<Recovered>>;

    /// Does, now and then, what keeps a store in order, and says when to come again: deletes handled events that were finished
    /// longer ago than `retention` (`None` keeps them for ever), and idempotency keys that have expired. Where several processes
    /// share the store, one of them does it for all, and takes over what dead ones held.
    fn maintain(&self, now: Timestamp, retention: Option<Duration>) -> StoreFuture<'_, Duration>;

    /// Tells what this process has counted for circuits that it has in common with others, and says how they stand; `None`
    /// where no other process can be there. Counts are whole, so that telling them twice does no harm.
    fn share_circuits(&self, reports: Vec<CircuitReport>) -> StoreFuture<'_, Option<Vec<CircuitView>>> {
        let _ = reports; // nobody to tell
        Box::pin(async { Ok(None) })
    }

    /// Changes a common circuit if it is still in the generation that the change names, and says which generation it is in
    /// then; `None` if somebody else was first.
    fn change_circuit(&self, name: SubscriptionName, change: CircuitState) -> StoreFuture<'_, Option<i64>> {
        let _ = (name, change); // nobody has anything in common
        Box::pin(async { Ok(None) })
    }

    /// Tells that this process has its part of budgets which it has in common with others, and says how many they are; `None`
    /// where no other process can be there.
    fn share_budgets(&self, reports: Vec<BudgetReport>) -> StoreFuture<'_, Option<Vec<BudgetView>>> {
        let _ = reports; // nobody to tell
        Box::pin(async { Ok(None) })
    }

    /// Takes a subscription down, or its new pattern.
    fn register(&self, subscription: SubscriptionRow) -> StoreFuture<'_, ()>;

    /// Removes a subscription. What it is owed stays.
    fn unregister(&self, name: SubscriptionName) -> StoreFuture<'_, bool>;

    /// Resolves when no other process goes by what it knew before the subscriptions of this one were taken down.
    fn all_have_heard(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) }) // nobody else is there
    }

    /// What living processes that share the store have subscribed to, and this one has not, as of now or half a second ago. An
    /// event that one of them matches is owed to it, and not over without it.
    fn subscribed_elsewhere(&self) -> StoreFuture<'_, Arc<[SubscribedElsewhere]>> {
        Box::pin(async { Ok(Arc::default()) }) // nobody else is there
    }

    /// The subscriptions on record.
    fn subscriptions(&self) -> StoreFuture<'_, Vec<SubscriptionRow>>;

    /// One event with all that is known of it.
    fn event(&self, id: EventId) -> StoreFuture<'_, EventDetail>;

    /// Events, newest first.
    fn events(&self, filter: EventFilter, page: EventPage) -> StoreFuture<'_, Vec<EventDetail>>;

    /// The same list without payloads, which can be large: for who shows lines or counts.
    fn events_in_short(
        &self,
        filter: EventFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<EventDetail<Unread>>>;

    /// Attempts of one subscription, newest first: those that failed, and those of which something was told.
    fn attempts_of(
        &self,
        name: SubscriptionName,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>>;

    /// How much work waits, without looking at what is finished.
    fn depth(&self) -> StoreFuture<'_, Depth>;

    /// Counts over everything; takes time where there is much.
    fn stats(&self) -> StoreFuture<'_, Stats>;

    /// Dead events, newest first: descending by the time of publishing.
    fn dead_letters(&self, filter: DlqFilter, page: DlqPage) -> StoreFuture<'_, Vec<DeadLetter>>;

    /// The same list without payloads.
    fn dead_letters_in_short(
        &self,
        filter: DlqFilter,
        page: DlqPage,
    ) -> StoreFuture<'_, Vec<DeadLetter<Unread>>>;

    /// What was given up of one event, with every failed attempt: one entry, or one for each subscription that is tracked on
    /// its own.
    fn dead_letter(&self, id: EventId) -> StoreFuture<'_, Vec<DeadLetter>>;

    /// Dead events by what killed them, largest group first.
    fn dead_groups(&self, filter: DlqFilter) -> StoreFuture<'_, Vec<DlqGroup>>;

    /// Puts one dead event back: pending, no retries, no errors; with another payload if one is given.
    fn redrive(&self, id: EventId, redrive: Redrive) -> StoreFuture<'_, ()>;

    /// Puts back what a filter means of one dead event, and leaves what others gave up of it where it is. An event that was given
    /// up as a whole goes back as a whole. It is [`StoreError::NotDead`] if nothing of it is meant, or not any more.
    fn redrive_matching(&self, id: EventId, filter: DlqFilter, at: Timestamp) -> StoreFuture<'_, ()>;

    /// Gives an event to one subscription again, or for the first time, whatever has become of it.
    fn replay(&self, id: EventId, to: SubscriptionName, at: Timestamp) -> StoreFuture<'_, Replayed>;

    /// Deletes dead events published at or before this instant.
    fn purge_dead(&self, published_until: Timestamp) -> StoreFuture<'_, u64>;

    /// Deletes at most `limit` handled events that were finished before this instant.
    fn purge_done(&self, finished_before: Timestamp, limit: u32) -> StoreFuture<'_, u64>;

    /// Finishes what is queued and closes. Everything afterwards is refused.
    fn close(&self) -> StoreFuture<'_, ()>;
}

/// What became of one appended event.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is stored.
    New,
    /// There was one with this id already; nothing was changed.
    Duplicate,
}

/// At most so many of what is held for a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Whose.
    pub name: SubscriptionName,
    /// How many.
    pub most: usize,
}

/// What came of a [`Call`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CalledUp {
    /// So many are claimed.
    pub claimed: usize,
    /// Whether the search ended because as many were found as were asked for, or as there was room for.
    pub may_be_more: bool,
}

/// What came of giving an event to one subscription again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It is owed to the subscription, with all attempts before it.
    Again,
    /// It was owed to it anyway, and still is.
    Open,
}

/// Whether an event has come to its end with this settlement.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// Everything about it is handled.
    Done {
        /// Not at the first attempt.
        retried: bool,
    },
    /// It is in the dead-letter queue.
    Dead {
        /// Not at the first attempt.
        retried: bool,
    },
    /// Something is still to be done.
    NotYet,
}
