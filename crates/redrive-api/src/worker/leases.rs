//! Extends the leases of running handlers, in batches, when a third of their time has passed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_retry::{Clock, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::{Client, Error, Result};
use crate::subscriptions::{Extend, LeaseResults, MAX_LEASES};

/// Evidence of a lost lease.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LostBy {
    /// Its time has passed without an answer of a server.
    Time,
    /// The server says so.
    Server,
}

#[derive(Debug)]
struct Tracked {
    /// When the lease was pulled, or the request was sent that extended it.
    extended_at: Timestamp,
    is_extending: bool,
    lost: watch::Sender<Option<LostBy>>,
}

/// Leases of pulled events that are not settled.
#[derive(Debug)]
pub(super) struct Leases {
    clock: Clock,
    length: Duration,
    tracked: Mutex<HashMap<String, Tracked>>,
}

impl Leases {
    pub(super) fn new(clock: Clock, length: Duration) -> Self {
        Leases { clock, length, tracked: Mutex::default() }
    }

    /// Extends a lease until the guard is dropped.
    pub(super) fn hold(self: &Arc<Self>, lease: String) -> HeldLease {
        let (lost, receiver) = watch::channel(None);
        let tracked = Tracked { extended_at: self.clock.steady(), is_extending: false, lost };
        self.lock().insert(lease.clone(), tracked);
        HeldLease { leases: Arc::clone(self), lease, lost: receiver }
    }

    /// Marks leases as lost whose time has passed, and returns those to extend.
    fn take_due(&self) -> Vec<String> {
        let now = self.clock.steady();
        let mut due = Vec::new();
        for (lease, tracked) in self.lock().iter_mut() {
            let age = now.since(tracked.extended_at);
            if age >= self.length {
                tracked.lose(LostBy::Time);
            }
            if age >= self.length / 3 && !tracked.is_extending {
                tracked.is_extending = true;
                due.push(lease.clone());
            }
        }
        due
    }

    /// Notes the answer to an extension that was sent at this time.
    fn note(&self, leases: &[String], sent_at: Timestamp, result: Result<LeaseResults>) -> Result<()> {
        let mut tracked = self.lock();
        for lease in leases {
            if let Some(one) = tracked.get_mut(lease) {
                one.is_extending = false;
                if result.is_ok() {
                    one.extended_at = sent_at;
                }
            }
        }
        for lease in result?.lost {
            // A lease that was settled meanwhile is not lost.
            if let Some(one) = tracked.get_mut(&lease) {
                one.lose(LostBy::Server);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Tracked>> {
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracked {
    fn lose(&mut self, by: LostBy) {
        self.lost.send_if_modified(|lost| {
            let is_news = *lost < Some(by);
            *lost = (*lost).max(Some(by));
            is_news
        });
    }
}

/// A lease that is extended until it is dropped.
#[derive(Debug)]
pub(super) struct HeldLease {
    leases: Arc<Leases>,
    lease: String,
    lost: watch::Receiver<Option<LostBy>>,
}

impl HeldLease {
    /// The text that names the lease.
    pub(super) fn name(&self) -> &str {
        &self.lease
    }

    /// Waits for the next evidence that the lease is lost.
    pub(super) async fn lost(&mut self) -> LostBy {
        while self.lost.changed().await.is_ok() {
            if let Some(by) = *self.lost.borrow_and_update() {
                return by;
            }
        }
        // The sender is dropped only with this guard.
        std::future::pending().await
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.leases.lock().remove(&self.lease);
    }
}

/// The subscription whose leases are extended.
#[derive(Clone, Debug)]
pub(super) struct ExtendTarget {
    pub(super) client: Client,
    pub(super) subscription: Arc<str>,
}

/// Extends leases until the worker ends.
pub(super) async fn extend_loop(leases: Arc<Leases>, target: ExtendTarget) {
    let mut requests = JoinSet::new();
    loop {
        leases.clock.sleep((leases.length / 6).max(Duration::from_millis(1))).await;
        for batch in leases.take_due().chunks(MAX_LEASES) {
            requests.spawn(extend(Arc::clone(&leases), target.clone(), batch.to_vec()));
        }
        while requests.try_join_next().is_some() {}
    }
}

/// Extends one batch. A request that hangs is abandoned in time for another one.
async fn extend(leases: Arc<Leases>, target: ExtendTarget, batch: Vec<String>) {
    let sent_at = leases.clock.steady();
    let lease_ms = u64::try_from(leases.length.as_millis()).unwrap_or(u64::MAX);
    let extend = Extend { leases: batch, lease_ms };
    let limit = leases.length / 3;
    let result = tokio::select! {
        result = async { target.client.subscriptions().extend(&target.subscription, &extend).await } => result,
        () = leases.clock.sleep(limit) => Err(Error::TimedOut(limit)),
    };
    if let Err(error) = leases.note(&extend.leases, sent_at, result) {
        let (subscription, count) = (&*target.subscription, extend.leases.len());
        tracing::warn!(subscription, leases = count, %error, "leases are not extended yet");
    }
}
