//! Subscribes a handler or a pull queue. The builder sets name, timeout, retry policy, breaker, budget, limits and middleware.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::breaker::BreakerConfig;
use redrive_retry::budget::BudgetConfig;
use redrive_retry::setters;
use redrive_retry::{BoxError, Failure, RetryOverride};

use crate::bus::EventBus;
use crate::error::BusError;
use crate::event::Event;
use crate::handler::Handler;
use crate::limiter::Limits;
use crate::middleware::Middleware;
use crate::payload::EventPayload;
use crate::pull::PullQueue;
use crate::subscription_handle::SubscriptionHandle;

/// The default timeout of a handler.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of events of a pull queue that are passed to consumers at once; leased events are not counted.
const PULL_LIMITS: Limits = Limits { concurrency: 1000, per_second: None };

/// Whether a registration may replace a subscription of the same name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    New,
    Replace,
}

/// A subscription to be registered; see [`EventBus::subscribe`].
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
    pub(crate) has_shared_breaker: bool,
    pub(crate) budget: Option<BudgetConfig>,
    pub(crate) has_shared_budget: bool,
    pub(crate) is_idempotent: bool,
    pub(crate) limits: Option<Limits>,
    pub(crate) drains_only: bool,
    pub(crate) is_remote_effect: bool,
    pub(crate) resets_limits: bool,
    pub(crate) queue: Option<PullQueue>,
}

impl EventBus {
    /// Subscribes a handler to the event types that a pattern matches, once [`register`](Subscribe::register) is called.
    pub fn subscribe(&self, pattern: impl Into<String>, handler: impl Handler) -> Subscribe<'_> {
        Subscribe::new(self, pattern.into(), Arc::new(handler))
    }

    /// Subscribes a handler that takes the payload as its type. A payload that does not fit becomes a dead letter at once.
    pub fn subscribe_typed<P, F, Fut, E>(&self, handler: F) -> Subscribe<'_>
    where
        P: EventPayload,
        F: Fn(P, Event) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.subscribe(P::TYPE, move |event: Event| {
            let handler = Arc::clone(&handler);
            async move {
                let payload = event.json::<P>()?;
                handler(payload, event).await.map_err(Failure::new)
            }
        })
    }

    /// Subscribes a queue from which consumers pull events. The consumer's lease takes the place of the timeout.
    pub fn subscribe_queue(&self, patterns: impl Into<String>, queue: &PullQueue) -> Subscribe<'_> {
        // A nack of one consumer says nothing about other consumers: the circuit never opens.
        let no_circuit =
            BreakerConfig::builder().min_samples(u32::MAX).build().expect("a valid configuration");
        let subscribe = self.subscribe(patterns, queue.clone()).limits(PULL_LIMITS);
        Subscribe { is_remote_effect: true, queue: Some(queue.clone()), ..subscribe.breaker(no_circuit) }
    }
}

impl<'a> Subscribe<'a> {
    fn new(bus: &'a EventBus, pattern: String, handler: Arc<dyn Handler>) -> Self {
        Subscribe {
            bus,
            pattern,
            handler,
            middleware: Vec::new(),
            name: None,
            timeout: DEFAULT_TIMEOUT,
            retry: None,
            breaker: BreakerConfig::default(),
            has_shared_breaker: false,
            budget: None,
            has_shared_budget: false,
            is_idempotent: false,
            limits: None,
            drains_only: false,
            is_remote_effect: false,
            resets_limits: false,
            queue: None,
        }
    }

    setters! {
        /// Sets a stable name, so that deliveries survive a restart. Default: the pattern and a number in order of subscribing.
        name(name: impl Into<String>) => name = Some(name.into());
        /// Sets the handler's timeout, after which its future is dropped. Default: 30 s.
        timeout(timeout: Duration) => timeout = timeout;
        /// Overrides the retry policy of the bus, field by field.
        retry(retry: RetryOverride) => retry = Some(retry);
        /// Configures the circuit breaker.
        breaker(config: BreakerConfig) => breaker = config;
        /// Limits retries to a share of first attempts. Each first attempt deposits, each retry withdraws before the handler is called.
        ///
        /// While the budget is spent, retries wait on disk. They use up no attempt and become no dead letters, unless the policy has a
        /// deadline. With [`Tracking::Event`](crate::Tracking::Event) every call after the event's first attempt is a retry, whichever handler
        /// failed.
        ///
        /// ```
        /// # use redrive::retry::budget::BudgetConfig;
        /// # use redrive::{Event, EventBus};
        /// # fn subscribe(bus: &EventBus) -> Result<(), Box<dyn std::error::Error>> {
        /// let budget = BudgetConfig::new(0.1, 100, 1.0)?; // one retry per ten first attempts, 100 saved up, one a second in any case
        /// bus.subscribe("order.*", async |_event: Event| Ok::<_, &str>(())).name("mail").retry_budget(budget).register()?;
        /// # Ok(())
        /// # }
        /// ```
        retry_budget(config: BudgetConfig) => budget = Some(config);
        /// Limits concurrency and rate. Deliveries over the limit wait in a backlog on disk, oldest first, and delay no other subscription.
        ///
        /// New events may overtake the backlog. A failure with [`retry_after`](crate::retry::ClassifyError::retry_after) throttles the whole
        /// subscription until then. If several processes share a database, each has these limits.
        ///
        /// ```
        /// # use redrive::{Event, EventBus, Limits};
        /// # fn subscribe(bus: &EventBus) -> Result<(), redrive::BusError> {
        /// let limits = Limits { concurrency: 8, per_second: Some(50.0) };
        /// bus.subscribe("order.*", async |_event: Event| Ok::<_, &str>(())).name("mail").limits(limits).register()?;
        /// # Ok(())
        /// # }
        /// ```
        limits(limits: Limits) => limits = Some(limits);
    }

    /// Adds a circuit breaker that all processes on the same database share, beside the one of this process.
    ///
    /// It opens for all when the failures of all open it, even with any one process left out: one bad node opens only its own breaker. One
    /// probe, by any process, closes it for all. On a SQLite file there is no other process, and nothing changes.
    ///
    /// ```
    /// # use redrive::{Event, EventBus};
    /// # fn subscribe(bus: &EventBus) -> Result<(), redrive::BusError> {
    /// bus.subscribe("order.*", async |_event: Event| Ok::<_, &str>(())).name("mail").shared_breaker().register()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_breaker(mut self) -> Self {
        self.has_shared_breaker = true;
        self
    }

    /// Shares one budget among all processes on the same database: that of [`retry_budget`](Self::retry_budget), or the default.
    ///
    /// The live processes divide it equally, so a bad node spends its own share only. On a SQLite file the budget belongs to this process.
    ///
    /// ```
    /// # use redrive::{Event, EventBus};
    /// # fn subscribe(bus: &EventBus) -> Result<(), redrive::BusError> {
    /// bus.subscribe("order.*", async |_event: Event| Ok::<_, &str>(())).name("mail").shared_budget().register()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_budget(mut self) -> Self {
        self.has_shared_budget = true;
        self
    }

    /// Leaves the handler out of further attempts at an event once it has succeeded.
    ///
    /// When a later handler of the same event fails, the success is stored in the transaction that settles the attempt. It holds after a
    /// restart, in other processes, and after a redrive from the dead-letter queue, unless the payload was edited. An event that succeeds
    /// at its first attempt costs nothing more. With [`Tracking::PerSubscription`](crate::Tracking::PerSubscription) every handler has its
    /// own attempts anyway.
    ///
    /// If the process dies between the handler's effect and the end of the attempt, the handler runs again: pass on
    /// [`Event::idempotency_key`](crate::Event::idempotency_key).
    ///
    /// ```
    /// # use redrive::{Event, EventBus};
    /// # fn subscribe(bus: &EventBus) -> Result<(), redrive::BusError> {
    /// bus.subscribe("order.paid", async |_event: Event| Ok::<_, &str>(())).name("mail").idempotent().register()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    /// Wraps this handler in middleware, inside of the middleware of the bus. The first one is outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Registers the subscription and returns a handle to pause, resume or remove it.
    pub fn register(self) -> Result<SubscriptionHandle, BusError> {
        self.register_as(Registration::New)
    }

    /// Registers the subscription in place of the one with the same name, if there is one, without missing an event.
    ///
    /// The circuit breaker and the retry budget are reset; running attempts continue with the old handler; a pause stays.
    pub fn replace(self) -> Result<SubscriptionHandle, BusError> {
        self.register_as(Registration::Replace)
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
