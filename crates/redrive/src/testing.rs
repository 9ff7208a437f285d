//! [`TestBus`]: a bus in memory on virtual time, for tests of handlers.
//!
//! No test sleeps: backoffs, open circuits and due times pass as soon as everything else waits for them. The bus and the store are the
//! real ones; only the file and the clock are replaced.
//!
//! ```
//! use redrive::testing::TestBus;
//! use redrive::Event;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::BusError> {
//! let bus = TestBus::new().await?;
//! bus.subscribe("order.*", |event: Event| async move {
//!     if event.attempt() == 1 { Err("not yet") } else { Ok(()) }
//! })
//! .register()?;
//! bus.start().await?;
//!
//! bus.publish("order.created", &7).await?; // a second of backoff passes at once
//! bus.assert_done("order.created", 1).await;
//! bus.assert_nothing_dead().await;
//! # Ok(()) }
//! ```

use std::future::IntoFuture;
use std::ops::Deref;
use std::time::Duration;

use redrive_retry::VirtualTime;
use redrive_store::{
    DeadLetter, Depth, DlqFilter, DlqPage, EventDetail, EventFilter, EventPage, EventStatus,
};

use crate::builder::EventBusBuilder;
use crate::bus::EventBus;
use crate::error::BusError;
use crate::pattern::Pattern;

/// After how many wake-ups without any change [`TestBus::drain`] panics: more than any sensible policy has attempts.
const MAX_IDLE_WAKEUPS: u32 = 1000;

/// A bus in memory on virtual time, for a current-thread runtime such as `#[tokio::test]` makes.
///
/// It dereferences to [`EventBus`], and every method of the bus works: a publish that waits moves the time on whenever everything else
/// waits, so it cannot hang on a backoff.
#[derive(Debug)]
pub struct TestBus {
    bus: EventBus,
    time: VirtualTime,
}

impl TestBus {
    /// Opens a bus with the default settings.
    pub async fn new() -> Result<Self, BusError> {
        Self::with(|builder| builder).await
    }

    /// Opens a bus with other settings.
    pub async fn with(change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Result<Self, BusError> {
        let time = VirtualTime::new();
        let bus = change(EventBus::builder()).clock(time.clock()).open(":memory:").await?;
        Ok(TestBus::of(bus, time))
    }

    /// Wraps a bus that the caller has opened with the clock of this time, such as one on PostgreSQL.
    pub fn of(bus: EventBus, time: VirtualTime) -> Self {
        let _ = bus.core.virtual_time.set(time.clone()); // set before only if the bus is wrapped twice
        TestBus { bus, time }
    }

    /// The virtual time.
    pub fn time(&self) -> &VirtualTime {
        &self.time
    }

    /// The bus itself.
    pub fn bus(&self) -> &EventBus {
        &self.bus
    }

    /// Awaits a future, and moves the time on whenever everything else waits.
    pub async fn run<F: IntoFuture>(&self, work: F) -> F::Output {
        self.time.drive(work.into_future()).await
    }

    /// Moves the time on by `duration` and runs everything that becomes due.
    pub async fn advance(&self, duration: Duration) {
        let clock = self.time.clock();
        self.run(async {
            clock.sleep(duration).await;
            // Deliveries due at this very instant are claimed a moment later; none are if the bus does not dispatch.
            for _ in 0..100 {
                let due = self.bus.store().refresh_due().await.ok().flatten();
                if due.is_none_or(|due| due > self.bus.core.clock.now()) {
                    break;
                }
                clock.sleep(Duration::from_millis(1)).await;
            }
            self.settle().await;
        })
        .await;
    }

    /// Moves the time on until no work is left: every retry, parked delivery and scheduled event has ended.
    ///
    /// # Panics
    ///
    /// If work is left that never changes, such as a delivery to a subscription that is paused or not registered.
    pub async fn drain(&self) {
        self.run(async {
            let (mut last, mut unchanged) = (Depth::default(), 0);
            loop {
                self.settle().await;
                let depth = self.bus.store().depth().await.expect("the store answers");
                if depth.is_idle() {
                    return;
                }
                unchanged = if depth == last { unchanged + 1 } else { 0 };
                last = depth;
                assert!(
                    unchanged < MAX_IDLE_WAKEUPS,
                    "this work never ends: {depth:?}; is its subscription paused or not registered?"
                );
                let clock = self.time.clock();
                let due = self.bus.store().due_hint().next().map(|at| at.since(clock.now()));
                clock.sleep(due.unwrap_or_default().max(Duration::from_millis(1))).await;
            }
        })
        .await;
    }

    /// Waits until nothing is in flight.
    async fn settle(&self) {
        let dispatcher = self.bus.dispatcher();
        while dispatcher.in_flight() > 0 {
            self.time.clock().sleep(Duration::from_millis(1)).await;
        }
    }

    /// All published events whose type matches a pattern, oldest first.
    ///
    /// # Panics
    ///
    /// If the pattern is invalid.
    pub async fn published(&self, pattern: &str) -> Vec<EventDetail> {
        self.matching(pattern, EventFilter::default()).await
    }

    /// The dead-letter queue, newest first.
    pub async fn dead(&self) -> Vec<DeadLetter> {
        let page = DlqPage { limit: u32::MAX, ..DlqPage::default() };
        self.bus.dlq().list(DlqFilter::default(), page).await.expect("the store answers")
    }

    async fn matching(&self, pattern: &str, filter: EventFilter) -> Vec<EventDetail> {
        let pattern: Pattern = pattern.parse().expect("a valid pattern");
        let page = EventPage { limit: u32::MAX, after: None };
        let mut events = self.bus.store().events(filter, page).await.expect("the store answers");
        events.retain(|event| pattern.matches(event.event_type.as_str()));
        events.reverse();
        events
    }

    async fn assert_count(&self, pattern: &str, status: Option<EventStatus>, count: usize, what: &str) {
        let found = self.matching(pattern, EventFilter { status, ..EventFilter::default() }).await;
        assert_eq!(
            found.len(),
            count,
            "{count} × {pattern:?} should be {what}; these are: {}\nall events: {}",
            describe(&found),
            describe(&self.published("*").await)
        );
    }

    /// Asserts that `count` events of this pattern were published.
    ///
    /// # Panics
    ///
    /// If not, with a list of all events.
    pub async fn assert_published(&self, pattern: &str, count: usize) {
        self.assert_count(pattern, None, count, "published").await;
    }

    /// Asserts that `count` events of this pattern are done.
    ///
    /// # Panics
    ///
    /// If not.
    pub async fn assert_done(&self, pattern: &str, count: usize) {
        self.assert_count(pattern, Some(EventStatus::Done), count, "done").await;
    }

    /// Asserts that `count` events of this pattern are in the dead-letter queue.
    ///
    /// # Panics
    ///
    /// If not.
    pub async fn assert_dead(&self, pattern: &str, count: usize) {
        self.assert_count(pattern, Some(EventStatus::Dlq), count, "dead").await;
    }

    /// Asserts that the dead-letter queue is empty.
    ///
    /// # Panics
    ///
    /// If not.
    pub async fn assert_nothing_dead(&self) {
        self.assert_dead("*", 0).await;
    }
}

impl Deref for TestBus {
    type Target = EventBus;

    fn deref(&self) -> &EventBus {
        &self.bus
    }
}

fn describe(events: &[EventDetail]) -> String {
    if events.is_empty() {
        return "none".to_owned();
    }
    let line = |event: &EventDetail| {
        let errors = if event.errors.is_empty() { String::new() } else { format!(", {:?}", event.errors) };
        format!("\n  {} {} {}{errors}", event.event_type, event.id, event.status)
    };
    events.iter().map(line).collect()
}
