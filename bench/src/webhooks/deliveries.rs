//! Deliveries per second, compared with the bare client with the same signing, body and concurrency.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redrive::retry::{BoxError, Clock};
use redrive_webhook::{EndpointUrl, Message, Secret, Secrets};

use super::receiver;
use super::server::{Server, client};

/// Number of endpoints, and concurrency of each.
const ENDPOINTS: u32 = 4;
const CONCURRENCY: u32 = 16;

/// One kibibyte with its envelope.
fn payload(n: u64) -> serde_json::Value {
    let line = |sku: u32| serde_json::json!({"sku": format!("A-{sku:04}"), "quantity": 2, "price": "12.90", "currency": "EUR"});
    serde_json::json!({"order": n, "customer": "c-4711", "lines": (0..12).map(line).collect::<Vec<_>>(), "total": "309.60",
        "currency": "EUR", "note": "leave it at the door"})
}

/// Deliveries per second of Redrive.
pub(super) async fn ours(folder: &Path, deliveries: u32) -> Result<f64, BoxError> {
    let heard = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&heard);
    let secret = Secret::generate();
    let hear = Arc::new(move |_: &[u8]| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let address = receiver::verifying(&secret, hear).await?;
    let server = Server::open(&folder.join(format!("deliveries-{}.db", uuid::Uuid::new_v4()))).await?;
    for n in 0..ENDPOINTS {
        server.endpoint(address, &format!("order.{n}"), CONCURRENCY, Some(secret.clone())).await?;
    }
    // All events are stored before the clock runs: the benchmark measures delivering and settling.
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
    // Counting a large backlog takes time.
    while heard.load(Ordering::Relaxed) < u64::from(deliveries) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.idle().await?;
    let took = began.elapsed();
    server.close().await?;
    if heard.load(Ordering::Relaxed) != u64::from(deliveries) {
        return Err("not every delivery has arrived once".into());
    }
    Ok(f64::from(deliveries) / took.as_secs_f64())
}

/// Deliveries per second of the bare client: it stores and retries nothing.
pub(super) async fn bare(deliveries: u32) -> Result<f64, BoxError> {
    let secret = Secret::generate();
    let address = receiver::verifying(&secret, Arc::new(|_| {})).await?;
    let client = client()?;
    let url: Arc<EndpointUrl> = Arc::new(format!("http://{address}/hook").parse()?);
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..ENDPOINTS * CONCURRENCY {
        let (client, url, next) = (client.clone(), Arc::clone(&url), Arc::clone(&next));
        let secrets = Secrets::new(secret.clone());
        callers.spawn(async move {
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
                let timestamp = Clock::system().now().as_millis().div_euclid(1000);
                let message = Message { id: &id, timestamp, body: body.as_bytes() };
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
