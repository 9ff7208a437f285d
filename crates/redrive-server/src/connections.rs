//! Limit on the number of open connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts open connections and bounds their number.
#[derive(Debug)]
pub(crate) struct Connections {
    free: Arc<Semaphore>,
    open: AtomicU64,
}

/// Slot of one open connection; freed on drop.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    all: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(max: u32) -> Self {
        Connections { free: Arc::new(Semaphore::new(max as usize)), open: AtomicU64::new(0) }
    }

    /// Waits until one more connection is allowed.
    pub(crate) async fn acquire(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Counts an accepted connection until its slot is dropped.
    pub(crate) fn opened(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> ConnectionSlot {
        self.open.fetch_add(1, Ordering::Relaxed);
        ConnectionSlot { all: Arc::clone(self), _permit: permit }
    }

    /// Number of open connections.
    pub(crate) fn count(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}
