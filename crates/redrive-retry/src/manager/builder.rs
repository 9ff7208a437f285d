//! [`RetryManagerBuilder`]: policies, clock, jitter seed, audit sink, budget and idempotency store of a manager.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::environment::{Environment, Idempotency};
use super::idempotent::{DEFAULT_KEEP, MAX_KEEP};
use super::{Inner, RetryManager};
use crate::audit::{AuditSink, Auditor};
use crate::budget::{BudgetConfig, RetryBudget};
use crate::category::Category;
use crate::clock::Clock;
use crate::idempotency::IdempotencyStore;
use crate::policy::RetryPolicy;
use crate::setters;

/// Builds a [`RetryManager`].
#[must_use = "a builder does nothing until build()"]
pub struct RetryManagerBuilder {
    inner: Inner,
    idempotency: Option<Arc<dyn IdempotencyStore>>,
    keep_results: Duration,
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
            keep_results: DEFAULT_KEEP,
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

    setters! {
        /// Takes the time from this clock.
        clock(clock: Clock) => inner.environment.clock = clock;
        /// Sets the seed of the jitter.
        seed(seed: u64) => inner.environment.seed = seed;
        /// Sends audit events to this sink instead of `tracing`. Combine several sinks with [`Fanout`](crate::audit::Fanout).
        audit(sink: impl AuditSink + 'static) => inner.environment.auditor = Auditor::new(Arc::new(sink));
        /// Sets one retry budget for all calls of this manager.
        budget(config: BudgetConfig) => inner.environment.budget = Some(Arc::new(RetryBudget::new(config)));
        /// Sets the store of idempotency keys and results.
        idempotency_store(store: Arc<dyn IdempotencyStore>) => idempotency = Some(store);
        /// Sets how long results of idempotent calls are kept. Default: a day. `Duration::MAX` keeps them until their keys are cleared.
        keep_results(keep: Duration) => keep_results = keep.min(MAX_KEEP);
    }

    /// Builds the manager.
    pub fn build(self) -> RetryManager {
        let mut inner = self.inner;
        let keep = self.keep_results;
        inner.environment.idempotency = self.idempotency.map(|store| {
            let claim_policy = inner.policy(&Category::KvCreate).clone();
            let record_policy = inner.policy(&Category::KvPut).clone();
            Arc::new(Idempotency { store, claim_policy, record_policy, keep })
        });
        RetryManager { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for RetryManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryManagerBuilder").finish_non_exhaustive()
    }
}
