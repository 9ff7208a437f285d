//! Claims and settlements: work in flight, the slots that bound it, and how it ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, RetryOverride, Timestamp};
use tokio::sync::{Notify, mpsc};

use crate::due::Due;
use crate::event::{EventId, EventType, StoredEvent, SubscriptionName};
use crate::lease::LeaseToken;
use crate::store::Finished;
use crate::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// A claimed event, or a claimed delivery of an event to one subscription.
///
/// Settling consumes the claim, so no claim is settled twice.
#[derive(Debug)]
#[must_use = "claimed work must be settled, or it stays in processing until the next start"]
pub struct Claimed {
    /// The event.
    pub event: Arc<StoredEvent>,
    /// The subscription of a single delivery; `None` for a whole event, which goes to every matching subscription.
    pub subscription: Option<SubscriptionName>,
    /// Number of this attempt, from 1.
    pub attempt: u32,
    /// When the first attempt began; for the first attempt, now.
    pub started_at: Timestamp,
    /// Subscriptions that handled the event at an earlier attempt and may skip this one. Usually empty.
    pub handled: Vec<SubscriptionName>,
    /// Whether an earlier dispatch of a whole event was settled without its end: it was deferred, failed or was redriven.
    pub was_dispatched: bool,
    /// The errors of the earlier attempts, oldest first; `None` if there are none.
    pub errors: Option<Arc<[String]>>,
    /// When the lease began under which a pull consumer has held this delivery; `None` for any other claim. Unless the claim is for an ack
    /// or a nack, the lease has ended without one.
    pub leased_at: Option<Timestamp>,
    /// When the store handed the claim to the dispatcher.
    pub sent_at: Instant,
    pub(crate) key: ClaimKey,
    /// Identifies this claim where several processes claim.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))] // SQLite has one owner
    pub(crate) fence: Fence,
    /// Whether the event has open deliveries to single subscriptions beside this claim.
    pub(crate) has_open_deliveries: bool,
    /// The slot of this claim, freed on drop.
    pub(crate) _slot: Slot,
}

impl Claimed {
    /// Makes the claim for the first attempt of an event that was just stored.
    pub(crate) fn first(
        event: Arc<StoredEvent>,
        subscription: Option<SubscriptionName>,
        key: ClaimKey,
        slot: Slot,
    ) -> Self {
        let now = event.created_at;
        Claimed::again(event, subscription, now, 0, key, slot)
    }

    /// Makes the claim for the attempt after `retry_count` earlier ones.
    pub(crate) fn again(
        event: Arc<StoredEvent>,
        subscription: Option<SubscriptionName>,
        started_at: Timestamp,
        retry_count: u32,
        key: ClaimKey,
        slot: Slot,
    ) -> Self {
        Claimed {
            started_at,
            event,
            subscription,
            attempt: retry_count.saturating_add(1),
            handled: Vec::new(),
            was_dispatched: false,
            errors: None,
            leased_at: None,
            sent_at: Instant::now(),
            key,
            fence: Fence::default(),
            has_open_deliveries: false,
            _slot: slot,
        }
    }

    /// Returns a new token to lease this delivery with; `None` for a whole event, which cannot be leased.
    pub fn new_lease(&self) -> Option<LeaseToken> {
        match self.key {
            ClaimKey::Event(_) => None,
            ClaimKey::Delivery { delivery, .. } => Some(LeaseToken::new(delivery)),
        }
    }

    /// Returns the JSON array of subscriptions that have handled the event after this attempt; `None` if nothing has to be written.
    /// An event that is deferred at its first dispatch gets an empty one: from then on a subscription is owed it.
    pub(crate) fn handled_by_now(&self, settlement: &Settlement) -> Option<String> {
        let is_first_deferral = matches!(settlement.verdict, Verdict::Defer(_)) && !self.was_dispatched;
        // A finished event has no further attempt.
        if settlement.verdict == Verdict::Done || (settlement.handled.is_empty() && !is_first_deferral) {
            return None;
        }
        let all: BTreeSet<_> = self.handled.iter().chain(&settlement.handled).collect();
        serde_json::to_string(&all).ok()
    }

    /// Returns whether a whole event was handled and nothing else has to be recorded; such settlements share one statement.
    pub(crate) fn is_bare_success(&self, settlement: &Settlement) -> bool {
        matches!(self.key, ClaimKey::Event(_)) && !self.has_open_deliveries && settlement.is_bare_success()
    }

    /// Returns the result of settling this claim as done.
    pub(crate) fn done(&self) -> Finished {
        Finished::Done { retried: self.attempt > 1 }
    }
}

/// Work that was running when its process died, with the attempt that was charged for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// The event.
    pub id: EventId,
    /// The event's type.
    pub event_type: EventType,
    /// The subscription of a single delivery; `None` for a whole event.
    pub subscription: Option<SubscriptionName>,
    /// Number of the interrupted attempt, from 1.
    pub attempt: u32,
    /// The event's own changes to the retry policy.
    pub retry: Option<RetryOverride>,
    /// The error that was recorded for the attempt.
    pub error: String,
}

/// Identifies one claim of a row. Every claim by any process has its own fence, and a settlement with another fence than that of the
/// last claim changes nothing. Unused where one process owns the store.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code))] // SQLite has one owner
pub(crate) struct Fence {
    /// The claiming process.
    pub(crate) owner: i64,
    /// A number that the process uses once.
    pub(crate) token: i64,
}

/// The row of a claim.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ClaimKey {
    /// The event itself.
    Event(i64),
    /// A delivery of an event to one subscription.
    Delivery {
        /// Key of the delivery.
        delivery: i64,
        /// Key of the event.
        event: i64,
    },
}

impl ClaimKey {
    /// Returns the key of the row in its own table.
    pub(crate) fn row(self) -> i64 {
        match self {
            ClaimKey::Event(key) | ClaimKey::Delivery { delivery: key, .. } => key,
        }
    }
}

/// Receives claims from the store, up to a fixed number of slots in flight.
///
/// Work without a free slot stays on disk, so memory is bounded whatever the depth of the queue.
#[derive(Clone, Debug)]
pub struct ClaimSink {
    free_slots: Arc<AtomicUsize>,
    sender: mpsc::UnboundedSender<Claimed>,
    freed: Arc<Notify>,
    /// Wakes callers that wait until all slots are free.
    idle: Arc<Notify>,
    /// Total number of slots.
    limit: usize,
}

impl ClaimSink {
    /// Makes a sink with `limit` slots and the receiver of its claims. The slots bound the channel.
    pub fn new(limit: usize) -> (Self, mpsc::UnboundedReceiver<Claimed>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let free_slots = Arc::new(AtomicUsize::new(limit));
        (ClaimSink { free_slots, sender, freed: Arc::default(), idle: Arc::default(), limit }, receiver)
    }

    /// Returns the number of free slots.
    pub fn free_slots(&self) -> usize {
        self.free_slots.load(Ordering::Acquire)
    }

    /// Resolves after a slot was freed.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Resolves when nothing is in flight.
    pub async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable(); // before the check, so that no notification is missed
            if self.free_slots() >= self.limit {
                return;
            }
            idle.await;
        }
    }

    /// Takes a slot if one is free.
    pub(crate) fn take(&self) -> Option<Slot> {
        let one_less = |free: usize| free.checked_sub(1);
        self.free_slots.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).ok()?;
        Some(Slot { sink: self.clone() })
    }

    /// Hands a claim to the receiver. Without a receiver the work stays in processing until the next start.
    pub(crate) fn send(&self, claimed: Claimed) {
        let _ = self.sender.send(claimed);
    }
}

/// One slot of a [`ClaimSink`], freed on drop.
#[derive(Debug)]
pub(crate) struct Slot {
    sink: ClaimSink,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let free = self.sink.free_slots.fetch_add(1, Ordering::AcqRel) + 1;
        self.sink.freed.notify_one();
        if free >= self.sink.limit {
            self.sink.idle.notify_waiters();
        }
    }
}

/// Earliest due time of the work on disk, as far as this process knows. The dispatcher sleeps until then.
#[derive(Debug)]
pub struct DueHint {
    next: AtomicI64,
    changed: Notify,
}

impl DueHint {
    pub(crate) fn new() -> Self {
        DueHint { next: AtomicI64::new(i64::MAX), changed: Notify::new() }
    }

    /// Returns the earliest due time, or `None` if no work waits outside of the backlog.
    pub fn next(&self) -> Option<Timestamp> {
        let next = self.next.load(Ordering::Acquire);
        (next != i64::MAX).then(|| Timestamp::from_millis(next))
    }

    /// Resolves when an earlier due time is known.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Records that work is due at this instant.
    pub fn pull_forward(&self, at: Timestamp) {
        if self.next.fetch_min(at.as_millis(), Ordering::AcqRel) > at.as_millis() {
            self.changed.notify_one();
        }
    }

    /// Replaces the hint by the exact due time.
    pub fn set(&self, at: Option<Timestamp>) {
        self.next.store(at.map_or(i64::MAX, Timestamp::as_millis), Ordering::Release);
    }
}

/// The result of an attempt, recorded when its claim is settled.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Time of the settlement.
    pub at: Timestamp,
    /// The next status of the work.
    pub verdict: Verdict,
    /// The failed attempt, if one failed.
    pub failure: Option<FailedAttempt>,
    /// Deliveries to store for single subscriptions of this event: deferred, snoozed, of other processes, or split from a whole event.
    pub split_off: Vec<(SubscriptionName, Due)>,
    /// Subscriptions that handled the event at this attempt and may skip the next ones. Empty for a single delivery.
    pub handled: Vec<SubscriptionName>,
    /// Successful attempts with a detail to record.
    pub succeeded: Vec<SucceededAttempt>,
}

impl Settlement {
    /// Makes a settlement with this verdict and nothing else to record.
    pub fn new(at: Timestamp, verdict: Verdict) -> Self {
        Settlement {
            at,
            verdict,
            failure: None,
            split_off: Vec::new(),
            handled: Vec::new(),
            succeeded: Vec::new(),
        }
    }

    /// Returns the subscription that a dead letter is attributed to: of a delivery its own, of an event that of the failed handler.
    pub(crate) fn target<'a>(&'a self, claimed: &'a Claimed) -> Option<&'a SubscriptionName> {
        claimed.subscription.as_ref().or_else(|| self.failure.as_ref().map(|failure| &failure.subscription))
    }

    /// Returns whether the attempt succeeded and nothing else has to be recorded.
    fn is_bare_success(&self) -> bool {
        self.verdict == Verdict::Done
            && self.failure.is_none()
            && self.split_off.is_empty()
            && self.succeeded.is_empty()
    }

    /// Returns the earliest time at which the settled work, or a delivery split off from it, is due again; `None` if only the backlog
    /// or nothing is left.
    pub(crate) fn due_again(&self) -> Option<Timestamp> {
        let own = self.verdict.due_again();
        self.split_off.iter().map(|(_, until)| *until).chain(own).min().and_then(Due::at)
    }
}

/// Parses the stored list of subscriptions that handled an event. An unreadable list counts as empty, so all handle it again.
pub(crate) fn handled_before(kept: Option<&str>) -> Vec<SubscriptionName> {
    kept.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The next status of settled work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled.
    Done,
    /// Another attempt at this time, after a failed one.
    Retry(Due),
    /// Not attempted: due again at this time, and no attempt is charged.
    Defer(Due),
    /// Not attempted: due again at this time as ordinary work. A crash suspect whose handler cannot crash this process.
    ReleaseSuspect(Due),
    /// Leased by a pull consumer until this time, and due again then. No attempt is charged before the lease ends. Only for a delivery to a
    /// single subscription.
    Lease {
        /// Identifies the lease.
        token: LeaseToken,
        /// The end of the lease.
        until: Timestamp,
    },
    /// Into the dead-letter queue.
    Dead(DeadReason),
}

impl Verdict {
    /// The next due time; `None` after the last attempt.
    pub(crate) fn due_again(&self) -> Option<Due> {
        match self {
            Verdict::Retry(due) | Verdict::Defer(due) | Verdict::ReleaseSuspect(due) => Some(*due),
            Verdict::Lease { until, .. } => Some(Due::At(*until)),
            Verdict::Done | Verdict::Dead(_) => None,
        }
    }
}

/// A successful attempt with the detail that its handler recorded.
#[derive(Clone, Debug)]
pub struct SucceededAttempt {
    /// The subscription whose handler succeeded.
    pub subscription: SubscriptionName,
    /// When the attempt began.
    pub started_at: Timestamp,
    /// Duration of the attempt.
    pub duration_ms: u64,
    /// The detail that the handler recorded, as JSON.
    pub detail: String,
}

/// A failed attempt.
#[derive(Clone, Debug)]
pub struct FailedAttempt {
    /// The subscription whose handler failed.
    pub subscription: SubscriptionName,
    /// When the attempt began.
    pub started_at: Timestamp,
    /// Duration of the attempt.
    pub duration_ms: u64,
    /// Class of the failure.
    pub class: FailureClass,
    /// Delay before the next attempt; 0 after the last.
    pub delay_ms: u64,
    /// The error.
    pub error: String,
    /// The retry decision with its inputs, as JSON.
    pub record: Option<String>,
    /// The detail that the handler recorded, as JSON.
    pub detail: Option<String>,
}

/// Explores thread interleavings: `cargo test -p redrive-store --features shuttle interleavings`.
#[cfg(all(test, feature = "shuttle"))]
mod interleavings {
    use shuttle::future::block_on;
    use shuttle::sync::Mutex;
    use shuttle::thread;

    use super::*;

    const SCHEDULES: usize = 20_000;

    #[test]
    fn a_caller_that_waits_for_idle_is_woken() {
        shuttle::check_random(
            || {
                let (sink, _claims) = ClaimSink::new(2);
                let workers: Vec<_> = (0..3)
                    .map(|_| {
                        let sink = sink.clone();
                        thread::spawn(move || {
                            for _ in 0..2 {
                                drop(sink.take());
                            }
                        })
                    })
                    .collect();
                let waiting = sink.clone();
                let waiter = thread::spawn(move || block_on(waiting.idle()));
                for worker in workers {
                    worker.join().expect("a worker does not panic");
                }
                waiter.join().expect("the sink becomes idle");
                assert_eq!(sink.free_slots(), 2);
            },
            SCHEDULES,
        );
    }

    #[test]
    fn a_caller_that_waits_for_a_slot_is_woken() {
        shuttle::check_random(
            || {
                let (sink, _claims) = ClaimSink::new(1);
                let workers: Vec<_> = (0..3)
                    .map(|_| {
                        let sink = sink.clone();
                        thread::spawn(move || drop(sink.take()))
                    })
                    .collect();
                // As in the dispatcher: it sleeps only if no slot is free.
                let slot = loop {
                    match sink.take() {
                        Some(slot) => break slot,
                        None => block_on(sink.freed()),
                    }
                };
                drop(slot);
                for worker in workers {
                    worker.join().expect("a worker does not panic");
                }
            },
            SCHEDULES,
        );
    }

    /// The dispatcher resets the hint before it claims, so no stored work is missed.
    #[test]
    fn the_dispatcher_never_sleeps_through_due_work() {
        shuttle::check_random(
            || {
                let (disk, due) = (Arc::new(Mutex::new(0_u32)), Arc::new(DueHint::new()));
                let publishers: Vec<_> = (0..2)
                    .map(|_| {
                        let (disk, due) = (Arc::clone(&disk), Arc::clone(&due));
                        thread::spawn(move || {
                            for _ in 0..2 {
                                *disk.lock().expect("no thread panics") += 1;
                                due.pull_forward(Timestamp::from_millis(7));
                            }
                        })
                    })
                    .collect();
                let mut claimed = 0;
                while claimed < 4 {
                    if due.next().is_some() {
                        due.set(None);
                        claimed += std::mem::take(&mut *disk.lock().expect("no thread panics"));
                    } else {
                        block_on(due.changed());
                    }
                }
                for publisher in publishers {
                    publisher.join().expect("a publisher does not panic");
                }
            },
            SCHEDULES,
        );
    }
}
