//! For Redrive's own crates: settings of webhook and broker subscriptions. No stable interface.

use redrive_store::SubscriptionName;

use crate::bus::EventBus;
use crate::error::BusError;
use crate::pull::PullQueue;
use crate::subscribe::Subscribe;

/// Announces a subscription by its name, for callers that register subscriptions from stored documents and keep no handle.
pub async fn announce(bus: &EventBus, name: &SubscriptionName) -> Result<(), BusError> {
    Ok(bus.core.announce(name).await?)
}

/// Lets a queue end the leases of a subscription that gets no further events from it, because the subscription is being removed.
pub fn keep_leases(bus: &EventBus, queue: &PullQueue, name: &SubscriptionName) {
    queue.registered(&bus.core, name);
}

/// Settings of subscriptions whose handlers call another process.
pub trait SubscribeExt: Sized {
    /// Declares that the handler only calls another process, and so cannot crash this one: a crash suspect runs beside others.
    fn remote_effect(self) -> Self;

    /// Receives no new events, only deliveries that exist already or are replayed: for a subscription that is being removed.
    fn drain_only(self) -> Self;

    /// Does not take over throttling and used tokens of the replaced subscription, because another receiver has the name now.
    fn reset_limits(self) -> Self;
}

impl SubscribeExt for Subscribe<'_> {
    fn remote_effect(self) -> Self {
        Subscribe { is_remote_effect: true, ..self }
    }

    fn drain_only(self) -> Self {
        Subscribe { drains_only: true, ..self }
    }

    fn reset_limits(self) -> Self {
        Subscribe { resets_limits: true, ..self }
    }
}
