//! The scheduler service: starts intake, republisher and polling on a bus, and shuts them down.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::internal::SubscribeExt as _;
use redrive::retry::breaker::BreakerConfig;
use redrive::{EventBus, EventBusBuilder, Unmatched};
use redrive_store::Store;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::classify::Classifier;
use crate::confirm_stall::ConfirmStall;
use crate::error::SchedulerError;
use crate::intake::Intake;
use crate::metrics::{Counters, Metrics};
use crate::oversize::OversizeReview;
use crate::republisher::{self, Republisher};
use crate::retry_message::check_name;
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
    tasks: Mutex<Option<Tasks>>,
}

#[derive(Debug)]
struct Tasks {
    intake: JoinHandle<()>,
    poll: JoinHandle<()>,
    pause: JoinHandle<()>,
}

impl Scheduler {
    /// Opens a database (a file or `postgres://…`) and starts.
    pub async fn start(
        settings: Settings,
        location: impl AsRef<Path>,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, SchedulerError> {
        let schedule = checked(&settings)?;
        let bus = builder(&settings)?.open(location).await?;
        Self::run(settings, schedule, bus, transport).await
    }

    /// Starts on an open store. Messages larger than the store accepts go to review, so it should accept [`Settings::max_payload`]. The
    /// scheduler closes the store when it shuts down.
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
        let republisher = Republisher::new(republisher::Inner {
            transport: Arc::clone(&transport),
            store: Arc::clone(&store),
            counters: Arc::clone(&counters),
            review_queue: settings.review_queue.clone(),
            unroutable_attempts: settings.unroutable_attempts.max(1),
            stall: ConfirmStall::new(settings.in_flight),
            closing: is_closing.clone(),
        });
        // One unreachable queue says nothing about other queues, so the circuit never opens.
        let no_circuit = BreakerConfig::builder()
            .min_samples(u32::MAX)
            .build()
            .expect("the constants are valid breaker settings");
        bus.subscribe(TASK, republisher)
            .name(REPUBLISHER)
            .timeout(ATTEMPT_TIMEOUT)
            .breaker(no_circuit)
            .remote_effect()
            .register()?;
        let intake = Intake {
            transport: Arc::clone(&transport),
            bus: bus.clone(),
            store,
            classifier: Classifier::new(&settings, schedule, Uuid::new_v4().to_string()),
            counters: Arc::clone(&counters),
            oversize: OversizeReview::new(
                Arc::clone(&transport),
                Arc::clone(&counters),
                settings.review_queue,
            ),
            max_payload: settings.max_payload,
            batch_size: usize::from(settings.prefetch.max(1)),
            closing: is_closing,
            ack_failed: HashMap::new(),
        };
        bus.start().await?;
        let tasks = Tasks {
            intake: tokio::spawn(intake.run()),
            poll: tokio::spawn(poll_for_due_tasks(bus.clone(), settings.poll_interval)),
            pause: tokio::spawn(pause_without_broker(bus.clone(), Arc::clone(&transport))),
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

    /// Stops receiving, finishes the messages in flight, and closes the store and the connections. Waiting tasks are on disk and
    /// continue at the next start. A second call is harmless.
    pub async fn shutdown(&self) -> Result<(), SchedulerError> {
        self.shutdown_within(self.shutdown_timeout).await
    }

    /// Shuts down like [`shutdown`](Self::shutdown), with another timeout than that of the settings.
    pub async fn shutdown_within(&self, within: Duration) -> Result<(), SchedulerError> {
        let until = Instant::now() + within;
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.transport.stop_receiving();
        if let Some(Tasks { mut intake, poll, pause }) = tasks {
            poll.abort();
            pause.abort();
            // Received messages are stored and acked within half of the time; otherwise the broker keeps them.
            if tokio::time::timeout(within / 2, &mut intake).await.is_err() {
                intake.abort();
            }
        }
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

impl Settings {
    /// Checks that the settings are consistent. [`Scheduler::start`] does so as well.
    pub fn check(&self) -> Result<(), SchedulerError> {
        checked(self).map(drop)
    }
}

impl Drop for Scheduler {
    /// Without a shutdown, the messages in flight are dropped as in a crash.
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Tasks { intake, poll, pause }) = tasks {
            [intake, poll, pause].iter().for_each(JoinHandle::abort);
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
