//! The service: the engine between a queue of failed messages and the queues they came from.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::{BreakerConfig, EventBus, EventBusBuilder, Unmatched};
use redrive_store::Store;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::arrival::Reader;
use crate::aside::Aside;
use crate::courier::{self, Courier};
use crate::error::SchedulerError;
use crate::intake::Intake;
use crate::metrics::{Counters, Metrics};
use crate::retry_message::check_name;
use crate::review::Review;
use crate::settings::{Schedule, Settings};
use crate::silence::Silence;
use crate::task::{COURIER, TASK};
use crate::transport::Transport;

/// An attempt may wait so long for the broker; then it is made anew, by whoever has one.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(60);

/// How often it is looked whether the broker can be reached.
const LOOK_FOR_BROKER: Duration = Duration::from_millis(100);

/// Takes failed messages in, keeps them, and brings them back when their time has come, or to review.
///
/// It is the engine with a broker as its target: each failure is an event, handled by one subscription that publishes it.
#[derive(Debug)]
pub struct Scheduler {
    bus: EventBus,
    transport: Arc<dyn Transport>,
    counters: Arc<Counters>,
    closing: watch::Sender<bool>,
    shutdown_timeout: Duration,
    // A std mutex: held for a few instructions, never across an await.
    tasks: Mutex<Option<Tasks>>,
}

#[derive(Debug)]
struct Tasks {
    intake: JoinHandle<()>,
    poll: JoinHandle<()>,
    hold_up: JoinHandle<()>,
}

impl Scheduler {
    /// Opens a file or a server (`postgres://…`), and starts.
    pub async fn start(
        settings: Settings,
        location: impl AsRef<Path>,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, SchedulerError> {
        let schedule = checked(&settings)?;
        let bus = builder(&settings)?.open(location).await?;
        Self::run(settings, schedule, bus, transport).await
    }

    /// The same on a store that you have opened yourself. It must take payloads of [`Settings::max_payload`]; larger ones than it
    /// takes go to review. The scheduler closes it when it shuts down.
    pub async fn start_on(
        settings: Settings,
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, SchedulerError> {
        let schedule = checked(&settings)?;
        let bus = builder(&settings)?.on(store).await?;
        Self::run(settings, schedule, bus, transport).await
    }

    async fn run(
        settings: Settings,
        schedule: Schedule,
        bus: EventBus,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, SchedulerError> {
        let counters = Arc::new(Counters::default());
        let (closing, is_closing) = watch::channel(false);
        let store = Arc::clone(bus.store());
        let courier = Courier::new(courier::Inner {
            transport: Arc::clone(&transport),
            store: Arc::clone(&store),
            counters: Arc::clone(&counters),
            review_queue: settings.review_queue.clone(),
            unroutable_attempts: settings.unroutable_attempts.max(1),
            silence: Silence::new(settings.in_flight),
            closing: is_closing.clone(),
        });
        // One queue that cannot be reached says nothing about the others: there is no circuit.
        let no_circuit = BreakerConfig::builder().min_samples(u32::MAX).build().expect("these are valid");
        bus.subscribe(TASK, courier)
            .name(COURIER)
            .timeout(LONGEST_ATTEMPT)
            .breaker(no_circuit)
            .elsewhere()
            .register()?;
        let intake = Intake {
            transport: Arc::clone(&transport),
            bus: bus.clone(),
            store,
            reader: Reader::new(&settings, schedule, Uuid::new_v4().to_string()),
            counters: Arc::clone(&counters),
            aside: Aside::new(Arc::clone(&transport), Arc::clone(&counters), settings.review_queue),
            max_payload: settings.max_payload,
            most: usize::from(settings.prefetch.max(1)),
            closing: is_closing,
            owed: HashMap::new(),
        };
        bus.start().await?;
        let tasks = Tasks {
            intake: tokio::spawn(intake.run()),
            poll: tokio::spawn(look_now_and_then(bus.clone(), settings.poll_interval)),
            hold_up: tokio::spawn(hold_up_without_a_broker(bus.clone(), Arc::clone(&transport))),
        };
        Ok(Scheduler {
            bus,
            transport,
            counters,
            closing,
            shutdown_timeout: settings.shutdown_timeout,
            tasks: Mutex::new(Some(tasks)),
        })
    }

    /// Takes nothing more in, finishes what is under way, and closes the store and the connections. What waits is on disk and goes on
    /// at the next start. A second call is harmless.
    pub async fn shutdown(&self) -> Result<(), SchedulerError> {
        self.shutdown_within(self.shutdown_timeout).await
    }

    /// The same for who has so much time, and no more.
    pub async fn shutdown_within(&self, within: Duration) -> Result<(), SchedulerError> {
        let until = Instant::now() + within;
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.transport.stop_receiving();
        if let Some(Tasks { mut intake, poll, hold_up }) = tasks {
            poll.abort();
            hold_up.abort();
            // What was received is stored and accepted, unless that takes half of the time: then the broker keeps it.
            if tokio::time::timeout(within / 2, &mut intake).await.is_err() {
                intake.abort();
            }
        }
        self.closing.send_replace(true);
        let closed = self.bus.shutdown_within(until.saturating_duration_since(Instant::now())).await;
        self.transport.close().await;
        Ok(closed?)
    }

    /// What has happened since the start, and how things stand.
    pub async fn metrics(&self) -> Metrics {
        let depth = self.bus.store().depth().await.ok();
        self.counters.snapshot(depth, self.transport.state())
    }

    /// The same without asking the store, so without how much waits.
    pub fn counted(&self) -> Metrics {
        self.counters.snapshot(None, self.transport.state())
    }

    /// What waits for a person.
    pub fn review(&self) -> Review {
        Review::new(Arc::clone(self.bus.store()))
    }

    /// The bus underneath, for its own metrics and its store.
    pub fn bus(&self) -> &EventBus {
        &self.bus
    }
}

impl Settings {
    /// Whether all of it goes together. [`Scheduler::start`] asks as well.
    pub fn check(&self) -> Result<(), SchedulerError> {
        checked(self).map(drop)
    }
}

impl Drop for Scheduler {
    /// Without a shutdown nothing more is taken in, and what is under way is dropped, as when the process dies.
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Tasks { intake, poll, hold_up }) = tasks {
            [intake, poll, hold_up].iter().for_each(JoinHandle::abort);
        }
    }
}

fn checked(settings: &Settings) -> Result<Schedule, SchedulerError> {
    for (setting, name) in
        [("RETRY_QUEUE", &settings.retry_queue), ("MANUAL_REVIEW_QUEUE", &settings.review_queue)]
    {
        if check_name("name", name).is_err() || settings.retry_queue == settings.review_queue {
            return Err(SchedulerError::QueueName { setting, name: name.clone() });
        }
    }
    Ok(settings.schedule()?)
}

fn builder(settings: &Settings) -> Result<EventBusBuilder, SchedulerError> {
    Ok(EventBus::builder()
        .policy(settings.republishing()?)
        .in_flight(settings.in_flight)
        .max_payload(settings.max_payload)
        .retention(settings.retention)
        // What others have put there and nobody wants is not ours to forget.
        .unmatched(Unmatched::DeadLetter))
}

/// Whoever cannot reach the broker takes nothing up that others could bring to it, and nothing waits in memory.
async fn hold_up_without_a_broker(bus: EventBus, transport: Arc<dyn Transport>) {
    let dispatcher = bus.dispatcher();
    loop {
        tokio::time::sleep(LOOK_FOR_BROKER).await;
        if transport.state().publishing {
            continue;
        }
        dispatcher.pause();
        transport.ready().await;
        dispatcher.resume();
    }
}

/// The safety net: looks for due tasks although nothing says that there are any.
async fn look_now_and_then(bus: EventBus, every: Duration) {
    let mut interval = tokio::time::interval(every.max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        bus.wake();
    }
}
