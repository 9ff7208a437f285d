//! A server without its HTTP API, and endpoints on it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive::retry::{BoxError, RetryPolicy};
use redrive::store::{SqliteOptions, SqliteStore};
use redrive::{EventBus, Tracking};
use redrive_webhook::{
    Client, EndpointPatch, EndpointStore, Guard, RunningWebhookTasks, Secret, Vault, Webhooks,
};

pub(super) struct Server {
    pub(super) bus: EventBus,
    webhooks: Arc<Webhooks>,
    _tasks: RunningWebhookTasks,
}

pub(super) fn client() -> Result<Client, BoxError> {
    let guard = Guard::default().allow("127.0.0.0/8".parse()?);
    Ok(Client::builder().guard(guard).build()?)
}

impl Server {
    pub(super) async fn open(path: &Path) -> Result<Self, BoxError> {
        let store = SqliteStore::open(path, SqliteOptions::default())?;
        let bus = EventBus::builder()
            .policy(RetryPolicy::webhook())
            .tracking(Tracking::PerSubscription)
            .in_flight(4096)
            .shutdown_timeout(Duration::from_secs(1)) // does not wait for silent endpoints
            .on(Arc::new(store))
            .await?;
        let vault = Arc::new(Vault::new([Vault::generate_key().as_str()])?);
        let endpoints = EndpointStore::new(Arc::clone(bus.store()), client()?, vault);
        let (webhooks, tasks) = Webhooks::open(bus.clone(), endpoints).await?;
        bus.start().await?;
        Ok(Server { bus, webhooks, _tasks: tasks.start() })
    }

    pub(super) async fn endpoint(
        &self,
        address: SocketAddr,
        pattern: &str,
        concurrency: u32,
        secret: Option<Secret>,
    ) -> Result<(), BoxError> {
        let patch = EndpointPatch {
            url: Some(format!("http://{address}/hook")),
            patterns: Some(vec![pattern.to_owned()]),
            concurrency: Some(concurrency),
            timeout_ms: Some(5000),
            ..EndpointPatch::default()
        };
        self.webhooks.create(patch, secret).await?;
        Ok(())
    }

    /// Waits until everything is delivered and settled.
    pub(super) async fn idle(&self) -> Result<(), BoxError> {
        while !self.bus.store().depth().await?.is_idle() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    pub(super) async fn close(self) -> Result<(), BoxError> {
        Ok(self.bus.shutdown().await?)
    }
}
