//! A guarded call that runs at most once under its key.

use std::fmt;
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::drive::{Pause, drive};
use super::{Attempt, Execution, RetryError, RetryErrorReason};
use crate::audit::{AuditEvent, IdempotencyAction, IdempotencyUse, bounded};
use crate::category::Category;
use crate::clock::Clock;
use crate::failure::BoxError;
use crate::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyStore, KeyError, OwnerToken,
};
use crate::identity::Identity;
use crate::policy::RetryPolicy;
use crate::timestamp::Timestamp;

/// What to do when another caller is at the same key.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// Fail at once with [`RetryErrorReason::InProgress`].
    Refuse,
    /// Wait this long for its result, and take the key over if it dies.
    Wait(Duration),
}

/// A call about to be made at most once; see [`Execution::idempotent`].
///
/// The lease is renewed while the operation runs, so it may be short: it is how long a crash keeps others waiting.
#[derive(Clone)]
#[must_use = "nothing happens until run()"]
pub struct IdempotentExecution<'a> {
    execution: Execution<'a>,
    key: IdempotencyKey,
    fingerprint: Fingerprint,
    on_conflict: OnConflict,
    lease: Duration,
    keep: Duration,
}

impl<'a> IdempotentExecution<'a> {
    pub(super) fn new(execution: Execution<'a>, key: IdempotencyKey) -> Self {
        IdempotentExecution {
            execution,
            key,
            fingerprint: Fingerprint::default(),
            on_conflict: OnConflict::Refuse,
            lease: Duration::from_secs(30),
            keep: Duration::from_secs(24 * 3600),
        }
    }

    /// What the key stands for. The same key with another payload is an error.
    pub fn payload(mut self, payload: &impl Serialize) -> Result<Self, KeyError> {
        self.fingerprint = Fingerprint::of(payload)?;
        Ok(self)
    }

    /// What to do when another caller is at it. Default: refuse.
    pub fn on_conflict(mut self, on_conflict: OnConflict) -> Self {
        self.on_conflict = on_conflict;
        self
    }

    /// After how long without a sign of life the key may be taken over. Default: 30 s. At least 1 ms.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_millis(1));
        self
    }

    /// How long the result is kept. Default: a day.
    pub fn keep_result(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Runs the operation, or returns what it returned before.
    ///
    /// Safe to cancel: the key is given up at once where the store can do so, and when its lease ends otherwise.
    pub async fn run<T, E, Op, Fut>(self, operation: Op) -> Result<T, RetryError>
    where
        T: Serialize + DeserializeOwned,
        Op: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError> + 'static,
    {
        self.run_with(Pause::Async, operation).await
    }

    /// The same for an operation that blocks. The lease cannot be renewed meanwhile: it is taken long enough for all
    /// attempts and waits of the policy, counting `lease` for each attempt.
    pub fn run_blocking<T, E, Op>(self, mut operation: Op) -> Result<T, RetryError>
    where
        T: Serialize + DeserializeOwned,
        Op: FnMut(Attempt) -> Result<T, E>,
        E: Into<BoxError> + 'static,
    {
        pollster::block_on(self.run_with(Pause::Blocking, |attempt| ready(operation(attempt))))
    }

    async fn run_with<T, E, Op, Fut>(self, pause: Pause, operation: Op) -> Result<T, RetryError>
    where
        T: Serialize + DeserializeOwned,
        Op: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError> + 'static,
    {
        let Some(store) = self.execution.manager.inner.idempotency.clone() else {
            return Err(self.error(RetryErrorReason::NoStore, None));
        };
        let claim = match self.acquire(store, pause).await? {
            Acquired::Claim(claim) => claim,
            Acquired::Stored(result) => {
                self.audit(IdempotencyAction::Hit);
                return serde_json::from_str(&result)
                    .map_err(|error| self.error(RetryErrorReason::UnreadableResult, Some(error.into())));
            }
        };
        self.execution.manager.count_first_attempt();
        let work = drive(self.execution, Some(&self.key), pause, operation, None);
        let outcome = match pause {
            Pause::Blocking => work.await,
            Pause::Async => {
                let mut work = pin!(work);
                tokio::select! {
                    biased;
                    outcome = &mut work => outcome,
                    lost = claim.stay_alive(self.clock(), self.lease) => {
                        return Err(self.error(RetryErrorReason::LeaseLost, Some(lost.into())));
                    }
                }
            }
        };
        match outcome {
            Ok(value) => self.record(claim, pause, value).await,
            Err(error) => {
                let text = bounded(
                    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string),
                );
                claim.fail(&text, self.keep).await;
                Err(error)
            }
        }
    }

    async fn acquire(&self, store: Arc<dyn IdempotencyStore>, pause: Pause) -> Result<Acquired, RetryError> {
        let owner = OwnerToken::new();
        let lease = match pause {
            Pause::Async => self.lease,
            Pause::Blocking => longest_run(self.execution.policy, self.lease),
        };
        let mut give_up_at: Option<Timestamp> = None;
        loop {
            // Before the look, so that a change between the look and the wait is not missed.
            let changed = store.changed(&self.key);
            let begun = store
                .begin(&self.key, self.fingerprint, owner, lease)
                .await
                .map_err(|error| self.error(RetryErrorReason::StoreFailed, Some(error.into())))?;
            match begun {
                Begin::Acquired => {
                    drop(changed);
                    return Ok(Acquired::Claim(Claim { store, key: self.key.clone(), owner, held: true }));
                }
                Begin::Completed { result } => return Ok(Acquired::Stored(result)),
                Begin::OtherPayload { .. } => return Err(self.error(RetryErrorReason::OtherPayload, None)),
                Begin::InProgress { .. } => {
                    let OnConflict::Wait(limit) = self.on_conflict else {
                        return Err(self.error(RetryErrorReason::InProgress, None));
                    };
                    let now = self.clock().now();
                    let left = give_up_at.get_or_insert(now + limit).since(now);
                    if left.is_zero() {
                        return Err(self.error(RetryErrorReason::InProgress, None));
                    }
                    // The store's lease is on the store's clock, so it is not computed with: look again now and then.
                    let look_again = left.min(Duration::from_millis(100));
                    match pause {
                        Pause::Blocking => self.clock().sleep_blocking(look_again),
                        Pause::Async => tokio::select! {
                            () = changed => {}
                            () = self.clock().sleep(look_again) => {}
                        },
                    }
                }
            }
        }
    }

    /// Stores the result. The side effect has happened, so a store that fails for a moment is asked again.
    async fn record<T: Serialize>(&self, mut claim: Claim, pause: Pause, value: T) -> Result<T, RetryError> {
        // Whatever happens now, the key must not be free before its lease ends: the side effect has happened.
        claim.held = false;
        let not_recorded = |result: Option<String>, cause: BoxError| {
            Err(self.error(RetryErrorReason::ResultNotRecorded { result }, Some(cause)))
        };
        let result = match serde_json::to_string(&value) {
            Ok(result) => result,
            Err(error) => return not_recorded(None, error.into()),
        };
        let metadata = self.execution.context.map(ToString::to_string);
        let policy = self.execution.manager.policy(&Category::KvPut);
        let key = self.key.to_string();
        let mut delays = policy.delays(Identity::new(0, &key, "record result"));
        loop {
            match claim.complete(&result, metadata.as_deref(), self.keep).await {
                Ok(()) => {
                    self.audit(IdempotencyAction::Record);
                    return Ok(value);
                }
                Err(error @ IdempotencyError::LeaseLost { .. }) => {
                    return not_recorded(Some(result), error.into());
                }
                Err(error) => match delays.next() {
                    None => return not_recorded(Some(result), error.into()),
                    Some(delay) if pause == Pause::Async => self.clock().sleep(delay).await,
                    Some(delay) => self.clock().sleep_blocking(delay),
                },
            }
        }
    }

    fn clock(&self) -> &Clock {
        &self.execution.manager.inner.clock
    }

    fn error(&self, reason: RetryErrorReason, cause: Option<BoxError>) -> RetryError {
        // Refusals cost nothing and are the caller's to know; what broke down is for the audit as well.
        if let Some(cause) = &cause {
            self.execution.audit_exhausted(
                0,
                "IdempotencyError".into(),
                cause.to_string(),
                self.clock().now(),
            );
        }
        RetryError::new(self.execution.category, self.execution.operation, 0, reason, cause)
    }

    fn audit(&self, action: IdempotencyAction) {
        let execution = &self.execution;
        execution.manager.inner.auditor.record(&AuditEvent::Idempotency(IdempotencyUse {
            retry_category: execution.category.clone(),
            operation: execution.operation.to_owned(),
            idempotency_key: self.key.to_string(),
            action,
            tenant_id: execution.tenant_id.map(str::to_owned),
            correlation_id: execution.correlation_id.map(str::to_owned),
            trace_id: execution.trace_id.map(str::to_owned),
            timestamp: self.clock().now(),
        }));
    }
}

/// Attempts of `lease` each, and the longest waits between them.
fn longest_run(policy: &RetryPolicy, lease: Duration) -> Duration {
    let waits = (2..=policy.max_attempts())
        .fold(Duration::ZERO, |sum, attempt| sum.saturating_add(policy.backoff().range(attempt, None).max()));
    lease.saturating_mul(policy.max_attempts()).saturating_add(waits)
}

enum Acquired {
    Claim(Claim),
    Stored(String),
}

/// The key is ours. Dropped without an outcome (cancelled, panicked), it is given up.
struct Claim {
    store: Arc<dyn IdempotencyStore>,
    key: IdempotencyKey,
    owner: OwnerToken,
    held: bool,
}

impl Claim {
    /// Renews the lease until it is lost, which is when this returns.
    async fn stay_alive(&self, clock: &Clock, lease: Duration) -> IdempotencyError {
        let mut alive_at = clock.now();
        loop {
            clock.sleep(lease / 3).await;
            match self.store.extend(&self.key, self.owner, lease).await {
                Ok(()) => alive_at = clock.now(),
                Err(lost @ IdempotencyError::LeaseLost { .. }) => return lost,
                // The store may come back while the lease still runs.
                Err(error) if clock.now().since(alive_at) >= lease => return error,
                Err(error) => {
                    tracing::warn!(target: "redrive::idempotency", key = %self.key, %error, "lease not renewed yet");
                }
            }
        }
    }

    async fn complete(
        &self,
        result: &str,
        metadata: Option<&str>,
        keep: Duration,
    ) -> Result<(), IdempotencyError> {
        self.store.complete(&self.key, self.owner, result, metadata, keep).await
    }

    async fn fail(mut self, error: &str, keep: Duration) {
        self.held = false;
        if let Err(error) = self.store.release(&self.key, self.owner, Some(error), keep).await {
            tracing::warn!(target: "redrive::idempotency", key = %self.key, %error, "key not released; its lease ends by itself");
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.held {
            self.store.abandon(&self.key, self.owner);
        }
    }
}

impl fmt::Debug for IdempotentExecution<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentExecution")
            .field("execution", &self.execution)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
