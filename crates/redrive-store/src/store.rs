//! The store traits: the interface between the bus and a database, split by reader.
//!
//! [`EventStore`] stores events and looks them up, [`WorkQueue`] claims and settles deliveries,
//! [`DeadLetters`] lists and redrives dead letters, [`Cluster`] shares subscriptions, breakers and budgets between processes, and
//! [`Documents`] keeps configuration. [`Store`] joins them, so that `Arc<dyn Store>` offers every method.
//!
//! All of them are sealed: only the stores of this crate implement them, and the API is not stable.

#![allow(private_bounds)] // the private supertrait is the seal

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::{Clock, Timestamp};

use crate::budget::{BudgetReport, BudgetView};
use crate::circuit::{CircuitReport, CircuitState, CircuitView};
use crate::dead_letter::{DeadLetter, DlqFilter, DlqGroup, DlqPage, Redrive};
use crate::document::{Document, DocumentKey};
use crate::error::StoreError;
use crate::event::{EventContent, EventId, NewEvent, SubscriptionName};
use crate::lease::LeaseToken;
use crate::query::{
    AttemptFilter, AuditLine, Depth, EventDetail, EventFilter, EventPage, PayloadOmitted, RemoteSubscription,
    Stats, SubscriptionAttempt, SubscriptionRow, WaitingWork,
};
use crate::work::{ClaimSink, Claimed, DueHint, Recovered, Settlement};

/// Maximum number of rows of one kind that one statement claims, so that publishers and other claims do not wait behind a large one.
pub(crate) const MAX_CLAIM_ROWS: usize = 512;

/// Number of due deliveries that one call examines to move some of them to the backlog.
pub(crate) const MAX_EXAMINED_ROWS: i64 = 2048;

/// Interval between two runs of the retention cleanup.
pub(crate) const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// Number of rows that one statement of the retention cleanup deletes at most.
pub(crate) const CLEANUP_BATCH_ROWS: u32 = 1000;

/// Returns the instant before which finished events have outlived `retention`.
pub(crate) fn retention_cutoff(now: Timestamp, retention: Duration) -> Timestamp {
    let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(retention))
}

/// The boxed future that every store method returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps crates outside from implementing the store traits.
pub(crate) trait Sealed: Send + Sync + fmt::Debug {}

/// A durable store of events and deliveries, with every trait of this module.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
///
/// A future of a writing method resolves to `Ok` only when the change is committed; for [`append`](EventStore::append) and the
/// dead-letter methods also when the change is on stable storage. After [`StoreError::Unknown`],
/// [`StoreError::Stopped`], [`StoreError::Damaged`] and [`StoreError::Lost`] the change may or may not be stored; any other error means
/// that nothing was changed.
pub trait Store: EventStore + WorkQueue + DeadLetters + Cluster + Documents {
    /// Returns the clock that due times and leases are measured by. All processes that share the store agree on it.
    fn clock(&self) -> Clock;

    /// Compares the clock with the machine's wall clock. If that was set, sets the clock, too, and moves waiting retries and leases
    /// with it, so that every wait keeps its length. Cheap if nothing has happened. Nothing to do where the clock is a server's.
    fn follow_wall_clock(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Finishes queued commands and closes the store. Later calls fail with [`StoreError::Closed`].
    fn close(&self) -> StoreFuture<'_, ()>;
}

/// Appends events and looks them up.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
pub trait EventStore: Sealed {
    /// Stores events, all or none, and returns for each whether it was new.
    fn append(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Appended>>;

    /// Returns those of these ids under which another type or payload is stored.
    fn taken_ids(&self, wanted: Vec<EventContent>) -> StoreFuture<'_, Vec<EventId>>;

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
        filter: AttemptFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>>;

    /// Returns at most `limit` lines of the audit log behind `after`, oldest first.
    fn audit_lines(&self, after: Option<i64>, limit: u32) -> StoreFuture<'_, Vec<AuditLine>>;

    /// Counts open work by the index over it, at a cost that does not depend on finished events.
    fn depth(&self) -> StoreFuture<'_, Depth>;

    /// Counts all events by status. Reads every row of a large store.
    fn stats(&self) -> StoreFuture<'_, Stats>;

    /// Counts the work that waits at the instant `now`, and the part of it that has been due since before `overdue_before`. Reads all
    /// waiting work.
    fn waiting(&self, now: Timestamp, overdue_before: Timestamp) -> StoreFuture<'_, WaitingWork>;

    /// Deletes at most `limit` handled events that were finished before this instant.
    fn purge_done(&self, finished_before: Timestamp, limit: u32) -> StoreFuture<'_, u64>;
}

/// Result of appending one event.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The event is stored.
    New,
    /// An event with this id exists already; nothing was changed. [`EventStore::taken_ids`] says whether it is another event.
    Duplicate,
}

/// Hands due deliveries to the dispatcher and records how their attempts ended.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
pub trait WorkQueue: Sealed {
    /// Sets the sink that receives claims. New events that are due are claimed in the transaction that stores them, as long as
    /// the sink has free slots. Without a sink, all work waits on disk.
    fn attach(&self, sink: Option<ClaimSink>);

    /// Claims due work up to the free slots of the attached sink, hands it over and returns the number of claims.
    ///
    /// Every store claims in the same order: deliveries to single subscriptions before whole events; within each kind by due
    /// time, and in the order of storing where due times are equal. First attempts and retries are not told apart. One call
    /// claims a few hundred of each kind at most. Deliveries whose leases have ended may go before the others. Rows that another process is claiming at the same time are skipped.
    fn claim(&self, now: Timestamp) -> StoreFuture<'_, usize>;

    /// Claims one crash suspect: work that was running at more than one crash of its process. The dispatcher runs it in
    /// isolation, so that no other work is charged if it ends the process again.
    ///
    /// Whole events before deliveries to single subscriptions; within each kind by due time, then in the order of storing.
    fn claim_suspect(&self, now: Timestamp, sink: ClaimSink) -> StoreFuture<'_, Option<Claimed>>;

    /// Returns whether a crash suspect is due that this process has to run.
    fn has_suspects(&self, now: Timestamp) -> StoreFuture<'_, bool>;

    /// Returns the shared hint of when the next work on disk is due.
    fn due_hint(&self) -> Arc<DueHint>;

    /// Interval at which to poll for work that other processes stored; `None` where no other process can.
    fn poll_interval(&self) -> Option<Duration>;

    /// Reads from disk when the next work is due and updates the hint, to learn of changes by other processes.
    fn refresh_due(&self) -> StoreFuture<'_, Option<Timestamp>>;

    /// Moves due deliveries of these subscriptions to the backlog, where they wait for [`claim_backlog`](Self::claim_backlog), and
    /// returns their number for each subscription. Examines the deliveries that would be claimed next, a few thousand at most.
    fn defer_to_backlog(&self, names: Vec<SubscriptionName>, now: Timestamp) -> StoreFuture<'_, Vec<usize>>;

    /// Claims backlog deliveries of each named subscription, oldest first, up to the request's limit and the free slots of the sink.
    fn claim_backlog(
        &self,
        requests: Vec<BacklogRequest>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<BacklogClaimed>>;

    /// Ends a claim by recording the result of its attempt.
    fn settle(&self, claimed: Claimed, settlement: Settlement) -> StoreFuture<'_, Finished>;

    /// Claims leased deliveries, to settle them as their consumer says. Returns `None` for each lease that has ended or
    /// never was. Every process on the store can do it, not only the one that granted the lease.
    ///
    /// The sink only bounds how many such claims are in flight. The claims are returned and not handed over. Fails with
    /// [`StoreError::Busy`] without enough free slots.
    fn claim_leased(
        &self,
        leases: Leases,
        now: Timestamp,
        sink: ClaimSink,
    ) -> StoreFuture<'_, Vec<Option<Claimed>>>;

    /// Sets the end of leases that have not ended. Returns for each lease whether it was extended.
    fn extend_leases(&self, leases: Leases, now: Timestamp, until: Timestamp) -> StoreFuture<'_, Vec<bool>>;

    /// Renews the lease of this process on its claims and returns when to renew it again; `None` in a store of one process.
    fn heartbeat(&self) -> StoreFuture<'_, Option<Duration>>;

    /// Recovers work that was running when its process died: charges the attempt and makes the work due now.
    fn recover(&self, now: Timestamp) -> StoreFuture<'_, Vec<Recovered>>;

    /// Runs periodic maintenance and returns the delay until the next run. Deletes handled events older than `retention`
    /// (`None` keeps them for ever) and expired idempotency keys, and makes the backlogs of removed subscriptions due. If processes
    /// share the store, the leader does this for all of them and takes over the claims of dead ones.
    fn maintain(&self, now: Timestamp, retention: Option<Duration>) -> StoreFuture<'_, Duration>;
}

/// Leases of deliveries to the subscriptions of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The subscriptions. A lease of another one counts as one that never was.
    pub names: Vec<SubscriptionName>,
    /// The tokens.
    pub tokens: Vec<LeaseToken>,
}

/// Request for a number of deliveries from the backlog of one subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogRequest {
    /// The subscription.
    pub name: SubscriptionName,
    /// Maximum number of deliveries to claim.
    pub limit: usize,
}

/// Result of one [`BacklogRequest`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BacklogClaimed {
    /// Number of claimed deliveries.
    pub claimed: usize,
    /// Whether the search stopped at the requested number or at the free slots, so that the backlog may hold more.
    pub may_be_more: bool,
}

/// Whether a settlement finished the whole event.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// Every subscription has handled the event.
    Done {
        /// Whether it needed more than one attempt.
        retried: bool,
    },
    /// The event is in the dead-letter queue.
    Dead {
        /// Whether it had more than one attempt.
        retried: bool,
    },
    /// The event has open deliveries.
    NotYet,
    /// The claim was lost, so nothing was changed: another process has taken it over, or it was recovered.
    Fenced,
}

/// Lists dead letters and puts them back to work.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
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
    /// event redrives the whole event. Fails with [`StoreError::NotDead`] if none matches.
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

/// Records subscriptions, and shares breakers and budgets between the processes of one store. The default methods are those of
/// a store that one process owns.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
pub trait Cluster: Sealed {
    /// Returns whether several processes dispatch from this store.
    fn is_shared(&self) -> bool {
        false
    }

    /// Records a subscription, or its new pattern.
    fn register(&self, subscription: SubscriptionRow) -> StoreFuture<'_, ()>;

    /// Removes a subscription and returns whether it was on record. Its open deliveries stay, and those in its backlog become due,
    /// unless another living process has registered it.
    fn unregister(&self, name: SubscriptionName, now: Timestamp) -> StoreFuture<'_, bool>;

    /// Lists the subscriptions on record.
    fn subscriptions(&self) -> StoreFuture<'_, Vec<SubscriptionRow>>;

    /// Resolves when every other process has seen the subscriptions of this one.
    fn subscriptions_propagated(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Lists subscriptions that other living processes have registered and this one has not, at most half a second old. A
    /// matching event has to be delivered to them before it is done.
    fn remote_subscriptions(&self) -> StoreFuture<'_, Arc<[RemoteSubscription]>> {
        Box::pin(async { Ok(Arc::default()) })
    }

    /// Lists the subscriptions on record, at most half a second old. An event that no living process takes waits for one that it matches.
    fn recorded_subscriptions(&self) -> StoreFuture<'_, Arc<[RemoteSubscription]>> {
        Box::pin(async {
            let on_record = self.subscriptions().await?.into_iter();
            Ok(on_record
                .map(|row| RemoteSubscription { name: row.name, event_type: row.event_type })
                .collect())
        })
    }

    /// Publishes the outcome counts of this process for shared breakers and returns the state of each; `None` where one process
    /// owns the store. Counts are absolute, so that repeating a report does no harm.
    fn share_circuits(&self, reports: Vec<CircuitReport>) -> StoreFuture<'_, Option<Vec<CircuitView>>> {
        let _ = reports;
        Box::pin(async { Ok(None) })
    }

    /// Changes a shared breaker of the change's generation and returns the new generation; `None` if another process was first.
    fn change_circuit(&self, name: SubscriptionName, change: CircuitState) -> StoreFuture<'_, Option<i64>> {
        let _ = (name, change);
        Box::pin(async { Ok(None) })
    }

    /// Publishes that this process uses shared budgets and returns how many processes share each; `None` in a store of one process.
    fn share_budgets(&self, reports: Vec<BudgetReport>) -> StoreFuture<'_, Option<Vec<BudgetView>>> {
        let _ = reports;
        Box::pin(async { Ok(None) })
    }
}

/// Keeps documents with optimistic concurrency: a change names the version it is based on and fails if that is not current.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
///
/// A change is on stable storage when its future resolves to `Ok`. Times are those of the store's clock.
pub trait Documents: Sealed {
    /// Stores a new document as version 1.
    fn create(&self, key: DocumentKey, body: String) -> StoreFuture<'_, Document>;

    /// Returns one document.
    fn document(&self, key: DocumentKey) -> StoreFuture<'_, Option<Document>>;

    /// Lists at most `limit` documents of a kind behind `after`, in the order of their keys.
    fn documents(
        &self,
        kind: &'static str,
        after: Option<DocumentKey>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<Document>>;

    /// Replaces the body of a document that is still in this version.
    fn replace(&self, key: DocumentKey, version: u64, body: String) -> StoreFuture<'_, Document>;

    /// Removes a document, if a version is given only while it is in that version. Returns whether it existed.
    fn remove(&self, key: DocumentKey, version: Option<u64>) -> StoreFuture<'_, bool>;

    /// Lists keys and versions of a kind. Cheap to poll: it shows every change by other processes unless a key is reused.
    fn versions(&self, kind: &'static str) -> StoreFuture<'_, Vec<(DocumentKey, u64)>>;
}
