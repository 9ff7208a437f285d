//! Names that are being looked up.
//!
//! A look-up by the system cannot be broken off and occupies a thread until it ends, also when nobody waits for it any more. The threads are
//! those in which the database is read as well. So there are only so many at once, and one of each name, whose answer is for all who wait
//! for it: names whose servers are silent hold up neither others nor the database.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

/// At once; the runtime has 512 threads for it.
const MOST: usize = 128;

/// What was found, or why nothing was. (The system's own errors cannot be given to several.)
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

type UnderWay = HashMap<(String, u16), watch::Receiver<Option<Found>>>;

/// The look-ups under way. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LookUps {
    places: Arc<Semaphore>,
    // A std mutex: held for a few instructions, never across an await.
    under_way: Arc<Mutex<UnderWay>>,
}

impl LookUps {
    pub(crate) fn new() -> Self {
        LookUps { places: Arc::new(Semaphore::new(MOST)), under_way: Arc::default() }
    }

    /// Looks a name up in a thread of its own, or waits with those who do. Whoever stops waiting stops nobody else.
    pub(crate) async fn run(
        &self,
        name: String,
        port: u16,
        look_up: impl FnOnce(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let mut found = self.join(name, port, look_up);
        let found = found.wait_for(Option::is_some).await.map_err(io::Error::other)?;
        let found = found.clone().unwrap_or_else(|| Ok(Vec::new()));
        found.map_err(|(kind, why)| io::Error::new(kind, why))
    }

    fn join(
        &self,
        name: String,
        port: u16,
        look_up: impl FnOnce(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> watch::Receiver<Option<Found>> {
        let mut under_way = self.lock();
        let key = (name, port);
        if let Some(found) = under_way.get(&key) {
            return found.clone();
        }
        let (tell, found) = watch::channel(None);
        under_way.insert(key.clone(), found.clone());
        let look_ups = self.clone();
        tokio::spawn(async move {
            let _place = look_ups.places.acquire().await; // it is never closed
            let name = key.0.clone();
            let looked_up = tokio::task::spawn_blocking(move || look_up(&name, port)).await;
            // Nobody joins from here on: what is found is of this moment.
            look_ups.lock().remove(&key);
            let found = looked_up.map_err(io::Error::other).flatten();
            tell.send_replace(Some(found.map_err(|error| (error.kind(), error.to_string()))));
        });
        found
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_name_whose_servers_are_silent_occupies_one_thread_and_holds_nobody_up() {
        let (look_ups, begun) = (LookUps::new(), Arc::new(AtomicUsize::new(0)));
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let silent = || {
            let (look_ups, begun, ended) = (look_ups.clone(), Arc::clone(&begun), Arc::clone(&ended));
            async move {
                let look_up = move |_: &str, _| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let _ = ended.lock().unwrap().recv();
                    Ok(vec![SocketAddr::from(([192, 0, 2, 1], 443))])
                };
                look_ups.run("silent.example".to_owned(), 443, look_up).await
            }
        };
        for _ in 0..300 {
            // Nobody waits for long, but the thread does.
            assert!(tokio::time::timeout(Duration::from_micros(100), silent()).await.is_err());
        }
        assert!(begun.load(Ordering::SeqCst) <= 1);
        let works =
            look_ups.run("works.example".to_owned(), 443, |_, port| Ok(vec![([192, 0, 2, 2], port).into()]));
        assert_eq!(works.await.unwrap().len(), 1);
        let fails = look_ups.run("fails.example".to_owned(), 443, |_, _| Err(io::ErrorKind::NotFound.into()));
        assert_eq!(fails.await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let (one, other) = (tokio::spawn(silent()), tokio::spawn(silent()));
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(end);
        assert_eq!(one.await.unwrap().unwrap(), other.await.unwrap().unwrap(), "one answer for all who wait");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        assert!(look_ups.lock().is_empty(), "what is over is forgotten");
        assert!(silent().await.is_ok() && begun.load(Ordering::SeqCst) == 2, "and looked up again");
    }
}
