//! [`RetryError`]: the error of a guarded call.

use std::error::Error;

use super::Execution;
use crate::category::Category;
use crate::decision::DeadReason;
use crate::failure::{BoxError, chain};
use crate::timestamp::Timestamp;

/// Error of a guarded call: operation, number of attempts, reason, and the last attempt's error as its source.
// Boxed, so that the result of a successful call stays small.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RetryError(Box<Inner>);

#[derive(Debug, thiserror::Error)]
#[error("{category}: {operation}: {}", outcome(reason, *attempts))]
struct Inner {
    category: Category,
    operation: String,
    attempts: u32,
    reason: RetryErrorReason,
    #[source]
    cause: Option<BoxError>,
}

fn outcome(reason: &RetryErrorReason, attempts: u32) -> String {
    let times = if attempts == 1 { "attempt" } else { "attempts" };
    match reason {
        RetryErrorReason::Dead(_) => format!("failed after {attempts} {times}: {reason}"),
        _ => reason.to_string(),
    }
}

/// Reason why a guarded call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RetryErrorReason {
    /// The policy allows no further attempt.
    #[error("{0}")]
    Dead(DeadReason),
    /// The circuit is open, and the policy has no deadline that would bound the wait for it.
    #[error("the circuit is open until {until}; try again then")]
    CircuitOpen {
        /// Expected time of the next probe.
        until: Timestamp,
    },
    /// Another caller holds the idempotency key, and the wait for it is over.
    #[error("another caller is running it under the same idempotency key; ask again later for its result")]
    InProgress,
    /// The idempotency key was used with another payload.
    #[error("the idempotency key was used with another payload; use a new key for a new payload")]
    OtherPayload,
    /// The stored result cannot be deserialised as the requested type.
    #[error("the stored result is of another type; read it as that type, or clear the key")]
    UnreadableResult,
    /// The operation **succeeded**, but its result was not stored: a repetition would run it again.
    #[error(
        "it succeeded, but its result could not be stored; a repetition would run it again, so check first"
    )]
    ResultNotRecorded {
        /// The result as JSON, if it could be serialised.
        result: Option<String>,
    },
    /// The lease on the key was lost, so the operation was cancelled.
    #[error("cancelled, because the lease on its idempotency key was lost; look up what the new owner did")]
    LeaseLost,
    /// The idempotency store failed before the operation began.
    #[error("not begun, because the idempotency store failed; it is safe to try again")]
    StoreFailed,
    /// The call has an idempotency key, but the manager has no store.
    #[error(
        "not begun: an idempotency key was given, but the manager has no store; \
         give it one with RetryManager::builder().idempotency_store(..)"
    )]
    NoStore,
}

impl RetryError {
    pub(super) fn new(
        execution: &Execution<'_>,
        attempts: u32,
        reason: RetryErrorReason,
        cause: Option<BoxError>,
    ) -> Self {
        RetryError(Box::new(Inner {
            category: execution.category.clone(),
            operation: execution.call.operation.to_owned(),
            attempts,
            reason,
            cause,
        }))
    }

    /// Category of the call.
    pub fn category(&self) -> &Category {
        &self.0.category
    }

    /// Name of the operation.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// Number of attempts made.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// Reason of the failure.
    pub fn reason(&self) -> &RetryErrorReason {
        &self.0.reason
    }

    /// The first error of type `E` in the chain of the last attempt's error.
    pub fn find<E: Error + 'static>(&self) -> Option<&E> {
        let cause = self.0.cause.as_deref()?;
        chain(cause).find_map(|error| error.downcast_ref())
    }

    /// Returns the last attempt's error by value.
    pub fn into_cause(self) -> Option<BoxError> {
        self.0.cause
    }
}
