//! Claiming due work, keeping the claims alive and settling them.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;

use super::{Sealed, StoreFuture};
use crate::event::SubscriptionName;
use crate::work::{ClaimSink, Claimed, DueHint, Recovered, Settlement};

/// Hands due deliveries to the dispatcher and records how their attempts ended.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
#[allow(private_bounds)] // the private supertrait is the seal
pub trait WorkQueue: Sealed {
    /// Sets the sink that receives claims. New events that are due are claimed in the transaction that stores them, as long as
    /// the sink has free slots. Without a sink, all work waits on disk.
    fn attach(&self, sink: Option<ClaimSink>);

    /// Claims due work up to the free slots of the attached sink, hands it over and returns the number of claims.
    ///
    /// Every store claims in the same order: deliveries to single subscriptions before whole events; within each kind by due
    /// time, and in the order of storing where due times are equal. First attempts and retries are not told apart. One call
    /// claims a few hundred of each kind at most. Rows that another process is claiming at the same time are skipped.
    fn claim(&self, now: Timestamp) -> StoreFuture<'_, usize>;

    /// Claims one crash suspect: work that was running at more than one crash of its process. The dispatcher runs it in
    /// isolation, so that no other work is charged if it ends the process again.
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

    /// Renews the lease of this process on its claims and returns when to renew it again; `None` in a store of one process.
    fn heartbeat(&self) -> StoreFuture<'_, Option<Duration>>;

    /// Recovers work that was running when its process died: charges the attempt and makes the work due now.
    fn recover(&self, now: Timestamp) -> StoreFuture<'_, Vec<Recovered>>;

    /// Runs periodic maintenance and returns the delay until the next run. Deletes handled events older than `retention`
    /// (`None` keeps them for ever) and expired idempotency keys. Where processes share the store, the leader does this for
    /// all of them and takes over the claims of dead ones.
    fn maintain(&self, now: Timestamp, retention: Option<Duration>) -> StoreFuture<'_, Duration>;
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
    /// The event has open deliveries, or the claim was lost.
    NotYet,
}
