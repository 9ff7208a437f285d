//! Interface of a measured queue.

use std::error::Error;
use std::path::Path;

use serde_json::Value;

use crate::handler::Handler;

/// Error of a queue.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A queue on one SQLite file, or in one database of a PostgreSQL server, through its own public API.
pub trait Peer: Clone + Send + Sync + 'static {
    /// Creates the queue, in a file or at the address of a server. The peer defines its settings; `shipped` is its default.
    fn open(file: &Path, setting: &str) -> impl Future<Output = Result<Self, BoxError>> + Send;

    /// Stores one job and returns when it is as durable as the setting makes it.
    fn enqueue(&self, job: &Value) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Stores many jobs with the one call that the API has for this.
    fn enqueue_batch(&self, jobs: &[Value]) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Hands jobs to the handler and returns when all wanted jobs have ended and that is committed.
    fn handle(&self, handler: Handler) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Number of unfinished jobs in the database. Queried after the clock has stopped, to verify it.
    fn unsettled(&self) -> impl Future<Output = Result<u64, BoxError>> + Send;
}
