//! What cannot be stored: brought straight to review, beside the others, who do not wait for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::arrival::Arrival;
use crate::metrics::Counters;
use crate::review_message::{Cause, Shape, review_publication};
use crate::task::{Problem, ReviewReason};
use crate::transport::{PublishError, Transport};

/// So many are in memory at once; they are large.
const AT_ONCE: usize = 4;

/// Between two attempts.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Brings what cannot be stored to review. The broker keeps each until that is done, and whoever drops this leaves it to the broker.
#[derive(Debug)]
pub(crate) struct Aside {
    inner: Arc<Inner>,
    room: Arc<Semaphore>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Inner {
    transport: Arc<dyn Transport>,
    counters: Arc<Counters>,
    review_queue: String,
}

impl Aside {
    pub(crate) fn new(transport: Arc<dyn Transport>, counters: Arc<Counters>, review_queue: String) -> Self {
        let inner = Arc::new(Inner { transport, counters, review_queue });
        Aside { inner, room: Arc::new(Semaphore::new(AT_ONCE)), tasks: JoinSet::new() }
    }

    /// Takes one, once there is room for it.
    pub(crate) async fn take(&mut self, arrival: Arrival, reason: ReviewReason, why: String) {
        while self.tasks.try_join_next().is_some() {}
        let room = Arc::clone(&self.room).acquire_owned().await;
        let inner = Arc::clone(&self.inner);
        self.tasks.spawn(async move {
            inner.bring(arrival, reason, &why).await;
            drop(room);
        });
    }
}

impl Inner {
    async fn bring(&self, arrival: Arrival, reason: ReviewReason, why: &str) {
        let (mut task, mut wait) = (arrival.task, SHORTEST_WAIT);
        task.problem = Some(Problem { reason, why: why.to_owned() });
        loop {
            let cause = Cause { reason, why };
            let publication =
                review_publication(&self.review_queue, &task, task.id(), cause, &[], Shape::PayloadAsBody);
            let Ok(publication) = publication else { return }; // it was encoded a moment ago
            match self.transport.publish(publication).await {
                Ok(()) => break,
                Err(PublishError::Refused { why }) => {
                    tracing::error!(
                        target: "redrive::scheduler", message_id = task.message_id, why,
                        "too large to be stored, and the broker refuses it for review: it stays in the queue, unacknowledged, until it is \
                         delivered anew. Raise the broker's limit for messages or frames, or take it out of the queue by hand"
                    );
                    return; // the broker has it
                }
                Err(error) => {
                    tracing::error!(target: "redrive::scheduler", message_id = task.message_id, %error, "could not be brought to review");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
        self.counters.reviewed(reason);
        // If the broker cannot be told it comes again, and to review once more under the same id.
        self.transport.accept(vec![arrival.receipt]).await;
    }
}
