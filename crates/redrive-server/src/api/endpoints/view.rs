//! Converts endpoints into those of the API: without secrets, and with their present health.

use redrive::retry::breaker::BreakerSnapshot;
use redrive_api::endpoints::{CircuitState, Disabled, Endpoint, EndpointState};
use redrive_api::time::Time;
use redrive_webhook as webhook;

use crate::api::problem::Problem;
use crate::api::{Api, name_of, retry};

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
            .map(|(reason, since)| Disabled { reason: name_of(&reason).into(), since: since.into() }),
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
        failing_since,
    })
}
