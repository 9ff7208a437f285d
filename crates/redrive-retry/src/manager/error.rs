//! Why a guarded call did not succeed.

use std::error::Error;
use std::fmt;

use crate::category::Category;
use crate::decision::DeadReason;
use crate::failure::{BoxError, chain};
use crate::timestamp::Timestamp;

/// A guarded call did not succeed: which, after how many attempts, why, and the last error as its source.
// Boxed: the result of a call that succeeds must not carry the size of one that fails.
pub struct RetryError(Box<Inner>);

struct Inner {
    category: Category,
    operation: String,
    attempts: u32,
    reason: RetryErrorReason,
    cause: Option<BoxError>,
}

/// Why a guarded call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryErrorReason {
    /// The retry loop gave up.
    GaveUp(DeadReason),
    /// The circuit is open, and the policy has no deadline up to which to wait for it.
    CircuitOpen {
        /// When it lets a probe through, as far as is known.
        until: Timestamp,
    },
    /// Another caller is at the same idempotency key, and this one did not want to wait any longer.
    InProgress,
    /// The idempotency key stands for another payload.
    OtherPayload,
    /// A stored result cannot be read as the type that was asked for.
    UnreadableResult,
    /// The operation **succeeded**, but its result could not be stored: a repetition would run it again.
    ResultNotRecorded {
        /// The result as JSON, if it could be written.
        result: Option<String>,
    },
    /// The lease on the key was lost while the operation ran; it was cancelled.
    LeaseLost,
    /// The idempotency store failed before the operation could begin.
    StoreFailed,
    /// An idempotency key was given, but the manager has no store.
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

    /// The category.
    pub fn category(&self) -> &Category {
        &self.0.category
    }

    /// The operation.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// How many attempts were made.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// Why it ended.
    pub fn reason(&self) -> &RetryErrorReason {
        &self.0.reason
    }

    /// The first error of type `E` in the chain of the last attempt's error.
    pub fn find<E: Error + 'static>(&self) -> Option<&E> {
        let cause = self.0.cause.as_deref()?;
        chain(cause).find_map(|error| error.downcast_ref())
    }

    /// The last attempt's error, by value.
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
            RetryErrorReason::GaveUp(reason) => write!(f, "gave up after {attempts} {times}: {reason}"),
            RetryErrorReason::CircuitOpen { until } => write!(f, "the circuit is open until {until}; try again then"),
            RetryErrorReason::InProgress => {
                f.write_str("another caller is at it under the same idempotency key; ask again later for its result")
            }
            RetryErrorReason::OtherPayload => {
                f.write_str("the idempotency key stands for another payload; use a new key for a new payload")
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
