//! An endpoint: URL, event patterns, limits and signing secrets, and the patch that changes them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redrive::Limits;
use redrive::retry::policy::PolicyError;
use redrive::retry::{RetryOverride, RetryPolicy, Timestamp};
use redrive::subscription::{PatternError, Patterns, SubscriptionName};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::endpoint_url::{EndpointUrl, UrlError};
use crate::header::{Header, HeaderError};
use crate::id;
use crate::secret::{Secret, SecretError, Secrets};

/// Maximum length of a description in bytes.
const MAX_DESCRIPTION_BYTES: usize = 1024;

/// Maximum number of custom headers.
const MAX_HEADERS: usize = 32;

/// Maximum number of secrets valid at once.
const MAX_SECRETS: usize = 5;

/// Allowed timeouts of an attempt.
pub const TIMEOUT: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);

/// Allowed concurrency limits.
pub const CONCURRENCY: std::ops::RangeInclusive<u32> = 1..=256;
const DEFAULT_CONCURRENCY: u32 = 16;

/// Allowed rate limits, in attempts per second.
pub const PER_SECOND: std::ops::RangeInclusive<f64> = 0.01..=100_000.0;

/// Identifier of an endpoint: `ep_` and 32 hexadecimal digits. It is also the name of the endpoint's subscription.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct EndpointId(String);

const PREFIX: &str = "ep_";

impl EndpointId {
    /// A new id, which sorts after all earlier ones.
    pub fn generate() -> Self {
        EndpointId(id::generate(PREFIX))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the endpoint's subscription.
    pub(crate) fn subscription(&self) -> SubscriptionName {
        SubscriptionName::new(&self.0).expect("an endpoint id is a valid subscription name")
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
        id::parse(text, PREFIX).map(EndpointId).map_err(|text| EndpointError::Id { text })
    }
}

impl TryFrom<String> for EndpointId {
    type Error = EndpointError;

    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

/// Reason why an endpoint is disabled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disabled {
    /// Disabled by a request.
    ByHand,
    /// The endpoint answered 410 Gone.
    Gone,
    /// No attempt succeeded for five days.
    Failing,
}

impl Disabled {
    /// Name of the reason in JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Disabled::ByHand => "by_hand",
            Disabled::Gone => "gone",
            Disabled::Failing => "failing",
        }
    }
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

/// A signing secret and its time of use.
#[derive(Clone, Debug)]
pub struct SigningSecret {
    /// The secret.
    pub secret: Secret,
    /// Time of creation.
    pub created_at: Timestamp,
    /// End of use, once a newer secret replaced it.
    pub expires_at: Option<Timestamp>,
}

/// A validated endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Identifier, also the name of its subscription.
    pub id: EndpointId,
    /// Incremented by every change, for optimistic locking.
    pub version: u64,
    /// Destination of the requests.
    pub url: EndpointUrl,
    /// Patterns of the event types that it receives.
    pub patterns: Patterns,
    /// Description for people.
    pub description: String,
    /// Reason and time, while the endpoint is disabled. Its deliveries are dead-lettered.
    pub disabled: Option<(Disabled, Timestamp)>,
    /// Time of removal. Its open deliveries are dead-lettered with that reason.
    pub deleted_at: Option<Timestamp>,
    /// Custom headers of every request.
    pub headers: Vec<Header>,
    /// Deviations from the server's retry policy.
    pub retry: Option<RetryOverride>,
    /// Time limit of an attempt.
    pub timeout: Duration,
    /// Concurrency and rate limit.
    pub limits: Limits,
    /// Signing secrets, the newest first.
    pub secrets: Vec<SigningSecret>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

impl Endpoint {
    /// The secrets that sign messages at this time.
    pub fn signing(&self, now: Timestamp) -> Option<Secrets> {
        let mut valid = self
            .secrets
            .iter()
            .filter(|secret| secret.expires_at.is_none_or(|end| now < end))
            .map(|secret| secret.secret.clone());
        Some(Secrets::new(valid.next()?).and_older(valid))
    }

    /// Whether the endpoint receives messages: neither disabled nor removed.
    pub fn is_enabled(&self) -> bool {
        self.disabled.is_none() && self.deleted_at.is_none()
    }

    /// Signs with this secret from now on, and with the earlier ones until the overlap has passed.
    pub(crate) fn rotate(
        &mut self,
        secret: Secret,
        overlap: Duration,
        now: Timestamp,
    ) -> Result<(), EndpointError> {
        let until = now + overlap;
        for before in &mut self.secrets {
            before.expires_at = Some(before.expires_at.map_or(until, |end| end.min(until)));
        }
        self.secrets.retain(|secret| secret.expires_at.is_none_or(|end| now < end));
        if self.secrets.len() >= MAX_SECRETS {
            return Err(EndpointError::Secrets);
        }
        self.secrets.insert(0, SigningSecret { secret, created_at: now, expires_at: None });
        Ok(())
    }
}

/// Changes of an endpoint, or the settings of a new one. A field that is `None` stays as it is, or has its default.
#[derive(Clone, Debug, Default)]
pub struct EndpointPatch {
    /// Destination of the requests.
    pub url: Option<String>,
    /// Patterns of the event types that it receives.
    pub patterns: Option<Vec<String>>,
    /// Description for people.
    pub description: Option<String>,
    /// Enables or disables the endpoint.
    pub enabled: Option<bool>,
    /// Custom headers of every request; they replace all earlier ones.
    pub headers: Option<Vec<(String, String)>>,
    /// Deviations from the server's retry policy, merged field by field into the earlier ones; `Some(None)` clears them.
    pub retry: Option<Option<RetryOverride>>,
    /// Time limit of an attempt in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Rate limit in attempts per second; `Some(None)` removes it.
    pub per_second: Option<Option<f64>>,
    /// Concurrency limit.
    pub concurrency: Option<u32>,
}

impl EndpointPatch {
    /// Creates an endpoint with these settings and this secret.
    pub(crate) fn into_endpoint(self, secret: Secret, now: Timestamp) -> Result<Endpoint, EndpointError> {
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

    /// Applies the fields that are set.
    pub(crate) fn apply_to(self, endpoint: &mut Endpoint, now: Timestamp) -> Result<(), EndpointError> {
        if let Some(url) = self.url {
            endpoint.url = url.parse()?;
        }
        if let Some(patterns) = self.patterns {
            endpoint.patterns = read_patterns(&patterns)?;
        }
        if let Some(description) = self.description {
            if description.len() > MAX_DESCRIPTION_BYTES || description.chars().any(char::is_control) {
                return Err(EndpointError::Description);
            }
            endpoint.description = description;
        }
        match self.enabled {
            None => {}
            Some(true) => endpoint.disabled = None,
            Some(false) => {
                endpoint.disabled.get_or_insert((Disabled::ByHand, now));
            }
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

fn read_patterns(patterns: &[String]) -> Result<Patterns, PatternError> {
    // Parsed one by one: white space inside a pattern is an error and does not split it.
    for pattern in patterns {
        pattern.parse::<redrive::subscription::Pattern>()?;
    }
    patterns.join(" ").parse()
}

fn read_headers(headers: &[(String, String)]) -> Result<Vec<Header>, EndpointError> {
    if headers.len() > MAX_HEADERS {
        return Err(EndpointError::Headers);
    }
    Ok(headers.iter().map(|(name, value)| Header::new(name, value)).collect::<Result<_, _>>()?)
}

/// Settings of an endpoint are invalid.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The text is not an endpoint id.
    #[error(
        "{text:?} is not the id of an endpoint: it begins with ep_, as `redrive endpoints list` shows it"
    )]
    Id {
        /// The text.
        text: String,
    },
    /// A required field is missing.
    #[error("{what} is missing: an endpoint has a url and at least one pattern, such as order.*")]
    Missing {
        /// Name of the missing field.
        what: &'static str,
    },
    /// The URL is invalid.
    #[error("the url cannot be used: {0}")]
    Url(#[from] UrlError),
    /// A pattern is invalid.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The description is too long or has control characters.
    #[error("the description is longer than {MAX_DESCRIPTION_BYTES} bytes, or contains control characters")]
    Description,
    /// A header is invalid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// There are too many headers.
    #[error("more than {MAX_HEADERS} headers")]
    Headers,
    /// The retry policy is invalid.
    #[error("the retry policy cannot be used: {0}")]
    Policy(#[from] PolicyError),
    /// The secret is invalid.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Too many secrets are valid at once.
    #[error(
        "{MAX_SECRETS} secrets are already in use: wait until one of them has expired, or rotate without an overlap"
    )]
    Secrets,
    /// The timeout is out of range.
    #[error("timeout_ms is not between {} and {}", TIMEOUT.start().as_millis(), TIMEOUT.end().as_millis())]
    Timeout,
    /// The rate limit is out of range.
    #[error("per_second is not between {} and {}", PER_SECOND.start(), PER_SECOND.end())]
    PerSecond,
    /// The concurrency limit is out of range.
    #[error("concurrency is not between {} and {}", CONCURRENCY.start(), CONCURRENCY.end())]
    Concurrency,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn patch() -> EndpointPatch {
        EndpointPatch {
            url: Some("https://example.com/hook".into()),
            patterns: Some(vec!["order.*".into(), "invoice.paid".into()]),
            ..EndpointPatch::default()
        }
    }

    fn endpoint() -> Endpoint {
        patch().into_endpoint(Secret::generate(), NOW).unwrap()
    }

    #[test]
    fn a_new_endpoint_has_the_default_settings() {
        let endpoint = endpoint();
        assert_eq!((endpoint.timeout, endpoint.limits.concurrency), (Duration::from_secs(20), 16));
        assert!(endpoint.limits.per_second.is_none() && endpoint.retry.is_none() && endpoint.is_enabled());
        assert_eq!(endpoint.patterns.to_string(), "order.* invoice.paid");
        assert_eq!(endpoint.id.to_string().parse::<EndpointId>().unwrap(), endpoint.id);
    }

    #[test]
    fn invalid_settings_are_refused_with_a_reason() {
        let refused = |change: fn(&mut EndpointPatch)| {
            let mut patch = patch();
            change(&mut patch);
            patch.into_endpoint(Secret::generate(), NOW).unwrap_err().to_string()
        };
        assert!(refused(|patch| patch.url = None).contains("url is missing"));
        assert!(refused(|patch| patch.url = Some("ftp://x".into())).contains("https://"));
        assert!(refused(|patch| patch.patterns = Some(vec![])).contains("order.*"));
        assert!(refused(|patch| patch.patterns = Some(vec!["a b".into()])).contains("not a pattern"));
        assert!(refused(|patch| patch.description = Some("x".repeat(1025))).contains("1024"));
        assert!(refused(|patch| patch.timeout_ms = Some(999)).contains("between 1000 and 30000"));
        assert!(refused(|patch| patch.per_second = Some(Some(f64::NAN))).contains("0.01"));
        assert!(refused(|patch| patch.concurrency = Some(0)).contains("between 1 and 256"));
        assert!(refused(|patch| patch.headers = Some(vec![("Host".into(), "x".into())])).contains("host"));
        let many = |patch: &mut EndpointPatch| patch.headers = Some(vec![("x-a".into(), "x".into()); 33]);
        assert!(refused(many).contains("32"));
    }

    #[test]
    fn a_retry_override_is_merged_field_by_field() {
        let mut endpoint = endpoint();
        let mut change = |retry| {
            EndpointPatch { retry: Some(retry), ..EndpointPatch::default() }
                .apply_to(&mut endpoint, NOW)
                .unwrap();
            endpoint.retry.clone()
        };
        let first = RetryOverride::new().max_attempts(3).base_delay_ms(50);
        assert_eq!(change(Some(first.clone())), Some(first));
        let both = RetryOverride::new().max_attempts(12).base_delay_ms(50);
        assert_eq!(change(Some(RetryOverride::new().max_attempts(12))), Some(both));
        assert_eq!(change(None), None);
    }

    #[test]
    fn rotated_secrets_overlap_and_are_bounded() {
        let mut endpoint = endpoint();
        let hour = Duration::from_secs(3600);
        let count = |endpoint: &Endpoint, at: Timestamp| {
            endpoint.signing(at).unwrap().sign("m", 1, b"x").split(' ').count()
        };
        endpoint.rotate(Secret::generate(), hour, NOW).unwrap();
        assert_eq!((count(&endpoint, NOW), count(&endpoint, NOW + hour)), (2, 1));
        endpoint.rotate(Secret::generate(), hour * 2, NOW).unwrap();
        assert_eq!(count(&endpoint, NOW + hour), 2, "a second rotation extends no secret");
        endpoint.rotate(Secret::generate(), Duration::ZERO, NOW).unwrap();
        assert_eq!(count(&endpoint, NOW), 1, "without an overlap the earlier secrets end at once");
        for _ in 1..MAX_SECRETS {
            endpoint.rotate(Secret::generate(), hour, NOW).unwrap();
        }
        let refused = endpoint.rotate(Secret::generate(), hour, NOW);
        assert_eq!(refused, Err(EndpointError::Secrets));
    }

    #[test]
    fn malformed_ids_are_refused() {
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
