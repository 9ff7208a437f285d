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
    /// Whether it is known how things stood, so that whatever is new from now on is told.
    is_looking: watch::Sender<bool>,
    wake: Notify,
    places: Arc<Semaphore>,
}

/// A place among those who watch.
#[derive(Debug)]
pub(crate) struct Subscribed {
    pub(super) news: broadcast::Receiver<Arc<News>>,
    pub(super) beginning: Beginning,
    _place: OwnedSemaphorePermit,
}

/// From when on nothing that happens is missed.
#[derive(Debug)]
pub(super) struct Beginning(watch::Receiver<bool>);

impl Beginning {
    pub(super) async fn wait(&mut self) {
        // If the feed is gone, the news end as well.
        let _ = self.0.wait_for(|is_looking| *is_looking).await;
    }
}

impl Feed {
    pub(crate) fn new() -> Self {
        Feed {
            news: broadcast::Sender::new(BUFFER),
            is_looking: watch::Sender::new(false),
            wake: Notify::new(),
            places: Arc::new(Semaphore::new(MOST_CLIENTS)),
        }
    }

    /// A place, if there is one.
    pub(super) fn subscribe(&self) -> Option<Subscribed> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        // The news first: see `nobody_watches`.
        let news = self.news.subscribe();
        let subscribed =
            Subscribed { news, beginning: Beginning(self.is_looking.subscribe()), _place: place };
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

    /// Whether looking can rest. Decided under the lock of the signal: who comes later than this finds that nobody looks, and waits
    /// for the next first look.
    fn nobody_watches(&self) -> bool {
        self.is_looking.send_if_modified(|is_looking| {
            let is_nobody = self.news.receiver_count() == 0;
            *is_looking &= !is_nobody;
            is_nobody
        })
    }

    /// Looks for those who watch until the server stops.
    pub(crate) async fn run(&self, store: Arc<dyn Store>, mut stopping: watch::Receiver<bool>) {
        let mut sight = None;
        while !*stopping.borrow_and_update() {
            if self.nobody_watches() {
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
                Ok(news) => {
                    self.is_looking.send_if_modified(|is_looking| !std::mem::replace(is_looking, true));
                    // Who has gone meanwhile does not want to know.
                    news.into_iter().for_each(|news| drop(self.news.send(Arc::new(news))));
                }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redrive::{EventBus, SqliteOptions, SqliteStore};
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::*;

    async fn begins(subscribed: &mut Subscribed) -> bool {
        timeout(Duration::from_millis(100), subscribed.beginning.wait()).await.is_ok()
    }

    #[tokio::test]
    async fn nobody_is_told_that_it_watches_before_the_first_look() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("redrive.db"), SqliteOptions::default()).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let bus = EventBus::builder().on(Arc::clone(&store)).await.unwrap();
        bus.start().await.unwrap();
        bus.publish("before", &1).await.unwrap();
        let feed = Arc::new(Feed::new());
        let mut first = feed.subscribe().unwrap();
        assert!(!begins(&mut first).await, "nobody looks");
        let (_stop, stopping) = watch::channel(false);
        let looking = Arc::clone(&feed);
        let task = tokio::spawn(async move { looking.run(store, stopping).await });
        first.beginning.wait().await;
        bus.publish("after", &2).await.unwrap();
        let News::Event { event_type, .. } = &*first.news.recv().await.unwrap() else {
            panic!("it is one event")
        };
        assert_eq!(event_type.as_str(), "after");
        assert!(begins(&mut feed.subscribe().unwrap()).await, "who comes later is told at once");
        drop(first);
        while *feed.is_looking.borrow() {
            tokio::time::sleep(PAUSE).await;
        }
        task.abort();
        let _ = task.await;
        assert!(!begins(&mut feed.subscribe().unwrap()).await, "nobody looks any more");
    }
}
