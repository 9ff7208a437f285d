//! [`Error`] of a request: its code, whether it may have taken effect, and the wait that the server asks for.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use redrive_retry::Timestamp;
use redrive_retry::http::parse_retry_after;

use crate::problem::{Problem, ProblemCode};

/// Error of a request. Compare its [`code`](Error::code): the texts are for people.
///
/// ```
/// use redrive_api::client::Error;
/// use redrive_api::problem::ProblemCode;
///
/// fn is_gone(error: &Error) -> bool {
///     error.code() == ProblemCode::NotFound
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused the request.
    #[error("{}", .problem.detail)]
    Problem {
        /// The problem that the server answered with.
        problem: Box<Problem>,
        /// Wait that the server asked for.
        retry_after: Option<Duration>,
    },
    /// An error status without a problem document; another program probably answered.
    #[error("the server has answered {status}: is there a redrive server behind the address?")]
    Unexpected {
        /// Status of the response.
        status: StatusCode,
        /// Wait that the response asked for.
        retry_after: Option<Duration>,
    },
    /// The response is not what this release reads.
    #[error(
        "the response cannot be read ({0}): is there a redrive server of this release behind the address?"
    )]
    Unreadable(String),
    /// The connection ended in the middle of a response.
    #[error("the response was cut off: {0}; try again")]
    CutOff(String),
    /// The server cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// No complete response arrived in time.
    #[error("no complete response within {} ms: check the address, and that `redrive serve` runs there", .0.as_millis())]
    TimedOut(Duration),
    /// The request cannot be sent.
    #[error("the request cannot be sent: {0}")]
    Invalid(String),
}

impl Error {
    /// Reads an error response: a problem document, or a bare status.
    pub(super) fn of_response(status: StatusCode, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Self {
        let retry_after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|value| parse_retry_after(value, now));
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => Error::Problem { problem: Box::new(problem), retry_after },
            Err(_) => Error::Unexpected { status, retry_after },
        }
    }

    /// The problem that the server answered with.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Problem { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// Kind of the error: the code of the server's problem, or one of the client's own.
    pub fn code(&self) -> ProblemCode {
        match self {
            Error::Problem { problem, .. } => problem.code.as_str().into(),
            Error::Unexpected { .. } | Error::Unreadable(_) => ProblemCode::UnexpectedResponse,
            Error::CutOff(_) | Error::Unreachable(_) => ProblemCode::NetworkError,
            Error::TimedOut(_) => ProblemCode::Timeout,
            Error::Invalid(_) => ProblemCode::InvalidRequest,
        }
    }

    /// Status of the response, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Problem { problem, .. } => Some(problem.status),
            Error::Unexpected { status, .. } => Some(status.as_u16()),
            _ => None,
        }
    }

    /// Wait that the server asked for before a repetition.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Problem { retry_after, .. } | Error::Unexpected { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the request may have taken effect although it failed. Repeat a publish then, with the same id or `Idempotency-Key`.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Error::Problem { .. } => {
                matches!(self.code(), ProblemCode::OutcomeUnknown | ProblemCode::Internal)
            }
            // A proxy may have passed the request on before it answered.
            Error::Unexpected { status, .. } => status.is_server_error(),
            Error::CutOff(_) | Error::Unreachable(_) | Error::TimedOut(_) => true,
            Error::Unreadable(_) | Error::Invalid(_) => false,
        }
    }

    /// Whether the server did nothing, and a later request may succeed.
    pub fn is_refused_for_now(&self) -> bool {
        use ProblemCode::{InProgress, RateLimited, RequestTimeout, ShuttingDown, Unavailable};
        let is_too_many = self.status() == Some(StatusCode::TOO_MANY_REQUESTS.as_u16());
        is_too_many
            || matches!(self.code(), RateLimited | Unavailable | ShuttingDown | InProgress | RequestTimeout)
    }

    /// Whether the same request may succeed later without any change.
    pub fn is_temporary(&self) -> bool {
        match self.status() {
            Some(status) => {
                status >= 500 || status == StatusCode::REQUEST_TIMEOUT.as_u16() || self.is_refused_for_now()
            }
            None => matches!(self, Error::CutOff(_) | Error::Unreachable(_) | Error::TimedOut(_)),
        }
    }
}
