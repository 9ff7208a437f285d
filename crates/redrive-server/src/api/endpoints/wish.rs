//! What a client wants of an endpoint.

use std::collections::BTreeMap;

use redrive_webhook::{Secret, Wish};
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use crate::api::problem::Problem;
use crate::api::retry::Retry;

/// How messages are signed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Signing {
    /// With a secret that both sides know (`v1`).
    #[default]
    Hmac,
    /// With a key pair: the receiver knows the public key only (`v1a`).
    Ed25519,
}

impl Signing {
    fn generate(self) -> Secret {
        match self {
            Signing::Hmac => Secret::generate(),
            Signing::Ed25519 => Secret::generate_pair(),
        }
    }
}

/// A secret of the client's own, or a new one of this kind.
pub(super) fn secret(own: Option<String>, signing: Option<Signing>) -> Result<Secret, Problem> {
    match (own, signing) {
        (Some(_), Some(_)) => {
            Err(Problem::invalid("give `secret` or `signing`, not both: a secret says how it signs"))
        }
        (Some(own), None) => {
            own.parse().map_err(|error: redrive_webhook::SecretError| Problem::invalid(error.to_string()))
        }
        (None, signing) => Ok(signing.unwrap_or_default().generate()),
    }
}

/// An endpoint that is to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateEndpoint {
    /// Where messages go: https, or http where that is allowed.
    #[schema(max_length = 2048, example = "https://example.com/webhooks")]
    url: String,
    /// Which events it wants: an event type, or a pattern in which `*` stands for one or more characters.
    #[schema(min_items = 1, max_items = 100, example = json!(["order.*", "invoice.paid"]))]
    patterns: Vec<String>,
    /// What people call it.
    #[schema(max_length = 1024)]
    description: Option<String>,
    /// Whether messages are sent.
    enabled: Option<bool>,
    /// Sent along with every message.
    headers: Option<BTreeMap<String, String>>,
    /// What is not as in the policy of the server.
    retry: Option<Retry>,
    /// How long an attempt may take; 20 s if nothing is said.
    #[schema(minimum = 1000, maximum = 30_000)]
    timeout_ms: Option<u64>,
    /// How many attempts may begin in a second; as many as there are if nothing is said.
    #[schema(minimum = 0.01, maximum = 100_000)]
    per_second: Option<f64>,
    /// How many may be under way at once; 16 if nothing is said.
    #[schema(minimum = 1, maximum = 256)]
    concurrency: Option<u32>,
    /// A secret of your own: `whsec_` and 24 to 64 bytes in base64, or `whsk_` and a private key. A new one is made if there is none.
    #[schema(max_length = 200)]
    pub(super) secret: Option<String>,
    /// What kind of secret is made.
    pub(super) signing: Option<Signing>,
}

/// What is to be changed. What is not given stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeEndpoint {
    /// The version that was seen: if it is another one now, nothing is changed.
    pub(super) version: Option<u64>,
    /// Where messages go.
    #[schema(max_length = 2048)]
    url: Option<String>,
    /// Which events it wants.
    #[schema(min_items = 1, max_items = 100)]
    patterns: Option<Vec<String>>,
    /// What people call it.
    #[schema(max_length = 1024)]
    description: Option<String>,
    /// Whether messages are sent. One that is enabled again is given another chance; what it has missed is in the dead-letter queue.
    enabled: Option<bool>,
    /// Sent along with every message. All of them are given anew.
    headers: Option<BTreeMap<String, String>>,
    /// What is not as in the policy of the server; `null` for nothing.
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<Retry>)]
    retry: Option<Option<Retry>>,
    /// How long an attempt may take.
    #[schema(minimum = 1000, maximum = 30_000)]
    timeout_ms: Option<u64>,
    /// How many attempts may begin in a second; `null` for as many as there are.
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<f64>, minimum = 0.01, maximum = 100_000)]
    per_second: Option<Option<f64>>,
    /// How many may be under way at once.
    #[schema(minimum = 1, maximum = 256)]
    concurrency: Option<u32>,
}

/// Tells `null` from what is not given.
fn or_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(d).map(Some)
}

fn pairs(headers: BTreeMap<String, String>) -> Vec<(String, String)> {
    headers.into_iter().collect()
}

impl CreateEndpoint {
    pub(super) fn into_wish(self) -> Result<Wish, Problem> {
        Ok(Wish {
            url: Some(self.url),
            patterns: Some(self.patterns),
            description: self.description,
            enabled: self.enabled,
            headers: self.headers.map(pairs),
            retry: self.retry.map(|retry| retry.into_override().map(Some)).transpose()?,
            timeout_ms: self.timeout_ms,
            per_second: self.per_second.map(Some),
            concurrency: self.concurrency,
        })
    }
}

impl ChangeEndpoint {
    pub(super) fn into_wish(self) -> Result<Wish, Problem> {
        let retry = match self.retry {
            None => None,
            Some(None) => Some(None),
            Some(Some(retry)) => Some(Some(retry.into_override()?)),
        };
        Ok(Wish {
            url: self.url,
            patterns: self.patterns,
            description: self.description,
            enabled: self.enabled,
            headers: self.headers.map(pairs),
            retry,
            timeout_ms: self.timeout_ms,
            per_second: self.per_second,
            concurrency: self.concurrency,
        })
    }
}
