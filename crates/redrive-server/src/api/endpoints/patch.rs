//! Converts what a request sets of an endpoint.

use std::collections::BTreeMap;

use redrive_api::endpoints::{CreateEndpoint, Signing, UpdateEndpoint};
use redrive_webhook::{EndpointPatch, Secret, SecretError};

use crate::api::problem::Problem;
use crate::api::retry::into_override;

/// Reads the given secret, or generates one of this kind.
pub(super) fn secret(own: Option<String>, signing: Option<Signing>) -> Result<Secret, Problem> {
    match (own, signing) {
        (Some(_), Some(_)) => {
            Err(Problem::invalid("give `secret` or `signing`, not both: a secret says how it signs"))
        }
        (Some(own), None) => own.parse().map_err(|error: SecretError| Problem::invalid(error.to_string())),
        (None, None | Some(Signing::Hmac)) => Ok(Secret::generate()),
        (None, Some(Signing::Ed25519)) => Ok(Secret::generate_pair()),
        (None, Some(Signing::Other(_))) => {
            Err(Problem::invalid(format!("signing is one of {}", Signing::KNOWN.join(", "))))
        }
    }
}

fn pairs(headers: BTreeMap<String, String>) -> Vec<(String, String)> {
    headers.into_iter().collect()
}

pub(super) fn create(endpoint: CreateEndpoint) -> Result<EndpointPatch, Problem> {
    Ok(EndpointPatch {
        url: Some(endpoint.url),
        patterns: Some(endpoint.patterns),
        description: endpoint.description,
        enabled: endpoint.enabled,
        headers: endpoint.headers.map(pairs),
        retry: endpoint.retry.map(|retry| into_override(retry).map(Some)).transpose()?,
        timeout_ms: endpoint.timeout_ms,
        per_second: endpoint.per_second.map(Some),
        concurrency: endpoint.concurrency,
    })
}

pub(super) fn update(changes: UpdateEndpoint) -> Result<EndpointPatch, Problem> {
    Ok(EndpointPatch {
        url: changes.url,
        patterns: changes.patterns,
        description: changes.description,
        enabled: changes.enabled,
        headers: changes.headers.map(pairs),
        retry: changes.retry.map(|retry| retry.map(into_override).transpose()).transpose()?,
        timeout_ms: changes.timeout_ms,
        per_second: changes.per_second,
        concurrency: changes.concurrency,
    })
}
