//! Redrive as a measured queue. Settings: `shipped`, where publishing waits for the disk and claims and settlements do not,
//! and `synced`, where they do, as in the other queues.

use std::path::{Path, PathBuf};

use peer_measure::{BoxError, Handler, Peer};
use redrive::{Event, EventBus};
use serde_json::Value;
use tokio_postgres::NoTls;

const TYPE: &str = "order.created";

/// Redrive has no option for this, as lost claims and settlements only cost a redelivery. So a trigger switches
/// `synchronous_commit` on again after each statement and before its commit.
const WAIT: &str = "
    CREATE OR REPLACE FUNCTION redrive.wait() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM set_config('synchronous_commit', 'on', true); RETURN NULL; END $$;
    CREATE OR REPLACE TRIGGER wait AFTER UPDATE ON redrive.event FOR EACH STATEMENT EXECUTE FUNCTION redrive.wait();
    CREATE OR REPLACE TRIGGER wait AFTER UPDATE ON redrive.delivery FOR EACH STATEMENT EXECUTE FUNCTION redrive.wait();";

#[derive(Clone)]
struct Redrive {
    bus: EventBus,
    address: PathBuf,
}

impl Peer for Redrive {
    async fn open(address: &Path, setting: &str) -> Result<Self, BoxError> {
        if !["shipped", "synced"].contains(&setting) {
            return Err(format!("no setting {setting}").into());
        }
        let bus = EventBus::open(address).await?;
        if setting == "synced" {
            let (client, connection) = tokio_postgres::connect(&address.to_string_lossy(), NoTls).await?;
            tokio::spawn(connection); // it ends with the client
            client.batch_execute(WAIT).await?;
        }
        Ok(Redrive { bus, address: address.to_owned() })
    }

    async fn enqueue(&self, job: &Value) -> Result<(), BoxError> {
        self.bus.publish(TYPE, job).enqueue().await?;
        Ok(())
    }

    async fn enqueue_batch(&self, jobs: &[Value]) -> Result<(), BoxError> {
        self.bus.publish_batch(jobs.iter().map(|job| (TYPE, job))).await?;
        Ok(())
    }

    /// The clock includes the shutdown: then every settlement is committed and every connection closed.
    async fn handle(&self, handler: Handler) -> Result<(), BoxError> {
        let begin = handler.clone();
        self.bus
            .subscribe("order.*", move |event: Event| {
                begin.begin(|| event.json());
                async { Ok::<_, BoxError>(()) }
            })
            .register()?;
        self.bus.start().await?;
        handler.all_begun().await;
        self.bus.shutdown().await?;
        Ok(())
    }

    async fn unsettled(&self) -> Result<u64, BoxError> {
        let stats = EventBus::open(&self.address).await?.store().stats().await?;
        Ok(stats.pending + stats.processing + stats.dlq)
    }
}

fn main() {
    peer_measure::main::<Redrive>();
}
