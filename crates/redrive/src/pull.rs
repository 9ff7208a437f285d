//! Pull consumers: a subscription whose events are fetched under a lease, and acknowledged.
//!
//! Events that no consumer has asked for wait in the backlog on disk. A fetched event is leased: the consumer acks, nacks or extends it
//! before the lease ends. After that the event is retried, and a late ack is refused.
//!
//! The lease is a row of the store: it outlives the process that granted it, and a queue of the same subscription in any process on the
//! store can end it. Between fetch and ack an event occupies no memory and no in-flight slot.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redrive_retry::{ClassifyError as _, Failure, Timestamp};
use redrive_store::{Leases, StoreError, SubscriptionName};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::core::Core;
use crate::dispatcher::{end_leases, release_in_background};
use crate::event::Event;
use crate::handler::{BoxFuture, Handler};
use crate::handover::{Demand, GivenBack, Grant, Handover};
use crate::lock::lock;
use crate::snooze::Snooze;

pub use redrive_store::{LeaseToken, NotALeaseToken};

/// Time for which a pull collects more events after the first one.
const BATCH_WAIT: Duration = Duration::from_millis(20);

/// A pull ends as soon as no further event arrives for this time, so a pull of a single event adds 2 ms.
const BATCH_GAP: Duration = Duration::from_millis(2);

/// A pull ends at this many bytes of payloads, with the event that crosses it.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// The longest lease. A consumer extends it for more.
const MAX_LEASE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The length of a lease within the bounds.
fn bounded(lease: Duration) -> Duration {
    lease.clamp(Duration::from_millis(1), MAX_LEASE)
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
    /// The lease has ended. Nothing was changed.
    #[error(transparent)]
    Lost(#[from] LeaseLost),
    /// The store did not answer. The event may be settled; otherwise it is given out again when the lease ends.
    #[error("whether the event is settled is not known, and it may be given out again: {0}")]
    Store(#[from] StoreError),
}

/// A fetched event.
#[derive(Debug)]
pub struct Leased {
    /// Identifies the lease in [`ack`](PullQueue::ack), [`nack`](PullQueue::nack) and [`extend`](PullQueue::extend), in any process on the
    /// same store.
    pub token: LeaseToken,
    /// The event.
    pub event: Event,
    /// When the lease ends, unless it is extended.
    pub until: Timestamp,
}

/// How a consumer ends a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// The event is handled.
    Ack,
    /// The event failed. It is retried according to its policy, and not before the delay has passed.
    Nack {
        /// The shortest time before the next attempt.
        delay: Option<Duration>,
        /// The error to record.
        reason: Option<String>,
    },
    /// No attempt at the event can succeed: it goes to the dead-letter queue at once.
    Reject {
        /// The error to record.
        reason: Option<String>,
    },
    /// The event is delivered again after this time, at least a millisecond. No attempt is charged.
    Snooze(Duration),
    /// The consumer cannot take the event: it returns to the backlog, no attempt charged.
    Release,
}

impl LeaseEnd {
    /// The result of the attempt.
    fn result(&self) -> Result<(), Failure> {
        let or = |reason: &Option<String>, other: &str| reason.clone().unwrap_or_else(|| other.to_owned());
        match self {
            LeaseEnd::Ack => Ok(()),
            LeaseEnd::Nack { delay, reason } => {
                let reason = or(reason, "refused by its consumer");
                Err(match delay {
                    Some(delay) => reason.retry_after(*delay),
                    None => Failure::new(reason),
                })
            }
            LeaseEnd::Reject { reason } => Err(or(reason, "rejected by its consumer").permanent()),
            LeaseEnd::Snooze(wait) => Err(Failure::new(Snooze::new(*wait))),
            LeaseEnd::Release => Err(Failure::new(GivenBack)),
        }
    }
}

/// An event on its way to a consumer.
#[derive(Debug)]
struct Offer {
    event: Event,
    until: Timestamp,
    /// Receives the token when the lease is stored. Dropped before, the event is given back.
    lease: oneshot::Receiver<LeaseToken>,
    /// The received token.
    token: Option<LeaseToken>,
}

#[derive(Debug, Default)]
struct State {
    /// The bus in which the queue is registered, and the names of its subscriptions.
    bus: Weak<Core>,
    names: Vec<SubscriptionName>,
    /// Waiting consumers, first come, first served.
    pullers: VecDeque<Puller>,
    next_puller: u64,
    is_closed: bool,
}

/// A consumer that waits for events.
#[derive(Debug)]
struct Puller {
    number: u64,
    wants: usize,
    /// Bytes of payload that it still takes; at 0 it gets no further offer.
    bytes_left: usize,
    lease: Duration,
    offers: mpsc::UnboundedSender<Offer>,
}

/// Request for events: their maximum number, the time of their lease, and the time to wait for the first one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PullRequest {
    /// The largest number of events.
    pub limit: usize,
    /// Time for which each event is leased, from a millisecond to seven days.
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

    /// Connects the queue to the bus of a subscription.
    pub(crate) fn registered(&self, core: &Arc<Core>, name: &SubscriptionName) {
        let mut state = lock(&self.state);
        if !std::ptr::eq(state.bus.as_ptr(), Arc::as_ptr(core)) {
            state.bus = Arc::downgrade(core);
            state.names.clear();
        }
        if !state.names.contains(name) {
            state.names.push(name.clone());
        }
    }

    /// Fetches events and leases them. Waits for the first one, then takes those that are ready; fewer if payloads are large. Returns when
    /// the leases are stored.
    pub async fn pull(&self, request: PullRequest) -> Vec<Leased> {
        let PullRequest { limit, lease, wait } = request;
        let mut pulling = self.begin(limit, bounded(lease));
        let (mut offered, mut bytes) = (Offered { queue: self, offers: Vec::new() }, 0);
        let (mut deadline, mut batch_end) = (Instant::now() + wait, None);
        while offered.offers.len() < limit && bytes < MAX_BATCH_BYTES {
            match tokio::time::timeout_at(deadline, pulling.offers.recv()).await {
                Ok(Some(offer)) => {
                    let now = Instant::now();
                    deadline = (now + BATCH_GAP).min(*batch_end.get_or_insert(now + BATCH_WAIT));
                    bytes += offer.event.payload().len();
                    offered.offers.push(offer);
                }
                Ok(None) | Err(_) => break,
            }
        }
        drop(pulling); // later offers go to other consumers
        offered.leased().await
    }

    fn begin(&self, limit: usize, lease: Duration) -> Pulling<'_> {
        let (sender, offers) = mpsc::unbounded_channel();
        let mut state = lock(&self.state);
        let number = state.next_puller;
        state.next_puller += 1;
        if !state.is_closed {
            let puller = Puller { number, wants: limit, bytes_left: MAX_BATCH_BYTES, lease, offers: sender };
            state.pullers.push_back(puller);
        }
        drop(state);
        self.demand.ask(limit);
        Pulling { queue: self, number, limit, offers }
    }

    /// The bus, and these leases of the queue's subscriptions; `None` if the queue is not registered, so that it can have no leases.
    fn leases(&self, tokens: Vec<LeaseToken>) -> Option<(Arc<Core>, Leases)> {
        let state = lock(&self.state);
        Some((state.bus.upgrade()?, Leases { names: state.names.clone(), tokens }))
    }

    /// Ends leases in the same way, sharing commits, and returns for each whether it was still held. Returns when the results are stored.
    pub async fn end_all(
        &self,
        tokens: Vec<LeaseToken>,
        end: LeaseEnd,
    ) -> Result<Vec<Result<(), LeaseLost>>, StoreError> {
        let count = tokens.len();
        let Some((core, leases)) = self.leases(tokens) else { return Ok(vec![Err(LeaseLost); count]) };
        let ended = end_leases(core, leases, move || end.result()).await?;
        Ok(ended.into_iter().map(|was_held| if was_held { Ok(()) } else { Err(LeaseLost) }).collect())
    }

    async fn end(&self, token: LeaseToken, end: LeaseEnd) -> Result<(), LeaseError> {
        Ok(self.end_all(vec![token], end).await?.pop().unwrap_or(Err(LeaseLost))?)
    }

    /// Acknowledges an event: it is handled. Returns when that is stored.
    pub async fn ack(&self, token: LeaseToken) -> Result<(), LeaseError> {
        self.end(token, LeaseEnd::Ack).await
    }

    /// Reports that an event failed. It is retried according to its policy, and not before `delay` has passed. Returns when that is
    /// stored.
    pub async fn nack(
        &self,
        token: LeaseToken,
        delay: Option<Duration>,
        reason: Option<String>,
    ) -> Result<(), LeaseError> {
        self.end(token, LeaseEnd::Nack { delay, reason }).await
    }

    /// Reports that no attempt at an event can succeed: it goes to the dead-letter queue at once. Returns when that is stored.
    pub async fn reject(&self, token: LeaseToken, reason: Option<String>) -> Result<(), LeaseError> {
        self.end(token, LeaseEnd::Reject { reason }).await
    }

    /// Gives an event back that is delivered again after `wait`, at least a millisecond. No attempt is charged. Returns when that is stored.
    pub async fn snooze(&self, token: LeaseToken, wait: Duration) -> Result<(), LeaseError> {
        self.end(token, LeaseEnd::Snooze(wait)).await
    }

    /// Gives an event back that its consumer cannot take: it returns to the backlog, no attempt charged. Returns when that is stored.
    pub async fn release(&self, token: LeaseToken) -> Result<(), LeaseError> {
        self.end(token, LeaseEnd::Release).await
    }

    /// Extends leases to this long from now; returns the new end of each that was still held.
    pub async fn extend_all(
        &self,
        tokens: Vec<LeaseToken>,
        lease: Duration,
    ) -> Result<Vec<Result<Timestamp, LeaseLost>>, StoreError> {
        let count = tokens.len();
        let Some((core, leases)) = self.leases(tokens) else { return Ok(vec![Err(LeaseLost); count]) };
        let now = core.clock.now();
        let until = now + bounded(lease);
        let extended = core.store.extend_leases(leases, now, until).await?;
        Ok(extended.into_iter().map(|was_held| was_held.then_some(until).ok_or(LeaseLost)).collect())
    }

    /// Extends a lease to this long from now; returns its new end.
    pub async fn extend(&self, token: LeaseToken, lease: Duration) -> Result<Timestamp, LeaseError> {
        Ok(self.extend_all(vec![token], lease).await?.pop().unwrap_or(Err(LeaseLost))?)
    }

    /// Ends all pulls; later ones return nothing. Leased events stay leased.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let pullers = std::mem::take(&mut state.pullers);
        drop(state);
        drop(pullers); // wakes waiting consumers, without the lock
    }

    /// Offers an event to the consumer that has waited longest.
    fn offer(&self, event: Event) -> Handover {
        let mut state = lock(&self.state);
        let (consumer, lease) = oneshot::channel();
        let (now, size) = (event.clock.now(), event.payload().len());
        let mut offer = Offer { event, until: now, lease, token: None };
        for puller in state.pullers.iter_mut().filter(|puller| puller.wants > 0) {
            offer.until = now + puller.lease;
            offer.event.deadline = offer.event.clock.steady() + puller.lease;
            let until = offer.until;
            match puller.offers.send(offer) {
                Ok(()) => {
                    puller.wants -= 1;
                    puller.bytes_left = puller.bytes_left.saturating_sub(size);
                    if puller.bytes_left == 0 {
                        self.demand.withdraw(std::mem::take(&mut puller.wants));
                    }
                    return Handover::Accepted(Grant { until, consumer });
                }
                Err(refused) => offer = refused.0,
            }
        }
        Handover::GivenBack
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
        // Offers may have arrived after the last one that was taken.
        let mut offers = Vec::new();
        self.offers.close();
        while let Ok(offer) = self.offers.try_recv() {
            offers.push(offer);
        }
        drop(Offered { queue: self.queue, offers });
    }
}

/// Events on their way to one consumer; those that it does not take are released.
struct Offered<'a> {
    queue: &'a PullQueue,
    offers: Vec<Offer>,
}

impl Offered<'_> {
    /// Waits until the leases are stored. Leaves out those that the store refused.
    async fn leased(mut self) -> Vec<Leased> {
        for offer in &mut self.offers {
            offer.token = (&mut offer.lease).await.ok();
        }
        let leased =
            |offer: Offer| offer.token.map(|token| Leased { token, event: offer.event, until: offer.until });
        std::mem::take(&mut self.offers).into_iter().filter_map(leased).collect()
    }
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        let stored = |mut offer: Offer| {
            offer.lease.close(); // the dispatcher gives back what is not stored yet
            offer.token.or_else(|| offer.lease.try_recv().ok())
        };
        let tokens: Vec<LeaseToken> = self.offers.drain(..).filter_map(stored).collect();
        if let Some((core, leases)) =
            self.queue.leases(tokens).filter(|(_, leases)| !leases.tokens.is_empty())
        {
            release_in_background(&core, leases);
        }
    }
}

impl Handler for PullQueue {
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        let queue = self.clone();
        Box::pin(async move {
            let recorded = Arc::clone(&event.recorded);
            let handover = queue.offer(event);
            lock(&recorded).handover = Some(handover);
            Ok(())
        })
    }
}
