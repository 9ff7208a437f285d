//! A scheduler that dies at a certain step: its transport kills the process.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use redrive_scheduler::{
    Delivery, Publication, PublishError, Receipt, Transport, TransportFuture, TransportState,
};
use rustix::process::{Signal, getpid, kill_process};

/// Long enough for what was sent to have left, and mostly too short for an answer.
const ON_THE_WAY: Duration = Duration::from_micros(300);

/// Long enough for the store to have written down that a message is in its queue.
const WRITTEN_DOWN: Duration = Duration::from_millis(30);

/// What was done last before the end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Messages were received, and nothing was stored of them.
    Received,
    /// They are stored, and the broker was not told.
    Stored,
    /// The broker was told.
    Accepted,
    /// One that was due was about to be published.
    Due,
    /// It is on the way to the broker.
    Published,
    /// The broker has confirmed it, and that was not written down.
    Confirmed,
    /// It was written down.
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

/// A transport whose process dies when it comes to a step for the so-manieth time.
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

/// SIGKILL: no handler, no cleaning up, no goodbye.
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

    fn accept(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool> {
        Box::pin(async move {
            let count = receipts.len();
            self.come_to(Step::Stored, count);
            let accepted = self.inner.accept(receipts).await;
            if self.at == Step::Accepted {
                tokio::time::sleep(ON_THE_WAY).await;
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
                let _ = tokio::time::timeout(ON_THE_WAY, publishing).await;
                die();
                return Ok(());
            }
            let published = publishing.await;
            self.come_to(Step::Confirmed, 1);
            if self.is_time(Step::Marked, 1) {
                tokio::spawn(async {
                    tokio::time::sleep(WRITTEN_DOWN).await;
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
