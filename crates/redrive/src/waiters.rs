//! Publishers that wait for their event to be finished.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use redrive_store::{EventId, Finished};
use tokio::sync::oneshot;

/// Who waits for which event. A std mutex: held for a map operation, never across an await.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Mutex<HashMap<EventId, Vec<oneshot::Sender<Finished>>>>,
}

impl Waiters {
    /// Registered before the event is stored, so that the end cannot be missed.
    pub(crate) fn register(&self, id: EventId) -> oneshot::Receiver<Finished> {
        let (sender, receiver) = oneshot::channel();
        self.lock().entry(id).or_default().push(sender);
        receiver
    }

    /// The event is finished.
    pub(crate) fn finish(&self, id: EventId, finished: Finished) {
        let Some(senders) = self.lock().remove(&id) else { return };
        for sender in senders {
            let _ = sender.send(finished); // who has stopped waiting does not want to know
        }
    }

    /// Nobody waits for an event that was not stored, or whose publisher has gone.
    pub(crate) fn forget_gone(&self, id: EventId) {
        let mut waiting = self.lock();
        if let Some(senders) = waiting.get_mut(&id) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                waiting.remove(&id);
            }
        }
    }

    /// How the event ended cannot be stored: whoever waits for it is told by the closed channel.
    pub(crate) fn give_up(&self, id: EventId) {
        self.lock().remove(&id);
    }

    /// The bus ends, or its store has stopped: everybody is told by the closed channel.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<EventId, Vec<oneshot::Sender<Finished>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
