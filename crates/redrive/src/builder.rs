//! The builder of a bus: retry policy, tracking, durability, limits.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::audit::{AuditSink, TracingSink};
use redrive_retry::setters;
use redrive_retry::{Clock, RetryPolicy};
use redrive_store::Durability;

use crate::middleware::Middleware;

/// The unit of retries: the event, or each subscription's delivery.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Tracking {
    /// Handlers of an event run one after the other. If one fails, the whole event is retried: handlers that succeeded run again, unless
    /// they are [idempotent](crate::subscription::Subscribe::idempotent).
    #[default]
    Event,
    /// Each subscription has a delivery with its own attempts, backoff and dead letter. A handler that succeeded does not run again.
    PerSubscription,
}

/// The end of an event that no subscription on record matches at its first dispatch: done or dead letter.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// It is done, and counted.
    #[default]
    Done,
    /// It goes to the dead-letter queue.
    DeadLetter,
}

/// The settings of a bus, each with a default; see [`EventBus::builder`](crate::EventBus::builder).
#[must_use = "a builder does nothing until open()"]
pub struct EventBusBuilder {
    pub(crate) policy: RetryPolicy,
    pub(crate) tracking: Tracking,
    pub(crate) unmatched: Unmatched,
    pub(crate) durability: Durability,
    pub(crate) retention: Option<Duration>,
    pub(crate) in_flight: usize,
    pub(crate) max_payload: usize,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) seed: u64,
    /// `None` for the store's clock.
    pub(crate) clock: Option<Clock>,
    pub(crate) audit: Arc<dyn AuditSink>,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
}

impl Default for EventBusBuilder {
    fn default() -> Self {
        EventBusBuilder {
            policy: RetryPolicy::bus(),
            tracking: Tracking::Event,
            unmatched: Unmatched::Done,
            durability: Durability::Full,
            retention: Some(Duration::from_secs(7 * 24 * 3600)),
            in_flight: 1024,
            max_payload: 1 << 20,
            shutdown_timeout: Duration::from_secs(30),
            seed: 0,
            clock: None,
            audit: Arc::new(TracingSink),
            middleware: Vec::new(),
        }
    }
}

impl EventBusBuilder {
    setters! {
        /// Sets the retry policy, which subscriptions and events can override. Default: 3 retries, 1 s doubling up to 30 s, ±10 %.
        policy(policy: RetryPolicy) => policy = policy;
        /// Sets what is retried together: the event or each delivery. Default: the event.
        tracking(tracking: Tracking) => tracking = tracking;
        /// Sets what becomes of an event that no subscription matches. Default: done, and counted.
        unmatched(unmatched: Unmatched) => unmatched = unmatched;
        /// Sets what a publish guarantees when it returns. Default: the event is on stable storage.
        durability(durability: Durability) => durability = durability;
        /// Sets how long handled events are kept; `None` for ever. Default: 7 days.
        retention(retention: Option<Duration>) => retention = retention;
        /// Limits the deliveries in flight; further ones wait on disk. Default: 1024.
        in_flight(limit: usize) => in_flight = limit.max(1);
        /// Limits the size of a payload, in bytes. Default: 1 MiB.
        max_payload(bytes: usize) => max_payload = bytes;
        /// Limits the time that a shutdown waits for running handlers. Default: 30 s.
        shutdown_timeout(timeout: Duration) => shutdown_timeout = timeout;
        /// Sets the seed of the jitter, which is a keyed hash and so can be replayed. Default: 0.
        seed(seed: u64) => seed = seed;
        /// Sets the clock. Default: the store's, which is the machine's clock for a file and the database's for a server, so that all processes
        /// agree on due times.
        clock(clock: Clock) => clock = Some(clock);
        /// Sets the sink of retry log entries. Default: `tracing`.
        audit(sink: impl AuditSink + 'static) => audit = Arc::new(sink);
    }

    /// Wraps every handler in middleware. The first one is outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }
}

impl std::fmt::Debug for EventBusBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventBusBuilder").field("policy", &self.policy).finish_non_exhaustive()
    }
}
