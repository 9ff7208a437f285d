//! Sends messages that are too large to store straight to the review queue, beside the intake, which does not wait for them.

use std::sync::Arc;

use crate::classify::ClassifiedDelivery;
use crate::intake::{Intake, MAX_RETRY_DELAY, MIN_RETRY_DELAY};
use crate::review_message::{Shape, review_publication};
use crate::task::{Problem, ReviewReason};
use crate::transport::{Publication, PublishError, Transport};

/// Maximum number of oversize messages in memory at once.
const MAX_CONCURRENT: usize = 4;

impl Intake {
    /// Waits while [`MAX_CONCURRENT`] messages are in flight, then publishes this one in the background, and acks it after its publisher
    /// confirm.
    pub(crate) async fn publish_oversize(&mut self, delivery: ClassifiedDelivery, why: String) {
        while self.oversize.len() >= MAX_CONCURRENT {
            self.oversize.join_next().await;
        }
        let ClassifiedDelivery { task, receipt, .. } = delivery;
        let message_id = task.message_id.clone();
        let problem = Problem { reason: ReviewReason::TooLarge, why };
        let queue = &self.classifier.settings().review_queue;
        let publication = review_publication(queue, &task, task.id(), &problem, &[], Shape::PayloadAsBody);
        let Ok(publication) = publication else { return }; // the payload was encoded a moment ago
        let (transport, counters) = (Arc::clone(&self.transport), Arc::clone(&self.counters));
        self.oversize.spawn(async move {
            if publish(transport.as_ref(), &message_id, publication).await {
                counters.reviewed(problem.reason);
                // Without the ack the message is redelivered, and goes to review again under the same id.
                transport.ack(vec![receipt]).await;
            }
        });
    }
}

/// Publishes until the broker confirms. Returns `false` if the broker refuses the message.
async fn publish(transport: &dyn Transport, message_id: &str, publication: Publication) -> bool {
    let mut delay = MIN_RETRY_DELAY;
    loop {
        match transport.publish(publication.clone()).await {
            Ok(()) => return true,
            Err(PublishError::Refused { why }) => {
                tracing::error!(
                    target: "redrive::scheduler", message_id, why,
                    "a message is too large to store, and the broker refuses it for review: it stays in the queue, unacknowledged, until it is \
                     redelivered. Raise the broker's limit for messages or frames, or remove the message from the queue"
                );
                return false;
            }
            Err(error) => {
                tracing::error!(target: "redrive::scheduler", message_id, %error, "could not publish a message for review");
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
}
