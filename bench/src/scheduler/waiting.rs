//! Memory while very many tasks wait, and lateness of due ones.

use std::time::{Duration, Instant};

use redrive::retry::BoxError;

use super::Place;
use super::broker::{Client, message, now_ms, scheduler, settings};
use super::drift::{self, Drift};

/// Messages sent before the scheduler catches up, so that the broker does not have to keep them all.
const CHUNK: u32 = 10_000;

/// A day: no such task becomes due.
const FAR_MS: i64 = 24 * 3600 * 1000;

/// Result.
#[derive(Debug)]
pub(super) struct Measured {
    /// In mebibytes, with a tenth of the tasks waiting.
    pub(super) early: f64,
    /// With all of them.
    pub(super) late: f64,
    /// Tasks ingested per second.
    pub(super) per_second: f64,
    pub(super) drift: Drift,
}

pub(super) async fn measure(place: &Place, tasks: u32, seconds: u32) -> Result<Measured, BoxError> {
    let settings = settings();
    let client = Client::connect(&place.broker.url()).await?;
    client.declare(&settings.retry_queue).await?;
    let scheduler = scheduler(&settings, &place.broker.url(), &place.fresh()).await?;
    let began = Instant::now();
    let (mut early, mut sent) = (0.0, 0);
    while sent < tasks {
        let chunk = sent..(sent + CHUNK).min(tasks);
        sent = chunk.end;
        let due = now_ms() + FAR_MS;
        client.fill(&settings.retry_queue, chunk.map(|n| message(format!("w-{n}"), "later", due))).await?;
        while scheduler.counted().queues.get("later").map_or(0, |queue| queue.scheduled) < u64::from(sent) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if early == 0.0 && sent >= tasks / 10 {
            early = resident()?;
        }
    }
    let per_second = f64::from(tasks) / began.elapsed().as_secs_f64();
    let drift = drift::of(place, &settings, &scheduler, seconds).await?;
    let late = resident()?;
    scheduler.shutdown().await?;
    Ok(Measured { early, late, per_second, drift })
}

fn resident() -> Result<f64, BoxError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
