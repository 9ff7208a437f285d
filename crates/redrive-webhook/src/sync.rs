//! Background task: follows endpoint changes of other processes, and disables endpoints that are gone or fail for too long.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::{BusError, EventId};
use redrive_store::{DocumentKey, StoreError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::endpoint::{Disabled, Endpoint, EndpointId};
use crate::error::{EndpointStoreError, WebhooksError};
use crate::health;
use crate::stored::{self, KIND};
use crate::subscriptions::{CachedEndpoint, EndpointSubscriptions};
use crate::target::DeliverySignal;

/// Type of the event that reports an endpoint disabled automatically.
pub const DISABLED: &str = "redrive.endpoint.disabled";

/// Payload of the event [`DISABLED`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointDisabled {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Origin of its URL. Path and query may hold a token, and any subscriber of `*` receives this event.
    pub url: String,
    /// The endpoint's description.
    pub description: String,
    /// The reason.
    pub reason: Disabled,
}

/// Poll interval for changes by other processes.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A removed endpoint's document is deleted after this time. Until then its dead letters show which endpoint they belong to.
const TOMBSTONE_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Minimum time between two log messages about exhausted local resources.
const RESOURCE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Reconciles with the database every [`POLL_INTERVAL`] and handles signals, until the store or the channel is closed.
pub(crate) async fn run(
    subscriptions: Arc<EndpointSubscriptions>,
    mut signals: mpsc::Receiver<DeliverySignal>,
) {
    let mut poll = tokio::time::interval(POLL_INTERVAL);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut resources_logged_at: Option<Instant> = None;
    loop {
        let result = tokio::select! {
            _ = poll.tick() => reconcile(&subscriptions).await,
            signal = signals.recv() => match signal {
                None => return,
                Some(signal) => handle_signal(&subscriptions, signal, &mut resources_logged_at).await,
            },
        };
        match result {
            Ok(()) => {}
            Err(error) if error.is_closed() => return,
            Err(error) => {
                tracing::error!(target: "redrive::webhook", %error, "could not synchronise endpoints with the database");
            }
        }
    }
}

/// Applies the changes that other processes made to endpoints and their health.
async fn reconcile(subscriptions: &EndpointSubscriptions) -> Result<(), WebhooksError> {
    // The ids first: an endpoint created after this line is not taken for a deleted one.
    let known = cached_ids(subscriptions);
    let on_record = subscriptions.store.versions(KIND).await?;
    apply_versions(subscriptions, known, &on_record).await?;
    forget_removed(subscriptions).await?;
    subscriptions.load_health().await
}

fn cached_ids(subscriptions: &EndpointSubscriptions) -> Vec<EndpointId> {
    subscriptions.cached().keys().cloned().collect()
}

/// Registers every endpoint with a newer version on record, and unsubscribes those of `known_before` that have no document.
async fn apply_versions(
    subscriptions: &EndpointSubscriptions,
    known_before: Vec<EndpointId>,
    on_record: &[(DocumentKey, u64)],
) -> Result<(), WebhooksError> {
    let changed: Vec<_> = {
        let cached = subscriptions.cached();
        let is_newer = |id: &str, version: u64| {
            id.parse::<EndpointId>()
                .is_ok_and(|id| cached.get(&id).is_none_or(|cached| cached.version < version))
        };
        on_record.iter().filter(|(key, version)| is_newer(key.id(), *version)).collect()
    };
    for (key, _) in &changed {
        match subscriptions.endpoints.read(key).await? {
            None => {}
            Some(Ok(endpoint)) => subscriptions.subscribe(endpoint)?,
            // Without readable patterns the earlier subscription stays.
            Some(Err(unreadable)) => drop(subscriptions.queue_for_unreadable(unreadable)?),
        }
    }
    let on_record: HashSet<&str> = on_record.iter().map(|(key, _)| key.id()).collect();
    for id in known_before.iter().filter(|id| !on_record.contains(id.as_str())) {
        subscriptions.unsubscribe(id).await?;
    }
    Ok(())
}

async fn forget_removed(subscriptions: &EndpointSubscriptions) -> Result<(), WebhooksError> {
    let now = subscriptions.store.clock().now();
    let is_old =
        |cached: &CachedEndpoint| cached.deleted_at().is_some_and(|at| now.since(at) >= TOMBSTONE_RETENTION);
    let old: Vec<(EndpointId, u64)> = {
        let cached = subscriptions.cached();
        let old = cached.iter().filter(|(_, cached)| is_old(cached));
        old.map(|(id, cached)| (id.clone(), cached.version)).collect()
    };
    for (id, version) in old {
        subscriptions.store.remove(stored::key(&id), Some(version)).await?;
        subscriptions.unsubscribe(&id).await?;
    }
    Ok(())
}

/// Records a health change, and disables the endpoint where the signal demands it.
async fn handle_signal(
    subscriptions: &EndpointSubscriptions,
    signal: DeliverySignal,
    resources_logged_at: &mut Option<Instant>,
) -> Result<(), WebhooksError> {
    let store = &subscriptions.store;
    match signal {
        DeliverySignal::LocalResources(why) => {
            if resources_logged_at.is_none_or(|at| at.elapsed() >= RESOURCE_LOG_INTERVAL) {
                *resources_logged_at = Some(Instant::now());
                tracing::error!(target: "redrive::webhook", %why, "no webhook can be sent at the moment; deliveries are snoozed and no attempt is charged; \
                    raise the limit of open files (LimitNOFILE, ulimit -n)");
            }
            Ok(())
        }
        DeliverySignal::Gone(id, version) => disable(subscriptions, &id, version, Disabled::Gone).await,
        DeliverySignal::Works(id) => Ok(health::clear(store, &id).await?),
        DeliverySignal::Failing(id, version, since) => {
            let is_current = subscriptions.cached().get(&id).is_some_and(|cached| cached.version == version);
            if is_current && health::record_failing(store, &id, since).await?.is_some() {
                disable(subscriptions, &id, version, Disabled::Failing).await?;
                health::clear(store, &id).await?;
            }
            Ok(())
        }
    }
}

/// Disables the endpoint and publishes a [`DISABLED`] event, unless the endpoint has changed since this version: then the next
/// attempt signals again if needed. The event is published first, under an id derived from endpoint and version, so a crash in
/// between never loses or repeats it.
async fn disable(
    subscriptions: &EndpointSubscriptions,
    id: &EndpointId,
    version: u64,
    why: Disabled,
) -> Result<(), WebhooksError> {
    let endpoint = match subscriptions.endpoints.get(id).await {
        Ok(endpoint) if endpoint.version == version && endpoint.disabled.is_none() => endpoint,
        Ok(_) | Err(EndpointStoreError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // The origin only: path and query may hold a token, and any subscriber of `*` receives this event.
    let payload = EndpointDisabled {
        endpoint: id.clone(),
        url: endpoint.url.origin(),
        description: endpoint.description.clone(),
        reason: why.clone(),
    };
    let publish = || subscriptions.bus.publish(DISABLED, &payload);
    match publish().id(disabled_event_id(&endpoint)).enqueue().await {
        // An event under the id of the report must not silence it.
        Err(BusError::Store(StoreError::IdTaken { .. })) => publish().enqueue().await?,
        published => published?,
    };
    match subscriptions.endpoints.disable(id, version, why.clone()).await {
        Ok(endpoint) => {
            tracing::warn!(target: "redrive::webhook", endpoint = %id, reason = ?why, "an endpoint was disabled");
            subscriptions.activate(endpoint).await.map(drop)
        }
        Err(EndpointStoreError::Changed { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn disabled_event_id(endpoint: &Endpoint) -> EventId {
    let digest = Sha256::digest(format!("{DISABLED}/{}/{}", endpoint.id, endpoint.version));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    EventId::from_uuid(Uuid::new_v8(bytes))
}

#[cfg(test)]
mod tests {
    use redrive::EventBus;
    use redrive_store::{SqliteOptions, SqliteStore};

    use super::*;
    use crate::client::Client;
    use crate::endpoint::EndpointPatch;
    use crate::endpoint_store::EndpointStore;
    use crate::guard::Guard;
    use crate::vault::Vault;

    #[tokio::test]
    async fn reconcile_keeps_an_endpoint_created_during_the_version_scan() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("db"), SqliteOptions::default()).unwrap();
        let bus = EventBus::builder().on(Arc::new(store)).await.unwrap();
        let guard = Guard::default().allow("127.0.0.1/32".parse().unwrap());
        let vault = Vault::new(["bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmU="]).unwrap();
        let client = Client::builder().guard(guard).build().unwrap();
        let endpoints = EndpointStore::new(Arc::clone(bus.store()), client, Arc::new(vault));
        let subscriptions = EndpointSubscriptions::new(bus.clone(), endpoints, mpsc::channel(1).0);
        let known = cached_ids(&subscriptions);
        let on_record = subscriptions.store.versions(KIND).await.unwrap();
        let patch = EndpointPatch {
            url: Some("http://127.0.0.1:9/".into()),
            patterns: Some(vec!["*".into()]),
            ..EndpointPatch::default()
        };
        let endpoint = subscriptions.endpoints.create(patch, None).await.unwrap();
        let endpoint = subscriptions.activate(endpoint).await.unwrap();
        apply_versions(&subscriptions, known, &on_record).await.unwrap();
        assert!(bus.subscriptions().iter().any(|all| all.name().as_str() == endpoint.id.as_str()));
        // An endpoint whose document was deleted is unsubscribed.
        apply_versions(&subscriptions, cached_ids(&subscriptions), &[]).await.unwrap();
        assert!(bus.subscriptions().is_empty());
        bus.shutdown().await.unwrap();
    }
}
