//! [`RetryManager`]: runs fallible calls under bounded policies, with audit and optional idempotency.

mod attempt;
mod builder;
mod claim;
mod drive;
mod environment;
mod error;
mod execution;
mod ext;
mod idempotent;
mod meter;
mod pause;
mod run;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

pub use self::attempt::Attempt;
pub use self::builder::RetryManagerBuilder;
use self::environment::Environment;
pub use self::error::{RetryError, RetryErrorReason};
pub use self::execution::Execution;
pub use self::ext::{Retry, RetryExt};
pub use self::idempotent::{IdempotentExecution, OnConflict};
pub use self::meter::CategoryMetrics;
use crate::category::{Category, CategoryError};
use crate::idempotency::IdempotencyStore;
use crate::policy::RetryPolicy;

/// Runs fallible calls under the policy of their category. Cheap to clone; all clones share policies, budget, store and sink.
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
    /// Policies by [`Category::index`], so that a lookup costs almost nothing.
    policies: [RetryPolicy; Category::ALL.len()],
    custom: HashMap<Category, RetryPolicy>,
    /// Policy of custom categories that were not registered.
    fallback: RetryPolicy,
    environment: Environment,
}

impl Inner {
    #[inline]
    fn policy(&self, category: &Category) -> &RetryPolicy {
        match category.index() {
            Some(index) => &self.policies[index],
            None => self.custom.get(category).unwrap_or(&self.fallback),
        }
    }
}

impl RetryManager {
    /// Creates a manager with the default policies, the system clock and audit to `tracing`; no budget, no idempotency store.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Creates a builder to change the defaults.
    pub fn builder() -> RetryManagerBuilder {
        RetryManagerBuilder::default()
    }

    /// Finds a category by code or name: a predefined one, or a custom one with a policy in this manager.
    ///
    /// ```
    /// use redrive_retry::{Category, RetryManager};
    ///
    /// let manager = RetryManager::new();
    /// assert_eq!(manager.category("API_REQUEST")?, Category::ApiRequest);
    /// assert!(manager.category("RETRY_PAYMENT").is_err(), "not registered");
    /// # Ok::<(), redrive_retry::category::CategoryError>(())
    /// ```
    pub fn category(&self, text: &str) -> Result<Category, CategoryError> {
        text.parse().or_else(|unknown| {
            let custom = self.inner.custom.keys().find(|category| category.code() == text);
            custom.cloned().ok_or(unknown)
        })
    }

    /// Counters of the finished calls by the code of their category, since the manager was built.
    pub fn metrics(&self) -> BTreeMap<String, CategoryMetrics> {
        self.inner.environment.meter.snapshot()
    }

    /// Policy of a category. A custom category without a policy of its own has [`RetryPolicy::call`].
    #[inline]
    pub fn policy(&self, category: &Category) -> &RetryPolicy {
        self.inner.policy(category)
    }

    /// Describes a guarded call; [`run`](Execution::run) makes it.
    #[inline(always)] // see Execution::run
    pub fn execute<'a>(&'a self, category: &'a Category, operation: &'a str) -> Execution<'a> {
        Execution::new(self, category, operation)
    }

    /// Store of idempotency keys and results, to inspect or clear keys.
    pub fn idempotency_store(&self) -> Option<&Arc<dyn IdempotencyStore>> {
        self.inner.environment.idempotency.as_ref().map(|idempotency| &idempotency.store)
    }

    /// Number of audit events that the sink failed to record. Each was logged as an error.
    pub fn audit_failures(&self) -> u64 {
        self.inner.environment.auditor.failures()
    }
}

static DEFAULT: OnceLock<RetryManager> = OnceLock::new();

/// The process-wide default manager: the one given to [`set_retry_manager`], or else [`RetryManager::new`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive_retry::RetryError> {
/// use redrive_retry::{BoxError, Category, get_retry_manager};
///
/// let text = get_retry_manager()
///     .execute(&Category::KvGet, "Get kill switch status")
///     .run(|_| async { Ok::<_, BoxError>("off") })
///     .await?;
/// assert_eq!(text, "off");
/// assert_eq!(get_retry_manager().metrics()["RETRY_KV_GET"].attempts, 1);
/// # Ok(()) }
/// ```
pub fn get_retry_manager() -> &'static RetryManager {
    DEFAULT.get_or_init(RetryManager::new)
}

/// Sets the process-wide default manager. Call it once, at the start of the program.
///
/// Returns the given manager as an error if there is a default already, set or used.
pub fn set_retry_manager(manager: RetryManager) -> Result<(), RetryManager> {
    DEFAULT.set(manager)
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
            .field("environment", &self.inner.environment)
            .finish_non_exhaustive()
    }
}
