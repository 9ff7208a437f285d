//! Which subscriptions a delivery is for: those of this process, and those of other processes.

use std::sync::Arc;

use redrive_store::{Claimed, Due, EventType, StoreError, SubscriptionName};

use crate::core::Core;
use crate::subscription::Subscription;

use super::STORE_RETRY_DELAY;

/// The subscriptions that a delivery is for: the one that it names, or all that match its event type.
pub(super) fn matching(
    core: &Core,
    subscription: Option<&SubscriptionName>,
    event_type: &EventType,
) -> Vec<Arc<Subscription>> {
    let subscriptions = core.subscriptions();
    match subscription {
        None => subscriptions.matching(event_type),
        Some(name) => subscriptions.named(name.as_str()).cloned().into_iter().collect(),
    }
}

/// Deliveries for matching subscriptions of other processes. Read after the handlers have ended, because the answer must not be older
/// than the decision; without an answer nothing is decided.
pub(super) async fn remote(
    core: &Core,
    claimed: &Claimed,
    matching: &[Arc<Subscription>],
) -> Vec<(SubscriptionName, Due)> {
    if claimed.subscription.is_some() {
        return Vec::new();
    }
    let remote = loop {
        match core.remote_subscriptions(&claimed.event.event_type).await {
            Ok(remote) => break remote,
            Err(StoreError::Closed | StoreError::Stopped { .. }) => return Vec::new(), // nothing can be settled any more
            Err(_) => tokio::time::sleep(STORE_RETRY_DELAY).await, // the store logs that it cannot reach its server
        }
    };
    let now = core.clock.now();
    let is_new = |name: &SubscriptionName| {
        !claimed.handled.contains(name) && !matching.iter().any(|subscription| subscription.name == *name)
    };
    remote.into_iter().filter(is_new).map(|name| (name, Due::At(now))).collect()
}
