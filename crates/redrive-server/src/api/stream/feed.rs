//! One task polls the store for all clients of the stream, and only while there is a client.
//!
//! Polling also finds the events of other processes. An event that this process stores triggers a poll at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::EventType;
use redrive::store::Store;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, watch};

use super::change_detector::ChangeDetector;

/// Poll interval without a trigger.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Shortest time between two polls.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// Most clients at a time.
const MAX_CLIENTS: usize = 256;

/// Messages by which a client may lag.
const BUFFER: usize = 1024;

/// A message for the clients.
#[derive(Debug)]
pub(crate) enum Notice {
    /// An event was published or ended.
    Event {
        /// `published`, `done` or `dead`.
        what: &'static str,
        event_type: EventType,
        id: String,
        /// JSON.
        data: String,
    },
    /// Some events are left out.
    Skipped,
}

/// Broadcasts messages to the clients.
#[derive(Debug)]
pub(crate) struct Feed {
    notices: broadcast::Sender<Arc<Notice>>,
    /// Whether the first poll is done, so that every later event is reported.
    is_looking: watch::Sender<bool>,
    wake: Notify,
    places: Arc<Semaphore>,
}

/// The subscription of one client.
#[derive(Debug)]
pub(crate) struct Subscribed {
    pub(super) notices: broadcast::Receiver<Arc<Notice>>,
    pub(super) beginning: Beginning,
    _place: OwnedSemaphorePermit,
}

/// Signals the end of the first poll: from then on no event is missed.
#[derive(Debug)]
pub(super) struct Beginning(watch::Receiver<bool>);

impl Beginning {
    pub(super) async fn wait(&mut self) {
        // Without a feed the messages end as well.
        let _ = self.0.wait_for(|is_looking| *is_looking).await;
    }
}

impl Feed {
    pub(crate) fn new() -> Self {
        Feed {
            notices: broadcast::Sender::new(BUFFER),
            is_looking: watch::Sender::new(false),
            wake: Notify::new(),
            places: Arc::new(Semaphore::new(MAX_CLIENTS)),
        }
    }

    /// Subscribes a client, unless there are too many.
    pub(super) fn subscribe(&self) -> Option<Subscribed> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        // The receiver first: see `is_idle`.
        let notices = self.notices.subscribe();
        let subscribed =
            Subscribed { notices, beginning: Beginning(self.is_looking.subscribe()), _place: place };
        self.wake.notify_one();
        Some(subscribed)
    }

    /// Number of clients.
    pub(crate) fn clients(&self) -> usize {
        MAX_CLIENTS - self.places.available_permits()
    }

    /// Triggers a poll after a publish.
    pub(crate) fn stored(&self) {
        if self.notices.receiver_count() > 0 {
            self.wake.notify_one();
        }
    }

    /// Whether there is no client. Decided under the lock of the signal: a later client waits for the next first poll.
    fn is_idle(&self) -> bool {
        self.is_looking.send_if_modified(|is_looking| {
            let has_no_client = self.notices.receiver_count() == 0;
            *is_looking &= !has_no_client;
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
                Ok(notices) => {
                    self.is_looking.send_if_modified(|is_looking| !std::mem::replace(is_looking, true));
                    // A client that has gone needs no message.
                    notices.into_iter().for_each(|notices| drop(self.notices.send(Arc::new(notices))));
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
        timeout(Duration::from_millis(100), subscribed.beginning.wait()).await.is_ok()
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
        let looking = Arc::clone(&feed);
        let task = tokio::spawn(async move { looking.run(store, stopping).await });
        first.beginning.wait().await;
        bus.publish("after", &2).await.unwrap();
        let Notice::Event { event_type, .. } = &*first.notices.recv().await.unwrap() else {
            panic!("it is one event")
        };
        assert_eq!(event_type.as_str(), "after");
        assert!(begins(&mut feed.subscribe().unwrap()).await, "a later client starts at once");
        drop(first);
        while *feed.is_looking.borrow() {
            tokio::time::sleep(MIN_PAUSE).await;
        }
        task.abort();
        let _ = task.await;
        assert!(!begins(&mut feed.subscribe().unwrap()).await, "polling has stopped");
    }
}
