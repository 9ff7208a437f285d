//! An endpoint: where a webhook goes, what it wants, and how it is to be treated.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redrive::{Limits, PatternError, Patterns, PolicyError, RetryOverride, RetryPolicy, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::endpoint_url::{EndpointUrl, UrlError};
use crate::header::{Header, HeaderError};
use crate::secret::{Secret, SecretError, Secrets};

/// The longest description, in bytes.
const LONGEST_DESCRIPTION: usize = 1024;

/// The most headers of its own.
const MOST_HEADERS: usize = 32;

/// So many secrets are valid at once, at most.
const MOST_SECRETS: usize = 5;

/// How long an attempt may take.
pub const TIMEOUT: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);

/// How many attempts may be under way at once.
pub const CONCURRENCY: std::ops::RangeInclusive<u32> = 1..=256;
const DEFAULT_CONCURRENCY: u32 = 16;

/// How many attempts may begin in a second.
pub const PER_SECOND: std::ops::RangeInclusive<f64> = 0.01..=100_000.0;

/// The name of an endpoint: `ep_` and 32 hexadecimal digits. What it is owed is kept under this name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EndpointId(String);

impl EndpointId {
    /// A new one, later in the order than all before it.
    pub fn generate() -> Self {
        EndpointId(format!("ep_{}", Uuid::now_v7().simple()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for EndpointId {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let digits = text.strip_prefix("ep_").filter(|digits| digits.len() == 32);
        let is_hex = |digits: &&str| digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digits.filter(is_hex).is_none() {
            return Err(EndpointError::Id { text: text.chars().take(64).collect() });
        }
        Ok(EndpointId(text.to_owned()))
    }
}

impl TryFrom<String> for EndpointId {
    type Error = EndpointError;

    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

impl From<EndpointId> for String {
    fn from(id: EndpointId) -> String {
        id.0
    }
}

/// Why nothing is sent to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disabled {
    /// Somebody wants it so.
    ByHand,
    /// It has answered 410.
    Gone,
    /// No attempt has succeeded for five days.
    Failing,
}

impl fmt::Display for Disabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Disabled::ByHand => "by hand",
            Disabled::Gone => "because it answered 410 Gone",
            Disabled::Failing => "because no attempt has succeeded for five days",
        })
    }
}

/// A secret and how long it is used.
#[derive(Clone, Debug)]
pub struct SigningSecret {
    /// What messages are signed with.
    pub secret: Secret,
    /// Since when.
    pub created_at: Timestamp,
    /// Until when, if another one has taken its place.
    pub expires_at: Option<Timestamp>,
}

/// An endpoint that is valid as a whole.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its name.
    pub id: EndpointId,
    /// Counts its changes; whoever changes it says which one it has seen.
    pub version: u64,
    /// Where messages go.
    pub url: EndpointUrl,
    /// Which events it wants.
    pub patterns: Patterns,
    /// What people call it.
    pub description: String,
    /// Nothing is sent while this is set, and since when.
    pub disabled: Option<(Disabled, Timestamp)>,
    /// It was removed, and when. What it is owed is given up with this as the reason.
    pub deleted_at: Option<Timestamp>,
    /// Sent along with every message.
    pub headers: Vec<Header>,
    /// What is not as in the policy of the server.
    pub retry: Option<RetryOverride>,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// How much may be under way at once, and how fast.
    pub limits: Limits,
    /// The newest first.
    pub secrets: Vec<SigningSecret>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl Endpoint {
    /// What messages are signed with at this time.
    pub fn signing(&self, now: Timestamp) -> Option<Secrets> {
        let mut valid = self
            .secrets
            .iter()
            .filter(|secret| secret.expires_at.is_none_or(|end| now < end))
            .map(|secret| secret.secret.clone());
        Some(Secrets::new(valid.next()?).and_older(valid))
    }

    /// Whether messages are sent to it.
    pub fn is_enabled(&self) -> bool {
        self.disabled.is_none() && self.deleted_at.is_none()
    }
}

/// What somebody wants of an endpoint. What is not given is left as it is, or has its default.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Where messages go.
    pub url: Option<String>,
    /// Which events it wants.
    pub patterns: Option<Vec<String>>,
    /// What people call it.
    pub description: Option<String>,
    /// Whether messages are sent.
    pub enabled: Option<bool>,
    /// Sent along with every message; all of them are given anew.
    pub headers: Option<Vec<(String, String)>>,
    /// What is not as in the policy of the server, field by field over what was said before; `Some(None)` for nothing.
    pub retry: Option<Option<RetryOverride>>,
    /// How long an attempt may take.
    pub timeout_ms: Option<u64>,
    /// How many attempts may begin in a second; `Some(None)` for as many as there are.
    pub per_second: Option<Option<f64>>,
    /// How many may be under way at once.
    pub concurrency: Option<u32>,
}

impl Wish {
    /// An endpoint of this, with this secret.
    pub(crate) fn found(self, secret: Secret, now: Timestamp) -> Result<Endpoint, EndpointError> {
        let url = self.url.as_deref().ok_or(EndpointError::Missing { what: "url" })?.parse()?;
        let patterns = self.patterns.as_deref().ok_or(EndpointError::Missing { what: "patterns" })?;
        let mut endpoint = Endpoint {
            id: EndpointId::generate(),
            version: 1,
            url,
            patterns: read_patterns(patterns)?,
            description: String::new(),
            disabled: None,
            deleted_at: None,
            headers: Vec::new(),
            retry: None,
            timeout: DEFAULT_TIMEOUT,
            limits: Limits { concurrency: DEFAULT_CONCURRENCY as usize, per_second: None },
            secrets: vec![SigningSecret { secret, created_at: now, expires_at: None }],
            created_at: now,
            updated_at: now,
        };
        self.apply_to(&mut endpoint, now)?;
        Ok(endpoint)
    }

    /// Changes what is given.
    pub(crate) fn apply_to(self, endpoint: &mut Endpoint, now: Timestamp) -> Result<(), EndpointError> {
        if let Some(url) = self.url {
            endpoint.url = url.parse()?;
        }
        if let Some(patterns) = self.patterns {
            endpoint.patterns = read_patterns(&patterns)?;
        }
        if let Some(description) = self.description {
            if description.len() > LONGEST_DESCRIPTION || description.chars().any(char::is_control) {
                return Err(EndpointError::Description);
            }
            endpoint.description = description;
        }
        match self.enabled {
            None => {}
            Some(true) => endpoint.disabled = None,
            Some(false) if endpoint.disabled.is_none() => endpoint.disabled = Some((Disabled::ByHand, now)),
            Some(false) => {}
        }
        if let Some(headers) = self.headers {
            endpoint.headers = read_headers(&headers)?;
        }
        if let Some(retry) = self.retry {
            let retry = retry.map(|retry| retry.or(endpoint.retry.take().unwrap_or_default()));
            if let Some(retry) = &retry {
                retry.apply_to(&RetryPolicy::webhook())?;
            }
            endpoint.retry = retry;
        }
        if let Some(timeout) = self.timeout_ms {
            endpoint.timeout = Some(Duration::from_millis(timeout))
                .filter(|timeout| TIMEOUT.contains(timeout))
                .ok_or(EndpointError::Timeout)?;
        }
        if let Some(per_second) = self.per_second {
            if per_second.is_some_and(|rate| !PER_SECOND.contains(&rate)) {
                return Err(EndpointError::PerSecond);
            }
            endpoint.limits.per_second = per_second;
        }
        if let Some(concurrency) = self.concurrency {
            if !CONCURRENCY.contains(&concurrency) {
                return Err(EndpointError::Concurrency);
            }
            endpoint.limits.concurrency = concurrency as usize;
        }
        Ok(())
    }
}

impl Endpoint {
    /// Signs with this one from now on, and with those before it for a while.
    pub(crate) fn rotate(
        &mut self,
        secret: Secret,
        overlap: Duration,
        now: Timestamp,
    ) -> Result<(), EndpointError> {
        self.secrets.retain(|secret| secret.expires_at.is_none_or(|end| now < end));
        let until = now + overlap;
        for before in &mut self.secrets {
            before.expires_at = Some(before.expires_at.map_or(until, |end| end.min(until)));
        }
        self.secrets.retain(|secret| secret.expires_at.is_none_or(|end| now < end));
        if self.secrets.len() >= MOST_SECRETS {
            return Err(EndpointError::Secrets);
        }
        self.secrets.insert(0, SigningSecret { secret, created_at: now, expires_at: None });
        Ok(())
    }
}

fn read_patterns(patterns: &[String]) -> Result<Patterns, PatternError> {
    // One by one, so that white space inside of one is an error and does not make two of it.
    for pattern in patterns {
        pattern.parse::<redrive::Pattern>()?;
    }
    patterns.join(" ").parse()
}

fn read_headers(headers: &[(String, String)]) -> Result<Vec<Header>, EndpointError> {
    if headers.len() > MOST_HEADERS {
        return Err(EndpointError::Headers);
    }
    Ok(headers.iter().map(|(name, value)| Header::new(name, value)).collect::<Result<_, _>>()?)
}

/// Why an endpoint cannot be so.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Not an id.
    #[error(
        "{text:?} is not the id of an endpoint: it begins with ep_, as `redrive endpoints list` shows it"
    )]
    Id {
        /// What was given.
        text: String,
    },
    /// Something must be given.
    #[error("{what} is missing: an endpoint has a url and at least one pattern, such as order.*")]
    Missing {
        /// What.
        what: &'static str,
    },
    /// The URL.
    #[error("the url cannot be used: {0}")]
    Url(#[from] UrlError),
    /// A pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The description.
    #[error("the description has more than {LONGEST_DESCRIPTION} bytes, or control characters in it")]
    Description,
    /// A header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Too many of them.
    #[error("more than {MOST_HEADERS} headers")]
    Headers,
    /// The policy.
    #[error("the retry policy cannot be used: {0}")]
    Policy(#[from] PolicyError),
    /// The secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Too many of them.
    #[error(
        "{MOST_SECRETS} secrets are in use already: wait until one of them has ended, or rotate without an overlap"
    )]
    Secrets,
    /// The timeout.
    #[error("timeout_ms is not between {} and {}", TIMEOUT.start().as_millis(), TIMEOUT.end().as_millis())]
    Timeout,
    /// The rate.
    #[error("per_second is not between {} and {}", PER_SECOND.start(), PER_SECOND.end())]
    PerSecond,
    /// The concurrency.
    #[error("concurrency is not between {} and {}", CONCURRENCY.start(), CONCURRENCY.end())]
    Concurrency,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn wish() -> Wish {
        Wish {
            url: Some("https://example.com/hook".into()),
            patterns: Some(vec!["order.*".into(), "invoice.paid".into()]),
            ..Wish::default()
        }
    }

    fn endpoint() -> Endpoint {
        wish().found(Secret::generate(), NOW).unwrap()
    }

    #[test]
    fn the_defaults() {
        let endpoint = endpoint();
        assert_eq!((endpoint.timeout, endpoint.limits.concurrency), (Duration::from_secs(20), 16));
        assert!(endpoint.limits.per_second.is_none() && endpoint.retry.is_none() && endpoint.is_enabled());
        assert_eq!(endpoint.patterns.to_string(), "order.* invoice.paid");
        assert_eq!(endpoint.id.to_string().parse::<EndpointId>().unwrap(), endpoint.id);
    }

    #[test]
    fn what_cannot_be_is_refused_and_says_why() {
        let refused = |change: fn(&mut Wish)| {
            let mut wish = wish();
            change(&mut wish);
            wish.found(Secret::generate(), NOW).unwrap_err().to_string()
        };
        assert!(refused(|wish| wish.url = None).contains("url is missing"));
        assert!(refused(|wish| wish.url = Some("ftp://x".into())).contains("https://"));
        assert!(refused(|wish| wish.patterns = Some(vec![])).contains("order.*"));
        assert!(refused(|wish| wish.patterns = Some(vec!["a b".into()])).contains("not a pattern"));
        assert!(refused(|wish| wish.description = Some("x".repeat(1025))).contains("1024"));
        assert!(refused(|wish| wish.timeout_ms = Some(999)).contains("between 1000 and 30000"));
        assert!(refused(|wish| wish.per_second = Some(Some(f64::NAN))).contains("0.01"));
        assert!(refused(|wish| wish.concurrency = Some(0)).contains("between 1 and 256"));
        assert!(refused(|wish| wish.headers = Some(vec![("Host".into(), "x".into())])).contains("host"));
        let many = |wish: &mut Wish| wish.headers = Some(vec![("x-a".into(), "x".into()); 33]);
        assert!(refused(many).contains("32"));
    }

    #[test]
    fn a_policy_is_changed_field_by_field() {
        let mut endpoint = endpoint();
        let mut change = |retry| {
            Wish { retry: Some(retry), ..Wish::default() }.apply_to(&mut endpoint, NOW).unwrap();
            endpoint.retry.clone()
        };
        let first = RetryOverride::new().max_attempts(3).base_delay_ms(50);
        assert_eq!(change(Some(first.clone())), Some(first));
        let both = RetryOverride::new().max_attempts(12).base_delay_ms(50);
        assert_eq!(change(Some(RetryOverride::new().max_attempts(12))), Some(both));
        assert_eq!(change(None), None);
    }

    #[test]
    fn a_secret_is_exchanged_with_an_overlap() {
        let mut endpoint = endpoint();
        let hour = Duration::from_secs(3600);
        let count = |endpoint: &Endpoint, at: Timestamp| {
            endpoint.signing(at).unwrap().sign("m", 1, b"x").split(' ').count()
        };
        endpoint.rotate(Secret::generate(), hour, NOW).unwrap();
        assert_eq!((count(&endpoint, NOW), count(&endpoint, NOW + hour)), (2, 1));
        endpoint.rotate(Secret::generate(), hour * 2, NOW).unwrap();
        assert_eq!(count(&endpoint, NOW + hour), 2, "no secret lives longer for being exchanged again");
        endpoint.rotate(Secret::generate(), Duration::ZERO, NOW).unwrap();
        assert_eq!(count(&endpoint, NOW), 1, "without an overlap those before are gone at once");
        for _ in 1..MOST_SECRETS {
            endpoint.rotate(Secret::generate(), hour, NOW).unwrap();
        }
        let refused = endpoint.rotate(Secret::generate(), hour, NOW);
        assert_eq!(refused, Err(EndpointError::Secrets));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for bad in [
            "",
            "ep_",
            "ep_123",
            "EP_00000000000000000000000000000000",
            "ep_0000000000000000000000000000000g",
        ] {
            assert!(bad.parse::<EndpointId>().is_err(), "{bad}");
        }
    }
}
