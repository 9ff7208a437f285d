//! [`WorkerHandle`]: watches and stops a running worker.

use std::fmt;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::state::{State, WorkerStats};
use crate::client::Result;

/// A running worker. Dropping the handle lets the worker run on.
pub struct WorkerHandle {
    state: Arc<State>,
    task: JoinHandle<Result<()>>,
}

impl WorkerHandle {
    pub(super) fn new(state: Arc<State>, task: JoinHandle<Result<()>>) -> Self {
        WorkerHandle { state, task }
    }

    /// Counts since the start.
    pub fn stats(&self) -> WorkerStats {
        self.state.stats()
    }

    /// Waits until the subscription exists: events that are published later are handled. Returns as well if the worker has ended.
    pub async fn ready(&self) {
        self.state.ready().await;
    }

    /// Whether the worker has ended, by a stop or an error.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Stops pulling, waits for running handlers and their acks, and returns the final counts.
    pub async fn stop(self) -> Result<WorkerStats> {
        self.state.stop();
        self.join().await
    }

    /// Waits until the worker has ended; an error if it could not go on, such as without a subscription or a valid token.
    pub async fn join(self) -> Result<WorkerStats> {
        match self.task.await {
            Ok(ended) => ended.map(|()| self.state.stats()),
            Err(error) => match error.try_into_panic() {
                Ok(payload) => std::panic::resume_unwind(payload),
                Err(_) => Ok(self.state.stats()), // cancelled with the runtime
            },
        }
    }
}

impl fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subscription, stats) = (&self.state.subscription, self.stats());
        f.debug_struct("WorkerHandle").field("subscription", subscription).field("stats", &stats).finish()
    }
}
