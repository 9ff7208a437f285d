//! Pull consumers that wait until the store has settled their delivery, and learn whether the claim was still held.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use redrive_store::{ClaimRef, Finished, Store, StoreError};
use tokio::sync::oneshot;

use crate::lock::lock;

/// Answer of the store to a settlement.
type Settled = Result<Finished, StoreError>;

/// Waiting consumers by claim.
pub(crate) struct SettleWaiters {
    store: Arc<dyn Store>,
    /// Number of waiting consumers, so that a settlement without one takes no lock.
    count: AtomicUsize,
    /// A std mutex: locked for a map operation, never across an await.
    waiting: Mutex<HashMap<ClaimRef, oneshot::Sender<Settled>>>,
}

impl fmt::Debug for SettleWaiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettleWaiters").field("count", &self.count).finish_non_exhaustive()
    }
}

impl SettleWaiters {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(SettleWaiters { store, count: AtomicUsize::new(0), waiting: Mutex::default() })
    }

    fn register(&self, claim: ClaimRef) -> oneshot::Receiver<Settled> {
        let (sender, settled) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        waiting.insert(claim, sender);
        self.count.store(waiting.len(), Ordering::Release);
        settled
    }

    fn remove(&self, claim: ClaimRef) -> Option<oneshot::Sender<Settled>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut waiting = lock(&self.waiting);
        let removed = waiting.remove(&claim);
        self.count.store(waiting.len(), Ordering::Release);
        removed
    }

    /// Passes the store's answer to the consumer that waits for it, if there is one.
    pub(crate) fn answer(&self, claim: ClaimRef, settled: Settled) {
        if let Some(sender) = self.remove(claim) {
            let _ = sender.send(settled); // a consumer that stopped waiting needs no answer
        }
    }

    /// Closes the channel of a claim when the value is dropped, so that no consumer waits for a delivery that was cancelled.
    pub(crate) fn close_on_drop(&self, claim: ClaimRef) -> CloseOnDrop<'_> {
        CloseOnDrop { waiters: self, claim }
    }
}

/// See [`SettleWaiters::close_on_drop`].
pub(crate) struct CloseOnDrop<'a> {
    waiters: &'a SettleWaiters,
    claim: ClaimRef,
}

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.waiters.remove(self.claim);
    }
}

/// The claim of a running attempt.
#[derive(Clone, Debug)]
pub(crate) struct HeldClaim {
    claim: ClaimRef,
    waiters: Arc<SettleWaiters>,
}

impl HeldClaim {
    pub(crate) fn new(claim: ClaimRef, waiters: &Arc<SettleWaiters>) -> Self {
        HeldClaim { claim, waiters: Arc::clone(waiters) }
    }

    /// Whether other handlers may run before this claim is settled.
    pub(crate) fn is_shared(&self) -> bool {
        self.claim.is_whole_event()
    }

    /// Asks the store whether the claim still belongs to this process.
    pub(crate) async fn is_held(&self) -> Result<bool, StoreError> {
        self.waiters.store.holds(self.claim).await
    }

    /// Waits for the settlement of this claim. Call it before the attempt can end, so that its settlement is not missed.
    pub(crate) fn settlement(&self) -> Settlement<'_> {
        Settlement {
            settled: self.waiters.register(self.claim),
            _close: self.waiters.close_on_drop(self.claim),
        }
    }
}

/// A settlement that a consumer waits for.
pub(crate) struct Settlement<'a> {
    settled: oneshot::Receiver<Settled>,
    _close: CloseOnDrop<'a>,
}

impl Settlement<'_> {
    /// Waits for the settlement; false if the claim was lost before.
    pub(crate) async fn completes(self) -> Result<bool, StoreError> {
        match self.settled.await {
            Ok(settled) => settled.map(|finished| finished != Finished::Fenced),
            Err(_) => Err(StoreError::Unknown { why: "the delivery was cancelled".to_owned() }),
        }
    }
}
