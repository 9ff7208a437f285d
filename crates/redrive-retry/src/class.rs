//! Failure classes: whether and how an error is retried.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Class of a failure. Every class but `Permanent` is retried.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FailureClass {
    /// A later attempt may succeed.
    Transient,
    /// The destination is overloaded.
    Throttled {
        /// Requested minimum delay in milliseconds.
        #[serde(default, rename = "retry_after_ms", skip_serializing_if = "Option::is_none")]
        retry_after: Option<u64>,
    },
    /// No response within the time limit.
    Timeout,
    /// No attempt can succeed; dead-lettered at once.
    Permanent,
    /// The process ended during the attempt.
    Crashed,
}

impl FailureClass {
    /// Creates `Throttled` with a requested minimum delay.
    pub fn retry_after(wait: Duration) -> Self {
        FailureClass::Throttled { retry_after: Some(crate::timestamp::saturating_millis(wait)) }
    }

    /// Whether the failure is retried.
    pub fn is_retryable(self) -> bool {
        self != FailureClass::Permanent
    }

    /// Requested minimum delay.
    pub fn requested_wait(self) -> Option<Duration> {
        match self {
            FailureClass::Throttled { retry_after } => retry_after.map(Duration::from_millis),
            _ => None,
        }
    }

    /// Class of an I/O error: timeout, or else transient. No kind is permanent; the rule
    /// [`ErrorRule::permanent_io`](crate::policy::ErrorRule::permanent_io) makes some of them so.
    pub fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => FailureClass::Timeout,
            _ => FailureClass::Transient,
        }
    }

    /// Name in rules and records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FailureClass::Transient => "transient",
            FailureClass::Throttled { .. } => "throttled",
            FailureClass::Timeout => "timeout",
            FailureClass::Permanent => "permanent",
            FailureClass::Crashed => "crashed",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error type that knows its class.
///
/// Implement it for your error enum. Then either register the type with [`Rules::classify`](crate::policy::Rules::classify) in
/// the policy, which finds the error inside `anyhow` or a box, or call
/// [`.classified()`](crate::ClassifyError::classified) where the error arises.
///
/// ```
/// # use redrive_retry::{Classify, FailureClass};
/// # #[derive(Debug)] enum ChargeError { CardDeclined, GatewayBusy }
/// impl Classify for ChargeError {
///     fn class(&self) -> FailureClass {
///         match self {
///             ChargeError::CardDeclined => FailureClass::Permanent,
///             ChargeError::GatewayBusy => FailureClass::Transient,
///         }
///     }
/// }
/// # assert_eq!(ChargeError::GatewayBusy.class(), FailureClass::Transient);
/// # assert_eq!(ChargeError::CardDeclined.class(), FailureClass::Permanent);
/// ```
pub trait Classify {
    /// Class of this error.
    fn class(&self) -> FailureClass;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_of_io_error_is_permanent() {
        let class = |kind: io::ErrorKind| FailureClass::of_io(&kind.into());
        assert_eq!(class(io::ErrorKind::TimedOut), FailureClass::Timeout);
        for kind in [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::InvalidInput,
            io::ErrorKind::Unsupported,
            io::ErrorKind::AlreadyExists,
            io::ErrorKind::ReadOnlyFilesystem,
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::NotFound,
            io::ErrorKind::StorageFull,
            io::ErrorKind::InvalidData,
        ] {
            assert_eq!(class(kind), FailureClass::Transient, "{kind:?}");
        }
    }

    #[test]
    fn every_class_but_permanent_is_retryable() {
        let throttled = FailureClass::retry_after(Duration::from_secs(3));
        for class in [FailureClass::Transient, throttled, FailureClass::Timeout, FailureClass::Crashed] {
            assert!(class.is_retryable(), "{class}");
        }
        assert!(!FailureClass::Permanent.is_retryable());
        assert_eq!(throttled.requested_wait(), Some(Duration::from_secs(3)));
    }
}
