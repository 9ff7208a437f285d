//! Sends messages that are too large to store straight to the review queue, beside the intake, which does not wait for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::classify::ClassifiedDelivery;
use crate::metrics::Counters;
use crate::review_message::{Cause, Shape, review_publication};
use crate::task::{Problem, ReviewReason};
use crate::transport::{PublishError, Transport};

/// Maximum number of oversize messages in memory at once.
const MAX_CONCURRENT: usize = 4;

/// Bounds of the delay between two attempts to publish.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Publishes oversize messages for review and acks each after its publisher confirm. Dropping it leaves the unacked ones to the broker.
#[derive(Debug)]
pub(crate) struct OversizeReview {
    inner: Arc<Inner>,
    permits: Arc<Semaphore>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Inner {
    transport: Arc<dyn Transport>,
    counters: Arc<Counters>,
    review_queue: String,
}

impl OversizeReview {
    pub(crate) fn new(transport: Arc<dyn Transport>, counters: Arc<Counters>, review_queue: String) -> Self {
        let inner = Arc::new(Inner { transport, counters, review_queue });
        OversizeReview { inner, permits: Arc::new(Semaphore::new(MAX_CONCURRENT)), tasks: JoinSet::new() }
    }

    /// Waits for a permit, then publishes the message in the background.
    pub(crate) async fn submit(&mut self, delivery: ClassifiedDelivery, why: String) {
        while self.tasks.try_join_next().is_some() {}
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let inner = Arc::clone(&self.inner);
        self.tasks.spawn(async move {
            inner.publish(delivery, &why).await;
            drop(permit);
        });
    }
}

impl Inner {
    async fn publish(&self, delivery: ClassifiedDelivery, why: &str) {
        let (mut task, mut delay, reason) = (delivery.task, MIN_RETRY_DELAY, ReviewReason::TooLarge);
        task.problem = Some(Problem { reason, why: why.to_owned() });
        loop {
            let cause = Cause { reason, why };
            let publication =
                review_publication(&self.review_queue, &task, task.id(), cause, &[], Shape::PayloadAsBody);
            let Ok(publication) = publication else { return }; // the payload was encoded a moment ago
            match self.transport.publish(publication).await {
                Ok(()) => break,
                Err(PublishError::Refused { why }) => {
                    tracing::error!(
                        target: "redrive::scheduler", message_id = task.message_id, why,
                        "a message is too large to store, and the broker refuses it for review: it stays in the queue, unacknowledged, until it is \
                         redelivered. Raise the broker's limit for messages or frames, or remove the message from the queue"
                    );
                    return;
                }
                Err(error) => {
                    tracing::error!(target: "redrive::scheduler", message_id = task.message_id, %error, "could not publish a message for review");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(MAX_RETRY_DELAY);
                }
            }
        }
        self.counters.reviewed(reason);
        // Without the ack the message is redelivered, and goes to review again under the same id.
        self.transport.ack(vec![delivery.receipt]).await;
    }
}
