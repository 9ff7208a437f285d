//! DNS lookups with bounded threads: at most one in flight per name, shared by all callers.
//!
//! A lookup by the operating system cannot be cancelled and occupies a blocking thread until it ends, even after its caller has timed
//! out. The database reads on the same threads. Bounding the lookups keeps unresponsive name servers from blocking other names or the database.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

/// Maximum lookups at once; the runtime has 512 blocking threads.
const MAX_LOOKUPS: usize = 128;

/// Result of a lookup. (`io::Error` cannot be cloned for several callers.)
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

type InFlight = HashMap<(String, u16), watch::Receiver<Option<Found>>>;

/// Runs lookups and shares those in flight. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct DnsLookups {
    permits: Arc<Semaphore>,
    // A std mutex: held for a few instructions, never across an await.
    in_flight: Arc<Mutex<InFlight>>,
}

impl DnsLookups {
    pub(crate) fn new() -> Self {
        DnsLookups { permits: Arc::new(Semaphore::new(MAX_LOOKUPS)), in_flight: Arc::default() }
    }

    /// Looks up a name on a blocking thread, or joins the lookup in flight. A caller that stops waiting does not cancel it.
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
        let mut in_flight = self.lock();
        let key = (name, port);
        if let Some(found) = in_flight.get(&key) {
            return found.clone();
        }
        let (result, found) = watch::channel(None);
        in_flight.insert(key.clone(), found.clone());
        let dns = self.clone();
        tokio::spawn(async move {
            let _permit = dns.permits.acquire().await; // it is never closed
            let name = key.0.clone();
            let looked_up = tokio::task::spawn_blocking(move || look_up(&name, port)).await;
            // Removed before the result is sent: later callers start a new lookup.
            dns.lock().remove(&key);
            let found = looked_up.map_err(io::Error::other).flatten();
            result.send_replace(Some(found.map_err(|error| (error.kind(), error.to_string()))));
        });
        found
    }

    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_unresponsive_name_occupies_one_thread_and_blocks_no_other_name() {
        let (dns, begun) = (DnsLookups::new(), Arc::new(AtomicUsize::new(0)));
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let silent = || {
            let (dns, begun, ended) = (dns.clone(), Arc::clone(&begun), Arc::clone(&ended));
            async move {
                let look_up = move |_: &str, _| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let _ = ended.lock().unwrap().recv();
                    Ok(vec![SocketAddr::from(([192, 0, 2, 1], 443))])
                };
                dns.run("silent.example".to_owned(), 443, look_up).await
            }
        };
        for _ in 0..300 {
            // The caller times out; the thread goes on.
            assert!(tokio::time::timeout(Duration::from_micros(100), silent()).await.is_err());
        }
        assert!(begun.load(Ordering::SeqCst) <= 1);
        let works =
            dns.run("works.example".to_owned(), 443, |_, port| Ok(vec![([192, 0, 2, 2], port).into()]));
        assert_eq!(works.await.unwrap().len(), 1);
        let fails = dns.run("fails.example".to_owned(), 443, |_, _| Err(io::ErrorKind::NotFound.into()));
        assert_eq!(fails.await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let (one, other) = (tokio::spawn(silent()), tokio::spawn(silent()));
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(end);
        assert_eq!(
            one.await.unwrap().unwrap(),
            other.await.unwrap().unwrap(),
            "one result for all waiting callers"
        );
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        assert!(dns.lock().is_empty(), "a finished lookup is removed");
        assert!(
            silent().await.is_ok() && begun.load(Ordering::SeqCst) == 2,
            "and the name is looked up again"
        );
    }
}
