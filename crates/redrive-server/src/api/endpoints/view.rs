//! An endpoint as it is shown: without what is secret.

use redrive::{BreakerSnapshot, Subscription, Timestamp};
use redrive_webhook::{Disabled, Endpoint};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::Api;
use crate::api::problem::Problem;
use crate::api::retry::Retry;
use crate::api::time::Instant;

/// An endpoint.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndpointView {
    #[schema(example = "ep_0190b3c47d2e7a118f006d5e4c3b2a19")]
    id: String,
    /// Counts its changes.
    version: u64,
    url: String,
    patterns: Vec<String>,
    description: String,
    /// Whether messages are sent.
    enabled: bool,
    /// Why not, and since when.
    disabled: Option<DisabledView>,
    /// The names of the headers that are sent along. Their values are secret.
    header_names: Vec<String>,
    /// What is not as in the policy of the server.
    retry: Option<Retry>,
    timeout_ms: u64,
    per_second: Option<f64>,
    concurrency: usize,
    created_at: Instant,
    updated_at: Instant,
    /// How it stands at the moment, as the answering server sees it.
    state: StateView,
}

/// Why nothing is sent.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DisabledView {
    /// `by_hand`, `gone` (it has answered 410), or `failing` (for five days).
    #[schema(value_type = String, pattern = "^(by_hand|gone|failing)$")]
    reason: Disabled,
    since: Instant,
}

/// How an endpoint stands at the moment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StateView {
    /// `closed` lets messages through, `open` does not, `half_open` tries one.
    #[schema(value_type = String, pattern = "^(closed|open|half_open)$")]
    circuit: &'static str,
    /// When the circuit lets the next one through.
    circuit_until: Option<Instant>,
    /// It has asked to be left alone until then.
    throttled_until: Option<Instant>,
    /// Since the first failure after the last success, if that is longer than a minute ago.
    failing_since: Option<Instant>,
}

/// A new endpoint, or a new secret of one.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CreatedEndpoint {
    /// What the receiver verifies signatures with: `whsec_…`, or `whpk_…` if it is a public key.
    #[schema(example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")]
    pub(super) secret: String,
    #[serde(flatten)]
    pub(super) endpoint: EndpointView,
}

fn state(subscription: Option<&Subscription>, failing_since: Option<Timestamp>, now: Timestamp) -> StateView {
    let (circuit, until) = match subscription.map(Subscription::breaker) {
        None | Some(BreakerSnapshot::Closed) => ("closed", None),
        Some(BreakerSnapshot::Open { until }) => ("open", Some(until)),
        Some(BreakerSnapshot::HalfOpen { until }) => ("half_open", Some(until)),
    };
    StateView {
        circuit,
        circuit_until: until.map(Instant),
        throttled_until: subscription.and_then(|one| one.throttled_until(now)).map(Instant),
        failing_since: failing_since.map(Instant),
    }
}

impl EndpointView {
    pub(super) async fn new(api: &Api, endpoint: Endpoint) -> Result<Self, Problem> {
        let subscriptions = api.bus.subscriptions();
        let subscription = subscriptions.iter().find(|one| one.name().as_str() == endpoint.id.as_str());
        let failing_since = api.webhooks.failing_since(&endpoint.id).await?;
        let state = state(subscription.map(AsRef::as_ref), failing_since, api.store.clock().now());
        Ok(EndpointView {
            enabled: endpoint.is_enabled(),
            id: endpoint.id.to_string(),
            version: endpoint.version,
            url: endpoint.url.to_string(),
            patterns: endpoint.patterns.iter().map(ToString::to_string).collect(),
            description: endpoint.description,
            disabled: endpoint.disabled.map(|(reason, since)| DisabledView { reason, since: since.into() }),
            header_names: endpoint.headers.iter().map(|header| header.name().to_owned()).collect(),
            retry: endpoint.retry.map(Retry::from),
            timeout_ms: u64::try_from(endpoint.timeout.as_millis()).unwrap_or(u64::MAX),
            per_second: endpoint.limits.per_second,
            concurrency: endpoint.limits.concurrency,
            created_at: endpoint.created_at.into(),
            updated_at: endpoint.updated_at.into(),
            state,
        })
    }
}
