//! Measures the bus with its defaults, through its public interface.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::retry::BoxError;
use redrive::store::{PostgresOptions, PostgresStore};
use redrive::{Event, EventBus};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_postgres::Client;

use super::cost::Meter;
use super::measure::{Measure, Quota, Sample, Size, Stores, all, per_second};

const SCHEMA: &str = "redrive_bench";
const TYPE: &str = "order.created";

/// Batch size that fills the tables.
const FILL: u32 = 1000;

/// Batch size while others are handled.
const PUBLISHED: u32 = 100;

/// 200 events a second.
const TICK: Duration = Duration::from_millis(5);

/// Timeout of the last event.
const LAST: Duration = Duration::from_secs(120);

/// The event that everything is measured with: an order of some two hundred bytes.
pub(super) fn payload() -> Value {
    json!({
        "order": 4711, "customer": "c-1234567", "total": "129.90", "currency": "EUR",
        "items": [{"sku": "A-100", "quantity": 2}, {"sku": "B-200", "quantity": 1}],
        "note": "please leave it at the door",
    })
}

pub(super) async fn drop_tables(admin: &Client) -> Result<(), BoxError> {
    Ok(admin.batch_execute("DROP SCHEMA IF EXISTS redrive_bench CASCADE").await?)
}

pub(super) async fn take(
    url: &str,
    admin: &Client,
    measure: Measure,
    size: Size,
) -> Result<Sample, BoxError> {
    drop_tables(admin).await?;
    let bus = open(url).await?;
    if let Some(stores) = measure.stores(size.connections) {
        // Connections are opened lazily; the baseline opens them before the clock runs.
        warm_up(&bus, size.connections).await?;
        let began = Instant::now();
        let stored = publish(&bus, stores, Quota::of_time(size.time)).await?;
        let took = began.elapsed();
        bus.shutdown().await?;
        return Ok(Sample::rate(stored, took));
    }
    match measure {
        Measure::Process => {
            publish(&bus, Stores { callers: 1, batch: FILL }, Quota::of_events(size.events)).await?;
            bus.shutdown().await?;
            let bus = open(url).await?;
            let seen = subscribe(&bus, size.events)?;
            let began = Instant::now();
            bus.start().await?;
            seen.all().await?;
            bus.shutdown().await?;
            let took = began.elapsed();
            check(url, size.events).await?;
            Ok(Sample::rate(size.events, took))
        }
        Measure::Cycle => {
            let seen = subscribe(&bus, size.events)?;
            bus.start().await?;
            let meter = Meter::start(admin, SCHEMA).await?;
            let began = Instant::now();
            let stores = Stores { callers: size.connections, batch: PUBLISHED };
            publish(&bus, stores, Quota::of_events(size.events)).await?;
            seen.all().await?;
            bus.shutdown().await?;
            let took = began.elapsed();
            let cost = meter.stop(size.events).await?;
            check(url, size.events).await?;
            Ok(Sample::Costed(per_second(size.events, took), cost))
        }
        _ => latency(&bus, size.time * 2).await,
    }
}

async fn open(url: &str) -> Result<EventBus, BoxError> {
    let options = PostgresOptions { schema: SCHEMA.into(), ..PostgresOptions::default() };
    let store = PostgresStore::open(url, options).await?;
    Ok(EventBus::builder().on(Arc::new(store)).await?)
}

async fn warm_up(bus: &EventBus, connections: usize) -> Result<(), BoxError> {
    let stores = Stores { callers: connections * 4, batch: 1 };
    publish(bus, stores, Quota::of_events(200)).await.map(drop)
}

async fn publish(bus: &EventBus, stores: Stores, quota: Quota) -> Result<u32, BoxError> {
    let mut tasks = JoinSet::new();
    for _ in 0..stores.callers {
        let (bus, quota) = (bus.clone(), quota.clone());
        tasks.spawn(async move {
            let (payload, mut stored) = (payload(), 0);
            loop {
                let count = quota.take(stores.batch);
                match count {
                    0 => return Ok(stored),
                    1 => drop(bus.publish(TYPE, &payload).enqueue().await?),
                    _ => drop(bus.publish_batch((0..count).map(|_| (TYPE, &payload))).await?),
                }
                stored += count;
            }
        });
    }
    all(tasks).await
}

/// Observations of a no-op handler.
struct Seen {
    wanted: u32,
    count: AtomicU32,
    last: Notify,
}

impl Seen {
    async fn all(&self) -> Result<(), BoxError> {
        timeout(LAST, self.last.notified()).await.map_err(|_| {
            let seen = self.count.load(Ordering::Acquire);
            format!("{seen} of {} events were handled within {LAST:?}", self.wanted)
        })?;
        Ok(())
    }
}

fn subscribe(bus: &EventBus, wanted: u32) -> Result<Arc<Seen>, BoxError> {
    let seen = Arc::new(Seen { wanted, count: AtomicU32::new(0), last: Notify::new() });
    let handler = Arc::clone(&seen);
    bus.subscribe("order.*", move |_: Event| {
        if handler.count.fetch_add(1, Ordering::AcqRel) + 1 == wanted {
            handler.last.notify_one();
        }
        async { Ok::<_, BoxError>(()) }
    })
    .register()?;
    Ok(seen)
}

async fn latency(bus: &EventBus, time: Duration) -> Result<Sample, BoxError> {
    let ages = Arc::new(Mutex::new(Vec::new()));
    let (seen, first) = (Arc::clone(&ages), Instant::now());
    bus.subscribe("order.*", move |event: Event| {
        let now = first.elapsed();
        let sent = event.json::<Value>().ok().and_then(|payload| payload.get("sent")?.as_f64());
        let age = now.as_secs_f64() - sent.unwrap_or(f64::NAN);
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(age * 1e3);
        async { Ok::<_, BoxError>(()) }
    })
    .register()?;
    bus.start().await?;
    let mut ticks = interval(TICK);
    // A slow publish must not be followed by a burst: that would be another rate.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < time {
        ticks.tick().await;
        let mut payload = payload();
        payload["sent"] = json!(first.elapsed().as_secs_f64());
        bus.publish(TYPE, &payload).enqueue().await?;
        sent += 1;
    }
    let count = || ages.lock().unwrap_or_else(PoisonError::into_inner).len();
    let until = Instant::now() + LAST;
    while count() < sent && Instant::now() < until {
        sleep(TICK).await;
    }
    bus.shutdown().await?;
    let mut ages = std::mem::take(&mut *ages.lock().unwrap_or_else(PoisonError::into_inner));
    if ages.len() != sent {
        return Err(format!("{} of {sent} events were handled", ages.len()).into());
    }
    ages.sort_by(f64::total_cmp);
    let percentile = |percent: usize| ages.get(ages.len() * percent / 100).copied().unwrap_or(f64::NAN);
    Ok(Sample::Latency { p50: percentile(50), p99: percentile(99) })
}

/// Checks that all events are handled.
async fn check(url: &str, events: u32) -> Result<(), BoxError> {
    let bus = open(url).await?;
    let stats = bus.store().stats().await?;
    bus.shutdown().await?;
    if stats.done == u64::from(events) {
        Ok(())
    } else {
        Err(format!("{} of {events} are done", stats.done).into())
    }
}
