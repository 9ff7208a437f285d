//! [`RetryError`]: the error of a guarded call.

use std::error::Error;
use std::fmt;

use super::Execution;
use crate::category::Category;
use crate::decision::DeadReason;
use crate::failure::{BoxError, Failure};
use crate::timestamp::Timestamp;

/// Error of a guarded call: operation, number of attempts, reason, and the last attempt's error as its source.
///
/// A non-retryable error comes back as itself: it has the message and the source of the operation's error, and
/// [`downcast`](Self::downcast) returns that error by value.
// Boxed, so that the result of a successful call stays small.
pub struct RetryError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    category: Category,
    operation: String,
    attempts: u32,
    reason: RetryErrorReason,
    /// Error of the last attempt, with its class.
    cause: Option<Failure>,
}

impl Inner {
    /// The operation's error, if it was not retryable.
    fn transparent(&self) -> Option<&Failure> {
        self.cause.as_ref().filter(|_| self.reason == RetryErrorReason::Dead(DeadReason::Permanent))
    }
}

impl fmt::Display for RetryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { category, operation, attempts, reason, .. } = &*self.0;
        match (self.0.transparent(), reason) {
            (Some(error), _) => error.fmt(f),
            (None, RetryErrorReason::Dead(_)) => {
                let times = if *attempts == 1 { "attempt" } else { "attempts" };
                write!(f, "{category}: {operation}: failed after {attempts} {times}: {reason}")
            }
            (None, _) => write!(f, "{category}: {operation}: {reason}"),
        }
    }
}

impl fmt::Debug for RetryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { category, operation, attempts, reason, cause } = &*self.0;
        f.debug_struct("RetryError")
            .field("category", category)
            .field("operation", operation)
            .field("attempts", attempts)
            .field("reason", reason)
            .field("cause", cause)
            .finish()
    }
}

impl Error for RetryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self.0.transparent() {
            Some(error) => error.source(),
            None => self.0.cause.as_ref().map(|cause| cause.get_ref() as _),
        }
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
        cause: Option<Failure>,
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
        self.0.cause.as_ref()?.find()
    }

    /// Returns the last attempt's error by value if it is of type `E`, otherwise this error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use redrive_retry::policy::ErrorRule;
    /// use redrive_retry::{RetryExt, RetryPolicy};
    /// use std::num::ParseIntError;
    ///
    /// let policy = RetryPolicy::builder().non_retryable(ErrorRule::of::<ParseIntError>()).build().unwrap();
    /// let parse = || async { "seven".parse::<u8>() };
    /// let error = parse.retry(&policy).await.unwrap_err();
    /// assert_eq!(error.to_string(), "invalid digit found in string");
    /// assert_eq!(error.downcast::<ParseIntError>().unwrap(), "seven".parse::<u8>().unwrap_err());
    /// # }
    /// ```
    pub fn downcast<E: Error + 'static>(mut self) -> Result<E, RetryError> {
        if !self.0.cause.as_ref().is_some_and(|cause| cause.get_ref().is::<E>()) {
            return Err(self);
        }
        match self.0.cause.take().map(|cause| cause.into_inner().downcast()) {
            Some(Ok(error)) => Ok(*error),
            _ => unreachable!("the type was checked"),
        }
    }

    /// Returns the last attempt's error by value.
    pub fn into_cause(self) -> Option<BoxError> {
        self.0.cause.map(Failure::into_inner)
    }

    /// The last attempt's error with its class.
    pub(crate) fn cause(&self) -> Option<&Failure> {
        self.0.cause.as_ref()
    }
}
