//! What kind of failure it was: the one fact about an error that a decision needs.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The kind of a failure. Everything but `Permanent` is worth another attempt.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FailureClass {
    /// May well work next time.
    Transient,
    /// The other side is overloaded, and may have said how long to stay away.
    Throttled {
        /// The minimum wait it asked for, in milliseconds.
        #[serde(default, rename = "retry_after_ms", skip_serializing_if = "Option::is_none")]
        retry_after: Option<u64>,
    },
    /// No answer in time.
    Timeout,
    /// Will never work; goes to the dead-letter queue at once.
    Permanent,
    /// The process ended during the attempt.
    Crashed,
}

impl FailureClass {
    /// Throttled, with the wait that was asked for.
    pub fn retry_after(wait: Duration) -> Self {
        FailureClass::Throttled { retry_after: Some(crate::timestamp::saturating_millis(wait)) }
    }

    /// Whether another attempt can make sense.
    pub fn is_retryable(self) -> bool {
        self != FailureClass::Permanent
    }

    /// The minimum wait that was asked for.
    pub fn requested_wait(self) -> Option<Duration> {
        match self {
            FailureClass::Throttled { retry_after } => retry_after.map(Duration::from_millis),
            _ => None,
        }
    }

    /// The class of an I/O error: what is about the request itself is permanent, what is about the moment is not.
    pub fn of_io(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::TimedOut => FailureClass::Timeout,
            Kind::PermissionDenied
            | Kind::InvalidInput
            | Kind::Unsupported
            | Kind::AlreadyExists
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::ReadOnlyFilesystem
            | Kind::ArgumentListTooLong => FailureClass::Permanent,
            // NotFound among them (a socket file that is missing while its server restarts), and InvalidData (what TLS
            // libraries say when a connection is cut).
            _ => FailureClass::Transient,
        }
    }

    /// The name in rules and records.
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

/// An error that knows its own class.
///
/// Implement it for your error enum and say so once, with [`Rules::classify`](crate::Rules::classify) in the policy
/// (which finds the error inside `anyhow` or a box, too) or with
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
    /// What kind of failure this is.
    fn class(&self) -> FailureClass;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_about_the_request_are_permanent_and_those_about_the_moment_are_not() {
        let class = |kind: io::ErrorKind| FailureClass::of_io(&kind.into());
        assert_eq!(class(io::ErrorKind::TimedOut), FailureClass::Timeout);
        assert_eq!(class(io::ErrorKind::PermissionDenied), FailureClass::Permanent);
        assert_eq!(class(io::ErrorKind::InvalidInput), FailureClass::Permanent);
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::NotFound,
            io::ErrorKind::StorageFull,
            io::ErrorKind::InvalidData,
            io::ErrorKind::Interrupted,
        ] {
            assert_eq!(class(kind), FailureClass::Transient, "{kind:?}");
        }
    }

    #[test]
    fn only_permanent_is_not_worth_another_attempt() {
        let throttled = FailureClass::retry_after(Duration::from_secs(3));
        for class in [FailureClass::Transient, throttled, FailureClass::Timeout, FailureClass::Crashed] {
            assert!(class.is_retryable(), "{class}");
        }
        assert!(!FailureClass::Permanent.is_retryable());
        assert_eq!(throttled.requested_wait(), Some(Duration::from_secs(3)));
    }
}
