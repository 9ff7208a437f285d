//! Memory over very many deliveries.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redrive::retry::BoxError;

use super::receiver;
use super::server::Server;

const ENDPOINTS: u32 = 100;

/// Mebibytes after a tenth of the deliveries, and after all of them.
pub(super) async fn measure(folder: &Path, deliveries: u32) -> Result<(f64, f64), BoxError> {
    let heard = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&heard);
    let address = receiver::listen(Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    }))
    .await?;
    let server = Server::open(&folder.join("memory.db")).await?;
    for _ in 0..ENDPOINTS {
        server.endpoint(address, "order.*", 16, None).await?;
    }
    let (mut early, events) = (0.0, deliveries / ENDPOINTS);
    let payload = serde_json::json!({"order": 7, "note": "x".repeat(200)});
    for n in 0..events {
        server.bus.publish("order.created", &payload).enqueue().await?;
        // The backlog stays short, as in a server that keeps up.
        while u64::from(n) * u64::from(ENDPOINTS) > heard.load(Ordering::Relaxed) + 20_000 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        if n == events / 10 {
            early = resident()?;
        }
    }
    server.idle().await?;
    let late = resident()?;
    server.close().await?;
    Ok((early, late))
}

fn resident() -> Result<f64, BoxError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
