//! One task polls the store for all clients of the stream, and only while there is a client.
//!
//! Polling also finds the events of other processes. An event that this process stores triggers a poll at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::store::Store;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, watch};

use super::change_detector::ChangeDetector;
use super::update::StreamUpdate;

/// Poll interval without a trigger.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Shortest time between two polls.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of clients at a time.
const MAX_CLIENTS: usize = 256;

/// Maximum messages buffered for a slow client.
const BUFFER: usize = 1024;

/// Broadcasts messages to the clients.
#[derive(Debug)]
pub(crate) struct Feed {
    updates: broadcast::Sender<Arc<StreamUpdate>>,
    /// Whether the first poll is done, so that every later event is reported.
    first_poll_done: watch::Sender<bool>,
    wake: Notify,
    client_slots: Arc<Semaphore>,
}

/// The subscription of one client.
#[derive(Debug)]
pub(crate) struct Subscribed {
    pub(super) updates: broadcast::Receiver<Arc<StreamUpdate>>,
    pub(super) first_poll: FirstPoll,
    _slot: OwnedSemaphorePermit,
}

/// Waits for the first poll after the client joined; every later event is reported.
#[derive(Debug)]
pub(super) struct FirstPoll(watch::Receiver<bool>);

impl FirstPoll {
    pub(super) async fn wait(&mut self) {
        // Without a feed the messages end as well.
        let _ = self.0.wait_for(|is_done| *is_done).await;
    }
}

impl Feed {
    pub(crate) fn new() -> Self {
        Feed {
            updates: broadcast::Sender::new(BUFFER),
            first_poll_done: watch::Sender::new(false),
            wake: Notify::new(),
            client_slots: Arc::new(Semaphore::new(MAX_CLIENTS)),
        }
    }

    /// Subscribes a client, unless there are too many.
    pub(super) fn subscribe(&self) -> Option<Subscribed> {
        let slot = Arc::clone(&self.client_slots).try_acquire_owned().ok()?;
        // The receiver first: see `is_idle`.
        let updates = self.updates.subscribe();
        let subscribed =
            Subscribed { updates, first_poll: FirstPoll(self.first_poll_done.subscribe()), _slot: slot };
        self.wake.notify_one();
        Some(subscribed)
    }

    /// Number of clients.
    pub(crate) fn clients(&self) -> usize {
        MAX_CLIENTS - self.client_slots.available_permits()
    }

    /// Triggers a poll after a publish.
    pub(crate) fn stored(&self) {
        if self.updates.receiver_count() > 0 {
            self.wake.notify_one();
        }
    }

    /// Whether there is no client. Decided under the lock of the signal: a later client waits for the next first poll.
    fn is_idle(&self) -> bool {
        self.first_poll_done.send_if_modified(|is_done| {
            let has_no_client = self.updates.receiver_count() == 0;
            *is_done &= !has_no_client;
            has_no_client
        })
    }

    /// Polls for the clients until the server stops.
    pub(crate) async fn run(&self, store: Arc<dyn Store>, mut stopping: watch::Receiver<bool>) {
        let mut detector = None;
        while !*stopping.borrow_and_update() {
            if self.is_idle() {
                // Events without a client are not reported.
                detector = None;
                tokio::select! {
                    () = self.wake.notified() => {}
                    _ = stopping.changed() => {}
                }
                continue;
            }
            let began = Instant::now();
            match detector.get_or_insert_with(|| ChangeDetector::new(Arc::clone(&store))).poll().await {
                Ok(updates) => {
                    self.first_poll_done.send_if_modified(|is_done| !std::mem::replace(is_done, true));
                    // A client that has gone needs no message.
                    updates.into_iter().for_each(|update| drop(self.updates.send(Arc::new(update))));
                }
                Err(error) => {
                    tracing::warn!(target: "redrive::http", %error, "the store cannot be polled for the stream");
                }
            }
            // Polling takes a fifth of one processor at most.
            tokio::time::sleep(MIN_PAUSE.max(began.elapsed() * 4)).await;
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                _ = stopping.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redrive::EventBus;
    use redrive::store::{SqliteOptions, SqliteStore};
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::*;

    async fn begins(subscribed: &mut Subscribed) -> bool {
        timeout(Duration::from_millis(100), subscribed.first_poll.wait()).await.is_ok()
    }

    #[tokio::test]
    async fn clients_start_after_the_first_poll() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("redrive.db"), SqliteOptions::default()).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let bus = EventBus::builder().on(Arc::clone(&store)).await.unwrap();
        bus.start().await.unwrap();
        bus.publish("before", &1).await.unwrap();
        let feed = Arc::new(Feed::new());
        let mut first = feed.subscribe().unwrap();
        assert!(!begins(&mut first).await, "no poll yet");
        let (_stop, stopping) = watch::channel(false);
        let polling = Arc::clone(&feed);
        let task = tokio::spawn(async move { polling.run(store, stopping).await });
        first.first_poll.wait().await;
        bus.publish("after", &2).await.unwrap();
        let StreamUpdate::Event { event_type, .. } = &*first.updates.recv().await.unwrap() else {
            panic!("it is one event")
        };
        assert_eq!(event_type.as_str(), "after");
        assert!(begins(&mut feed.subscribe().unwrap()).await, "a later client starts at once");
        drop(first);
        while *feed.first_poll_done.borrow() {
            tokio::time::sleep(MIN_PAUSE).await;
        }
        task.abort();
        let _ = task.await;
        assert!(!begins(&mut feed.subscribe().unwrap()).await, "polling has stopped");
    }
}
