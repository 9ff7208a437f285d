//! Redrive as a measured queue. Settings: `full`, `relaxed`.

use std::path::{Path, PathBuf};

use peer_measure::{BoxError, Handler, Peer};
use redrive::{Event, EventBus};
use redrive::store::Durability;
use serde_json::Value;

const TYPE: &str = "order.created";

#[derive(Clone)]
struct Redrive {
    bus: EventBus,
    file: PathBuf,
}

impl Peer for Redrive {
    async fn open(file: &Path, setting: &str) -> Result<Self, BoxError> {
        let durability = match setting {
            "full" => Durability::Full,
            "relaxed" => Durability::Relaxed,
            other => return Err(format!("no setting {other}").into()),
        };
        let bus = EventBus::builder().durability(durability).open(file).await?;
        Ok(Redrive { bus, file: file.to_owned() })
    }

    async fn enqueue(&self, job: &Value) -> Result<(), BoxError> {
        self.bus.publish(TYPE, job).enqueue().await?;
        Ok(())
    }

    async fn enqueue_batch(&self, jobs: &[Value]) -> Result<(), BoxError> {
        self.bus.publish_batch(jobs.iter().map(|job| (TYPE, job))).await?;
        Ok(())
    }

    /// The clock includes the shutdown: then every settlement is not only committed, but synced.
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
        let stats = EventBus::open(&self.file).await?.store().stats().await?;
        Ok(stats.pending + stats.processing + stats.dlq)
    }
}

fn main() {
    peer_measure::main::<Redrive>();
}
