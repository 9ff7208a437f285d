//! What all who watch are told: one task looks at the store for them, and only while somebody watches.
//!
//! Looking is the one source, so that what other processes store shows up as well. What this process stores makes it look at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::{EventType, Store};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, watch};

use super::sight::Sight;

/// How often to look if nobody says that there is something.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Never more often than this, however much is published.
const PAUSE: Duration = Duration::from_millis(50);

/// How many may watch.
const MOST_CLIENTS: usize = 256;

/// How far a client may fall behind.
const BUFFER: usize = 1024;

/// Something that happened.
#[derive(Debug)]
pub(crate) enum News {
    /// To an event.
    Event {
        /// `published`, `done` or `dead`.
        what: &'static str,
        event_type: EventType,
        id: String,
        /// JSON.
        data: String,
    },
    /// More than can be told.
    Skipped,
}

/// Where it is told.
#[derive(Debug)]
pub(crate) struct Feed {
    news: broadcast::Sender<Arc<News>>,
    wake: Notify,
    places: Arc<Semaphore>,
}

/// A place among those who watch.
#[derive(Debug)]
pub(crate) struct Subscribed {
    pub(super) news: broadcast::Receiver<Arc<News>>,
    _place: OwnedSemaphorePermit,
}

impl Feed {
    pub(crate) fn new() -> Self {
        Feed {
            news: broadcast::Sender::new(BUFFER),
            wake: Notify::new(),
            places: Arc::new(Semaphore::new(MOST_CLIENTS)),
        }
    }

    /// A place, if there is one.
    pub(super) fn subscribe(&self) -> Option<Subscribed> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let subscribed = Subscribed { news: self.news.subscribe(), _place: place };
        self.wake.notify_one();
        Some(subscribed)
    }

    /// How many watch.
    pub(crate) fn clients(&self) -> usize {
        MOST_CLIENTS - self.places.available_permits()
    }

    /// Something was stored.
    pub(crate) fn stored(&self) {
        if self.news.receiver_count() > 0 {
            self.wake.notify_one();
        }
    }

    /// Looks for those who watch until the server stops.
    pub(crate) async fn run(&self, store: Arc<dyn Store>, mut stopping: watch::Receiver<bool>) {
        let mut sight = None;
        while !*stopping.borrow_and_update() {
            if self.news.receiver_count() == 0 {
                // What happens while nobody watches is told to nobody.
                sight = None;
                tokio::select! {
                    () = self.wake.notified() => {}
                    _ = stopping.changed() => {}
                }
                continue;
            }
            let began = Instant::now();
            match sight.get_or_insert_with(|| Sight::new(Arc::clone(&store))).look().await {
                // Who has gone meanwhile does not want to know.
                Ok(news) => news.into_iter().for_each(|news| drop(self.news.send(Arc::new(news)))),
                Err(error) => tracing::warn!(target: "redrive::http", %error, "what happens cannot be seen"),
            }
            // Looking takes a fifth of one processor at most, however much there is to see.
            tokio::time::sleep(PAUSE.max(began.elapsed() * 4)).await;
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = stopping.changed() => {}
            }
        }
    }
}
