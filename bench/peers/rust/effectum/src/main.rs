//! effectum. Settings: `shipped`, `wal`. It makes its connection itself and sets `synchronous = NORMAL` on it, so FULL is
//! out of reach.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use peer_measure::{BoxError, Handler, Peer};
use serde_json::Value;

#[derive(Clone)]
struct Effectum {
    queue: Arc<Queue>,
    /// Concurrency of the worker: the fastest of 1 to 4,096. The default is 1, "but you will usually want to set this to a
    /// higher number".
    concurrency: u16,
}

impl Peer for Effectum {
    async fn open(file: &Path, setting: &str) -> Result<Self, BoxError> {
        let concurrency = match setting {
            "shipped" => 512,
            // It asks for WAL with a pragma that does not exist (`journal`), but keeps the mode that a file has.
            "wal" => {
                let mode = "PRAGMA journal_mode = WAL";
                rusqlite::Connection::open(file)?.query_row(mode, [], |_| Ok(()))?;
                64
            }
            other => return Err(format!("no setting {other}").into()),
        };
        Ok(Effectum { queue: Arc::new(Queue::new(file).await?), concurrency })
    }

    async fn enqueue(&self, job: &Value) -> Result<(), BoxError> {
        Job::builder("order").json_payload(job)?.add_to(&self.queue).await?;
        Ok(())
    }

    async fn enqueue_batch(&self, jobs: &[Value]) -> Result<(), BoxError> {
        let job = |job| Ok(Job::builder("order").json_payload(job)?.build());
        self.queue.add_jobs(jobs.iter().map(job).collect::<effectum::Result<_>>()?).await?;
        Ok(())
    }

    async fn handle(&self, handler: Handler) -> Result<(), BoxError> {
        let runner = JobRunner::builder("order", |job: RunningJob, handler: Handler| async move {
            handler.begin(|| job.json_payload());
            Ok::<_, effectum::Error>(())
        })
        .build();
        let worker = Worker::builder(&self.queue, handler.clone())
            .max_concurrency(self.concurrency)
            .jobs([runner])
            .build()
            .await?;
        handler.all_begun().await;
        // A job is finished when its completion is committed.
        while worker.counts().finished < handler.wanted() as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn unsettled(&self) -> Result<u64, BoxError> {
        let active = self.queue.num_active_jobs().await?;
        Ok(active.pending + active.running)
    }
}

fn main() {
    peer_measure::main::<Effectum>();
}
