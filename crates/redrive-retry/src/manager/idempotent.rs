//! [`IdempotentExecution`]: a guarded call that runs at most once per idempotency key.

use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::claim::Claim;
use super::drive::drive;
use super::environment::Idempotency;
use super::pause::Pause;
use super::{Attempt, Execution, RetryError, RetryErrorReason};
use crate::audit::{AuditEvent, IdempotencyAction, IdempotencyUse, bounded};
use crate::clock::Clock;
use crate::failure::{BoxError, ClassifyError, Failure};
use crate::idempotency::{Begin, Fingerprint, IdempotencyError, IdempotencyKey, KeyError, OwnerToken};
use crate::identity::Identity;
use crate::setters;
use crate::timestamp::Timestamp;

/// Time for which a result is kept by default. A choice of this crate: the specified cache has no expiry, and would grow for ever.
pub(super) const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 3600);

/// Longest time for which a result is kept: a century, which no store's clock arithmetic exceeds.
pub(super) const MAX_KEEP: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Behaviour while another caller holds the idempotency key.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// Fail at once with [`RetryErrorReason::InProgress`].
    Refuse,
    /// Wait this long for the result, and take the key over if its lease expires.
    Wait(Duration),
}

/// An idempotent call about to be made; see [`Execution::idempotent`].
///
/// The lease is renewed while the operation runs, so it can be short: after a crash other callers wait for its end.
#[derive(Clone, Debug)]
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
            keep: execution
                .environment
                .idempotency
                .as_ref()
                .map_or(DEFAULT_KEEP, |idempotency| idempotency.keep),
        }
    }

    /// Binds the key to a payload. Using the key with another payload is an error.
    pub fn payload(mut self, payload: &impl Serialize) -> Result<Self, KeyError> {
        self.fingerprint = Fingerprint::of(payload)?;
        Ok(self)
    }

    setters! {
        /// Sets the behaviour while another caller holds the key. Default: refuse.
        on_conflict(on_conflict: OnConflict) => on_conflict = on_conflict;
        /// Sets the lease after which another caller may take over the key of a crashed one. Default: 30 s. At least 1 ms.
        lease(lease: Duration) => lease = lease.max(Duration::from_millis(1));
        /// Sets how long the result is kept. Default: [`RetryManagerBuilder::keep_results`](super::RetryManagerBuilder::keep_results),
        /// a day. `Duration::MAX` keeps it until the key is cleared.
        keep_result(keep: Duration) => keep = keep.min(MAX_KEEP);
    }

    /// Runs the operation, or returns its stored result.
    ///
    /// Safe to cancel: the key is released at once if the store can do so, and otherwise when its lease ends.
    pub async fn run<T, E, Op, Fut>(self, operation: Op) -> Result<T, RetryError>
    where
        T: Serialize + DeserializeOwned,
        Op: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError> + 'static,
    {
        self.run_with(Pause::Async, operation).await
    }

    /// Runs a blocking operation, or returns its stored result. An attempt must be shorter than the lease, which it does not renew.
    pub fn run_blocking<T, E, Op>(self, mut operation: Op) -> Result<T, RetryError>
    where
        T: Serialize + DeserializeOwned,
        Op: FnMut(Attempt) -> Result<T, E>,
        E: Into<BoxError> + 'static,
    {
        pollster::block_on(self.run_with(Pause::Blocking, |attempt| ready(operation(attempt))))
    }

    async fn run_with<T, E, Op, Fut>(self, pause: Pause<'_>, mut operation: Op) -> Result<T, RetryError>
    where
        T: Serialize + DeserializeOwned,
        Op: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError> + 'static,
    {
        let Some(idempotency) = self.execution.environment.idempotency.as_deref() else {
            return Err(self.error(RetryErrorReason::NoStore, 0, None));
        };
        let claim = match self.acquire(idempotency, pause).await? {
            Acquired::Claim(claim) => claim,
            Acquired::Stored(result) => {
                self.audit(IdempotencyAction::Hit);
                return serde_json::from_str(&result)
                    .map_err(|error| self.error(RetryErrorReason::UnreadableResult, 0, Some(error.into())));
            }
        };
        let pause = if pause.is_async() { pause } else { Pause::BlockingUnderLease(&claim) };
        let made = AtomicU32::new(0);
        let guarded = |attempt: Attempt| {
            // A lease that was lost during a wait: the operation must not run again under somebody else's key.
            let running = (!claim.is_lost()).then(|| {
                made.store(attempt.number(), Ordering::Relaxed);
                operation(attempt)
            });
            async move {
                match running {
                    Some(running) => running.await.map_err(Failure::new),
                    None => Err("the lease was lost".permanent()),
                }
            }
        };
        let lost = |cause| self.error(RetryErrorReason::LeaseLost, made.load(Ordering::Relaxed), Some(cause));
        let work = drive(self.execution, Some(&self.key), pause, guarded, None);
        // One renewal for work and recording: it knows when the lease was last renewed.
        let mut renewing = pin!(claim.keep_renewing(self.clock()));
        match under_lease(pause, renewing.as_mut(), work).await.map_err(|error| lost(error.into()))? {
            Ok(value) => {
                claim.keep_until_lease_ends();
                let recording = self.record(idempotency, &claim, pause, &made, &value);
                under_lease(pause, renewing, recording).await.unwrap_or_else(|error| {
                    let result = serde_json::to_string(&value).ok();
                    let reason = RetryErrorReason::ResultNotRecorded { result };
                    Err(self.error(reason, made.load(Ordering::Relaxed), Some(error.into())))
                })?;
                Ok(value)
            }
            Err(error) if claim.is_lost() => {
                Err(lost(error.into_cause().unwrap_or_else(|| "the lease was lost".into())))
            }
            Err(error) => {
                let text = error.cause().map_or_else(|| error.to_string(), ToString::to_string);
                claim.fail(&bounded(text), self.keep).await;
                Err(error)
            }
        }
    }

    async fn acquire(&self, idempotency: &Idempotency, pause: Pause<'_>) -> Result<Acquired, RetryError> {
        let owner = OwnerToken::new();
        let key = self.key.to_string();
        let store = &idempotency.store;
        let mut delays = idempotency.claim_policy.delays(Identity::new(0, &key, "begin"));
        let mut wait_until: Option<Timestamp> = None;
        loop {
            // Subscribed before the request, so that a change between the request and the wait is not missed.
            let changed = store.changed(&self.key);
            let asked_at = self.clock().steady();
            let begun = match store.begin(&self.key, self.fingerprint, owner, self.lease).await {
                Ok(begun) => begun,
                Err(error) => match delays.next() {
                    // The answer may be lost: the same owner asks again.
                    Some(delay) if matches!(error, IdempotencyError::Unavailable(_)) => {
                        pause.sleep(self.clock(), delay).await;
                        continue;
                    }
                    _ => return Err(self.error(RetryErrorReason::StoreFailed, 0, Some(error.into()))),
                },
            };
            match begun {
                Begin::Acquired => {
                    drop(changed);
                    let claim = Claim::new(Arc::clone(store), self.key.clone(), owner, self.lease, asked_at);
                    return Ok(Acquired::Claim(claim));
                }
                Begin::Completed { result } => return Ok(Acquired::Stored(result)),
                Begin::OtherPayload { .. } => {
                    return Err(self.error(RetryErrorReason::OtherPayload, 0, None));
                }
                Begin::InProgress { .. } => {
                    let OnConflict::Wait(limit) = self.on_conflict else {
                        return Err(self.error(RetryErrorReason::InProgress, 0, None));
                    };
                    let now = self.clock().steady();
                    let left = wait_until.get_or_insert(now + limit).since(now);
                    if left.is_zero() {
                        return Err(self.error(RetryErrorReason::InProgress, 0, None));
                    }
                    // The lease runs on the store's clock, which may differ from this one: poll.
                    let poll_interval = left.min(Duration::from_millis(100));
                    if pause.is_async() {
                        tokio::select! {
                            () = changed => {}
                            () = self.clock().sleep(poll_interval) => {}
                        }
                    } else {
                        pause.sleep(self.clock(), poll_interval).await;
                    }
                }
            }
        }
    }

    /// Stores the result. The side effect has happened, so temporary failures of the store are retried.
    async fn record<T: Serialize>(
        &self,
        idempotency: &Idempotency,
        claim: &Claim,
        pause: Pause<'_>,
        made: &AtomicU32,
        value: &T,
    ) -> Result<(), RetryError> {
        let not_recorded = |result: Option<String>, cause: BoxError| {
            let reason = RetryErrorReason::ResultNotRecorded { result };
            Err(self.error(reason, made.load(Ordering::Relaxed), Some(cause)))
        };
        let result = match serde_json::to_string(value) {
            Ok(result) => result,
            Err(error) => return not_recorded(None, error.into()),
        };
        let metadata = self.execution.call.context.map(ToString::to_string);
        let key = self.key.to_string();
        let mut delays = idempotency.record_policy.delays(Identity::new(0, &key, "record"));
        loop {
            match claim.complete(&result, metadata.as_deref(), self.keep).await {
                Ok(()) => {
                    self.audit(IdempotencyAction::Record);
                    return Ok(());
                }
                Err(error @ (IdempotencyError::LeaseLost { .. } | IdempotencyError::TooLarge { .. })) => {
                    return not_recorded(Some(result), error.into());
                }
                Err(error) => match delays.next() {
                    None => return not_recorded(Some(result), error.into()),
                    Some(delay) => pause.sleep(self.clock(), delay).await,
                },
            }
        }
    }

    fn clock(&self) -> &Clock {
        &self.execution.environment.clock
    }

    fn error(&self, reason: RetryErrorReason, attempts: u32, cause: Option<BoxError>) -> RetryError {
        // Refusals are reported to the caller only; failures are audited as well.
        if let Some(cause) = &cause {
            self.execution.audit_exhausted(
                attempts,
                "IdempotencyError".into(),
                cause.to_string(),
                self.clock().now(),
            );
        }
        RetryError::new(&self.execution, attempts, reason, cause.map(Failure::new))
    }

    fn audit(&self, action: IdempotencyAction) {
        let execution = &self.execution;
        execution.environment.auditor.record(&AuditEvent::Idempotency(IdempotencyUse {
            retry_category: execution.category.clone(),
            operation: execution.call.operation.to_owned(),
            idempotency_key: self.key.to_string(),
            action,
            tenant_id: execution.call.tenant_id.map(str::to_owned),
            correlation_id: execution.call.correlation_id.map(str::to_owned),
            trace_id: execution.call.trace_id.map(str::to_owned),
            timestamp: self.clock().now(),
        }));
    }
}

/// Runs `work` while an async call renews its lease. Fails if the lease is lost first.
async fn under_lease<T>(
    pause: Pause<'_>,
    renewing: Pin<&mut impl Future<Output = IdempotencyError>>,
    work: impl Future<Output = T>,
) -> Result<T, IdempotencyError> {
    if !pause.is_async() {
        return Ok(work.await);
    }
    tokio::select! {
        biased;
        output = work => Ok(output),
        error = renewing => Err(error),
    }
}

enum Acquired {
    Claim(Claim),
    Stored(String),
}
