//! Publishers that wait for their event to finish.

use std::collections::HashMap;
use std::sync::Mutex;

use redrive_store::EventId;
use tokio::sync::oneshot;

use crate::lock::lock;

/// Waiting publishers by event. A std mutex: locked for a map operation, never across an await.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Mutex<HashMap<EventId, Vec<oneshot::Sender<()>>>>,
}

impl Waiters {
    /// Registers a publisher. Call it before the event is stored, so that the end of the event cannot be missed.
    pub(crate) fn register(&self, id: EventId) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        lock(&self.waiting).entry(id).or_default().push(sender);
        receiver
    }

    /// Whether a publisher waits for this event.
    pub(crate) fn has(&self, id: EventId) -> bool {
        lock(&self.waiting).contains_key(&id)
    }

    /// The events that publishers wait for.
    pub(crate) fn ids(&self) -> Vec<EventId> {
        lock(&self.waiting).keys().copied().collect()
    }

    /// Wakes the publishers of an event: it has ended, or only deliveries that no publisher waits for are left.
    pub(crate) fn release(&self, id: EventId) {
        let Some(senders) = lock(&self.waiting).remove(&id) else { return };
        for sender in senders {
            let _ = sender.send(()); // a publisher that stopped waiting needs no answer
        }
    }

    /// Removes publishers of this event that stopped waiting.
    pub(crate) fn forget_gone(&self, id: EventId) {
        let mut waiting = lock(&self.waiting);
        if let Some(senders) = waiting.get_mut(&id) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
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
