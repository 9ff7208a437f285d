//! The handle that registering a subscription returns: pause, resume, remove.

use std::sync::{Arc, PoisonError};

use redrive_store::SubscriptionName;

use crate::core::Core;
use crate::error::BusError;

/// Controls one registered subscription. Dropping the handle changes nothing; clones control the same subscription.
///
/// ```
/// # async fn maintain(bus: &redrive::EventBus) -> Result<(), redrive::BusError> {
/// # use redrive::Event;
/// let mail = bus.subscribe("order.*", async |_: Event| Ok::<_, &str>(())).name("mail").register()?;
/// mail.pause(); // its deliveries wait on disk, no attempt is charged
/// mail.resume();
/// mail.unsubscribe().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SubscriptionHandle {
    pub(crate) core: Arc<Core>,
    pub(crate) id: String,
    pub(crate) name: SubscriptionName,
}

impl SubscriptionHandle {
    /// The subscription's id, a UUID that stays the same across restarts as long as the name does.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The subscription's name.
    pub fn name(&self) -> &SubscriptionName {
        &self.name
    }

    /// Pauses this subscription: its deliveries wait in the backlog on disk, no attempt is charged, and no publisher waits for them.
    ///
    /// Running handlers continue. The pause survives a [`replace`](crate::subscription::Subscribe::replace), but not a restart. It holds in
    /// this process only: others on the same database go on.
    pub fn pause(&self) {
        self.set_paused(true);
    }

    /// Resumes this subscription, the oldest delivery first.
    pub fn resume(&self) {
        self.set_paused(false);
    }

    /// Whether this subscription is paused.
    pub fn is_paused(&self) -> bool {
        self.core.subscriptions().named(self.name.as_str()).is_some_and(|found| found.is_paused())
    }

    /// Waits until a subscription made after the start is recorded and every other process on the same database knows it.
    ///
    /// Events that any process publishes from then on are delivered to it, as long as this process renews its lease.
    pub async fn announce(&self) -> Result<(), BusError> {
        Ok(self.core.announce(&self.name).await?)
    }

    /// Removes the subscription; returns whether it was registered; see [`EventBus::unsubscribe`](crate::EventBus::unsubscribe).
    pub async fn unsubscribe(&self) -> Result<bool, BusError> {
        Ok(self.core.unsubscribe(&self.id).await?)
    }

    fn set_paused(&self, is_paused: bool) {
        // Locked, so that a replacement does not inherit the state before this change.
        let registry = self.core.subscriptions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(subscription) = registry.named(self.name.as_str()) {
            subscription.admission.set_paused(is_paused);
        }
        drop(registry);
        self.core.deferrals.send_modify(|changes| *changes += 1);
    }
}
