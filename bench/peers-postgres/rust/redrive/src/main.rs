//! Redrive, beside its peers. Setting: `full`, which is its default.

use std::path::{Path, PathBuf};

use peer_measure::{BoxError, Handler, Peer};
use redrive::{Event, EventBus};
use serde_json::Value;

const TYPE: &str = "order.created";

#[derive(Clone)]
struct Redrive {
    bus: EventBus,
    address: PathBuf,
}

impl Peer for Redrive {
    async fn open(address: &Path, setting: &str) -> Result<Self, BoxError> {
        if setting != "full" {
            return Err(format!("no setting {setting}").into());
        }
        Ok(Redrive { bus: EventBus::open(address).await?, address: address.to_owned() })
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
