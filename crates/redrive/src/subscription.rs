//! A subscription: pattern, handler, and how it wants to be treated.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redrive_retry::{BreakerConfig, BreakerSnapshot, BudgetConfig, RetryOverride, Timestamp};
use redrive_store::{SubscriptionName, SubscriptionRow};
use tokio::sync::Notify;

use crate::budget::Budget;
use crate::bus::EventBus;
use crate::circuit::Circuit;
use crate::error::BusError;
use crate::handler::Handler;
use crate::lane::{Lane, Limits};
use crate::metrics::SubscriptionCounters;
use crate::middleware::Middleware;
use crate::pattern::Patterns;
use crate::pull::Demand;

/// The default time a handler may take.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A subscription of this bus. Its handler lives in memory only; what is on disk is a [`SubscriptionRow`].
pub struct Subscription {
    pub(crate) id: String,
    pub(crate) name: SubscriptionName,
    pub(crate) patterns: Patterns,
    pub(crate) created_at: Timestamp,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) timeout: Duration,
    pub(crate) retry: Option<RetryOverride>,
    pub(crate) circuit: Circuit,
    /// Nothing where retries are not limited.
    pub(crate) budget: Option<Budget>,
    pub(crate) is_idempotent: bool,
    pub(crate) counters: Arc<SubscriptionCounters>,
    /// Nothing where nothing is limited.
    pub(crate) lane: Option<Arc<Lane>>,
    /// Whether its work is done in another process.
    pub(crate) is_elsewhere: bool,
    /// What is held on disk for it where nothing is limited: by one of its name that was, here, before, or in another process.
    pub(crate) holding: Holding,
}

/// Whether something may be held on disk.
#[derive(Debug)]
pub(crate) struct Holding {
    /// How often something may have been put there.
    put: AtomicU64,
    /// How often, when nothing was found last.
    seen: AtomicU64,
}

impl Default for Holding {
    fn default() -> Self {
        Holding { put: AtomicU64::new(1), seen: AtomicU64::new(0) }
    }
}

impl Holding {
    /// Something may have been put there.
    pub(crate) fn put(&self) {
        self.put.fetch_add(1, Ordering::AcqRel);
    }

    /// Something may be there; and how often something may have been put there up to now.
    pub(crate) fn may_be(&self) -> Option<u64> {
        let put = self.put.load(Ordering::Acquire);
        (put != self.seen.load(Ordering::Acquire)).then_some(put)
    }

    /// All of it that was there up to then was found.
    pub(crate) fn found_all(&self, put: u64) {
        self.seen.store(put, Ordering::Release);
    }
}

impl Subscription {
    /// Something is held for it on disk, or may be.
    pub(crate) fn is_held(&self, room: &Notify) {
        match &self.lane {
            Some(lane) => lane.is_held(),
            None => {
                self.holding.put();
                room.notify_one();
            }
        }
    }

    /// Its id: a UUID, the same at every start as long as the name is the same.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its stable name.
    pub fn name(&self) -> &SubscriptionName {
        &self.name
    }

    /// The patterns of the event types it wants.
    pub fn event_type(&self) -> &Patterns {
        &self.patterns
    }

    /// When it was first made.
    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// How long its handler may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What it wants of the retry policy, if anything.
    pub fn retry(&self) -> Option<&RetryOverride> {
        self.retry.as_ref()
    }

    /// Whether its handler, once it has succeeded for an event, is left out of further attempts at that event.
    pub fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    /// How its circuit stands: that of all processes, if it has one in common with them and that is not closed; else that of
    /// this one.
    pub fn breaker(&self) -> BreakerSnapshot {
        self.circuit.snapshot()
    }

    /// How many retries its budget has saved up, or this process's part of it; `None` if it has none.
    pub fn retries_left(&self) -> Option<u32> {
        self.budget.as_ref().map(Budget::left)
    }

    /// Until when it is closed because a failure said so; only one with [limits](Subscribe::limits) is.
    pub fn throttled_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.lane.as_ref()?.closed_until(now)
    }

    /// As it is kept on disk.
    pub(crate) fn row(&self) -> SubscriptionRow {
        SubscriptionRow {
            id: self.id.clone(),
            name: self.name.clone(),
            event_type: self.patterns.to_string(),
            created_at: self.created_at,
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("event_type", &self.patterns)
            .finish_non_exhaustive()
    }
}

/// Whether there may be one of this name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    New,
    Instead,
}

/// A subscription about to be made; see [`EventBus::subscribe`].
#[must_use = "nothing is subscribed until register()"]
pub struct Subscribe<'a> {
    pub(crate) bus: &'a EventBus,
    pub(crate) pattern: String,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    pub(crate) name: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) retry: Option<RetryOverride>,
    pub(crate) breaker: BreakerConfig,
    pub(crate) has_common_circuit: bool,
    pub(crate) budget: Option<BudgetConfig>,
    pub(crate) has_common_budget: bool,
    pub(crate) is_idempotent: bool,
    pub(crate) limits: Option<Limits>,
    pub(crate) is_addressed_only: bool,
    pub(crate) is_elsewhere: bool,
    pub(crate) is_afresh: bool,
    pub(crate) demand: Option<Arc<Demand>>,
}

impl Subscribe<'_> {
    /// A stable name, so that what the subscription is owed survives a restart. Otherwise it is derived from the pattern
    /// and the order of subscribing.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How long the handler may take; then it is dropped. Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Another retry policy than the bus's, field by field.
    pub fn retry(mut self, retry: RetryOverride) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Another circuit breaker than the default.
    pub fn breaker(mut self, config: BreakerConfig) -> Self {
        self.breaker = config;
        self
    }

    /// Has a circuit in common with all processes that share the database, beside the one of this process. It opens for all when
    /// the failures of all open it, and still do when any one process is left out: one bad node stops itself, and nobody else.
    /// One probe, by whichever process is there, closes it for all.
    ///
    /// On a file there is no other process, and it changes nothing.
    ///
    /// ```
    /// # use redrive::{BoxError, Event, EventBus};
    /// # fn subscribe(bus: &EventBus) -> Result<(), BoxError> {
    /// bus.subscribe("order.*", |_event: Event| async { Ok::<_, BoxError>(()) }).name("mail").shared_breaker().register()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_breaker(mut self) -> Self {
        self.has_common_circuit = true;
        self
    }

    /// Limits retries: they may not exceed a share of first attempts. Each first attempt pays in, each later one is paid for before
    /// the handler is called. While there is nothing to pay with, what is to be tried again waits on disk and asks now and then; no
    /// attempt is used up, and nothing is given up for it unless the policy has a deadline.
    ///
    /// With [`Tracking::Event`](crate::Tracking::Event) every call after the event's first attempt is a retry, whichever handler
    /// has failed.
    ///
    /// ```
    /// # use redrive::{BoxError, BudgetConfig, Event, EventBus};
    /// # fn subscribe(bus: &EventBus) -> Result<(), BoxError> {
    /// let budget = BudgetConfig::new(0.1, 100, 1.0)?; // one for ten first attempts, 100 saved up, one a second in any case
    /// bus.subscribe("order.*", |_event: Event| async { Ok::<_, BoxError>(()) }).name("mail").retry_budget(budget).register()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn retry_budget(mut self, config: BudgetConfig) -> Self {
        self.budget = Some(config);
        self
    }

    /// All processes that share the database keep to one budget together: the one of [`retry_budget`](Self::retry_budget), or the
    /// default one. It is divided equally among those that are there, so a bad node spends its own part and nobody else's.
    ///
    /// On a file there is no other process, and the budget is this one's.
    ///
    /// ```
    /// # use redrive::{BoxError, Event, EventBus};
    /// # fn subscribe(bus: &EventBus) -> Result<(), BoxError> {
    /// bus.subscribe("order.*", |_event: Event| async { Ok::<_, BoxError>(()) }).name("mail").shared_budget().register()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_budget(mut self) -> Self {
        self.has_common_budget = true;
        self
    }

    /// Runs the handler's effect for an event once: when it has succeeded and a later handler of the same event fails, that is
    /// recorded in the transaction that settles the attempt, and the next attempts leave this handler out, after a restart and
    /// in other processes, too. It is left out as well when the event is sent back from the dead-letter queue, unless it is
    /// sent back with another payload.
    ///
    /// An event that succeeds at its first attempt costs nothing more. With
    /// [`Tracking::PerSubscription`](crate::Tracking::PerSubscription) every handler has attempts of its own, and nothing is to
    /// be recorded.
    ///
    /// What is not settled is not recorded: if the process dies between the handler's effect and the end of the attempt, the
    /// handler runs again. [`Event::idempotency_key`](crate::Event::idempotency_key) is for that.
    ///
    /// ```
    /// # use redrive::{BoxError, Event, EventBus};
    /// # fn subscribe(bus: &EventBus) -> Result<(), BoxError> {
    /// bus.subscribe("order.paid", |_event: Event| async { Ok::<_, BoxError>(()) }).name("mail").idempotent().register()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    /// Limits how much of it is under way at once, and how fast. What finds no room waits on disk, is called up oldest first, and holds
    /// nobody else up; what is published meanwhile may overtake it. A failure that says when to try again ([`retry_after`](crate::ClassifyError::retry_after)) closes the
    /// subscription until then, and not only the event that failed.
    ///
    /// Where several processes share a database, the limits are those of each.
    ///
    /// ```
    /// # use redrive::{BoxError, Event, EventBus, Limits};
    /// # fn subscribe(bus: &EventBus) -> Result<(), BoxError> {
    /// let limits = Limits { concurrency: 8, per_second: Some(50.0) };
    /// bus.subscribe("order.*", |_event: Event| async { Ok::<_, BoxError>(()) }).name("mail").limits(limits).register()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Its handler only asks another process, so that it cannot be what kills this one. What was under way at two deaths is then tried
    /// among others, and not alone: nobody waits for it.
    pub fn elsewhere(mut self) -> Self {
        self.is_elsewhere = true;
        self
    }

    /// Gets nothing but what it is owed already, or is given by hand: for one that is about to go.
    pub fn addressed_only(mut self) -> Self {
        self.is_addressed_only = true;
        self
    }

    /// What the one in whose place it comes was asked to wait for, and how much it has used of its limits, does not concern it: it is
    /// somebody else behind the same name.
    pub fn afresh(mut self) -> Self {
        self.is_afresh = true;
        self
    }

    /// Something around this handler, inside of what stands around all of them. The first one is outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Subscribes, and returns the subscription's id.
    pub fn register(self) -> Result<String, BusError> {
        self.bus.register(self, Registration::New)
    }

    /// The same, instead of the subscription of the same name if there is one: no event comes between. How its circuit stands and
    /// what its budget has saved up begins anew; what runs goes on.
    pub fn replace(self) -> Result<String, BusError> {
        self.bus.register(self, Registration::Instead)
    }
}

impl fmt::Debug for Subscribe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscribe")
            .field("pattern", &self.pattern)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
