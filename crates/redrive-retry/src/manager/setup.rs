//! [`RetryManagerBuilder`]: policies, clock, jitter seed, audit sink, budget and idempotency store of a manager.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::environment::{Environment, Idempotency};
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
    idempotency: Option<Arc<dyn IdempotencyStore>>,
}

impl Default for RetryManagerBuilder {
    fn default() -> Self {
        RetryManagerBuilder {
            inner: Inner {
                policies: Category::ALL.map(|category| RetryPolicy::for_category(&category)),
                custom: HashMap::new(),
                fallback: RetryPolicy::call(),
                environment: Environment::default(),
            },
            idempotency: None,
        }
    }
}

impl RetryManagerBuilder {
    /// Sets the policy of a predefined or custom category.
    pub fn policy(mut self, category: Category, policy: RetryPolicy) -> Self {
        match category.index() {
            Some(index) => self.inner.policies[index] = policy,
            None => {
                self.inner.custom.insert(category, policy);
            }
        }
        self
    }

    /// Takes the time from this clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.inner.environment.clock = clock;
        self
    }

    /// Sets the seed of the jitter.
    pub fn seed(mut self, seed: u64) -> Self {
        self.inner.environment.seed = seed;
        self
    }

    /// Sends audit events to this sink instead of `tracing`. Combine several sinks with [`Fanout`](crate::audit::Fanout).
    pub fn audit(mut self, sink: impl AuditSink + 'static) -> Self {
        self.inner.environment.auditor = Auditor::new(Arc::new(sink));
        self
    }

    /// Sets one retry budget for all calls of this manager.
    pub fn budget(mut self, config: BudgetConfig) -> Self {
        self.inner.environment.budget = Some(Arc::new(RetryBudget::new(config)));
        self
    }

    /// Sets the store of idempotency keys and results.
    pub fn idempotency_store(mut self, store: Arc<dyn IdempotencyStore>) -> Self {
        self.idempotency = Some(store);
        self
    }

    /// Builds the manager.
    pub fn build(self) -> RetryManager {
        let mut inner = self.inner;
        inner.environment.idempotency = self.idempotency.map(|store| {
            let claim_policy = inner.policy(&Category::KvCreate).clone();
            let record_policy = inner.policy(&Category::KvPut).clone();
            Arc::new(Idempotency { store, claim_policy, record_policy })
        });
        RetryManager { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for RetryManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryManagerBuilder").finish_non_exhaustive()
    }
}
