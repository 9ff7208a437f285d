//! apalis-postgres. Setting: `pubsub` (batches of 100, woken by NOTIFY).

use std::path::Path;
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use peer_measure::{BoxError, Handler, Peer};
use serde_json::Value;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const QUEUE: &str = "orders";

/// The default is 10.
const BATCH: usize = 100;

#[derive(Clone)]
struct Apalis {
    pool: PgPool,
    storage: PostgresStorage<Value>,
}

impl Peer for Apalis {
    async fn open(address: &Path, setting: &str) -> Result<Self, BoxError> {
        if setting != "pubsub" {
            return Err(format!("no setting {setting}").into());
        }
        // As many connections as there are callers; the default is 10.
        let pool = PgPoolOptions::new().max_connections(32).connect(&address.to_string_lossy()).await?;
        PostgresStorage::setup(&pool).await?;
        let config = Config::default().queue(QUEUE).batch_size(BATCH);
        Ok(Apalis { storage: PostgresStorage::new(&pool).with_config(config), pool })
    }

    async fn enqueue(&self, job: &Value) -> Result<(), BoxError> {
        Ok(self.storage.clone().push(job.clone()).await?)
    }

    async fn enqueue_batch(&self, jobs: &[Value]) -> Result<(), BoxError> {
        Ok(self.storage.clone().push_bulk(jobs.to_vec()).await?)
    }

    /// Runs the worker of its README that is woken by NOTIFY.
    async fn handle(&self, handler: Handler) -> Result<(), BoxError> {
        let begin = handler.clone();
        let backend = self.storage.clone().with_pubsub().poll_with_interval(Duration::from_millis(100));
        let worker = WorkerBuilder::new("worker-1").backend(backend).build(move |job: Value| {
            begin.begin(|| serde_json::from_value(job));
            async { Ok::<_, std::convert::Infallible>(()) }
        });
        let settled = async {
            handler.all_begun().await;
            // Completions are written asynchronously; polled only now, so that the query disturbs nothing.
            while self.unsettled().await? > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok::<(), BoxError>(())
        };
        tokio::select! {
            ended = worker.run() => Err(format!("the worker ended: {ended:?}").into()),
            settled = settled => settled,
        }
    }

    async fn unsettled(&self) -> Result<u64, BoxError> {
        let count = "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'";
        let (left,): (i64,) = sqlx::query_as(count).fetch_one(&self.pool).await?;
        Ok(left.unsigned_abs())
    }
}

fn main() {
    peer_measure::main::<Apalis>();
}
