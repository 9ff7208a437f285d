//! Converts requests into settings of endpoints, and endpoints, secrets and attempts into those of the API.

use std::collections::BTreeMap;

use redrive::retry::breaker::BreakerSnapshot;
use redrive_api::endpoints::{
    AttemptRecord, CircuitState, CreateEndpoint, Disabled, Endpoint, EndpointAttempt, EndpointSecret,
    EndpointState, Signing, UpdateEndpoint,
};
use redrive_api::page::List;
use redrive_api::time::Time;
use redrive_store::SubscriptionAttempt;
use redrive_webhook::{self as webhook, EndpointPatch, Secret, SecretError};
use serde_json::value::RawValue;

use crate::api::problem::Problem;
use crate::api::retry::into_override;
use crate::api::{Api, retry};

/// Shows an endpoint without secrets, and with its present health.
pub(super) async fn endpoint(api: &Api, endpoint: webhook::Endpoint) -> Result<Endpoint, Problem> {
    let state = state(api, &endpoint).await?;
    Ok(Endpoint {
        enabled: endpoint.is_enabled(),
        id: endpoint.id.to_string(),
        version: endpoint.version,
        url: endpoint.url.to_string(),
        patterns: endpoint.patterns.iter().map(ToString::to_string).collect(),
        description: endpoint.description,
        disabled: endpoint
            .disabled
            .map(|(reason, since)| Disabled { reason: reason.as_str().into(), since: since.into() }),
        header_names: endpoint.headers.iter().map(|header| header.name().to_owned()).collect(),
        retry: endpoint.retry.map(retry::view),
        timeout_ms: u64::try_from(endpoint.timeout.as_millis()).unwrap_or(u64::MAX),
        per_second: endpoint.limits.per_second,
        concurrency: endpoint.limits.concurrency,
        created_at: endpoint.created_at.into(),
        updated_at: endpoint.updated_at.into(),
        state,
    })
}

async fn state(api: &Api, endpoint: &webhook::Endpoint) -> Result<EndpointState, Problem> {
    let failing_since = api.webhooks.failing_since(&endpoint.id).await?.map(Time);
    if !api.dispatches {
        // Only a process that dispatches knows the circuit breaker.
        return Ok(EndpointState { failing_since, ..EndpointState::default() });
    }
    let subscriptions = api.bus.subscriptions();
    let subscription = subscriptions.iter().find(|one| one.name().as_str() == endpoint.id.as_str());
    let (circuit, until) = match subscription.map(|one| one.breaker()) {
        None | Some(BreakerSnapshot::Closed) => (CircuitState::Closed, None),
        Some(BreakerSnapshot::Open { until }) => (CircuitState::Open, Some(until)),
        Some(BreakerSnapshot::HalfOpen { until }) => (CircuitState::HalfOpen, Some(until)),
    };
    let now = api.store.clock().now();
    Ok(EndpointState {
        circuit: Some(circuit),
        circuit_until: until.map(Time),
        throttled_until: subscription.and_then(|one| one.throttled_until(now)).map(Time),
        reduced_rate: subscription.and_then(|one| one.reduced_rate()),
        failing_since,
    })
}

/// Reads the given secret, or generates one of this kind.
pub(super) fn secret(own: Option<String>, signing: Option<Signing>) -> Result<Secret, Problem> {
    match (own, signing) {
        (Some(_), Some(_)) => {
            Err(Problem::invalid("give `secret` or `signing`, not both: a secret says how it signs"))
        }
        (Some(own), None) => own.parse().map_err(|error: SecretError| Problem::invalid(error)),
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

pub(super) fn record(record: webhook::AttemptRecord) -> AttemptRecord {
    AttemptRecord {
        url: record.url,
        status: record.status,
        latency_ms: record.latency_ms,
        headers: record.headers,
        body: record.body,
        body_base64: record.body_base64,
        is_cut: record.is_cut,
        failed: record.failed.map(|failed| failed.to_string()),
    }
}

/// Reads the stored detail of an attempt to deliver to an endpoint.
pub(in crate::api) fn request(detail: &str) -> Option<AttemptRecord> {
    serde_json::from_str(detail).ok().map(record)
}

pub(super) fn attempt(found: SubscriptionAttempt) -> EndpointAttempt {
    let attempt = found.attempt;
    EndpointAttempt {
        event_id: *found.event_id.as_uuid(),
        event_type: found.event_type.to_string(),
        attempt: attempt.attempt,
        started_at: attempt.started_at.into(),
        duration_ms: attempt.duration_ms,
        succeeded: attempt.class.is_none(),
        class: attempt.class.map(|class| class.to_string()),
        delay_ms: attempt.delay_ms,
        error: (!attempt.error.is_empty()).then_some(attempt.error),
        decision: attempt.record.and_then(|record| RawValue::from_string(record.0).ok()),
        request: attempt.detail.and_then(|detail| request(&detail.0)),
    }
}

pub(super) fn secrets(endpoint: &webhook::Endpoint) -> List<EndpointSecret> {
    let data = endpoint.secrets.iter().map(|one| EndpointSecret {
        secret: one.secret.for_receiver(),
        created_at: one.created_at.into(),
        expires_at: one.expires_at.map(Time),
    });
    List { data: data.collect() }
}
