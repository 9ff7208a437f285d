//! Pull consumers: a subscription whose events are fetched under a lease, and acknowledged.
//!
//! Events that no consumer has asked for wait in the backlog on disk. A fetched event is leased: the consumer acks, nacks or extends it
//! before the lease ends. After that the event is retried, and a late ack is refused.
//!
//! The store decides: an ack succeeds when the delivery is settled under the claim of this process, and an extension when that claim is
//! still held. On PostgreSQL another process may have taken the delivery over meanwhile.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redrive_retry::{ClassifyError as _, Clock, Failure, Timestamp};
use redrive_store::StoreError;
use tokio::sync::{Notify, mpsc, oneshot};
use uuid::Uuid;

use crate::event::Event;
use crate::handler::{BoxFuture, Handler};
use crate::lock::lock;
use crate::settle_waiters::HeldClaim;
use crate::snooze::Snooze;

/// Time for which a pull waits for more events after the first one.
const BATCH_WAIT: Duration = Duration::from_millis(20);

/// A pull ends at this many bytes of payloads, with the event that crosses it.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// Number of events that consumers have asked for and not received. Shared by a queue and the limiter of its subscription.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    asked: AtomicUsize,
    /// Notified when consumers ask for more.
    backlog_wakeup: OnceLock<Arc<Notify>>,
}

impl Demand {
    /// Sets the notification of the backlog loop.
    pub(crate) fn set_wakeup(&self, backlog_wakeup: Arc<Notify>) {
        let _ = self.backlog_wakeup.set(backlog_wakeup); // one for all subscriptions of a bus
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }

    /// Takes one from the demand, if there is any.
    pub(crate) fn take(&self) -> bool {
        self.asked.fetch_update(Ordering::AcqRel, Ordering::Acquire, |asked| asked.checked_sub(1)).is_ok()
    }

    /// Raises the demand, and wakes the backlog loop.
    pub(crate) fn ask(&self, count: usize) {
        self.asked.fetch_add(count, Ordering::AcqRel);
        if let Some(wakeup) = self.backlog_wakeup.get() {
            wakeup.notify_one();
        }
    }

    /// Lowers the demand by the events that a consumer did not receive.
    fn withdraw(&self, count: usize) {
        let less = |asked: usize| Some(asked.saturating_sub(count));
        let _ = self.asked.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// The error of an event that no consumer took, or that a closing queue gave back: it returns to the backlog, no attempt charged.
#[derive(Debug, thiserror::Error)]
#[error("no consumer fetches events at the moment")]
pub(crate) struct GivenBack;

/// Identifies one lease. Random, so that it cannot be guessed.
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

/// The lease has ended, and another consumer may have the event; or there never was such a lease.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no such lease, or it has ended: the event is given out again; fetch again, and extend a lease that is too short"
)]
pub struct LeaseLost;

/// Error of an ack, a nack or an extension.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The lease has ended, or another process has taken the event over. Nothing was changed.
    #[error(transparent)]
    Lost(#[from] LeaseLost),
    /// The store did not answer. The event may be settled; otherwise it is given out again.
    #[error("whether the event is settled is not known, and it may be given out again: {0}")]
    Store(#[from] StoreError),
}

/// A fetched event.
#[derive(Debug)]
pub struct Leased {
    /// Identifies the lease in [`ack`](PullQueue::ack), [`nack`](PullQueue::nack) and [`extend`](PullQueue::extend).
    pub token: LeaseToken,
    /// The event.
    pub event: Event,
    /// When the lease ends, unless it is extended.
    pub until: Timestamp,
}

/// An event in the hands of a consumer.
#[derive(Debug)]
struct Lease {
    /// Takes how the lease ended; dropped without a result, the event is given back.
    outcome: oneshot::Sender<Result<(), Failure>>,
    /// In steady time.
    ends: Timestamp,
    /// The clock of the bus.
    clock: Clock,
    claim: HeldClaim,
}

/// An event on its way to a consumer.
#[derive(Debug)]
struct Offer {
    event: Event,
    /// Accepts with a lease; dropped without one, the event is given back.
    accept: oneshot::Sender<Accepted>,
}

#[derive(Debug)]
struct Accepted {
    token: LeaseToken,
    outcome: oneshot::Receiver<Result<(), Failure>>,
}

#[derive(Debug, Default)]
struct State {
    /// Waiting consumers, first come, first served.
    pullers: VecDeque<Puller>,
    leases: HashMap<LeaseToken, Lease>,
    next_puller: u64,
    is_closed: bool,
}

/// A consumer that waits for events.
#[derive(Debug)]
struct Puller {
    number: u64,
    wants: usize,
    offers: mpsc::UnboundedSender<Offer>,
}

/// Request for events: their maximum number, the time of their lease, and the time to wait for the first one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PullRequest {
    /// The largest number of events.
    pub limit: usize,
    /// Time for which each event is leased.
    pub lease: Duration,
    /// Maximum time to wait for the first event.
    pub wait: Duration,
}

/// The queue of a pull subscription. Cheap to clone; all clones are one queue.
///
/// ```
/// # async fn consume(bus: &redrive::EventBus) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use redrive::pull::{PullQueue, PullRequest};
///
/// let queue = PullQueue::new();
/// bus.subscribe_queue("order.*", &queue).name("billing").register()?;
/// let request = PullRequest { limit: 10, lease: Duration::from_secs(30), wait: Duration::from_secs(5) };
/// for leased in queue.pull(request).await {
///     println!("{}", leased.event.payload());
///     queue.ack(leased.token).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PullQueue {
    demand: Arc<Demand>,
    // A std mutex: locked for a few instructions, never across an await.
    state: Arc<Mutex<State>>,
}

impl PullQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn demand(&self) -> Arc<Demand> {
        Arc::clone(&self.demand)
    }

    /// Fetches events and leases them. Waits for the first one, then takes those that are ready; fewer if payloads are large.
    pub async fn pull(&self, request: PullRequest) -> Vec<Leased> {
        let PullRequest { limit, lease, wait } = request;
        let mut pulling = self.begin(limit);
        let (mut offers, mut bytes) = (Vec::<Offer>::new(), 0);
        let mut deadline = tokio::time::Instant::now() + wait;
        while offers.len() < limit && bytes < MAX_BATCH_BYTES {
            match tokio::time::timeout_at(deadline, pulling.offers.recv()).await {
                Ok(Some(offer)) => {
                    if offers.is_empty() {
                        deadline = deadline.min(tokio::time::Instant::now() + BATCH_WAIT);
                    }
                    bytes += offer.event.payload().len();
                    offers.push(offer);
                }
                Ok(None) | Err(_) => break,
            }
        }
        drop(pulling); // later offers go to other consumers
        offers.into_iter().filter_map(|offer| self.lease(offer, lease)).collect()
    }

    fn begin(&self, limit: usize) -> Pulling<'_> {
        let (sender, offers) = mpsc::unbounded_channel();
        let mut state = lock(&self.state);
        let number = state.next_puller;
        state.next_puller += 1;
        if !state.is_closed {
            state.pullers.push_back(Puller { number, wants: limit, offers: sender });
        }
        drop(state);
        self.demand.ask(limit);
        Pulling { queue: self, number, limit, offers }
    }

    fn lease(&self, offer: Offer, lease: Duration) -> Option<Leased> {
        let Offer { event, accept } = offer;
        let (token, clock, claim) = (LeaseToken(Uuid::new_v4()), event.clock.clone(), event.claim.clone());
        // Leases end by steady time; the consumer learns what the clock will show then.
        let ends = clock.steady() + lease;
        let until = clock.at_steady(ends);
        let (sender, outcome) = oneshot::channel();
        {
            let mut state = lock(&self.state);
            if state.is_closed {
                return None;
            }
            state.leases.insert(token, Lease { outcome: sender, ends, clock, claim });
        }
        if accept.send(Accepted { token, outcome }).is_err() {
            lock(&self.state).leases.remove(&token); // the bus has dropped the delivery meanwhile
            return None;
        }
        Some(Leased { token, event, until })
    }

    /// Ends a lease with this outcome, and waits until the store has settled it.
    async fn end(&self, token: LeaseToken, outcome: Result<(), Failure>) -> Result<(), LeaseError> {
        let Lease { outcome: sender, claim, .. } =
            lock(&self.state).leases.remove(&token).ok_or(LeaseLost)?;
        if claim.is_shared() {
            // The whole event is settled after its other handlers, which may take long.
            if !claim.is_held().await? {
                return Err(LeaseLost.into());
            }
            return Ok(sender.send(outcome).map_err(|_| LeaseLost)?);
        }
        let settlement = claim.settlement();
        sender.send(outcome).map_err(|_| LeaseLost)?;
        if settlement.completes().await? { Ok(()) } else { Err(LeaseLost.into()) }
    }

    /// Acknowledges an event: it is handled. Returns when that is stored.
    pub async fn ack(&self, token: LeaseToken) -> Result<(), LeaseError> {
        self.end(token, Ok(())).await
    }

    /// Reports that an event failed. It is retried according to its policy, and not before `delay` has passed. Returns when that is
    /// stored.
    pub async fn nack(
        &self,
        token: LeaseToken,
        delay: Option<Duration>,
        reason: Option<String>,
    ) -> Result<(), LeaseError> {
        let reason = reason.unwrap_or_else(|| "refused by its consumer".to_owned());
        let failure = match delay {
            Some(delay) => reason.retry_after(delay),
            None => Failure::new(reason),
        };
        self.end(token, Err(failure)).await
    }

    /// Reports that no attempt at an event can succeed: it goes to the dead-letter queue at once. Returns when that is stored.
    pub async fn reject(&self, token: LeaseToken, reason: Option<String>) -> Result<(), LeaseError> {
        let reason = reason.unwrap_or_else(|| "rejected by its consumer".to_owned());
        self.end(token, Err(reason.permanent())).await
    }

    /// Gives an event back that is delivered again after `wait`, at least a millisecond. No attempt is charged. Returns when that is stored.
    pub async fn snooze(&self, token: LeaseToken, wait: Duration) -> Result<(), LeaseError> {
        self.end(token, Err(Failure::new(Snooze::new(wait)))).await
    }

    /// Extends a lease to this long from now; returns its new end.
    pub async fn extend(&self, token: LeaseToken, lease: Duration) -> Result<Timestamp, LeaseError> {
        let claim =
            lock(&self.state).leases.get(&token).map(|leased| leased.claim.clone()).ok_or(LeaseLost)?;
        if !claim.is_held().await? {
            self.release(token);
            return Err(LeaseLost.into());
        }
        let mut state = lock(&self.state);
        let leased = state.leases.get_mut(&token).ok_or(LeaseLost)?;
        leased.ends = leased.clock.steady() + lease;
        Ok(leased.clock.at_steady(leased.ends))
    }

    /// Gives an event back that its consumer cannot take: it returns to the backlog, no attempt charged.
    pub fn release(&self, token: LeaseToken) {
        let released = lock(&self.state).leases.remove(&token);
        drop(released); // wakes the delivery, without the lock
    }

    /// Returns the number of leased events.
    pub fn leased(&self) -> usize {
        lock(&self.state).leases.len()
    }

    /// Closes the queue. Leased events return to the backlog, no attempt charged.
    pub fn close(&self) {
        let closed = State { is_closed: true, ..State::default() };
        let open = std::mem::replace(&mut *lock(&self.state), closed);
        drop(open); // wakes waiting consumers and the deliveries of leased events, without the lock
    }
}

/// A waiting consumer; dropping it withdraws its demand.
struct Pulling<'a> {
    queue: &'a PullQueue,
    number: u64,
    limit: usize,
    offers: mpsc::UnboundedReceiver<Offer>,
}

impl Drop for Pulling<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        let index = state.pullers.iter().position(|puller| puller.number == self.number);
        // A closed queue has no pullers: the whole demand is withdrawn.
        let wanted = index.and_then(|index| state.pullers.remove(index)).map_or(self.limit, |one| one.wants);
        drop(state);
        self.queue.demand.withdraw(wanted);
    }
}

/// Removes a lease when the bus drops the delivery.
struct RemoveOnDrop<'a> {
    queue: &'a PullQueue,
    token: LeaseToken,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.queue.state).leases.remove(&self.token);
    }
}

impl Handler for PullQueue {
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        let queue = self.clone();
        Box::pin(async move {
            let clock = event.clock.clone();
            let Some(accepted) = queue.offer(event) else { return Err(Failure::new(GivenBack)) };
            let Ok(Accepted { token, mut outcome }) = accepted.await else {
                return Err(Failure::new(GivenBack));
            };
            let _remove = RemoveOnDrop { queue: &queue, token };
            let began = clock.steady();
            loop {
                let now = clock.steady();
                let end = {
                    let mut state = lock(&queue.state);
                    let end = state.leases.get(&token).map(|lease| lease.ends);
                    if let Some(end) = end.filter(|end| *end <= now) {
                        state.leases.remove(&token);
                        return Err(Failure::timeout(end.since(began)));
                    }
                    end
                };
                // A lease that is gone has ended, and its outcome is there or comes at once.
                let wait = end.map_or(Duration::ZERO, |end| end.since(now));
                tokio::select! {
                    biased;
                    said = &mut outcome => return said.unwrap_or_else(|_| Err(Failure::new(GivenBack))),
                    () = clock.sleep(wait.max(Duration::from_millis(1))) => {}
                }
            }
        })
    }
}

impl PullQueue {
    /// Offers an event to the consumer that has waited longest.
    fn offer(&self, event: Event) -> Option<oneshot::Receiver<Accepted>> {
        let mut state = lock(&self.state);
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
