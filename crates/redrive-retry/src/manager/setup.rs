//! Putting a retry manager together.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::{Inner, RetryManager};
use crate::audit::{AuditSink, Auditor};
use crate::budget::{BudgetConfig, RetryBudget};
use crate::category::Category;
use crate::clock::Clock;
use crate::idempotency::IdempotencyStore;
use crate::policy::RetryPolicy;

/// Builds a [`RetryManager`].
#[must_use = "a builder does nothing until build()"]
pub struct RetryManagerBuilder {
    inner: Inner,
}

impl Default for RetryManagerBuilder {
    fn default() -> Self {
        RetryManagerBuilder {
            inner: Inner {
                policies: Category::ALL.map(|category| RetryPolicy::for_category(&category)),
                custom: HashMap::new(),
                fallback: RetryPolicy::call(),
                clock: Clock::system(),
                seed: 0,
                auditor: Auditor::default(),
                budget: None,
                idempotency: None,
            },
        }
    }
}

impl RetryManagerBuilder {
    /// Sets the policy of a category: one of your own, or one of the seventeen to be changed.
    pub fn policy(mut self, category: Category, policy: RetryPolicy) -> Self {
        match category.index() {
            Some(index) => self.inner.policies[index] = policy,
            None => {
                self.inner.custom.insert(category, policy);
            }
        }
        self
    }

    /// Where the time comes from.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.inner.clock = clock;
        self
    }

    /// Part of the identity that jitter is computed from.
    pub fn seed(mut self, seed: u64) -> Self {
        self.inner.seed = seed;
        self
    }

    /// Where audit events go, instead of `tracing`. Several: [`Fanout`](crate::audit::Fanout).
    pub fn audit(mut self, sink: impl AuditSink + 'static) -> Self {
        self.inner.auditor = Auditor::new(Arc::new(sink));
        self
    }

    /// A retry budget over all calls of this manager.
    pub fn budget(mut self, config: BudgetConfig) -> Self {
        self.inner.budget = Some(RetryBudget::new(config));
        self
    }

    /// Where idempotency keys and results are kept.
    pub fn idempotency_store(mut self, store: Arc<dyn IdempotencyStore>) -> Self {
        self.inner.idempotency = Some(store);
        self
    }

    /// The manager.
    pub fn build(self) -> RetryManager {
        RetryManager { inner: Arc::new(self.inner) }
    }
}

impl fmt::Debug for RetryManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryManagerBuilder").finish_non_exhaustive()
    }
}
