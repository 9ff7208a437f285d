//! One life of the real bus: opened, driven by virtual time on this thread, and ended in one way or another.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive::{
    BoxError, BusError, ClassifyError, Clock, Event, EventBus, Failure, Tracking, Unmatched, VirtualTime,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::operation::Act;
use super::plain::PlainBus;
use super::scene::{Kind, MAX_PAYLOAD, Scene, millis_of};
use crate::process::in_memory;

/// The name of the file in its folder.
const FILE: &str = "events.db";

/// What both sides share.
pub(super) type Model = Arc<Mutex<PlainBus>>;

/// A bus that is open, and the thread it lives on.
pub(super) struct Life {
    // Dropped in this order: first whatever runs, then the bus, and with it the file.
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
            BusError::from(redrive::StoreError::File { path: PathBuf::from("runtime"), source })
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

    /// Awaits something while the time stands still.
    pub(super) fn now<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Awaits something while the time passes.
    pub(super) fn driven<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        self.runtime.block_on(self.drive(work))
    }

    /// The time does not pass as long as something happens; so who never stops must be stopped.
    async fn drive<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        let runs_wild = Arc::clone(&lock(&self.model).runs_wild);
        self.time
            .drive(async {
                tokio::select! {
                    done = work => Ok(done),
                    () = runs_wild.notified() => Err("the bus never comes to rest".to_owned()),
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
        match kind.retry() {
            Some(retry) => subscribe.retry(retry).register(),
            None => subscribe.register(),
        }
    }

    /// Waits until nothing happens any more at this instant: what is left waits for the time, or for a place.
    pub(super) fn rest(&self) -> Result<(), String> {
        /// What another process has stored is found within half a second, and nothing else takes any time at all.
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
                    || (model.running() > 0 && model.suspects(true) > 0); // what is under way ends first
                if in_flight == model.running() && (waits_for_a_place || is_held_up || !model.has_overdue()) {
                    return Ok(());
                }
            }
            let model = lock(&self.model);
            let in_flight = self.bus.dispatcher().in_flight();
            Err(format!(
                "{in_flight} in flight, {} by the model; due and not taken up: {:?}",
                model.running(),
                model.overdue()
            ))
        })
    }

    /// Ends in good order.
    pub(super) fn shut_down(self) -> Result<(), String> {
        self.driven(self.bus.shutdown())?.map_err(|error| error.to_string())
    }

    /// Ends at once. What was sent to the writer is written; a process that ends later than that looks the same.
    pub(super) fn abandon(self) {}

    /// The files as they are now, as another process would find them if this one ended here: in a folder of their own.
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

/// The one handler: does what the model says.
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
        // Without the hook, which would print it.
        Act::Panic => std::panic::resume_unwind(Box::new("planned")),
    }
}

pub(super) fn lock(model: &Mutex<PlainBus>) -> MutexGuard<'_, PlainBus> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}
