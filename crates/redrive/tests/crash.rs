//! Killed processes lose no acknowledged event.
//!
//! The worker is this test binary, started with its role in the environment.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a panic is a failed test; the seed is printed for a replay

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::dlq::{DlqFilter, DlqPage};
use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, Jitter, RetryPolicy, Timestamp, VirtualTime};
use redrive::{Event, EventBus, EventId};

use crate::test_store::TestStore;

/// Folder for the records of the processes, and the store of their buses.
struct Scene {
    notes: PathBuf,
    store_under_test: TestStore,
    /// Deletes the folder on drop, in the process that created it.
    _folder: Option<tempfile::TempDir>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Scene { notes: folder.path().to_owned(), store_under_test: TestStore::new(), _folder: Some(folder) }
    }
}

fn start_worker(part: &str, scene: &Scene) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    scene.store_under_test.pass_to(&mut command);
    command
        .args(["--exact", "crash::worker", "--nocapture", "--test-threads=1"])
        .env("REDRIVE_CRASH_PART", part)
        .env("REDRIVE_CRASH_NOTES", &scene.notes)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Worker process that the other tests start and kill; not a test.
#[test]
fn worker() {
    let Ok(part) = std::env::var("REDRIVE_CRASH_PART") else { return };
    let notes = PathBuf::from(std::env::var_os("REDRIVE_CRASH_NOTES").unwrap());
    let scene = Scene { notes, store_under_test: TestStore::passed(), _folder: None };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match part.as_str() {
            "busy" => busy(&scene).await,
            "poison" => poison(&scene).await,
            other => panic!("{other}"),
        }
    });
}

fn quick() -> RetryPolicy {
    // Many attempts: every kill charges one to each running event.
    RetryPolicy::builder()
        .max_attempts(50)
        .base_delay(Duration::from_millis(1))
        .max_delay(Duration::from_millis(5))
        .jitter(Jitter::Full)
        .build()
        .unwrap()
}

fn append_to(path: PathBuf) -> Arc<Mutex<File>> {
    Arc::new(Mutex::new(OpenOptions::new().create(true).append(true).open(path).unwrap()))
}

fn note(file: &Mutex<File>, id: EventId) {
    // One write call, so that no line is partial. The page cache survives a kill.
    file.lock().unwrap().write_all(format!("{id}\n").as_bytes()).unwrap();
}

async fn open_busy(scene: &Scene) -> EventBus {
    let bus = scene.store_under_test.open(EventBus::builder().policy(quick()).in_flight(64)).await;
    let handled = append_to(scene.notes.join("handled"));
    let never = BreakerConfig::builder().min_samples(u32::MAX).build().unwrap();
    bus.subscribe("*", move |event: Event| {
        let handled = Arc::clone(&handled);
        async move {
            let n: u64 = event.json()?;
            match n % 10 {
                0 => return Err("never works".into()),
                1 if event.attempt() < 3 => return Err("not yet".into()),
                2 => tokio::task::yield_now().await,
                _ => {}
            }
            note(&handled, event.id());
            Ok::<_, BoxError>(())
        }
    })
    .name("all")
    .breaker(never)
    .register()
    .unwrap();
    bus
}

async fn busy(scene: &Scene) {
    let bus = open_busy(scene).await;
    bus.start().await.unwrap();
    let acknowledged = append_to(scene.notes.join("acknowledged"));
    let publishers: Vec<_> = (0..8)
        .map(|publisher| {
            let (bus, acknowledged) = (bus.clone(), Arc::clone(&acknowledged));
            tokio::spawn(async move {
                for n in 0u64.. {
                    let id = bus.publish("x", &(n * 8 + publisher)).enqueue().await.unwrap();
                    note(&acknowledged, id);
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
}

/// Kills a worker that publishes and handles at random times, 200 times.
///
/// A worker on a server takes longer to start: it gets more time and fewer kills.
#[test]
fn acknowledged_events_survive_two_hundred_kills() {
    let scene = Scene::new();
    let (kills, mut latest) = if scene.store_under_test.is_shared() { (40, 400) } else { (200, 40) };
    let acknowledged = scene.notes.join("acknowledged");
    let worked = || std::fs::metadata(&acknowledged).map_or(0, |notes| notes.len());
    let seed = std::env::var("REDRIVE_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("seed {random} (REDRIVE_SEED replays the moments)");
    for _ in 0..kills {
        let before = worked();
        let mut child = start_worker("busy", &scene);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Random kill time.
        std::thread::sleep(Duration::from_millis(2 + (random >> 33) % latest));
        child.kill().unwrap();
        child.wait().unwrap();
        // On a busy machine the worker may not have started yet: the next one gets more time.
        if worked() == before {
            latest = (latest + latest / 4).min(5000);
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(check(&scene));
}

async fn check(scene: &Scene) {
    let ids = |name: &str| -> HashSet<EventId> {
        let text = std::fs::read_to_string(scene.notes.join(name)).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let acknowledged = ids("acknowledged");
    assert!(acknowledged.len() > 200, "the worker worked: {}", acknowledged.len());
    let bus = open_busy(scene).await;
    bus.start().await.unwrap();
    // Handles all remaining events.
    loop {
        let depth = bus.store().depth().await.unwrap();
        if depth.is_idle() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let handled = ids("handled");
    let (mut done, mut dead) = (0, 0);
    for id in &acknowledged {
        let event = bus.store().event(*id).await.unwrap_or_else(|error| panic!("{id} is lost: {error}"));
        match event.status {
            EventStatus::Done => {
                assert!(handled.contains(id), "{id} is done and was never handled");
                done += 1;
            }
            EventStatus::Dlq => {
                assert_eq!(event.errors.len(), event.retry_count as usize, "every error of every attempt");
                dead += 1;
            }
            other => panic!("{id} is {other}"),
        }
    }
    let file = bus.store().stats().await.unwrap();
    bus.shutdown().await.unwrap();
    scene.store_under_test.is_sound().await;
    eprintln!(
        "{} acknowledged, {done} done, {dead} dead, 0 lost; {} in the store",
        acknowledged.len(),
        file.done + file.dlq
    );
}

async fn poison(scene: &Scene) {
    let policy = RetryPolicy::builder().max_attempts(3).base_delay(Duration::from_millis(1)).build().unwrap();
    let bus = scene.store_under_test.open(EventBus::builder().policy(policy)).await;
    bus.subscribe("poison", |_: Event| async {
        std::process::abort();
        #[allow(unreachable_code)]
        Ok::<_, BoxError>(())
    })
    .register()
    .unwrap();
    bus.subscribe("harmless", |_: Event| async { Ok::<_, BoxError>(()) }).register().unwrap();
    if bus.store().stats().await.unwrap().processing == 0 {
        bus.publish("poison", &1).enqueue().await.unwrap();
    }
    bus.start().await.unwrap();
    // A worker survives only after the poison event is dead.
    bus.publish("harmless", &1).await.unwrap();
    while bus.store().stats().await.unwrap().dlq == 0 {
        tokio::task::yield_now().await;
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_event_that_kills_the_process_is_dead_lettered() {
    let scene = Scene::new();
    let mut crashes = 0;
    while !start_worker("poison", &scene).wait().unwrap().success() {
        crashes += 1;
        assert!(crashes < 10, "it ends");
    }
    assert_eq!(crashes, 3, "as often as its policy allows");
    let dlq = scene.store_under_test.dlq().await;
    let dead = dlq.list(DlqFilter::default(), DlqPage::default()).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].errors, ["process ended during the attempt"; 3]);
    assert_eq!(dead[0].reason, "attempts_exhausted");
}

#[tokio::test]
async fn recovery_charges_running_events_and_keeps_waiting_ones() {
    let (store_under_test, time) = (TestStore::new(), VirtualTime::new());
    let builder = || EventBus::builder().policy(RetryPolicy::builder().jitter(Jitter::None).build().unwrap());
    let bus = store_under_test.open_at(&time, builder().shutdown_timeout(Duration::ZERO)).await;
    bus.subscribe("hangs", |_: Event| std::future::pending::<Result<(), BoxError>>()).register().unwrap();
    bus.subscribe("fails", |_: Event| async { Err::<(), _>("no") }).register().unwrap();
    bus.start().await.unwrap();
    let running = bus.publish("hangs", &1).enqueue().await.unwrap();
    let waiting = bus.publish("fails", &1).enqueue().await.unwrap();
    let delayed = bus.publish("later", &1).delay(Duration::from_secs(60)).enqueue().await.unwrap();
    time.drive(time.clock().sleep(Duration::from_millis(100))).await;
    let due = bus.store().event(waiting).await.unwrap().due_at;
    time.drive(bus.shutdown()).await.unwrap();
    drop(bus);

    let bus = store_under_test.open_at(&time, builder()).await;
    assert_eq!(bus.start().await.unwrap(), 1);
    let event = bus.store().event(waiting).await.unwrap();
    assert_eq!((event.retry_count, event.due_at), (1, due), "it keeps its time and is charged nothing");
    let event = bus.store().event(delayed).await.unwrap();
    assert_eq!((event.retry_count, event.due_at.map(Timestamp::as_millis).is_some()), (0, true));
    time.drive(time.clock().sleep(Duration::from_millis(10))).await;
    let event = bus.store().event(running).await.unwrap();
    assert_eq!((event.retry_count, event.errors), (1, vec!["process ended during the attempt".to_owned()]));
    assert_eq!(event.status, EventStatus::Processing, "it waits for its subscription, which is on record");
}
