//! One endpoint among a hundred that never answers: what the others notice of it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::BoxError;

use super::receiver;
use super::server::Server;

const ENDPOINTS: u32 = 100;

/// Events in a second, to one endpoint after the other.
const RATE: u32 = 500;

/// From publishing to arrival, in microseconds: of 99 endpoints, while the hundredth works or says nothing.
pub(super) async fn latencies(folder: &Path, is_dead: bool, time: Duration) -> Result<Vec<u64>, BoxError> {
    let (start, heard) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&heard);
    let works = receiver::listen(Arc::new(move |body| {
        let sent = std::str::from_utf8(body).ok().and_then(|text| {
            let (_, rest) = text.split_once(r#""sent_us":"#)?;
            rest.split_once('}')?.0.parse::<u64>().ok()
        });
        if let Some(sent) = sent {
            let now = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(now.saturating_sub(sent));
        }
    }))
    .await?;
    let last = if is_dead { receiver::silent().await? } else { receiver::listen(Arc::new(|_| {})).await? };
    let server = Server::open(&folder.join(format!("fair-{}.db", uuid::Uuid::new_v4()))).await?;
    for n in 0..ENDPOINTS {
        let address = if n == ENDPOINTS - 1 { last } else { works };
        server.endpoint(address, &format!("order.{n}"), 16, None).await?;
    }
    let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
    let (began, mut n) = (Instant::now(), 0_u32);
    let mut publishing = tokio::task::JoinSet::new();
    while began.elapsed() < time {
        tick.tick().await;
        let (bus, event_type) = (server.bus.clone(), format!("order.{}", n % ENDPOINTS));
        let sent = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        publishing.spawn(async move {
            bus.publish(&event_type, &serde_json::json!({"sent_us": sent})).enqueue().await.is_ok()
        });
        n += 1;
    }
    if publishing.join_all().await.contains(&false) {
        return Err("an event was not published".into());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop(server); // what the dead one is owed is not waited for
    let expected = n - n / ENDPOINTS;
    let all = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
    if all.len() + 50 < expected as usize {
        return Err(format!("{} of {expected} events have arrived", all.len()).into());
    }
    Ok(all)
}
