//! Publishers that wait for their event, and the channels that wake them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use redrive_store::{EventId, SubscriptionName};
use tokio::sync::oneshot;

use crate::lock::lock;

/// Waiting publishers by event. A std mutex: locked for a map operation, never across an await.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Mutex<HashMap<EventId, Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    senders: Vec<oneshot::Sender<()>>,
    /// Subscriptions whose handler has snoozed the event. In the store, their deliveries look like parked ones.
    snoozed: BTreeSet<SubscriptionName>,
}

impl Waiters {
    /// Registers a publisher. Call it before the event is stored, so that the end of the event cannot be missed.
    pub(crate) fn register(&self, id: EventId) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        lock(&self.waiting).entry(id).or_default().senders.push(sender);
        receiver
    }

    /// Whether a publisher waits for this event.
    pub(crate) fn has(&self, id: EventId) -> bool {
        lock(&self.waiting).contains_key(&id)
    }

    /// Notes whether a delivery that was deferred has been snoozed by its handler: a publisher waits for that one.
    pub(crate) fn set_snoozed(&self, id: EventId, subscription: &SubscriptionName, is_snoozed: bool) {
        if let Some(waiting) = lock(&self.waiting).get_mut(&id) {
            if is_snoozed {
                waiting.snoozed.insert(subscription.clone());
            } else {
                waiting.snoozed.remove(subscription);
            }
        }
    }

    pub(crate) fn is_snoozed(&self, id: EventId, subscription: &SubscriptionName) -> bool {
        lock(&self.waiting).get(&id).is_some_and(|waiting| waiting.snoozed.contains(subscription))
    }

    /// Wakes the publishers of an event: it has ended, or only deliveries that no publisher waits for are left.
    pub(crate) fn release(&self, id: EventId) {
        let Some(waiting) = lock(&self.waiting).remove(&id) else { return };
        for sender in waiting.senders {
            let _ = sender.send(()); // a publisher that stopped waiting needs no answer
        }
    }

    /// Removes publishers of this event that stopped waiting.
    pub(crate) fn forget_gone(&self, id: EventId) {
        let mut waiting = lock(&self.waiting);
        if let Some(one) = waiting.get_mut(&id) {
            one.senders.retain(|sender| !sender.is_closed());
            if one.senders.is_empty() {
                waiting.remove(&id);
            }
        }
    }

    /// Closes the channels of an event whose end could not be stored.
    pub(crate) fn abandon(&self, id: EventId) {
        lock(&self.waiting).remove(&id);
    }

    /// Closes all channels, because the bus ends or its store has stopped.
    pub(crate) fn clear(&self) {
        lock(&self.waiting).clear();
    }
}
