//! apalis-sqlite. Settings: `shipped` (its `setup` sets `synchronous = OFF` on whichever connection it gets), `full`.

use std::path::Path;
use std::time::Duration;

use apalis::prelude::*;
use apalis_sqlite::callback::HookCallbackListener;
use apalis_sqlite::{Config, SqliteStorage};
use futures::StreamExt;
use peer_measure::{BoxError, Handler, Peer};
use serde_json::Value;

/// The default is 10; this was faster, and more was not.
const BATCH: usize = 100;

#[derive(Clone)]
struct Apalis {
    storage: SqliteStorage<Value>,
    /// Hears of new jobs; without it an idle worker waits for its next heartbeat.
    listener: HookCallbackListener,
}

impl Peer for Apalis {
    async fn open(file: &Path, setting: &str) -> Result<Self, BoxError> {
        let url = format!("sqlite://{}?mode=rwc", file.display());
        let (pool, listener) = SqliteStorage::connect_with_callback(&url)?;
        match setting {
            "shipped" => SqliteStorage::setup(&pool).await?,
            // The tables without its pragmas: then every connection has SQLite's own default, which is FULL.
            "full" => {
                sqlx::query("PRAGMA journal_mode = WAL").execute(&pool).await?;
                SqliteStorage::migrations().run(&pool).await?;
                let (level,): (i64,) = sqlx::query_as("PRAGMA synchronous").fetch_one(&pool).await?;
                assert_eq!(level, 2, "SQLite's default is FULL");
            }
            other => return Err(format!("no setting {other}").into()),
        }
        let config = Config::default().queue("orders").batch_size(BATCH);
        Ok(Apalis { storage: SqliteStorage::new(&pool).with_config(config), listener })
    }

    async fn enqueue(&self, job: &Value) -> Result<(), BoxError> {
        Ok(self.storage.clone().push(job.clone()).await?)
    }

    async fn enqueue_batch(&self, jobs: &[Value]) -> Result<(), BoxError> {
        Ok(self.storage.clone().push_bulk(jobs.to_vec()).await?)
    }

    /// Runs the event-driven worker of its README.
    async fn handle(&self, handler: Handler) -> Result<(), BoxError> {
        let strategy = Strategy::new()
            .stream(self.listener.clone().ready_chunks(BATCH))
            .interval(Duration::from_millis(500));
        let begin = handler.clone();
        let worker = WorkerBuilder::new("worker-1")
            .backend(self.storage.clone().poll_with_strategy(strategy))
            .build(move |job: Value| {
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
        let count = "SELECT count(*) FROM Jobs WHERE status <> 'Done'";
        let (left,): (i64,) = sqlx::query_as(count).fetch_one(self.storage.pool()).await?;
        Ok(left.unsigned_abs())
    }
}

fn main() {
    peer_measure::main::<Apalis>();
}
