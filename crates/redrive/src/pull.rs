//! Events that are fetched: a subscription whose handler is somewhere else, and comes for its work.
//!
//! What nobody has asked for is held on disk. What is fetched is leased: until the lease ends it is its holder's, who says how it
//! went; after that it is tried again, and whoever held it is told that it is too late.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redrive_retry::{ClassifyError as _, Failure, Timestamp};
use tokio::sync::{Notify, mpsc, oneshot};
use uuid::Uuid;

use crate::event::Event;
use crate::handler::{BoxFuture, Handler};

/// Once there is something, so long is waited for more of it.
const LINGER: Duration = Duration::from_millis(20);

/// Whoever asks for many gets no more than this many bytes of payloads, and what is left over of the last one.
const MOST_BYTES: usize = 16 << 20;

/// How many have been asked for, and have not come yet. Shared by a queue and the lane of its subscription.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    asked: AtomicUsize,
    /// Woken when more is asked for.
    room: OnceLock<Arc<Notify>>,
}

impl Demand {
    /// Who calls up what is held.
    pub(crate) fn wakes(&self, room: Arc<Notify>) {
        let _ = self.room.set(room); // the same for all subscriptions of a bus
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }

    /// One of those that were asked for, if there is one.
    pub(crate) fn take(&self) -> bool {
        self.asked.fetch_update(Ordering::AcqRel, Ordering::Acquire, |asked| asked.checked_sub(1)).is_ok()
    }

    fn ask(&self, count: usize) {
        self.asked.fetch_add(count, Ordering::AcqRel);
        if let Some(room) = self.room.get() {
            room.notify_one();
        }
    }

    /// So many are not wanted any more.
    fn give_back(&self, count: usize) {
        let less = |asked: usize| Some(asked.saturating_sub(count));
        let _ = self.asked.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// Nobody was there for it any more: it is held again, and nothing is charged.
#[derive(Debug, thiserror::Error)]
#[error("nobody fetches it at the moment")]
pub(crate) struct PutBack;

/// Names one lease. Nobody can guess it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken(Uuid);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

impl FromStr for LeaseToken {
    type Err = LeaseLost;

    fn from_str(text: &str) -> Result<Self, LeaseLost> {
        Uuid::try_parse(text).map(LeaseToken).map_err(|_| LeaseLost)
    }
}

/// Whoever held it is too late: its lease has ended, and somebody else may have the event; or there never was such a lease.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no such lease, or it has ended: the event is given out again; fetch again, and extend a lease that is too short"
)]
pub struct LeaseLost;

/// An event that was fetched.
#[derive(Debug)]
pub struct Leased {
    /// To say how it went.
    pub token: LeaseToken,
    /// The event.
    pub event: Event,
    /// When the lease ends, unless it is extended.
    pub until: Timestamp,
}

/// How it went.
#[derive(Debug)]
enum Outcome {
    Done,
    Failed(Failure),
    PutBack,
}

/// What somebody holds.
#[derive(Debug)]
struct Lease {
    outcome: oneshot::Sender<Outcome>,
    until: Arc<Mutex<Timestamp>>,
    event: Event,
}

/// An event on its way to whoever fetches.
#[derive(Debug)]
struct Offer {
    event: Event,
    /// Accepted with a lease; dropped without one, it is put back.
    accept: oneshot::Sender<Accepted>,
}

#[derive(Debug)]
struct Accepted {
    token: LeaseToken,
    until: Arc<Mutex<Timestamp>>,
    outcome: oneshot::Receiver<Outcome>,
}

#[derive(Debug, Default)]
struct State {
    /// Those who wait, in the order in which they came.
    pullers: VecDeque<Puller>,
    leases: HashMap<LeaseToken, Lease>,
    next_puller: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Puller {
    number: u64,
    wants: usize,
    offers: mpsc::UnboundedSender<Offer>,
}

/// A queue from which events are fetched, of one subscription. Cheap to clone; all clones are one queue.
///
/// ```
/// # async fn consume(bus: &redrive::EventBus) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use redrive::PullQueue;
///
/// let queue = PullQueue::new();
/// bus.subscribe_queue("order.*", &queue).name("billing").register()?;
/// for leased in queue.pull(10, Duration::from_secs(30), Duration::from_secs(5)).await {
///     println!("{}", leased.event.payload());
///     queue.ack(leased.token)?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PullQueue {
    demand: Arc<Demand>,
    // A std mutex: held for a few instructions, never across an await.
    state: Arc<Mutex<State>>,
}

impl PullQueue {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn demand(&self) -> Arc<Demand> {
        Arc::clone(&self.demand)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change leaves it valid, so a poisoned lock is still good to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At most `most` events, each leased for this long, and fewer if they are large. Waits this long for the first one; then it takes what
    /// is there.
    pub async fn pull(&self, most: usize, lease: Duration, wait: Duration) -> Vec<Leased> {
        let mut pulling = self.begin(most);
        let (mut offers, mut bytes) = (Vec::<Offer>::new(), 0);
        let mut deadline = tokio::time::Instant::now() + wait;
        while offers.len() < most && bytes < MOST_BYTES {
            match tokio::time::timeout_at(deadline, pulling.offers.recv()).await {
                Ok(Some(offer)) => {
                    if offers.is_empty() {
                        deadline = deadline.min(tokio::time::Instant::now() + LINGER);
                    }
                    bytes += offer.event.payload().len();
                    offers.push(offer);
                }
                Ok(None) | Err(_) => break,
            }
        }
        drop(pulling); // what comes from now on is for others
        offers.into_iter().filter_map(|offer| self.lease(offer, lease)).collect()
    }

    fn begin(&self, most: usize) -> Pulling<'_> {
        let (sender, offers) = mpsc::unbounded_channel();
        let mut state = self.lock();
        let number = state.next_puller;
        state.next_puller += 1;
        if !state.is_closed {
            state.pullers.push_back(Puller { number, wants: most, offers: sender });
        }
        drop(state);
        self.demand.ask(most);
        Pulling { queue: self, number, most, offers }
    }

    fn lease(&self, offer: Offer, lease: Duration) -> Option<Leased> {
        let token = LeaseToken(Uuid::new_v4());
        let until = offer.event.clock.now() + lease;
        let (sender, outcome) = oneshot::channel();
        let end = Arc::new(Mutex::new(until));
        let event = offer.event;
        {
            let mut state = self.lock();
            if state.is_closed {
                return None;
            }
            let lease = Lease { outcome: sender, until: Arc::clone(&end), event: event.clone() };
            state.leases.insert(token, lease);
        }
        if offer.accept.send(Accepted { token, until: end, outcome }).is_err() {
            self.lock().leases.remove(&token); // the bus has given it up meanwhile
            return None;
        }
        Some(Leased { token, event, until })
    }

    fn end(&self, token: LeaseToken, outcome: Outcome) -> Result<(), LeaseLost> {
        let lease = self.lock().leases.remove(&token).ok_or(LeaseLost)?;
        lease.outcome.send(outcome).map_err(|_| LeaseLost)
    }

    /// It is handled.
    pub fn ack(&self, token: LeaseToken) -> Result<(), LeaseLost> {
        self.end(token, Outcome::Done)
    }

    /// It failed, for this reason. It is tried again when its policy says so, but not before this much time has passed.
    pub fn nack(
        &self,
        token: LeaseToken,
        delay: Option<Duration>,
        reason: Option<String>,
    ) -> Result<(), LeaseLost> {
        let reason = reason.unwrap_or_else(|| "refused by whoever fetched it".to_owned());
        let failure = match delay {
            Some(delay) => reason.retry_after(delay),
            None => Failure::new(reason),
        };
        self.end(token, Outcome::Failed(failure))
    }

    /// The lease ends this long from now, and says when that is.
    pub fn extend(&self, token: LeaseToken, lease: Duration) -> Result<Timestamp, LeaseLost> {
        let state = self.lock();
        let held = state.leases.get(&token).ok_or(LeaseLost)?;
        let until = held.event.clock.now() + lease;
        *held.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        Ok(until)
    }

    /// How many are leased.
    pub fn leased(&self) -> usize {
        self.lock().leases.len()
    }

    /// Gives nothing out any more. What is leased is held again, and nothing is charged for it.
    pub fn close(&self) {
        let (pullers, leases) = {
            let mut state = self.lock();
            state.is_closed = true;
            (std::mem::take(&mut state.pullers), std::mem::take(&mut state.leases))
        };
        drop(pullers);
        for lease in leases.into_values() {
            let _ = lease.outcome.send(Outcome::PutBack);
        }
    }
}

/// Somebody who waits for events. Dropped, it wants nothing more.
struct Pulling<'a> {
    queue: &'a PullQueue,
    number: u64,
    most: usize,
    offers: mpsc::UnboundedReceiver<Offer>,
}

impl Drop for Pulling<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        let place = state.pullers.iter().position(|puller| puller.number == self.number);
        // One that is closed wants all that it has not got; nobody counts that any more.
        let wanted = place.and_then(|place| state.pullers.remove(place)).map_or(self.most, |one| one.wants);
        drop(state);
        self.queue.demand.give_back(wanted);
    }
}

/// The event is put back if the bus gives it up: its lease must not be there any longer then.
struct Held<'a> {
    queue: &'a PullQueue,
    token: LeaseToken,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.queue.lock().leases.remove(&self.token);
    }
}

impl Handler for PullQueue {
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        let queue = self.clone();
        Box::pin(async move {
            let clock = event.clock.clone();
            let Some(accepted) = queue.offer(event) else { return Err(Failure::new(PutBack)) };
            let Ok(Accepted { token, until, mut outcome }) = accepted.await else {
                return Err(Failure::new(PutBack));
            };
            let _held = Held { queue: &queue, token };
            let began = clock.now();
            loop {
                let end = *until.lock().unwrap_or_else(PoisonError::into_inner);
                let now = clock.now();
                if end <= now && queue.lock().leases.remove(&token).is_some() {
                    return Err(Failure::timeout(end.since(began)));
                }
                tokio::select! {
                    biased;
                    said = &mut outcome => return match said {
                        Ok(Outcome::Done) => Ok(()),
                        Ok(Outcome::Failed(failure)) => Err(failure),
                        Ok(Outcome::PutBack) | Err(_) => Err(Failure::new(PutBack)),
                    },
                    () = clock.sleep(end.since(now).max(Duration::from_millis(1))) => {}
                }
            }
        })
    }
}

impl PullQueue {
    /// Offers an event to whoever has waited longest.
    fn offer(&self, event: Event) -> Option<oneshot::Receiver<Accepted>> {
        let mut state = self.lock();
        let (accept, accepted) = oneshot::channel();
        let mut offer = Offer { event, accept };
        for puller in state.pullers.iter_mut().filter(|puller| puller.wants > 0) {
            match puller.offers.send(offer) {
                Ok(()) => {
                    puller.wants -= 1;
                    return Some(accepted);
                }
                Err(refused) => offer = refused.0,
            }
        }
        None
    }
}
