//! sqlxmq. Setting: `shipped`, with 50 to 100 jobs at a time.

use std::path::Path;
use std::time::Duration;

use peer_measure::{BoxError, Handler, Peer, Stamp};
use serde_json::Value;
use sqlx::PgPool;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgPoolOptions;
use sqlxmq::{JobBuilder, JobRunnerOptions};

/// Minimum and maximum concurrency, as in its own load test; the default is 16 and 32.
const AT_A_TIME: (usize, usize) = (50, 100);

#[derive(Clone)]
struct Sqlxmq {
    pool: PgPool,
}

impl Peer for Sqlxmq {
    async fn open(address: &Path, setting: &str) -> Result<Self, BoxError> {
        if setting != "shipped" {
            return Err(format!("no setting {setting}").into());
        }
        // As many connections as there are callers; the default is 10.
        let pool = PgPoolOptions::new().max_connections(32).connect(&address.to_string_lossy()).await?;
        Migrator::new(Path::new(env!("SQLXMQ_MIGRATIONS"))).await?.run(&pool).await?;
        Ok(Sqlxmq { pool })
    }

    async fn enqueue(&self, job: &Value) -> Result<(), BoxError> {
        JobBuilder::new("order").set_json(job)?.spawn(&self.pool).await?;
        Ok(())
    }

    /// It has no batch call; a transaction comes nearest.
    async fn enqueue_batch(&self, jobs: &[Value]) -> Result<(), BoxError> {
        let mut transaction = self.pool.begin().await?;
        for job in jobs {
            JobBuilder::new("order").set_json(job)?.spawn(&mut *transaction).await?;
        }
        Ok(transaction.commit().await?)
    }

    async fn handle(&self, handler: Handler) -> Result<(), BoxError> {
        let begin = handler.clone();
        let mut options = JobRunnerOptions::new(&self.pool, move |mut job| {
            let begin = begin.clone();
            tokio::spawn(async move {
                begin.begin(|| serde_json::from_str::<Stamp>(job.raw_json().unwrap_or_default()));
                // Otherwise it comes again, and is seen to be unsettled.
                let _ = job.complete().await;
            });
        });
        let _runner = options.set_concurrency(AT_A_TIME.0, AT_A_TIME.1).run().await?;
        handler.all_begun().await;
        while self.unsettled().await? > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// A job that is done is deleted; one row is always there.
    async fn unsettled(&self) -> Result<u64, BoxError> {
        let count = "SELECT count(*) FROM mq_msgs WHERE id <> uuid_nil()";
        let (left,): (i64,) = sqlx::query_as(count).fetch_one(&self.pool).await?;
        Ok(left.unsigned_abs())
    }
}

fn main() {
    peer_measure::main::<Sqlxmq>();
}
