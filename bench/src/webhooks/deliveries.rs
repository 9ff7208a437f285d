//! Deliveries in a second, beside the bare client with the same signing, body and concurrency.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redrive::BoxError;
use redrive_webhook::{EndpointUrl, Message, Secret, Secrets};

use super::receiver;
use super::server::{Server, client};

/// Endpoints, and how many attempts at each at once.
const ENDPOINTS: u32 = 4;
const CONCURRENCY: u32 = 16;

fn payload(n: u64) -> serde_json::Value {
    serde_json::json!({"order": n, "customer": "c-4711", "lines": [{"sku": "A-1", "quantity": 2}, {"sku": "B-7", "quantity": 1}],
        "total": "129.90", "currency": "EUR", "note": "leave it at the door"})
}

/// Deliveries in a second.
pub(super) async fn ours(folder: &Path, deliveries: u32) -> Result<f64, BoxError> {
    let heard = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&heard);
    let address = receiver::listen(Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    }))
    .await?;
    let server = Server::open(&folder.join(format!("deliveries-{}.db", uuid::Uuid::new_v4()))).await?;
    for n in 0..ENDPOINTS {
        server.endpoint(address, &format!("order.{n}"), CONCURRENCY).await?;
    }
    // All of it is there before the clock runs: what is measured is delivering, and writing down what came of it.
    server.bus.dispatcher().pause();
    let types: Vec<String> = (0..ENDPOINTS).map(|n| format!("order.{n}")).collect();
    let payloads: Vec<_> = (0..u64::from(deliveries)).map(payload).collect();
    for (chunk, first) in payloads.chunks(1000).zip((0..).step_by(1000)) {
        let events = chunk
            .iter()
            .zip(first..)
            .map(|(payload, n): (_, usize)| (types[n % types.len()].as_str(), payload));
        server.bus.publish_batch(events).await?;
    }
    let began = Instant::now();
    server.bus.dispatcher().resume();
    server.idle().await?;
    let took = began.elapsed();
    server.close().await?;
    if heard.load(Ordering::Relaxed) != u64::from(deliveries) {
        return Err("not every delivery has arrived once".into());
    }
    Ok(f64::from(deliveries) / took.as_secs_f64())
}

/// The same requests by the bare client: nothing is kept, nothing is tried again.
pub(super) async fn bare(deliveries: u32) -> Result<f64, BoxError> {
    let address = receiver::listen(Arc::new(|_| {})).await?;
    let client = client()?;
    let url: Arc<EndpointUrl> = Arc::new(format!("http://{address}/hook").parse()?);
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..ENDPOINTS * CONCURRENCY {
        let (client, url, next) = (client.clone(), Arc::clone(&url), Arc::clone(&next));
        callers.spawn(async move {
            let secrets = Secrets::new(Secret::generate());
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= u64::from(deliveries) {
                    return true;
                }
                let id = uuid::Uuid::now_v7().to_string();
                let body = format!(
                    r#"{{"type":"order.0","timestamp":"2026-01-01T00:00:00.000Z","data":{}}}"#,
                    payload(n)
                );
                let message = Message { id: &id, timestamp: 1_767_225_600, body: body.as_bytes() };
                if !client.send(&url, &secrets, &[], message, None).await.is_success() {
                    return false;
                }
            }
        });
    }
    if callers.join_all().await.contains(&false) {
        return Err("the bare client was refused".into());
    }
    Ok(f64::from(deliveries) / began.elapsed().as_secs_f64())
}
