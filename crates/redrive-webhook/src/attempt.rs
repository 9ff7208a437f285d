//! Outcome of one webhook attempt, and its failure class.

use std::time::Duration;

use redrive_retry::{FailureClass, Timestamp, http};
use serde::{Deserialize, Serialize};

/// Bytes of a response body that are read; the connection is dropped after them.
pub const MAX_BODY: usize = 64 * 1024;

/// Characters of a response header value that are kept.
const MAX_HEADER_CHARS: usize = 256;

/// Beginnings of the names of headers in which receivers state their rate limit.
const RATE_HEADERS: [&str; 3] = ["ratelimit", "x-ratelimit", "x-rate-limit"];

/// Number of rate limit headers that are kept.
const MAX_RATE_HEADERS: usize = 8;

/// Response headers that are kept, for diagnosis, beside those of a rate limit. Others may hold secrets.
const KEPT_HEADERS: [&str; 9] = [
    "cf-ray",
    "content-length",
    "content-type",
    "date",
    "retry-after",
    "server",
    "via",
    "x-amzn-requestid",
    "x-request-id",
];

/// One attempt to deliver a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Time until the response began or the attempt failed.
    pub latency: Duration,
    /// The response, if one arrived.
    pub response: Option<WebhookResponse>,
    /// The failure; `None` on success.
    pub failed: Option<Failed>,
}

/// HTTP response of the receiver, as far as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookResponse {
    /// HTTP status code.
    pub status: u16,
    /// The headers that are kept.
    pub headers: Vec<(String, String)>,
    /// The body up to [`MAX_BODY`] bytes, as received: a compressed body stays compressed.
    pub body: Vec<u8>,
    /// Whether the body was longer, or did not arrive in time.
    pub is_cut: bool,
}

/// Failure of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failed {
    /// The guard forbids the address.
    #[error("{why}")]
    Forbidden {
        /// The address and the way to allow it.
        why: String,
    },
    /// The host name has no address.
    #[error("the name of the endpoint cannot be resolved: {why}")]
    Resolve {
        /// Error of the resolver.
        why: String,
    },
    /// The TCP connection failed.
    #[error("no connection to the endpoint: {why}")]
    Connect {
        /// Error of the operating system.
        why: String,
    },
    /// This machine has no file descriptor or memory for another connection. The delivery is snoozed and no attempt is charged.
    #[error("this machine has no resources for another connection: {why}")]
    LocalResources {
        /// Error of the operating system.
        why: String,
    },
    /// The TLS handshake failed.
    #[error("no TLS with the endpoint: {why}")]
    Tls {
        /// Error of the TLS library.
        why: String,
    },
    /// The connection or the response took too long.
    #[error("{waiting_for} took longer than {limit_ms} ms")]
    Timeout {
        /// The phase that took too long.
        waiting_for: Phase,
        /// Time limit of the phase, in milliseconds.
        limit_ms: u64,
    },
    /// The connection broke, or the response was not HTTP.
    #[error("the connection broke, or the response was not HTTP: {why}")]
    Broken {
        /// Error of the HTTP library.
        why: String,
    },
    /// The status was not 2xx.
    #[error("the endpoint answered {status}")]
    Status {
        /// The status code.
        status: u16,
        /// The wait that `Retry-After` asked for.
        retry_after_ms: Option<u64>,
    },
}

/// Phase of an attempt.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Name resolution, TCP and TLS.
    Connection,
    /// Until the response head has arrived.
    Response,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Phase::Connection => "connecting",
            Phase::Response => "the response",
        })
    }
}

impl Attempt {
    /// Whether the receiver accepted the message (2xx).
    pub fn is_success(&self) -> bool {
        self.failed.is_none()
    }

    /// Whether the receiver answered 410: the endpoint is to be disabled.
    pub fn is_gone(&self) -> bool {
        matches!(self.failed, Some(Failed::Status { status: 410, .. }))
    }

    /// Whether the response names a rate limit of the receiver.
    fn states_a_rate_limit(&self) -> bool {
        let headers = self.response.iter().flat_map(|response| &response.headers);
        headers.into_iter().any(|(name, _)| is_rate_header(name))
    }

    /// Failure class for the retry policy; `None` on success.
    pub fn failure(&self) -> Option<FailureClass> {
        Some(match self.failed.as_ref()? {
            Failed::Timeout { .. } => FailureClass::Timeout,
            Failed::Status { status: 410, .. } => FailureClass::Permanent,
            Failed::Status { status: 503, retry_after_ms: None } if self.states_a_rate_limit() => {
                FailureClass::Throttled { retry_after: None }
            }
            Failed::Status { status, retry_after_ms } => {
                let seconds = retry_after_ms.map(|wait| wait.div_ceil(1000).to_string());
                match http::classify(*status, seconds.as_deref(), Timestamp::EPOCH)? {
                    // Receivers answer 404 during a deployment and 401 during a key rotation, so these are retried.
                    FailureClass::Permanent => FailureClass::Transient,
                    class => class,
                }
            }
            // DNS errors, too, are often temporary.
            _ => FailureClass::Transient,
        })
    }
}

impl WebhookResponse {
    pub(crate) fn new(head: &hyper::http::response::Parts, body: Vec<u8>, is_cut: bool) -> Self {
        let kept = |name: &str| {
            let value = String::from_utf8_lossy(head.headers.get(name)?.as_bytes());
            Some((name.to_owned(), value.chars().take(MAX_HEADER_CHARS).collect()))
        };
        let names = head.headers.keys().map(hyper::header::HeaderName::as_str);
        let of_rate = names.filter(|name| is_rate_header(name)).take(MAX_RATE_HEADERS);
        let headers = KEPT_HEADERS.into_iter().chain(of_rate).filter_map(kept).collect();
        WebhookResponse { status: head.status.as_u16(), headers, body, is_cut }
    }

    /// The failure that this status means, or `None` for 2xx.
    pub(crate) fn failure(&self, now: Timestamp) -> Option<Failed> {
        let status = self.status;
        let retry_after = self.headers.iter().find(|(name, _)| name == "retry-after");
        let wait = retry_after.and_then(|(_, value)| http::parse_retry_after(value, now));
        let retry_after_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        (!(200..300).contains(&status)).then_some(Failed::Status { status, retry_after_ms })
    }
}

/// Whether a header with this name, in lower case, states a rate limit.
fn is_rate_header(name: &str) -> bool {
    RATE_HEADERS.iter().any(|begin| name.starts_with(begin))
}
