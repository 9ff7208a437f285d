//! The scheduler service: starts intake, republisher and polling on a bus, and shuts them down.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::internal::SubscribeExt as _;
use redrive::retry::breaker::BreakerConfig;
use redrive::{Event, EventBus, EventBusBuilder, Unmatched};
use redrive_store::Store;
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::classify::Classifier;
use crate::confirm_stall::ConfirmStall;
use crate::error::SchedulerError;
use crate::intake::Intake;
use crate::metrics::{Counters, Metrics};
use crate::republisher::Republisher;
use crate::review::Review;
use crate::settings::{Schedule, Settings};
use crate::task::{REPUBLISHER, TASK};
use crate::transport::Transport;

/// Handler timeout of one attempt to republish.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// Poll interval for the state of the broker connection.
const BROKER_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Stores failed messages, and republishes them or sends them to review when they are due.
///
/// Each failure is an event of the bus underneath. One subscription handles it by publishing the message.
#[derive(Debug)]
pub struct Scheduler {
    bus: EventBus,
    transport: Arc<dyn Transport>,
    counters: Arc<Counters>,
    closing: watch::Sender<bool>,
    shutdown_timeout: Duration,
    // A std mutex: held for a few instructions, never across an await.
    tasks: Mutex<Tasks>,
}

/// Background tasks, aborted on drop. Without a shutdown, the messages in flight are dropped as in a crash.
#[derive(Debug, Default)]
struct Tasks {
    intake: JoinSet<()>,
    others: JoinSet<()>,
}

impl Scheduler {
    /// Opens a database (a file or `postgres://…`) and starts.
    pub async fn start(
        settings: Settings,
        location: impl AsRef<Path>,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, SchedulerError> {
        let schedule = settings.schedule()?;
        let bus = builder(&settings)?.open(location).await?;
        Self::run(schedule, bus, transport).await
    }

    /// Starts on an open store. Messages larger than the store accepts go to review, so it should accept [`Settings::max_payload`]. The
    /// scheduler closes the store when it shuts down.
    pub async fn start_on(
        settings: Settings,
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, SchedulerError> {
        let schedule = settings.schedule()?;
        let bus = builder(&settings)?.on(store).await?;
        Self::run(schedule, bus, transport).await
    }

    async fn run(
        schedule: Schedule,
        bus: EventBus,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, SchedulerError> {
        let settings = schedule.settings.clone();
        let counters = Arc::new(Counters::default());
        let (closing, is_closing) = watch::channel(false);
        let republisher = Arc::new(Republisher {
            transport: Arc::clone(&transport),
            store: Arc::clone(bus.store()),
            counters: Arc::clone(&counters),
            review_queue: settings.review_queue,
            unroutable_attempts: settings.unroutable_attempts.max(1),
            stall: ConfirmStall::new(settings.in_flight),
            closing: is_closing.clone(),
        });
        // One unreachable queue says nothing about other queues, so the circuit never opens.
        let no_circuit = BreakerConfig::builder()
            .min_samples(u32::MAX)
            .build()
            .expect("the constants are valid breaker settings");
        let handler = move |event: Event| {
            let republisher = Arc::clone(&republisher);
            async move { republisher.handle(&event).await }
        };
        bus.subscribe(TASK, handler)
            .name(REPUBLISHER)
            .timeout(ATTEMPT_TIMEOUT)
            .breaker(no_circuit)
            .remote_effect()
            .register()?;
        let intake = Intake {
            transport: Arc::clone(&transport),
            bus: bus.clone(),
            classifier: Classifier { schedule, session: Uuid::new_v4().to_string() },
            counters: Arc::clone(&counters),
            oversize: JoinSet::new(),
            closing: is_closing,
            ack_failed: HashMap::new(),
        };
        bus.start().await?;
        let mut tasks = Tasks::default();
        tasks.intake.spawn(intake.run());
        tasks.others.spawn(poll_for_due_tasks(bus.clone(), settings.poll_interval));
        tasks.others.spawn(pause_without_broker(bus.clone(), Arc::clone(&transport)));
        Ok(Scheduler {
            bus,
            transport,
            counters,
            closing,
            shutdown_timeout: settings.shutdown_timeout,
            tasks: Mutex::new(tasks),
        })
    }

    /// Stops receiving, finishes the messages in flight, and closes the store and the connections. Waiting tasks are on disk and
    /// continue at the next start. A second call is harmless.
    pub async fn shutdown(&self) -> Result<(), SchedulerError> {
        self.shutdown_within(self.shutdown_timeout).await
    }

    /// Shuts down like [`shutdown`](Self::shutdown), with another timeout than that of the settings.
    pub async fn shutdown_within(&self, within: Duration) -> Result<(), SchedulerError> {
        let until = Instant::now() + within;
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        self.transport.stop_receiving();
        let Tasks { mut intake, others } = tasks;
        drop(others);
        // Received messages are stored and acked within half of the time; otherwise the broker keeps them.
        let _ = tokio::time::timeout(within / 2, intake.join_next()).await;
        drop(intake);
        self.closing.send_replace(true);
        let closed = self.bus.shutdown_within(until.saturating_duration_since(Instant::now())).await;
        self.transport.close().await;
        Ok(closed?)
    }

    /// Counters since the start, queue depth and connection state.
    pub async fn metrics(&self) -> Metrics {
        let depth = self.bus.store().depth().await.ok();
        self.counters.snapshot(depth, self.transport.state())
    }

    /// [`Metrics`] without the queue depth, which needs a query of the store.
    pub fn counted(&self) -> Metrics {
        self.counters.snapshot(None, self.transport.state())
    }

    /// The tasks in manual review.
    pub fn review(&self) -> Review {
        Review::new(Arc::clone(self.bus.store()))
    }

    /// The bus underneath, for its metrics and its store.
    pub fn bus(&self) -> &EventBus {
        &self.bus
    }
}

fn builder(settings: &Settings) -> Result<EventBusBuilder, SchedulerError> {
    Ok(EventBus::builder()
        .policy(settings.republishing()?)
        .in_flight(settings.in_flight)
        .max_payload(settings.max_payload)
        .retention(settings.retention)
        // Events that other programs published to this database are not discarded.
        .unmatched(Unmatched::DeadLetter))
}

/// Pauses the dispatcher while the broker is unreachable, so that other processes can claim the due tasks.
async fn pause_without_broker(bus: EventBus, transport: Arc<dyn Transport>) {
    let dispatcher = bus.dispatcher();
    loop {
        tokio::time::sleep(BROKER_POLL_INTERVAL).await;
        if transport.state().publishing {
            continue;
        }
        dispatcher.pause();
        transport.ready().await;
        dispatcher.resume();
    }
}

/// Wakes the dispatcher regularly, as a safety net for missed notifications.
async fn poll_for_due_tasks(bus: EventBus, every: Duration) {
    let mut interval = tokio::time::interval(every.max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        bus.wake();
    }
}
