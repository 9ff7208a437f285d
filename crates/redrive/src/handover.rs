//! Passes an event from the dispatcher to a pull consumer: the demand of the consumers, and the record that the handler of a queue makes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use redrive_retry::Timestamp;
use redrive_store::LeaseToken;
use tokio::sync::{Notify, oneshot};

use crate::lock::lock;

/// Number of events that consumers have asked for and not received. Shared by a queue and the limiter of its subscription.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    asked: AtomicUsize,
    /// Notified when consumers ask for more.
    backlog_wakeup: Mutex<Option<Arc<Notify>>>,
}

impl Demand {
    /// Sets the notification of the backlog loop.
    pub(crate) fn set_wakeup(&self, backlog_wakeup: Arc<Notify>) {
        *lock(&self.backlog_wakeup) = Some(backlog_wakeup); // one for all subscriptions of a bus
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }

    /// Takes one from the demand, if there is any.
    pub(crate) fn take(&self) -> bool {
        self.asked.fetch_update(Ordering::AcqRel, Ordering::Acquire, |asked| asked.checked_sub(1)).is_ok()
    }

    /// Raises the demand, and wakes the backlog loop.
    pub(crate) fn ask(&self, count: usize) {
        self.asked.fetch_add(count, Ordering::AcqRel);
        if let Some(wakeup) = lock(&self.backlog_wakeup).as_ref() {
            wakeup.notify_one();
        }
    }

    /// Lowers the demand by the events that a consumer did not receive.
    pub(crate) fn withdraw(&self, count: usize) {
        let less = |asked: usize| Some(asked.saturating_sub(count));
        let _ = self.asked.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// Recorded by the handler of a pull queue, beside its result: the attempt itself is made by a consumer, and ends with its lease.
#[derive(Debug)]
pub(crate) enum Handover {
    /// A consumer takes the event.
    Accepted(Grant),
    /// No consumer takes it: it returns to the backlog, no attempt charged.
    GivenBack,
}

/// A consumer that waits for the lease of one event.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The end of the lease.
    pub(crate) until: Timestamp,
    /// Receives the token when the lease is stored; closed if the consumer has left.
    pub(crate) consumer: oneshot::Sender<LeaseToken>,
}

/// The failure of an event that its consumer gives back: it returns to the backlog, no attempt charged.
#[derive(Debug, thiserror::Error)]
#[error("given back by its consumer")]
pub(crate) struct GivenBack;
