//! Measures the bus: durable publishes, full cycles, and dispatch latency.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::retry::BoxError;
use redrive::{BusError, Event, EventBus};
use serde_json::Value;

use super::raw::{payload, rate};

/// Throughput and latency of one measurement.
pub(super) struct Measurement {
    pub(super) per_second: f64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

/// Measures `publishers` tasks that publish sequentially, each waiting for stable storage. Nothing is dispatched.
pub(super) async fn publish(path: &Path, publishers: u32, time: Duration) -> Result<Measurement, BusError> {
    let bus = EventBus::open(path).await?;
    let took = concurrently(publishers, time, &bus, |bus, payload| async move {
        bus.publish("order.created", &*payload).enqueue().await.map(drop)
    })
    .await?;
    bus.shutdown().await?;
    Ok(took)
}

/// Measures `in_flight` tasks that publish and wait until an empty handler has handled the event and it is settled.
pub(super) async fn cycle(path: &Path, in_flight: u32, time: Duration) -> Result<Measurement, BusError> {
    let bus = EventBus::open(path).await?;
    bus.subscribe("order.*", |_: Event| async { Ok::<_, BoxError>(()) }).register()?;
    bus.start().await?;
    let took = concurrently(in_flight, time, &bus, |bus, payload| async move {
        bus.publish("order.created", &*payload).await.map(drop)
    })
    .await?;
    bus.shutdown().await?;
    Ok(took)
}

/// Measures the 99th percentile of the time from the return of publish to the start of the handler, at 1,000 events per second.
/// A handler that starts before its publish has returned counts as zero.
pub(super) async fn dispatch_p99(path: &Path, time: Duration) -> Result<Duration, BusError> {
    let bus = EventBus::open(path).await?;
    let begun = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&begun);
    bus.subscribe("order.*", move |event: Event| {
        list.lock().unwrap_or_else(PoisonError::into_inner).push((event.id(), Instant::now()));
        async { Ok::<_, BoxError>(()) }
    })
    .register()?;
    bus.start().await?;
    let payload = payload();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let mut answered = std::collections::HashMap::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        ticks.tick().await;
        let id = bus.publish("order.created", &payload).enqueue().await?;
        answered.insert(id, Instant::now());
    }
    bus.shutdown().await?;
    let begun = std::mem::take(&mut *begun.lock().unwrap_or_else(PoisonError::into_inner));
    let late = |(id, at): (_, Instant)| answered.get(&id).map(|answer| at.saturating_duration_since(*answer));
    Ok(percentile(begun.into_iter().filter_map(late).collect(), 99))
}

async fn concurrently<F, Fut>(
    tasks: u32,
    time: Duration,
    bus: &EventBus,
    work: F,
) -> Result<Measurement, BusError>
where
    F: Fn(EventBus, Arc<Value>) -> Fut + Copy + Send + 'static,
    Fut: Future<Output = Result<(), BusError>> + Send,
{
    let payload = Arc::new(payload());
    let began = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (bus, payload) = (bus.clone(), Arc::clone(&payload));
            tokio::spawn(async move {
                let mut took = Vec::new();
                while began.elapsed() < time {
                    let started = Instant::now();
                    work(bus.clone(), Arc::clone(&payload)).await?;
                    took.push(started.elapsed());
                }
                Ok::<_, BusError>(took)
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("a publisher does not panic")?);
    }
    let per_second = rate(i64::try_from(took.len()).unwrap_or(i64::MAX), began.elapsed());
    Ok(Measurement { per_second, p50: percentile(took.clone(), 50), p99: percentile(took, 99) })
}

fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}
