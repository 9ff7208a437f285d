//! Places for connections: so many, and no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The connections there are, and may be.
#[derive(Debug)]
pub(crate) struct Connections {
    free: Arc<Semaphore>,
    open: AtomicU64,
}

/// The place of a connection, for as long as it is there.
#[derive(Debug)]
pub(crate) struct Place {
    all: Arc<Connections>,
    _taken: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(most: u32) -> Self {
        Connections { free: Arc::new(Semaphore::new(most as usize)), open: AtomicU64::new(0) }
    }

    /// Waits until one more may come.
    pub(crate) async fn room(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.free).acquire_owned().await.expect("it is never closed")
    }

    /// It came.
    pub(crate) fn opened(self: &Arc<Self>, room: OwnedSemaphorePermit) -> Place {
        self.open.fetch_add(1, Ordering::Relaxed);
        Place { all: Arc::clone(self), _taken: room }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}
