//! Runs one life of the real bus: opens it, drives it by virtual time on this thread, and ends it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive::retry::{BoxError, ClassifyError, Clock, Failure, VirtualTime};
use redrive::{BusError, Event, EventBus, Tracking, Unmatched};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::operation::Act;
use super::plain::PlainBus;
use super::scene::{Kind, MAX_PAYLOAD, Scene, millis_of};
use crate::process::in_memory;

/// The name of the file in its folder.
const FILE: &str = "events.db";

/// The model, shared by handlers, observer and driver.
pub(super) type Model = Arc<Mutex<PlainBus>>;

/// An open bus and its runtime.
pub(super) struct Life {
    // Dropped in this order: tasks first, then the bus and its file.
    runtime: Runtime,
    pub(super) bus: EventBus,
    pub(super) time: VirtualTime,
    model: Model,
}

impl Life {
    pub(super) fn open(
        scene: &Scene,
        home: Option<&TempDir>,
        time: VirtualTime,
        model: &Model,
    ) -> Result<Self, BusError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|source| {
            BusError::from(redrive::store::StoreError::File { path: PathBuf::from("runtime"), source })
        })?;
        let path = home.map_or_else(|| PathBuf::from(":memory:"), |home| home.path().join(FILE));
        let builder = EventBus::builder()
            .policy(scene.policy())
            .tracking(if scene.per_subscription { Tracking::PerSubscription } else { Tracking::Event })
            .unmatched(if scene.unmatched_dies { Unmatched::DeadLetter } else { Unmatched::Done })
            .in_flight(scene.in_flight)
            .retention(scene.retention_ms.map(millis_of))
            .shutdown_timeout(millis_of(scene.shutdown_ms))
            .max_payload(MAX_PAYLOAD)
            .clock(time.clock());
        let bus = runtime.block_on(builder.open(path))?;
        Ok(Life { runtime, bus, time, model: Arc::clone(model) })
    }

    /// Awaits a future while time stands still.
    pub(super) fn now<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Awaits a future while time passes.
    pub(super) fn driven<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        self.runtime.block_on(self.drive(work))
    }

    /// Virtual time stands still while something runs, so an endless loop must be stopped.
    async fn drive<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        let endless_loop = Arc::clone(&lock(&self.model).endless_loop);
        self.time
            .drive(async {
                tokio::select! {
                    done = work => Ok(done),
                    () = endless_loop.notified() => Err("the bus never comes to rest".to_owned()),
                }
            })
            .await
    }

    pub(super) fn subscribe(&self, kind: &'static Kind) -> Result<String, BusError> {
        let (model, clock) = (Arc::clone(&self.model), self.time.clock());
        let handler = move |event: Event| act(Arc::clone(&model), clock.clone(), event);
        let subscribe = self
            .bus
            .subscribe(kind.pattern, handler)
            .name(kind.name)
            .timeout(millis_of(kind.timeout_ms))
            .breaker(kind.breaker());
        let _entered = self.runtime.enter();
        let subscribe = match kind.retry() {
            Some(retry) => subscribe.retry(retry),
            None => subscribe,
        };
        Ok(subscribe.register()?.id().to_owned())
    }

    /// Waits until nothing more happens at this instant: the rest waits for time or for a slot.
    pub(super) fn rest(&self) -> Result<(), String> {
        /// Polls half a second long for events of another process; nothing else takes time.
        const ROUNDS: u32 = 200;
        let clock = self.time.clock();
        self.runtime.block_on(async {
            for round in 0..ROUNDS {
                let step = Duration::from_millis(if round < 20 { 1 } else { 10 });
                self.drive(clock.sleep(step)).await?;
                let model = lock(&self.model);
                let in_flight = self.bus.dispatcher().in_flight();
                let waits_for_a_place = in_flight >= model.scene.in_flight;
                let is_held_up = self.bus.dispatcher().is_paused()
                    || model.is_testing_a_suspect()
                    || (model.running() > 0 && model.suspects(true) > 0); // running deliveries end first
                if in_flight == model.running() && (waits_for_a_place || is_held_up || !model.has_overdue()) {
                    return Ok(());
                }
            }
            let model = lock(&self.model);
            let in_flight = self.bus.dispatcher().in_flight();
            Err(format!(
                "{in_flight} in flight, {} by the model; due and not claimed: {:?}",
                model.running(),
                model.overdue()
            ))
        })
    }

    /// Shuts the bus down.
    pub(super) fn shut_down(self) -> Result<(), String> {
        self.driven(self.bus.shutdown())?.map_err(|error| error.to_string())
    }

    /// Drops the bus. Commands in the writer's queue are written; a process that ends later looks the same.
    pub(super) fn abandon(self) {}

    /// Copies the files as another process would find them after a crash, into a new folder.
    pub(super) fn crash(self, home: &TempDir) -> std::io::Result<TempDir> {
        let found = in_memory()?;
        for name in [FILE.to_owned(), format!("{FILE}-wal")] {
            let (from, to) = (home.path().join(&name), found.path().join(&name));
            if from.exists() {
                std::fs::copy(from, to)?;
            }
        }
        Ok(found)
    }

    pub(super) fn file(home: &TempDir) -> PathBuf {
        home.path().join(FILE)
    }
}

/// The handler of all subscriptions: does what the model says.
async fn act(model: Model, clock: Clock, event: Event) -> Result<(), Failure> {
    let (id, name) = (event.id(), event.subscription().clone());
    let called = lock(&model).called(id, name.as_str(), event.attempt(), event.payload());
    let Some((span, act)) = called else { return Ok(()) };
    match act {
        Act::Hang => std::future::pending().await,
        Act::SucceedAfter(millis) | Act::FailAfter(millis) => clock.sleep(millis_of(millis)).await,
        _ => {}
    }
    lock(&model).returned(span);
    match act {
        Act::Succeed | Act::SucceedAfter(_) | Act::Hang => Ok(()),
        Act::Fail | Act::FailAfter(_) => Err(Failure::new(BoxError::from("not now"))),
        Act::FailForGood => Err("for good".permanent()),
        Act::AskForTime(millis) => Err("too much".retry_after(millis_of(millis))),
        // Without the panic hook, which would print it.
        Act::Panic => std::panic::resume_unwind(Box::new("planned")),
    }
}

pub(super) fn lock(model: &Mutex<PlainBus>) -> MutexGuard<'_, PlainBus> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}
