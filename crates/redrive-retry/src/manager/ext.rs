//! [`RetryExt`]: retries a function or closure without a manager.

use std::any::type_name;
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use super::environment::Environment;
use super::execution::CallOptions;
use super::{Execution, RetryError, RetryManager, get_retry_manager};
use crate::audit::{AuditSink, Auditor};
use crate::breaker::CircuitBreaker;
use crate::budget::RetryBudget;
use crate::category::Category;
use crate::clock::Clock;
use crate::failure::BoxError;
use crate::policy::RetryPolicy;
use crate::setters;

/// Retries any function or closure without arguments: `fetch.retry(policy).await`.
///
/// The call goes through the same decisions, classification, jitter and audit records as a call of a [`RetryManager`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive_retry::RetryError> {
/// use redrive_retry::{RetryExt, RetryPolicy};
///
/// async fn fetch() -> Result<String, std::io::Error> {
///     Ok("stock: 17".into())
/// }
///
/// let stock = fetch.retry(RetryPolicy::call()).await?;
/// assert_eq!(stock, "stock: 17");
///
/// // A policy can be borrowed, and a closure can capture arguments.
/// let policy = RetryPolicy::call();
/// let sku = 4711;
/// let text = (|| async { Ok::<_, std::io::Error>(format!("article {sku}")) })
///     .retry(&policy)
///     .operation("Fetch article")
///     .await?;
/// assert_eq!(text, "article 4711");
/// # Ok(()) }
/// ```
pub trait RetryExt: Sized {
    /// Describes a retried call of this function. `.await` makes it; [`Retry::run_blocking`] makes a blocking one.
    fn retry<'a, P: Borrow<RetryPolicy>>(self, policy: P) -> Retry<'a, Self, P>;
}

impl<Op, R> RetryExt for Op
where
    Op: FnMut() -> R,
{
    fn retry<'a, P: Borrow<RetryPolicy>>(self, policy: P) -> Retry<'a, Self, P> {
        Retry {
            operation: self,
            settings: Settings {
                policy,
                environment: Cow::Borrowed(&get_retry_manager().inner.environment),
                category: Category::CALL,
                call: CallOptions { operation: type_name::<Op>(), ..CallOptions::default() },
            },
        }
    }
}

/// A retried call about to be made; see [`RetryExt::retry`].
///
/// The defaults are clock, seed, audit sink and budget of [`get_retry_manager`], [`Category::CALL`] and the function's type name as
/// operation.
#[must_use = "nothing happens until it is awaited or run"]
pub struct Retry<'a, Op, P> {
    operation: Op,
    settings: Settings<'a, P>,
}

struct Settings<'a, P> {
    policy: P,
    environment: Cow<'a, Environment>,
    category: Category,
    call: CallOptions<'a>,
}

impl<P: Borrow<RetryPolicy>> Settings<'_, P> {
    fn execution(&self) -> Execution<'_> {
        Execution {
            environment: &self.environment,
            policy: self.policy.borrow(),
            category: &self.category,
            call: self.call,
        }
    }
}

impl<'a, Op, P: Borrow<RetryPolicy>> Retry<'a, Op, P> {
    setters! {
        /// Names the operation in errors, audit events and the identity of its jitter.
        operation(operation: &'a str) => settings.call.operation = operation;
        /// Sets the category in errors and audit events. The policy stays the one that was given.
        category(category: Category) => settings.category = category;
        /// Uses the circuit breaker of the destination; see [`Execution::breaker`].
        breaker(breaker: &'a CircuitBreaker) => settings.call.breaker = Some(breaker);
    }

    /// Charges retries to this budget, which several calls can share.
    pub fn budget(mut self, budget: Arc<RetryBudget>) -> Self {
        self.settings.environment.to_mut().budget = Some(budget);
        self
    }

    /// Sends audit events to this sink instead of `tracing`.
    pub fn audit(mut self, sink: impl AuditSink + 'static) -> Self {
        self.settings.environment.to_mut().auditor = Auditor::new(Arc::new(sink));
        self
    }

    /// Takes the time from this clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.environment.to_mut().clock = clock;
        self
    }

    /// Sets the seed of the jitter.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.environment.to_mut().seed = seed;
        self
    }

    setters! {
        /// Uses clock, seed, audit sink and budget of this manager, replacing earlier settings of these.
        manager(manager: &'a RetryManager) => settings.environment = Cow::Borrowed(&manager.inner.environment);
        /// Sets the tenant id in audit events.
        tenant(tenant_id: &'a str) => settings.call.tenant_id = Some(tenant_id);
        /// Sets the correlation id in audit events. A call with one replays its delays; see [`Execution::correlation`].
        correlation(correlation_id: &'a str) => settings.call.correlation_id = Some(correlation_id);
        /// Sets the trace id in audit events.
        trace(trace_id: &'a str) => settings.call.trace_id = Some(trace_id);
        /// Attaches JSON to the recorded decisions.
        context(context: &'a Value) => settings.call.context = Some(context);
    }

    /// Makes the call as a future without boxing it. Use it in place of `.await` where the future is not `Send`.
    pub async fn run<T, E, Fut>(self) -> Result<T, RetryError>
    where
        Op: FnMut() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError> + 'static,
    {
        let Retry { mut operation, settings } = self;
        let execution = settings.execution();
        execution.run(|_| operation()).await
    }

    /// Makes the call with a function that blocks; delays block the thread. See [`Execution::run_blocking`].
    ///
    /// ```
    /// use redrive_retry::{RetryExt, RetryPolicy};
    ///
    /// let read = || std::fs::read_to_string("Cargo.toml");
    /// let manifest = read.retry(RetryPolicy::call()).run_blocking()?;
    /// assert!(manifest.contains("redrive-retry"));
    /// # Ok::<(), redrive_retry::RetryError>(())
    /// ```
    pub fn run_blocking<T, E>(self) -> Result<T, RetryError>
    where
        Op: FnMut() -> Result<T, E>,
        E: Into<BoxError> + 'static,
    {
        let Retry { mut operation, settings } = self;
        settings.execution().run_blocking(|_| operation())
    }
}

impl<'a, Op, P, Fut, T, E> IntoFuture for Retry<'a, Op, P>
where
    Op: FnMut() -> Fut + Send + 'a,
    P: Borrow<RetryPolicy> + Send + 'a,
    Fut: Future<Output = Result<T, E>> + Send + 'a,
    T: Send + 'a,
    E: Into<BoxError> + Send + 'static,
{
    type Output = Result<T, RetryError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<Op, P> fmt::Debug for Retry<'_, Op, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("category", &self.settings.category)
            .field("operation", &self.settings.call.operation)
            .finish_non_exhaustive()
    }
}
