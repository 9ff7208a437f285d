//! Runs any fallible call under a bounded policy, with audit and, if asked, idempotency.

mod attempt;
mod claim;
mod drive;
mod error;
mod execution;
mod idempotent;
mod pause;
mod setup;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

pub use self::attempt::Attempt;
pub use self::error::{RetryError, RetryErrorReason};
pub use self::execution::Execution;
pub use self::idempotent::{IdempotentExecution, OnConflict};
pub use self::setup::RetryManagerBuilder;
use crate::audit::Auditor;
use crate::budget::RetryBudget;
use crate::category::Category;
use crate::clock::Clock;
use crate::idempotency::IdempotencyStore;
use crate::policy::RetryPolicy;

/// Guards fallible calls. Cheap to clone; all clones share policies, budget, store and sinks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive_retry::RetryError> {
/// use redrive_retry::{BoxError, Category, RetryManager};
///
/// let manager = RetryManager::new();
/// let invoice = manager
///     .execute(&Category::ApiRequest, "Fetch invoice")
///     .tenant("tenant-123")
///     .run(|attempt| async move { Ok::<_, BoxError>(format!("invoice, attempt {}", attempt.number())) })
///     .await?;
/// assert_eq!(invoice, "invoice, attempt 1");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RetryManager {
    inner: Arc<Inner>,
}

struct Inner {
    /// By [`Category::index`]: a look-up must cost nothing beside the call itself.
    policies: [RetryPolicy; Category::ALL.len()],
    custom: HashMap<Category, RetryPolicy>,
    /// For custom categories that were not registered.
    fallback: RetryPolicy,
    clock: Clock,
    seed: u64,
    auditor: Auditor,
    budget: Option<RetryBudget>,
    idempotency: Option<Arc<dyn IdempotencyStore>>,
}

impl RetryManager {
    /// The specified policies, the system clock, audit to `tracing`; no budget and no idempotency store.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// To change any of that.
    pub fn builder() -> RetryManagerBuilder {
        RetryManagerBuilder::default()
    }

    /// The policy of a category.
    #[inline]
    pub fn policy(&self, category: &Category) -> &RetryPolicy {
        match category.index() {
            Some(index) => &self.inner.policies[index],
            None => self.inner.custom.get(category).unwrap_or(&self.inner.fallback),
        }
    }

    /// Begins to describe a call; [`run`](Execution::run) makes it.
    #[inline(always)] // see Execution::run
    pub fn execute<'a>(&'a self, category: &'a Category, operation: &'a str) -> Execution<'a> {
        Execution::new(self, category, operation)
    }

    /// The budget earns its share by first attempts.
    #[inline]
    fn count_first_attempt(&self) {
        if let Some(budget) = &self.inner.budget {
            budget.first_attempt();
        }
    }

    /// Where idempotency keys and results are kept, to look at them or to clear one.
    pub fn idempotency_store(&self) -> Option<&Arc<dyn IdempotencyStore>> {
        self.inner.idempotency.as_ref()
    }

    /// How many audit events the sink did not take in. Each was logged; anything but 0 wants looking after.
    pub fn audit_failures(&self) -> u64 {
        self.inner.auditor.failures()
    }
}

impl Default for RetryManager {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RetryManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryManager")
            .field("custom", &self.inner.custom.keys())
            .field("seed", &self.inner.seed)
            .field("auditor", &self.inner.auditor)
            .field("budget", &self.inner.budget)
            .field("idempotency", &self.inner.idempotency.is_some())
            .finish_non_exhaustive()
    }
}
