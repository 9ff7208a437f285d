//! What came of one attempt.

use std::time::Duration;

use redrive_retry::{FailureClass, Timestamp, http};
use serde::{Deserialize, Serialize};

/// So much of an answer is read. The rest is never asked for.
pub const MAX_BODY: usize = 64 * 1024;

/// So many bytes of the values of headers are kept.
const MAX_HEADER: usize = 256;

/// The headers of an answer that help to understand it. Anything else may be secret, or long.
const KEPT: [&str; 9] = [
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
    /// How long until the answer began, or until it was clear that there is none.
    pub latency: Duration,
    /// The answer, if there was one.
    pub answer: Option<Answer>,
    /// Why it is no success; `None` if it is one.
    pub failed: Option<Failed>,
}

/// What the receiver said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Those of its headers that are kept.
    pub headers: Vec<(String, String)>,
    /// Its body, as far as it was read, as it came: what is packed stays so.
    pub body: Vec<u8>,
    /// Whether there was more of it, or it did not come in time.
    pub is_cut: bool,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failed {
    /// It would have gone where nothing is sent.
    #[error("{why}")]
    Forbidden {
        /// Where that is.
        why: String,
    },
    /// The name has no address.
    #[error("the name of the endpoint cannot be resolved: {why}")]
    Resolve {
        /// What the resolver said.
        why: String,
    },
    /// Nobody answers there.
    #[error("no connection to the endpoint: {why}")]
    Connect {
        /// What the system said.
        why: String,
    },
    /// This machine has no room for another connection. That is not the receiver's fault: the attempt is none.
    #[error("this machine has no room for another connection: {why}")]
    NoRoom {
        /// What is missing.
        why: String,
    },
    /// No trust.
    #[error("no TLS with the endpoint: {why}")]
    Tls {
        /// What is wrong with it.
        why: String,
    },
    /// The answer did not come in time.
    #[error("{waiting_for} took longer than {limit_ms} ms")]
    Timeout {
        /// What was waited for.
        waiting_for: Phase,
        /// For how long.
        limit_ms: u64,
    },
    /// The connection broke, or what came was not HTTP.
    #[error("the endpoint broke off: {why}")]
    Broken {
        /// How.
        why: String,
    },
    /// The answer was not a success.
    #[error("the endpoint answered {status}")]
    Status {
        /// With what.
        status: u16,
        /// What its `Retry-After` asked for.
        retry_after_ms: Option<u64>,
    },
}

/// What an attempt waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A connection, with TLS.
    Connection,
    /// The beginning of the answer.
    Answer,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Phase::Connection => "connecting",
            Phase::Answer => "the answer",
        })
    }
}

impl Attempt {
    /// Whether the receiver has it.
    pub fn is_success(&self) -> bool {
        self.failed.is_none()
    }

    /// Whether the receiver wants nothing more, ever: 410.
    pub fn is_gone(&self) -> bool {
        matches!(self.failed, Some(Failed::Status { status: 410, .. }))
    }

    /// How long the receiver wants to be left alone, with everything, not only with this message.
    pub fn throttled_for(&self) -> Option<Duration> {
        match self.failed {
            Some(Failed::Status { status: 429 | 503, retry_after_ms: Some(wait) }) => {
                Some(Duration::from_millis(wait))
            }
            _ => None,
        }
    }

    /// The class of the failure; `None` if it is a success.
    pub fn failure(&self) -> Option<FailureClass> {
        Some(match self.failed.as_ref()? {
            Failed::Timeout { .. } => FailureClass::Timeout,
            // The receiver says itself that it wants nothing more.
            Failed::Status { status: 410, .. } => FailureClass::Permanent,
            Failed::Status { status, retry_after_ms } => {
                let seconds = retry_after_ms.map(|wait| wait.div_ceil(1000).to_string());
                match http::classify(*status, seconds.as_deref(), Timestamp::EPOCH)? {
                    // Receivers answer 404 while they are installed anew, and 401 while a key is exchanged: as often as the policy says.
                    FailureClass::Permanent => FailureClass::Transient,
                    class => class,
                }
            }
            // A name may have been wrong for a moment only; if not, the dead letter says why.
            _ => FailureClass::Transient,
        })
    }
}

impl Answer {
    pub(crate) fn new(head: &hyper::http::response::Parts, body: Vec<u8>, is_cut: bool) -> Self {
        let kept = |name: &&str| {
            let value = head.headers.get(*name)?;
            let value = String::from_utf8_lossy(value.as_bytes());
            Some(((*name).to_owned(), value.chars().take(MAX_HEADER).collect()))
        };
        let headers = KEPT.iter().filter_map(kept).collect();
        Answer { status: head.status.as_u16(), headers, body, is_cut }
    }

    /// What became of it.
    pub(crate) fn judge(&self, now: Timestamp) -> Option<Failed> {
        let status = self.status;
        let retry_after = self.headers.iter().find(|(name, _)| name == "retry-after");
        let wait = retry_after.and_then(|(_, value)| http::parse_retry_after(value, now));
        let retry_after_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        (!(200..300).contains(&status)).then_some(Failed::Status { status, retry_after_ms })
    }
}
