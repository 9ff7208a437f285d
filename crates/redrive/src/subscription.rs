//! A registered subscription: patterns, handler and settings, known by its name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::breaker::BreakerSnapshot;
use redrive_retry::{RetryOverride, Timestamp};
pub use redrive_store::{SubscriptionName, SubscriptionRow};

use crate::admission::Admission;
use crate::budget::Budget;
use crate::handler::Handler;
use crate::metrics::SubscriptionCounters;
pub use crate::pattern::{Pattern, PatternError, Patterns};
pub use crate::subscribe::Subscribe;

/// A subscription of this bus. The handler exists in memory only; the store keeps a [`SubscriptionRow`].
pub struct Subscription {
    pub(crate) id: String,
    pub(crate) name: SubscriptionName,
    pub(crate) patterns: Patterns,
    pub(crate) created_at: Timestamp,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) timeout: Duration,
    pub(crate) retry: Option<RetryOverride>,
    pub(crate) admission: Admission,
    pub(crate) is_idempotent: bool,
    pub(crate) counters: Arc<SubscriptionCounters>,
    /// Whether the handler only calls another process, and so cannot crash this one.
    pub(crate) is_remote_effect: bool,
}

impl Subscription {
    /// The id: a UUID that stays the same across restarts as long as the name does.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The stable name.
    pub fn name(&self) -> &SubscriptionName {
        &self.name
    }

    /// The patterns of the event types that it receives.
    pub fn event_type(&self) -> &Patterns {
        &self.patterns
    }

    /// When a subscription of this name was first registered.
    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// The handler's timeout.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The subscription's changes to the retry policy of the bus, if any.
    pub fn retry(&self) -> Option<&RetryOverride> {
        self.retry.as_ref()
    }

    /// Whether further attempts at an event leave out the handler once it has succeeded.
    pub fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    /// Whether [`SubscriptionHandle::pause`](crate::SubscriptionHandle::pause) has paused it.
    pub fn is_paused(&self) -> bool {
        self.admission.is_paused()
    }

    /// The state of its circuit breaker. A shared breaker that is open or half-open goes before the one of this process.
    pub fn breaker(&self) -> BreakerSnapshot {
        self.admission.circuit.snapshot()
    }

    /// Returns the number of retries that the budget, or this process's share of it, can pay for now; `None` without a budget.
    pub fn retries_left(&self) -> Option<u32> {
        self.admission.budget.as_ref().map(Budget::left)
    }

    /// The end of the throttling that a failure with `Retry-After` caused; only with [limits](crate::subscription::Subscribe::limits).
    pub fn throttled_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.admission.limiter.as_ref()?.throttled_until(now)
    }

    /// The attempts per second to which failures of the class `throttled` without `Retry-After` have reduced it; only with
    /// [limits](crate::subscription::Subscribe::limits). It rises again with every success.
    pub fn reduced_rate(&self) -> Option<f64> {
        self.admission.limiter.as_ref()?.reduced_rate()
    }

    /// The row that the store keeps.
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
