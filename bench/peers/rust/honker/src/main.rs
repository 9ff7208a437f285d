//! honker. Settings: `shipped` (NORMAL), `full`; and `shipped-1000`, `full-1000`, which claim a thousand jobs at a time
//! instead of a hundred.

use std::path::Path;

use honker::{Database, EnqueueOpts, Queue, QueueOpts};
use peer_measure::{BoxError, Handler, Peer};
use serde_json::Value;

const WORKER: &str = "worker-1";

#[derive(Clone)]
struct Honker {
    database: Database,
    queue: Queue,
    /// Jobs of one claim and one acknowledgement. There is no default.
    claim: i64,
}

impl Peer for Honker {
    async fn open(file: &Path, setting: &str) -> Result<Self, BoxError> {
        let database = Database::open(file)?;
        let (level, claim) = setting.split_once('-').unwrap_or((setting, "100"));
        match level {
            "shipped" => {}
            // The one connection for everything is accessible.
            "full" => {
                database.with_conn(|connection| connection.pragma_update(None, "synchronous", "FULL"))?;
            }
            other => return Err(format!("no setting {other}").into()),
        }
        Ok(Honker { queue: database.queue("orders", QueueOpts::default()), database, claim: claim.parse()? })
    }

    async fn enqueue(&self, job: &Value) -> Result<(), BoxError> {
        self.queue.enqueue(job, EnqueueOpts::default())?;
        Ok(())
    }

    async fn enqueue_batch(&self, jobs: &[Value]) -> Result<(), BoxError> {
        let transaction = self.database.transaction()?;
        for job in jobs {
            self.queue.enqueue_tx(&transaction, job, EnqueueOpts::default())?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Runs on a thread, as it blocks. Claims waiting jobs in batches; when none waits, blocks on its waker.
    async fn handle(&self, handler: Handler) -> Result<(), BoxError> {
        let (queue, claim) = (self.queue.clone(), self.claim);
        tokio::task::spawn_blocking(move || {
            let waker = queue.claim_waker();
            while handler.begun() < handler.wanted() {
                let mut jobs = queue.claim_batch(WORKER, claim)?;
                if jobs.is_empty() {
                    jobs.extend(waker.next(WORKER)?);
                }
                for job in &jobs {
                    handler.begin(|| job.payload_as());
                }
                queue.ack_batch(&jobs.iter().map(|job| job.id).collect::<Vec<_>>(), WORKER)?;
            }
            Ok(())
        })
        .await?
    }

    async fn unsettled(&self) -> Result<u64, BoxError> {
        let count = "SELECT count(*) FROM _honker_live";
        let left: i64 =
            self.database.with_conn(|connection| connection.query_row(count, [], |row| row.get(0)))?;
        Ok(left.unsigned_abs())
    }
}

fn main() {
    peer_measure::main::<Honker>();
}
