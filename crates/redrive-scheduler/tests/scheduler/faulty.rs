//! A real transport that fails at a chosen place: between storing and accepting, or between publishing and hearing so.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use redrive_scheduler::{
    Delivery, Publication, PublishError, Rabbit, Receipt, Transport, TransportFuture, TransportState,
};

/// RabbitMQ, with faults.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<Rabbit>,
    /// The broker is not told what is stored.
    pub(crate) forgets_to_accept: AtomicBool,
    /// How often it was not told.
    pub(crate) forgotten: AtomicU32,
    /// And nobody notices.
    pub(crate) says_it_accepted: AtomicBool,
    /// So many publications are made, and nobody hears so.
    pub(crate) lost_confirmations: AtomicU32,
    /// Nothing that goes to this queue is ever confirmed.
    pub(crate) silent: Mutex<Option<String>>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<Rabbit>) -> Arc<Self> {
        Arc::new(Faulty {
            inner,
            forgets_to_accept: AtomicBool::new(false),
            forgotten: AtomicU32::new(0),
            says_it_accepted: AtomicBool::new(false),
            lost_confirmations: AtomicU32::new(0),
            silent: Mutex::default(),
        })
    }
}

impl Transport for Faulty {
    fn receive(&self, most: usize) -> TransportFuture<'_, Vec<Delivery>> {
        self.inner.receive(most)
    }

    fn accept(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool> {
        if self.forgets_to_accept.load(Ordering::SeqCst) {
            self.forgotten.fetch_add(1, Ordering::SeqCst);
            return Box::pin(async { self.says_it_accepted.load(Ordering::SeqCst) });
        }
        self.inner.accept(receipts)
    }

    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            if self.silent.lock().unwrap().as_ref() == Some(&publication.queue) {
                return std::future::pending().await;
            }
            self.inner.publish(publication).await?;
            let lose = |left: u32| left.checked_sub(1);
            if self.lost_confirmations.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lose).is_ok() {
                return Err(PublishError::Unknown { why: "the confirmation was lost".to_owned() });
            }
            Ok(())
        })
    }

    fn ready(&self) -> TransportFuture<'_, ()> {
        self.inner.ready()
    }

    fn state(&self) -> TransportState {
        self.inner.state()
    }

    fn stop_receiving(&self) {
        self.inner.stop_receiving();
    }

    fn close(&self) -> TransportFuture<'_, ()> {
        self.inner.close()
    }
}
