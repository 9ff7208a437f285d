//! How many names are looked up at once.
//!
//! A look-up by the system cannot be broken off and occupies a thread until it ends, also when nobody waits for it any more. The threads are
//! those in which the database is read as well. So there are only so many at once, and few of one name: names whose servers are silent
//! hold up neither others nor the database.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

/// Of all names; the runtime has 512 threads for it.
const MOST: usize = 128;

/// Of one name.
const MOST_OF_ONE: usize = 4;

/// The places for look-ups.
#[derive(Debug)]
pub(crate) struct LookUps {
    all: Arc<Semaphore>,
    /// Those of the names that are being looked up.
    of_names: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl LookUps {
    pub(crate) fn new() -> Self {
        LookUps { all: Arc::new(Semaphore::new(MOST)), of_names: Mutex::default() }
    }

    /// Looks a name up in a thread of its own, once there is a place for it. Whoever stops waiting leaves the place occupied until the
    /// look-up ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        name: &str,
        look_up: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let closed = |_| io::Error::other("nothing is looked up any more");
        // First the one that few share: who waits for it holds no place that others need.
        let of_name = self.of_name(name).acquire_owned().await.map_err(closed)?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.map_err(closed)?;
        let looking = tokio::task::spawn_blocking(move || {
            let _until_it_ends = (of_name, of_all);
            look_up()
        });
        looking.await.map_err(io::Error::other)?
    }

    fn of_name(&self, name: &str) -> Arc<Semaphore> {
        let mut of_names = self.of_names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = of_names.get(name).and_then(Weak::upgrade) {
            return places;
        }
        of_names.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(MOST_OF_ONE));
        of_names.insert(name.to_owned(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_name_whose_servers_are_silent_holds_nobody_up() {
        let (look_ups, begun) = (Arc::new(LookUps::new()), Arc::new(AtomicUsize::new(0)));
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..300 {
            let (look_ups, begun, ended) = (Arc::clone(&look_ups), Arc::clone(&begun), Arc::clone(&ended));
            tokio::spawn(async move {
                let silent = look_ups.run("silent.example", move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let _ = ended.lock().unwrap().recv();
                    Ok(())
                });
                // Nobody waits for long, but the thread does.
                let _ = tokio::time::timeout(Duration::from_millis(50), silent).await;
            });
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(begun.load(Ordering::SeqCst), MOST_OF_ONE);
        assert_eq!(look_ups.run("works.example", || Ok(7)).await.unwrap(), 7);
        assert_eq!(look_ups.all.available_permits(), MOST - MOST_OF_ONE, "only what runs");
        drop(end);
        assert!(look_ups.run("silent.example", || Ok(())).await.is_ok(), "its places are free again");
        look_ups.of_name("other.example");
        assert!(look_ups.of_names.lock().unwrap().len() <= 2, "names are forgotten");
    }
}
