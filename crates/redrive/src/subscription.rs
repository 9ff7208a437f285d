//! A subscription: pattern, handler, and how it wants to be treated.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::{BreakerConfig, RetryOverride, SharedBreaker};
use redrive_store::SubscriptionName;

use crate::bus::EventBus;
use crate::error::BusError;
use crate::handler::Handler;
use crate::pattern::Pattern;

/// The default time a handler may take.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Subscription {
    pub(crate) name: SubscriptionName,
    pub(crate) id: String,
    pub(crate) pattern: Pattern,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) timeout: Duration,
    pub(crate) retry: Option<RetryOverride>,
    pub(crate) breaker: SharedBreaker,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("name", &self.name)
            .field("pattern", &self.pattern)
            .finish_non_exhaustive()
    }
}

/// A subscription about to be made; see [`EventBus::subscribe`].
#[must_use = "nothing is subscribed until register()"]
pub struct Subscribe<'a> {
    pub(crate) bus: &'a EventBus,
    pub(crate) pattern: String,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) name: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) retry: Option<RetryOverride>,
    pub(crate) breaker: BreakerConfig,
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

    /// Subscribes, and returns the subscription's id.
    pub fn register(self) -> Result<String, BusError> {
        self.bus.register(self)
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
