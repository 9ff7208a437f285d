//! A RabbitMQ transport that fails on demand: between storing and acking, or between publishing and the confirm.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use redrive_scheduler::{
    Delivery, Publication, PublishError, Rabbit, Receipt, Transport, TransportFuture, TransportState,
};

/// RabbitMQ, with faults.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<Rabbit>,
    /// Acks are not sent.
    pub(crate) drops_acks: AtomicBool,
    /// Number of acks not sent.
    pub(crate) dropped_acks: AtomicU32,
    /// Whether `ack` reports success anyway.
    pub(crate) claims_success: AtomicBool,
    /// Number of publications to report as unknown although they succeeded.
    pub(crate) lost_confirmations: AtomicU32,
    /// Queue whose publications are never confirmed.
    pub(crate) stalled_queue: Mutex<Option<String>>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<Rabbit>) -> Arc<Self> {
        Arc::new(Faulty {
            inner,
            drops_acks: AtomicBool::new(false),
            dropped_acks: AtomicU32::new(0),
            claims_success: AtomicBool::new(false),
            lost_confirmations: AtomicU32::new(0),
            stalled_queue: Mutex::default(),
        })
    }
}

impl Transport for Faulty {
    fn receive(&self, max: usize) -> TransportFuture<'_, Vec<Delivery>> {
        self.inner.receive(max)
    }

    fn ack(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool> {
        if self.drops_acks.load(Ordering::SeqCst) {
            self.dropped_acks.fetch_add(1, Ordering::SeqCst);
            return Box::pin(async { self.claims_success.load(Ordering::SeqCst) });
        }
        self.inner.ack(receipts)
    }

    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            if self.stalled_queue.lock().unwrap().as_ref() == Some(&publication.queue) {
                return std::future::pending().await;
            }
            self.inner.publish(publication).await?;
            let lose = |left: u32| left.checked_sub(1);
            if self.lost_confirmations.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lose).is_ok() {
                return Err(PublishError::Unknown { why: "the confirm was lost".to_owned() });
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
