//! Work under way: what was claimed, by whom it is counted, and how it is settled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use redrive_retry::{DeadReason, FailureClass, Timestamp};
use tokio::sync::{Notify, mpsc};

use crate::event::{EventId, EventType, StoredEvent, SubscriptionName};
use crate::store::Finished;
use crate::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// One unit of work that is ours until it is settled: an event, or what one subscription is owed of it.
///
/// There is no other way to settle than to hand this back, so nothing is settled twice.
#[derive(Debug)]
#[must_use = "claimed work must be settled, or it stays in processing until the next start"]
pub struct Claimed {
    /// The event.
    pub event: Arc<StoredEvent>,
    /// To whom it goes if not to all who match.
    pub addressee: Option<SubscriptionName>,
    /// Which attempt this is, counted from 1.
    pub attempt: u32,
    /// When its first attempt began, or now.
    pub started_at: Timestamp,
    /// Who has handled it at an earlier attempt and need not again. Most of the time nobody, which takes no memory.
    pub handled: Vec<SubscriptionName>,
    /// When it was handed over to be run.
    pub handed_over: Instant,
    pub(crate) unit: UnitKey,
    /// By whom it was claimed, where several can.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))] // SQLite has one owner
    pub(crate) fence: Fence,
    /// Whether single subscriptions are owed something beside it: then its end may not be the end of the event.
    pub(crate) owes: bool,
    /// Its place among the work in flight; given back when this is dropped.
    pub(crate) _slot: Slot,
}

impl Claimed {
    /// The first attempt of something that was just stored.
    pub(crate) fn first(
        event: Arc<StoredEvent>,
        addressee: Option<SubscriptionName>,
        unit: UnitKey,
        slot: Slot,
    ) -> Self {
        let now = event.created_at;
        Claimed::again(event, addressee, now, 0, unit, slot)
    }

    /// The attempt after so many.
    pub(crate) fn again(
        event: Arc<StoredEvent>,
        addressee: Option<SubscriptionName>,
        started_at: Timestamp,
        retry_count: u32,
        unit: UnitKey,
        slot: Slot,
    ) -> Self {
        Claimed {
            started_at,
            event,
            addressee,
            attempt: retry_count.saturating_add(1),
            handled: Vec::new(),
            handed_over: Instant::now(),
            unit,
            fence: Fence::default(),
            owes: false,
            _slot: slot,
        }
    }

    /// Who has handled it by the end of this attempt, as it is kept: a JSON array. `None` if nothing is to be written.
    pub(crate) fn handled_by_now(&self, settlement: &Settlement) -> Option<String> {
        // Nobody is asked again after the end.
        if settlement.handled.is_empty() || settlement.verdict == Verdict::Done {
            return None;
        }
        let all: BTreeSet<_> = self.handled.iter().chain(&settlement.handled).collect();
        serde_json::to_string(&all).ok()
    }

    /// It was handled.
    pub(crate) fn done(&self) -> Finished {
        Finished::Done { retried: self.attempt > 1 }
    }
}

/// What was running when the process died, and was charged for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// The event.
    pub id: EventId,
    /// Its type.
    pub event_type: EventType,
    /// To whom it goes if not to all who match.
    pub addressee: Option<SubscriptionName>,
    /// Which attempt was cut short, counted from 1.
    pub attempt: u32,
    /// What stands in its errors now.
    pub error: String,
}

/// Which claim of a unit this is: no other claim, of whomever, has the same. Who settles with another than the last one changes
/// nothing. Where one process owns everything, there is nothing to tell apart.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code))] // SQLite has one owner
pub(crate) struct Fence {
    /// The process.
    pub(crate) owner: i64,
    /// A number that this process has not used before.
    pub(crate) token: i64,
}

/// Where a unit of work is kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnitKey {
    /// The event itself.
    Event(i64),
    /// A delivery of an event to one subscription.
    Delivery {
        /// Its own key.
        delivery: i64,
        /// The event's key.
        event: i64,
    },
}

impl UnitKey {
    /// In its own table.
    pub(crate) fn key(self) -> i64 {
        match self {
            UnitKey::Event(key) | UnitKey::Delivery { delivery: key, .. } => key,
        }
    }
}

/// How many units may be in flight, and who takes in those that are claimed the moment they are stored.
///
/// Work that finds no room stays on disk: memory is bounded however much is waiting.
#[derive(Clone, Debug)]
pub struct ClaimSink {
    room: Arc<AtomicUsize>,
    sender: mpsc::UnboundedSender<Claimed>,
    freed: Arc<Notify>,
    /// Everybody who waits for the end of everything, and how much room there is then.
    idle: Arc<Notify>,
    limit: usize,
}

impl ClaimSink {
    /// Room for `limit` units, and the end where they come out. The channel needs no bound of its own: `limit` is it.
    pub fn new(limit: usize) -> (Self, mpsc::UnboundedReceiver<Claimed>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let room = Arc::new(AtomicUsize::new(limit));
        (ClaimSink { room, sender, freed: Arc::default(), idle: Arc::default(), limit }, receiver)
    }

    /// How many more units fit.
    pub fn room(&self) -> usize {
        self.room.load(Ordering::Acquire)
    }

    /// Resolves after a unit has given its place back.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Resolves when nothing is in flight.
    pub async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable(); // before looking, so that nothing is missed in between
            if self.room() >= self.limit {
                return;
            }
            idle.await;
        }
    }

    /// A place, if there is one.
    pub(crate) fn take(&self) -> Option<Slot> {
        self.room.fetch_update(Ordering::AcqRel, Ordering::Acquire, |room| room.checked_sub(1)).ok()?;
        Some(Slot { sink: self.clone() })
    }

    /// Hands a claimed unit over. If nobody is there any more, it stays in processing until the next start.
    pub(crate) fn send(&self, claimed: Claimed) {
        let _ = self.sender.send(claimed);
    }
}

/// A place among the work in flight.
#[derive(Debug)]
pub(crate) struct Slot {
    sink: ClaimSink,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let room = self.sink.room.fetch_add(1, Ordering::AcqRel) + 1;
        self.sink.freed.notify_one();
        if room >= self.sink.limit {
            self.sink.idle.notify_waiters();
        }
    }
}

/// When the next work on disk is due, as far as this process knows: a hint to sleep by.
#[derive(Debug)]
pub struct DueHint {
    next: AtomicI64,
    changed: Notify,
}

impl DueHint {
    pub(crate) fn new() -> Self {
        DueHint { next: AtomicI64::new(i64::MAX), changed: Notify::new() }
    }

    /// The earliest instant, or `None` if nothing waits that is not held.
    pub fn next(&self) -> Option<Timestamp> {
        let next = self.next.load(Ordering::Acquire);
        (next < HELD.as_millis()).then(|| Timestamp::from_millis(next))
    }

    /// Resolves when the instant has moved closer.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Something is due at this instant.
    pub fn pull_forward(&self, at: Timestamp) {
        if self.next.fetch_min(at.as_millis(), Ordering::AcqRel) > at.as_millis() {
            self.changed.notify_one();
        }
    }

    /// The instant is now known exactly.
    pub fn set(&self, at: Option<Timestamp>) {
        self.next.store(at.map_or(i64::MAX, Timestamp::as_millis), Ordering::Release);
    }
}

/// How a claimed unit ended.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The time of it.
    pub at: Timestamp,
    /// What comes next.
    pub verdict: Verdict,
    /// The failed attempt, if one failed.
    pub failure: Option<FailedAttempt>,
    /// What subscriptions are owed that could not be asked: kept for them, due when the circuit lets a probe through, or [`HELD`].
    pub parked: Vec<(SubscriptionName, Timestamp)>,
    /// Who has handled an event at this attempt and is not to be asked again at the next ones. Only of an event that goes to
    /// all who match: what one subscription is owed ends with its handler.
    pub handled: Vec<SubscriptionName>,
    /// Attempts that succeeded, and of which something is to be kept.
    pub succeeded: Vec<SucceededAttempt>,
}

impl Settlement {
    /// This verdict, and nothing more to say.
    pub fn new(at: Timestamp, verdict: Verdict) -> Self {
        Settlement {
            at,
            verdict,
            failure: None,
            parked: Vec::new(),
            handled: Vec::new(),
            succeeded: Vec::new(),
        }
    }

    /// Whether it is the frequent one: handled, and nothing to write down beside it.
    pub(crate) fn is_plain(&self) -> bool {
        self.verdict == Verdict::Done
            && self.failure.is_none()
            && self.parked.is_empty()
            && self.succeeded.is_empty()
    }
}

/// Who has handled an event, as it is kept. What somebody has made something else of says nothing: then all are asked again.
pub(crate) fn handled_before(kept: Option<&str>) -> Vec<SubscriptionName> {
    kept.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// What comes next for a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled.
    Done,
    /// Another attempt at this instant, or [`HELD`]. Without a failure nothing is charged; and what was to run alone is not any more.
    Retry(Timestamp),
    /// Not tried: due again at this instant, or [`HELD`], and nothing is charged.
    Defer(Timestamp),
    /// Into the dead-letter queue.
    Dead(DeadReason),
}

/// What is put off until its subscription calls it up, see [`Store::call_up`](crate::Store::call_up), is due at this instant, which
/// never comes: it is in the year 287,168. The schemas of both stores have an index with this condition.
pub const HELD: Timestamp = Timestamp::from_millis(9_000_000_000_000_000);

impl Verdict {
    /// When it is due again, if it goes on.
    pub(crate) fn due_again(&self) -> Option<Timestamp> {
        match self {
            Verdict::Retry(at) | Verdict::Defer(at) => Some(*at),
            Verdict::Done | Verdict::Dead(_) => None,
        }
    }
}

/// One attempt that succeeded, with what its handler told of it.
#[derive(Clone, Debug)]
pub struct SucceededAttempt {
    /// Whose handler succeeded.
    pub subscription: SubscriptionName,
    /// When the attempt began.
    pub started_at: Timestamp,
    /// How long it took.
    pub duration_ms: u64,
    /// What its handler told, as JSON.
    pub detail: String,
}

/// One failed attempt, kept with its unit.
#[derive(Clone, Debug)]
pub struct FailedAttempt {
    /// Whose handler failed.
    pub subscription: SubscriptionName,
    /// When the attempt began.
    pub started_at: Timestamp,
    /// How long it took.
    pub duration_ms: u64,
    /// What kind of failure it was.
    pub class: FailureClass,
    /// The wait before the next attempt; 0 after the last.
    pub delay_ms: u64,
    /// The error.
    pub error: String,
    /// The decision with its inputs, as JSON.
    pub record: Option<String>,
    /// What its handler told of it beside the error, as JSON.
    pub detail: Option<String>,
}

/// Who comes first must not matter: `cargo test -p redrive-store --features shuttle interleavings`.
#[cfg(all(test, feature = "shuttle"))]
mod interleavings {
    use shuttle::future::block_on;
    use shuttle::sync::Mutex;
    use shuttle::thread;

    use super::*;

    const ROUNDS: usize = 20_000;

    #[test]
    fn whoever_waits_for_the_end_of_everything_is_woken() {
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
                waiter.join().expect("it is idle at last");
                assert_eq!(sink.room(), 2);
            },
            ROUNDS,
        );
    }

    #[test]
    fn whoever_waits_for_room_is_woken() {
        shuttle::check_random(
            || {
                let (sink, _claims) = ClaimSink::new(1);
                let workers: Vec<_> = (0..3)
                    .map(|_| {
                        let sink = sink.clone();
                        thread::spawn(move || drop(sink.take()))
                    })
                    .collect();
                // As the dispatcher does: looks, and sleeps only if there is none.
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
            ROUNDS,
        );
    }

    /// What is stored is claimed, whenever the dispatcher looks: it forgets the instant first, and claims then.
    #[test]
    fn nothing_that_is_due_is_slept_through() {
        shuttle::check_random(
            || {
                let (disk, due) = (Arc::new(Mutex::new(0_u32)), Arc::new(DueHint::new()));
                let publishers: Vec<_> = (0..2)
                    .map(|_| {
                        let (disk, due) = (Arc::clone(&disk), Arc::clone(&due));
                        thread::spawn(move || {
                            for _ in 0..2 {
                                *disk.lock().expect("nobody panics") += 1;
                                due.pull_forward(Timestamp::from_millis(7));
                            }
                        })
                    })
                    .collect();
                let mut claimed = 0;
                while claimed < 4 {
                    if due.next().is_some() {
                        due.set(None);
                        claimed += std::mem::take(&mut *disk.lock().expect("nobody panics"));
                    } else {
                        block_on(due.changed());
                    }
                }
                for publisher in publishers {
                    publisher.join().expect("a publisher does not panic");
                }
            },
            ROUNDS,
        );
    }
}
