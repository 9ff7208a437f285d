//! Shared facilities of guarded calls: clock, audit sink, retry budget, idempotency store and jitter seed.

use std::sync::Arc;
use std::time::Duration;

use super::meter::Meter;
use crate::audit::Auditor;
use crate::budget::RetryBudget;
use crate::clock::Clock;
use crate::idempotency::IdempotencyStore;
use crate::policy::RetryPolicy;

/// Facilities that a guarded call uses. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    pub(super) clock: Clock,
    pub(super) seed: u64,
    pub(super) auditor: Auditor,
    pub(super) budget: Option<Arc<RetryBudget>>,
    pub(super) idempotency: Option<Arc<Idempotency>>,
    pub(super) meter: Arc<Meter>,
}

/// An idempotency store and the policies under which it is called.
#[derive(Debug)]
pub(super) struct Idempotency {
    pub(super) store: Arc<dyn IdempotencyStore>,
    /// For claiming a key.
    pub(super) claim_policy: RetryPolicy,
    /// For recording a result.
    pub(super) record_policy: RetryPolicy,
    /// Time for which a result is kept, unless the call says otherwise.
    pub(super) keep: Duration,
}

impl Environment {
    /// Pays the share of a first attempt into the budget.
    #[inline]
    pub(super) fn count_first_attempt(&self) {
        if let Some(budget) = &self.budget {
            budget.first_attempt();
        }
    }
}
