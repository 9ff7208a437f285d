//! JSON document of an endpoint in the database, with secrets and header values encrypted.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redrive::Limits;
use redrive::retry::{RetryOverride, Timestamp};
use redrive::subscription::Patterns;
use redrive_store::{Document, DocumentKey};
use serde::{Deserialize, Serialize};

use crate::endpoint::{Disabled, Endpoint, EndpointId, SigningSecret};
use crate::endpoint_url::EndpointUrl;
use crate::error::EndpointStoreError;
use crate::header::Header;
use crate::vault::Vault;

/// Document kind of endpoints.
pub(crate) const KIND: &str = "endpoint";

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    url: String,
    patterns: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disabled: Option<(Disabled, Timestamp)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deleted_at: Option<Timestamp>,
    /// Names and encrypted values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<RetryOverride>,
    timeout_ms: u64,
    concurrency: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    per_second: Option<f64>,
    secrets: Vec<StoredSecret>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSecret {
    sealed: String,
    created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

pub(crate) fn key(id: &EndpointId) -> DocumentKey {
    DocumentKey::new(KIND, id.as_str()).expect("an endpoint id is a valid document id")
}

/// Encrypts a secret, bound to the endpoint's id so that it cannot be moved to another endpoint.
fn seal(vault: &Vault, id: &EndpointId, secret: &str) -> String {
    STANDARD.encode(vault.seal(id.as_str().as_bytes(), secret.as_bytes()))
}

fn open(vault: &Vault, id: &EndpointId, sealed: &str) -> Result<String, EndpointStoreError> {
    let sealed_bytes =
        STANDARD.decode(sealed).map_err(|_| EndpointStoreError::unreadable(id, "a secret is not base64"))?;
    let secret = vault
        .open(id.as_str().as_bytes(), &sealed_bytes)
        .map_err(|error| EndpointStoreError::Sealed { id: id.clone(), error })?;
    String::from_utf8(secret).map_err(|_| EndpointStoreError::unreadable(id, "a secret is not UTF-8"))
}

pub(crate) fn write(endpoint: &Endpoint, vault: &Vault) -> String {
    let id = &endpoint.id;
    let secret = |one: &SigningSecret| StoredSecret {
        sealed: seal(vault, id, &one.secret.reveal()),
        created_at: one.created_at,
        expires_at: one.expires_at,
    };
    let header = |header: &Header| (header.name().to_owned(), seal(vault, id, header.value()));
    let stored = Stored {
        url: endpoint.url.as_str().to_owned(),
        patterns: endpoint.patterns.to_string(),
        description: endpoint.description.clone(),
        disabled: endpoint.disabled.clone(),
        deleted_at: endpoint.deleted_at,
        headers: endpoint.headers.iter().map(header).collect(),
        retry: endpoint.retry.clone(),
        timeout_ms: u64::try_from(endpoint.timeout.as_millis()).unwrap_or(u64::MAX),
        concurrency: endpoint.limits.concurrency,
        per_second: endpoint.limits.per_second,
        secrets: endpoint.secrets.iter().map(secret).collect(),
    };
    serde_json::to_string(&stored).expect("text and numbers always serialise")
}

/// Document of a removed endpoint that cannot be read. Its subscription remains to dead-letter its open deliveries.
pub(crate) fn tombstone(document: &Document, now: Timestamp) -> String {
    let before: serde_json::Value = serde_json::from_str(&document.body).unwrap_or_default();
    let text = |name: &str| before.get(name).and_then(|value| value.as_str()).map(str::to_owned);
    let url = text("url").filter(|url| url.parse::<EndpointUrl>().is_ok());
    let patterns = text("patterns").filter(|patterns| patterns.parse::<Patterns>().is_ok());
    let stored = Stored {
        url: url.unwrap_or_else(|| "https://unreadable.invalid/".to_owned()),
        patterns: patterns.unwrap_or_else(|| "*".to_owned()),
        deleted_at: Some(now),
        timeout_ms: 1000,
        concurrency: 1,
        ..Stored::default()
    };
    serde_json::to_string(&stored).expect("text and numbers always serialise")
}

/// Whether all secrets are encrypted with the newest key.
pub(crate) fn is_current(document: &Document, vault: &Vault) -> bool {
    let Ok(stored) = serde_json::from_str::<Stored>(&document.body) else { return true };
    let secrets = stored.secrets.iter().map(|secret| &secret.sealed);
    let mut sealed = secrets.chain(stored.headers.iter().map(|(_, sealed)| sealed));
    sealed.all(|sealed| STANDARD.decode(sealed).is_ok_and(|sealed| vault.is_current(&sealed)))
}

/// Event patterns of a document that cannot be read otherwise; empty for a removed endpoint.
pub(crate) fn patterns(document: &Document) -> Option<String> {
    let body: serde_json::Value = serde_json::from_str(&document.body).ok()?;
    let patterns = body["patterns"].as_str()?;
    if !body["deleted_at"].is_null() {
        return Some(String::new());
    }
    Some(patterns.parse::<Patterns>().ok()?.to_string())
}

pub(crate) fn read(document: &Document, vault: &Vault) -> Result<Endpoint, EndpointStoreError> {
    let id: EndpointId = document.key.id().parse()?;
    let mut stored: Stored = serde_json::from_str(&document.body)
        .map_err(|error| EndpointStoreError::unreadable(&id, &error.to_string()))?;
    if stored.deleted_at.is_some() {
        // A removed endpoint sends nothing and is readable without its key.
        stored.secrets.clear();
        stored.headers.clear();
    }
    let secret = |one: &StoredSecret| -> Result<SigningSecret, EndpointStoreError> {
        let secret = open(vault, &id, &one.sealed)?.parse().map_err(crate::EndpointError::Secret)?;
        Ok(SigningSecret { secret, created_at: one.created_at, expires_at: one.expires_at })
    };
    let header = |(name, sealed): &(String, String)| -> Result<Header, EndpointStoreError> {
        Ok(Header::new(name, &open(vault, &id, sealed)?).map_err(crate::EndpointError::Header)?)
    };
    Ok(Endpoint {
        version: document.version,
        url: stored.url.parse().map_err(crate::EndpointError::Url)?,
        patterns: stored.patterns.parse().map_err(crate::EndpointError::Pattern)?,
        description: stored.description,
        disabled: stored.disabled,
        deleted_at: stored.deleted_at,
        headers: stored.headers.iter().map(header).collect::<Result<_, _>>()?,
        retry: stored.retry,
        timeout: Duration::from_millis(stored.timeout_ms),
        limits: Limits { concurrency: stored.concurrency, per_second: stored.per_second },
        secrets: stored.secrets.iter().map(secret).collect::<Result<_, _>>()?,
        created_at: document.created_at,
        updated_at: document.updated_at,
        id,
    })
}
