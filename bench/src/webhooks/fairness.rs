//! Effect of one silent endpoint among a hundred on the latency of the others.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::retry::BoxError;

use super::receiver;
use super::server::Server;

const ENDPOINTS: u32 = 100;

/// Events per second, to one endpoint after the other.
const RATE: u32 = 500;

/// Events of the first second are not counted: connections are opened, and the file is new.
const WARM_UP: Duration = Duration::from_secs(1);

/// From publishing to arrival at 99 endpoints, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    /// While the hundredth is silent.
    with_silent: Vec<u64>,
    /// While the hundredth works, before and after the silent runs of a round.
    without_silent: [Vec<u64>; 2],
}

impl Latencies {
    /// Runs a round: none, silent, silent, none, so that drift of the machine hits both alike.
    pub(super) async fn round(&mut self, folder: &Path, time: Duration) -> Result<(), BoxError> {
        let [first, last] = &mut self.without_silent;
        first.extend(measure(folder, false, time).await?);
        self.with_silent.extend(measure(folder, true, time).await?);
        self.with_silent.extend(measure(folder, true, time).await?);
        last.extend(measure(folder, false, time).await?);
        Ok(())
    }

    /// p99 with a silent endpoint and without, over all rounds: that of one round varies by a factor of two.
    pub(super) fn compared(&self) -> (f64, f64) {
        (p99(self.with_silent.clone()), p99(self.without_silent.concat()))
    }

    /// Two p99 without a silent endpoint, to see the noise of the machine.
    pub(super) fn control(&self) -> (f64, f64) {
        let [first, last] = &self.without_silent;
        (p99(first.clone()), p99(last.clone()))
    }
}

#[allow(clippy::cast_precision_loss)] // microseconds of seconds
fn p99(mut all: Vec<u64>) -> f64 {
    all.sort_unstable();
    all.get(all.len() * 99 / 100).copied().unwrap_or_default() as f64
}

async fn measure(folder: &Path, is_silent: bool, time: Duration) -> Result<Vec<u64>, BoxError> {
    let (start, heard) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&heard);
    let works = receiver::listen(Arc::new(move |body| {
        let sent = std::str::from_utf8(body).ok().and_then(|text| {
            let (_, rest) = text.split_once(r#""sent_us":"#)?;
            rest.split_once('}')?.0.parse::<u64>().ok()
        });
        if let Some(sent) = sent {
            let now = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
            noted.lock().unwrap_or_else(PoisonError::into_inner).push((sent, now.saturating_sub(sent)));
        }
    }))
    .await?;
    let last = if is_silent { receiver::silent().await? } else { receiver::listen(Arc::new(|_| {})).await? };
    let server = Server::open(&folder.join(format!("fair-{}.db", uuid::Uuid::new_v4()))).await?;
    for n in 0..ENDPOINTS {
        let address = if n == ENDPOINTS - 1 { last } else { works };
        server.endpoint(address, &format!("order.{n}"), 16, None).await?;
    }
    let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
    let (began, mut n) = (Instant::now(), 0_u32);
    let counts_from = u64::try_from((start.elapsed() + WARM_UP).as_micros()).unwrap_or(u64::MAX);
    let mut publishing = tokio::task::JoinSet::new();
    while began.elapsed() < WARM_UP + time {
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
    server.close().await?;
    let expected = n - n / ENDPOINTS;
    let all = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
    if all.len() + 50 < expected as usize {
        return Err(format!("{} of {expected} events have arrived", all.len()).into());
    }
    Ok(all.into_iter().filter(|(sent, _)| *sent >= counts_from).map(|(_, latency)| latency).collect())
}
