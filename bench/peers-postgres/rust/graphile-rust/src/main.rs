//! graphile_worker for Rust. Settings: `batched` (a local queue, and completions in batches), `shipped`.

use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use peer_measure::{BoxError, Handler, Peer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

/// A job type has no other access to shared state.
static HANDLER: OnceLock<Handler> = OnceLock::new();

#[derive(Clone, Deserialize, Serialize)]
struct Order(Value);

impl TaskHandler for Order {
    const IDENTIFIER: &'static str = "order";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(handler) = HANDLER.get() {
            handler.begin(|| serde_json::from_value(self.0));
        }
        Ok::<(), String>(())
    }
}

#[derive(Clone)]
struct Graphile {
    pool: PgPool,
    utils: WorkerUtils,
    is_batched: bool,
}

impl Graphile {
    fn options(pool: &PgPool, is_batched: bool) -> WorkerOptions {
        let options = WorkerOptions::default().define_job::<Order>().pg_pool(pool.clone()).concurrency(24);
        if is_batched {
            options
                .local_queue(LocalQueueConfig::default().with_size(500))
                .complete_job_batch_delay(Duration::ZERO)
        } else {
            options
        }
    }
}

impl Peer for Graphile {
    async fn open(address: &Path, setting: &str) -> Result<Self, BoxError> {
        let is_batched = match setting {
            "batched" => true,
            "shipped" => false,
            other => return Err(format!("no setting {other}").into()),
        };
        let options = PgConnectOptions::from_str(&address.to_string_lossy())?;
        let pool = PgPoolOptions::new().max_connections(32).connect_with(options).await?;
        // This migrates.
        let worker = Self::options(&pool, is_batched).init().await?;
        Ok(Graphile { utils: worker.create_utils(), pool, is_batched })
    }

    async fn enqueue(&self, job: &Value) -> Result<(), BoxError> {
        self.utils.add_job(Order(job.clone()), JobSpec::default()).await?;
        Ok(())
    }

    async fn enqueue_batch(&self, jobs: &[Value]) -> Result<(), BoxError> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = jobs.iter().map(|job| (Order(job.clone()), &spec)).collect();
        self.utils.add_jobs::<Order>(&jobs).await?;
        Ok(())
    }

    async fn handle(&self, handler: Handler) -> Result<(), BoxError> {
        let _ = HANDLER.set(handler.clone()); // once in a process
        let worker = Self::options(&self.pool, self.is_batched).init().await?;
        let settled = async {
            handler.all_begun().await;
            while self.unsettled().await? > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok::<(), BoxError>(())
        };
        tokio::select! {
            ended = worker.run() => Err(format!("the worker ended: {:?}", ended.err()).into()),
            settled = settled => settled,
        }
    }

    /// A job that is done is deleted.
    async fn unsettled(&self) -> Result<u64, BoxError> {
        let count = "SELECT count(*) FROM graphile_worker._private_jobs";
        let (left,): (i64,) = sqlx::query_as(count).fetch_one(&self.pool).await?;
        Ok(left.unsigned_abs())
    }
}

fn main() {
    peer_measure::main::<Graphile>();
}
