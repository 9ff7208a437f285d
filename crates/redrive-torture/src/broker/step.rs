//! Kills the scheduler's process at a chosen step, from inside its transport.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use redrive_scheduler::{
    Delivery, Publication, PublishError, Receipt, Transport, TransportFuture, TransportState,
};
use rustix::process::{Signal, getpid, kill_process};

/// Long enough to send a message, and mostly too short for an answer.
const SEND_DELAY: Duration = Duration::from_micros(300);

/// Long enough for the store to record that a message is in its queue.
const STORE_DELAY: Duration = Duration::from_millis(30);

/// Last step before the process dies.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Messages were received and are not stored.
    Received,
    /// They are stored and not acknowledged.
    Stored,
    /// They are acknowledged.
    Accepted,
    /// A due message is about to be published.
    Due,
    /// The message was sent to the broker.
    Published,
    /// The broker has confirmed it, and the store has not recorded that.
    Confirmed,
    /// The store has recorded it.
    Marked,
}

impl Step {
    pub(super) const ALL: [Step; 7] = [
        Step::Received,
        Step::Stored,
        Step::Accepted,
        Step::Due,
        Step::Published,
        Step::Confirmed,
        Step::Marked,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Step::Received => "received",
            Step::Stored => "stored",
            Step::Accepted => "accepted",
            Step::Due => "due",
            Step::Published => "published",
            Step::Confirmed => "confirmed",
            Step::Marked => "marked",
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Step::ALL.into_iter().find(|step| step.name() == name);
        known.ok_or_else(|| format!("{name} is no step"))
    }
}

/// Transport that kills its process at the n-th occurrence of a step.
#[derive(Debug)]
pub(super) struct Dying {
    pub(super) inner: Arc<dyn Transport>,
    pub(super) at: Step,
    pub(super) left: AtomicI64,
}

impl Dying {
    fn is_time(&self, step: Step, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        step == self.at && self.left.fetch_sub(count, Ordering::Relaxed) <= count
    }

    fn come_to(&self, step: Step, count: usize) {
        if self.is_time(step, count) {
            die();
        }
    }
}

/// Kills the process with SIGKILL: no handler and no cleanup run.
fn die() {
    let _ = kill_process(getpid(), Signal::KILL); // it does not come back
}

impl Transport for Dying {
    fn receive(&self, most: usize) -> TransportFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let deliveries = self.inner.receive(most).await;
            self.come_to(Step::Received, deliveries.len());
            deliveries
        })
    }

    fn ack(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool> {
        Box::pin(async move {
            let count = receipts.len();
            self.come_to(Step::Stored, count);
            let accepted = self.inner.ack(receipts).await;
            if self.at == Step::Accepted {
                tokio::time::sleep(SEND_DELAY).await;
                self.come_to(Step::Accepted, count);
            }
            accepted
        })
    }

    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            self.come_to(Step::Due, 1);
            let publishing = self.inner.publish(publication);
            if self.is_time(Step::Published, 1) {
                let _ = tokio::time::timeout(SEND_DELAY, publishing).await;
                die();
                return Ok(());
            }
            let published = publishing.await;
            self.come_to(Step::Confirmed, 1);
            if self.is_time(Step::Marked, 1) {
                tokio::spawn(async {
                    tokio::time::sleep(STORE_DELAY).await;
                    die();
                });
            }
            published
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
