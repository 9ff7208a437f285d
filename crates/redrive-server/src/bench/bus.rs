//! The bus: durable publishes, full cycles, and how soon a handler begins.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::{BoxError, BusError, Event, EventBus};
use serde_json::Value;

use super::raw::rate;
use super::sample::payload;

/// Events a second, and how long one took.
pub(super) struct Publishing {
    pub(super) per_second: f64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

/// `publishers` tasks publish one event after another, each waiting for stable storage. Nothing is dispatched.
pub(super) async fn publish(path: &Path, publishers: u32, time: Duration) -> Result<Publishing, BusError> {
    let bus = EventBus::open(path).await?;
    let took = together(publishers, time, &bus, |bus, payload| async move {
        bus.publish("order.created", &*payload).enqueue().await.map(drop)
    })
    .await?;
    bus.shutdown().await?;
    Ok(took)
}

/// `in_flight` tasks publish and wait until their event is handled by a handler that does nothing, and settled.
pub(super) async fn cycle(path: &Path, in_flight: u32, time: Duration) -> Result<Publishing, BusError> {
    let bus = EventBus::open(path).await?;
    bus.subscribe("order.*", |_: Event| async { Ok::<_, BoxError>(()) }).register()?;
    bus.start().await?;
    let took = together(in_flight, time, &bus, |bus, payload| async move {
        bus.publish("order.created", &*payload).await.map(drop)
    })
    .await?;
    bus.shutdown().await?;
    Ok(took)
}

/// The time from the answer to the publisher to the start of the handler, at a thousand events a second: 99 of 100 are
/// faster. A handler that began before its publisher was answered counts as zero.
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

async fn together<F, Fut>(tasks: u32, time: Duration, bus: &EventBus, work: F) -> Result<Publishing, BusError>
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
    took.sort_unstable();
    Ok(Publishing { per_second, p50: percentile(took.clone(), 50), p99: percentile(took, 99) })
}

fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}
