//! [`RetryError`]: the error of a guarded call.

use std::error::Error;
use std::fmt;

use crate::category::Category;
use crate::decision::DeadReason;
use crate::failure::{BoxError, chain};
use crate::timestamp::Timestamp;

/// Error of a guarded call: operation, number of attempts, reason, and the last attempt's error as its source.
// Boxed, so that the result of a successful call stays small.
pub struct RetryError(Box<Inner>);

struct Inner {
    category: Category,
    operation: String,
    attempts: u32,
    reason: RetryErrorReason,
    cause: Option<BoxError>,
}

/// Reason why a guarded call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryErrorReason {
    /// The policy allows no further attempt.
    Dead(DeadReason),
    /// The circuit is open, and the policy has no deadline that would bound the wait for it.
    CircuitOpen {
        /// Expected time of the next probe.
        until: Timestamp,
    },
    /// Another caller holds the idempotency key, and the wait for it is over.
    InProgress,
    /// The idempotency key was used with another payload.
    OtherPayload,
    /// The stored result cannot be deserialised as the requested type.
    UnreadableResult,
    /// The operation **succeeded**, but its result was not stored: a repetition would run it again.
    ResultNotRecorded {
        /// The result as JSON, if it could be serialised.
        result: Option<String>,
    },
    /// The lease on the key was lost, so the operation was cancelled.
    LeaseLost,
    /// The idempotency store failed before the operation began.
    StoreFailed,
    /// The call has an idempotency key, but the manager has no store.
    NoStore,
}

impl RetryError {
    pub(super) fn new(
        category: &Category,
        operation: &str,
        attempts: u32,
        reason: RetryErrorReason,
        cause: Option<BoxError>,
    ) -> Self {
        RetryError(Box::new(Inner {
            category: category.clone(),
            operation: operation.to_owned(),
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

impl fmt::Display for RetryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { category, operation, attempts, reason, .. } = &*self.0;
        let times = if *attempts == 1 { "attempt" } else { "attempts" };
        write!(f, "{category}: {operation}: ")?;
        match reason {
            RetryErrorReason::Dead(reason) => write!(f, "failed after {attempts} {times}: {reason}"),
            RetryErrorReason::CircuitOpen { until } => write!(f, "the circuit is open until {until}; try again then"),
            RetryErrorReason::InProgress => {
                f.write_str("another caller is running it under the same idempotency key; ask again later for its result")
            }
            RetryErrorReason::OtherPayload => {
                f.write_str("the idempotency key was used with another payload; use a new key for a new payload")
            }
            RetryErrorReason::UnreadableResult => {
                f.write_str("the stored result is of another type; read it as that type, or clear the key")
            }
            RetryErrorReason::ResultNotRecorded { .. } => f.write_str(
                "it succeeded, but its result could not be stored; a repetition would run it again, so check first",
            ),
            RetryErrorReason::LeaseLost => {
                f.write_str("cancelled, because the lease on its idempotency key was lost; look up what the new owner did")
            }
            RetryErrorReason::StoreFailed => {
                f.write_str("not begun, because the idempotency store failed; it is safe to try again")
            }
            RetryErrorReason::NoStore => f.write_str(
                "not begun: an idempotency key was given, but the manager has no store; \
                 give it one with RetryManager::builder().idempotency_store(..)",
            ),
        }
    }
}

impl fmt::Debug for RetryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryError")
            .field("category", &self.0.category)
            .field("operation", &self.0.operation)
            .field("attempts", &self.0.attempts)
            .field("reason", &self.0.reason)
            .field("cause", &self.0.cause)
            .finish()
    }
}

impl Error for RetryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}
