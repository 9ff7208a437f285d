//! Soak: applies load and faults for hours, and checks that nothing grows.
//!
//! One process publishes, handles, fails, panics, hangs, dies and comes back, while others lock the file or read for long.
//! Handled events are deleted soon, so that the file keeps its size. Memory, file, log and latency of the last quarter are
//! compared with those of the second.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redrive::dlq::{DlqFilter, DlqPage};
use redrive::events::EventStatus;
use redrive::retry::{BoxError, ClassifyError, Clock, Failure, Jitter, RetryPolicy, Timestamp};
use redrive::store::StoreError;
use redrive::{BusError, Event, EventBus, EventId};
use rusqlite::Connection;
use serde_json::json;
use tokio::time::{interval, sleep};

use crate::dice::Dice;
use crate::options::{Options, is_interrupted};
use crate::oracle::integrity;
use crate::report::Report;

/// Events per second. Far below the maximum: the soak tests time, not speed.
const RATE: u64 = 400;

/// Milliseconds until a bus is dropped with work in flight.
const LIFE: std::ops::Range<u64> = 5_000..20_000;

/// Retention of handled events.
const KEPT: Duration = Duration::from_secs(2);

/// Timeout of the drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Minimum samples: a quarter of fewer is chance.
const MIN_SAMPLES: usize = 12;

/// Number of samples of a run, at most one a second.
const SAMPLES: u32 = 32;

/// One sample of everything that could grow.
#[derive(Copy, Clone, Debug, Default)]
struct Look {
    memory: u64,
    file: u64,
    log: u64,
    /// p99 of publishes since the last sample, in microseconds.
    publish: u64,
}

/// State of handlers and publisher.
#[derive(Debug, Default)]
struct State {
    /// Published and open events.
    open: Mutex<HashSet<EventId>>,
    /// Number of repeated handler runs.
    again: AtomicU64,
}

impl State {
    fn end(&self, id: EventId) {
        if !lock(&self.open).remove(&id) {
            self.again.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs for as long as the options say.
pub fn run(options: &Options) -> Report {
    let mut report = Report::of("soak", "seconds", options.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let soaked = runtime.map_err(BoxError::from).and_then(|runtime| {
        let folder = tempfile::tempdir()?;
        runtime.block_on(soak(&folder.path().join("events.db"), options, &mut report))
    });
    if let Err(error) = soaked {
        report.failures.push(error.to_string());
    }
    report
}

async fn soak(path: &Path, options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let (state, mut dice) = (Arc::new(State::default()), Dice::split(options.seed, 0));
    let (began, time) = (Instant::now(), Duration::from_secs(options.seconds));
    let pause = (time / SAMPLES).min(Duration::from_secs(1));
    let mut looks = Vec::new();
    let mut lives = 0_u64;
    while began.elapsed() < time && !is_interrupted() {
        let life = dice.millis(LIFE).min(time.saturating_sub(began.elapsed()));
        one_life(path, (life, pause), &state, &mut dice, &mut looks, report).await?;
        lives += 1;
    }
    let bus = open(path, &state).await?;
    bus.start().await?;
    come_to_an_end(&bus, &state).await;
    // An open event was handled and forgotten with its process, or it is lost.
    let open = std::mem::take(&mut *lock(&state.open));
    for id in open {
        let status = bus.store().event(id).await.map(|event| event.status);
        if !matches!(status, Ok(EventStatus::Done | EventStatus::Dlq)) {
            report.lost += 1;
            report.violations.push(format!("{id} was acknowledged and is {status:?}"));
        }
    }
    bus.shutdown().await?;
    report.violations.extend(integrity(path).err());
    report.rounds = began.elapsed().as_secs();
    report.duplicates = state.again.load(Ordering::Relaxed);
    judge(&looks, lives, report);
    Ok(())
}

async fn open(path: &Path, state: &Arc<State>) -> Result<EventBus, BusError> {
    let policy = RetryPolicy::builder()
        .max_attempts(8)
        .base_delay(Duration::from_millis(5))
        .max_delay(Duration::from_millis(100))
        .jitter(Jitter::Full)
        .build()?;
    let began = Instant::now();
    let bus = loop {
        match EventBus::builder().policy(policy.clone()).retention(None).open(path).await {
            // A dropped bus releases the file a moment later, when its threads have stopped.
            Err(BusError::Store(StoreError::InUse { .. })) if began.elapsed() < DRAIN_TIMEOUT => {
                sleep(Duration::from_millis(10)).await;
            }
            opened => break opened?,
        }
    };
    let state = Arc::clone(state);
    let handler = move |event: Event| handle(event, Arc::clone(&state));
    bus.subscribe("soak.*", handler).name("soak").timeout(Duration::from_millis(200)).register()?;
    Ok(bus)
}

/// Handler: one event of a hundred hangs, a few fail, some panic, some die.
async fn handle(event: Event, state: Arc<State>) -> Result<(), Failure> {
    let first = event.attempt() == 1;
    match event.json::<serde_json::Value>()?["fate"].as_u64().unwrap_or(99) {
        0 if first => std::future::pending::<()>().await,
        1..5 if first => return Err(Failure::new("not yet")),
        5 if first => std::panic::resume_unwind(Box::new("as planned")),
        6..8 => {
            state.end(event.id());
            return Err("never".permanent());
        }
        _ => {}
    }
    state.end(event.id());
    Ok(())
}

/// Runs a bus and drops it with work in flight.
async fn one_life(
    path: &Path,
    (life, pause): (Duration, Duration),
    state: &Arc<State>,
    dice: &mut Dice,
    looks: &mut Vec<Look>,
    report: &mut Report,
) -> Result<(), BoxError> {
    let bus = open(path, state).await?;
    bus.start().await?;
    let end = Instant::now() + life;
    let mut ticks = interval(Duration::from_micros(1_000_000 / RATE));
    let (mut latencies, mut looked) = (Vec::new(), Instant::now());
    while Instant::now() < end {
        ticks.tick().await;
        let payload = json!({"fate": dice.within(0..100), "text": "x".repeat(200)});
        let id = EventId::new();
        lock(&state.open).insert(id);
        let asked = Instant::now();
        bus.publish("soak.event", &payload).id(id).enqueue().await?;
        latencies.push(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX));
        report.acknowledged += 1;
        if looked.elapsed() >= pause {
            looked = Instant::now();
            looks.push(look(path, &mut latencies));
            tidy(&bus, state).await?;
            disturb(path, dice);
        }
    }
    Ok(())
}

/// Redrives one dead event, and purges the others and handled events.
async fn tidy(bus: &EventBus, state: &State) -> Result<(), BusError> {
    let now = Clock::system().now();
    let page = DlqPage { limit: 1, ..DlqPage::default() };
    for dead in bus.dlq().list(DlqFilter::default(), page).await? {
        lock(&state.open).insert(dead.id);
        bus.dlq().retry_edited(dead.id, &json!({"fate": 99})).await?;
    }
    bus.dlq().purge_until(before(now, KEPT)).await?;
    while bus.store().purge_done(before(now, KEPT), 1000).await? == 1000 {}
    Ok(())
}

fn before(now: Timestamp, time: Duration) -> Timestamp {
    Timestamp::from_millis(now.as_millis() - i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

/// Sometimes locks the file, or reads for long and prevents checkpoints.
fn disturb(path: &Path, dice: &mut Dice) {
    let (path, writes, time) = (path.to_owned(), dice.percent(50), dice.millis(20..400));
    if !dice.percent(30) {
        return;
    }
    std::thread::spawn(move || {
        let Ok(connection) = Connection::open(path) else { return };
        let begin = if writes { "BEGIN IMMEDIATE" } else { "BEGIN; SELECT count(*) FROM event" };
        // A refused lock is disturbance enough.
        if connection.execute_batch(begin).is_ok() {
            std::thread::sleep(time);
            let _ = connection.execute_batch("ROLLBACK");
        }
    });
}

async fn come_to_an_end(bus: &EventBus, state: &State) {
    let began = Instant::now();
    while !lock(&state.open).is_empty() && began.elapsed() < DRAIN_TIMEOUT {
        if bus.store().depth().await.is_ok_and(|depth| depth.is_idle()) {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

fn look(path: &Path, latencies: &mut Vec<u64>) -> Look {
    let size = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map_or(0, |file| file.len())
    };
    latencies.sort_unstable();
    let publish = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(0);
    latencies.clear();
    Look { memory: memory(), file: size(""), log: size("-wal"), publish }
}

/// Resident memory of this process, in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Checks that the last quarter is about as the second. The first is for warming up.
fn judge(looks: &[Look], lives: u64, report: &mut Report) {
    if looks.len() < MIN_SAMPLES {
        report
            .failures
            .push("too short to say whether anything grows: give it ten seconds or more".to_owned());
        return;
    }
    let quarter = looks.len() / 4;
    let (early, late) = (&looks[quarter..quarter * 2], &looks[quarter * 3..]);
    let mib = |bytes: u64| bytes >> 20;
    let mut shown = Vec::new();
    type Part = fn(&Look) -> u64;
    let parts: [(&str, Part, u64); 4] = [
        ("memory", |look| look.memory, 16 << 20),
        ("file", |look| look.file, 8 << 20),
        ("log", |look| look.log, 16 << 20),
        ("publish p99", |look| look.publish, 20_000),
    ];
    for (name, part, slack) in parts {
        let (before, after) = (median(early, part), median(late, part));
        if after > before + before / 2 + slack {
            report.violations.push(format!("{name} grew from {before} to {after}"));
        }
        shown.push(match name {
            "publish p99" => format!("{name} {before} → {after} µs"),
            _ => format!("{name} {} → {} MiB", mib(before), mib(after)),
        });
    }
    report.detail = format!("{lives} lives; {}", shown.join(", "));
}

fn median(looks: &[Look], part: fn(&Look) -> u64) -> u64 {
    let mut values: Vec<u64> = looks.iter().map(part).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_and_a_flat_line_is_not() {
        let flat = vec![Look { memory: 50 << 20, file: 9 << 20, log: 4 << 20, publish: 900 }; 40];
        let mut report = Report { rounds: 40, ..Report::default() };
        judge(&flat, 1, &mut report);
        assert!(report.is_clean(), "{report:?}");
        let leak: Vec<_> = (0..40).map(|n| Look { memory: (50 + 5 * n) << 20, ..flat[0] }).collect();
        judge(&leak, 1, &mut report);
        assert_eq!(report.violations.len(), 1, "{report:?}");
        assert!(report.violations[0].starts_with("memory grew"), "{report:?}");
    }
}
