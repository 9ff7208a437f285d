//! What a queue has to offer to be measured.

use std::error::Error;
use std::path::Path;

use serde_json::Value;

use crate::handler::Handler;

/// Whatever a queue fails with.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A queue on one SQLite file, or in one database of a PostgreSQL server, through its own public API.
pub trait Peer: Clone + Send + Sync + 'static {
    /// Creates the queue, in a file or at the address of a server. What a setting means is the peer's own affair; `shipped`
    /// is what it does by itself.
    fn open(file: &Path, setting: &str) -> impl Future<Output = Result<Self, BoxError>> + Send;

    /// Stores one job and returns when it is as durable as the setting makes it.
    fn enqueue(&self, job: &Value) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Stores many jobs with the one call that the API has for this.
    fn enqueue_batch(&self, jobs: &[Value]) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Hands jobs to the handler and returns when as many as it wants have ended and that is committed.
    fn handle(&self, handler: Handler) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// How many jobs are not done according to the database. Asked after the clock has stopped, to see that it was right.
    fn unsettled(&self) -> impl Future<Output = Result<u64, BoxError>> + Send;
}
