//! For tests of your own handlers: a bus in memory, on virtual time.
//!
//! Nothing sleeps and nothing is left behind: backoffs, circuits and due times pass as soon as everything else waits for
//! them. The bus is the real one, on the real store; only the file and the clock are not.
//!
//! ```
//! use redrive::testing::TestBus;
//! use redrive::{BoxError, Event};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::BusError> {
//! let bus = TestBus::new().await?;
//! bus.subscribe("order.*", |event: Event| async move {
//!     if event.attempt() == 1 { Err(BoxError::from("not yet")) } else { Ok(()) }
//! })
//! .register()?;
//! bus.start().await?;
//!
//! bus.publish("order.created", &7).await?; // a second of backoff, and no time at all
//! bus.assert_done("order.created", 1).await;
//! bus.assert_nothing_dead().await;
//! # Ok(()) }
//! ```

use std::future::IntoFuture;
use std::ops::Deref;
use std::time::Duration;

use redrive_retry::VirtualTime;
use redrive_store::{
    DeadLetter, Depth, DlqFilter, DlqPage, EventDetail, EventFilter, EventId, EventPage, EventStatus,
};
use serde::Serialize;

use crate::builder::EventBusBuilder;
use crate::bus::EventBus;
use crate::error::BusError;
use crate::pattern::Pattern;

/// After how many wake-ups without any change [`TestBus::drain`] gives up: more than any sensible policy has attempts.
const STUCK_AFTER: u32 = 1000;

/// A bus in memory on virtual time. Use it in a current-thread runtime, which is what `#[tokio::test]` makes.
#[derive(Debug)]
pub struct TestBus {
    bus: EventBus,
    time: VirtualTime,
}

impl TestBus {
    /// With the defaults.
    pub async fn new() -> Result<Self, BusError> {
        Self::with(|builder| builder).await
    }

    /// With other settings.
    pub async fn with(change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Result<Self, BusError> {
        let time = VirtualTime::new();
        let bus = change(EventBus::builder()).clock(time.clock()).open(":memory:").await?;
        Ok(TestBus { bus, time })
    }

    /// A bus that you have opened yourself, such as one on a PostgreSQL of your own, with the clock of this time.
    pub fn of(bus: EventBus, time: VirtualTime) -> Self {
        TestBus { bus, time }
    }

    /// The time of this bus.
    pub fn time(&self) -> &VirtualTime {
        &self.time
    }

    /// The bus itself, for publishing with options: `bus.run(bus.bus().publish(…).delay(…)).await`.
    pub fn bus(&self) -> &EventBus {
        &self.bus
    }

    /// Publishes an event and handles it here and now, until it is done or dead.
    pub async fn publish(&self, event_type: &str, payload: &impl Serialize) -> Result<EventId, BusError> {
        self.run(self.bus.publish(event_type, payload)).await
    }

    /// Awaits something, such as a publish, moving the time on whenever everything waits for it.
    pub async fn run<F: IntoFuture>(&self, work: F) -> F::Output {
        self.time.drive(work.into_future()).await
    }

    /// Lets this much time pass, and everything happen that is due in it.
    pub async fn advance(&self, duration: Duration) {
        let (clock, until) = (self.time.clock(), self.time.now() + duration);
        self.run(async {
            clock.sleep(duration).await;
            // What is due at this very instant is claimed a moment later; unless nothing is dispatched at all.
            for _ in 0..100 {
                let due = self.bus.store().refresh_due().await.ok().flatten();
                if due.is_none_or(|due| due > until) {
                    break;
                }
                clock.sleep(Duration::from_millis(1)).await;
            }
            self.settle().await;
        })
        .await;
    }

    /// Goes on until nothing is left to do: every retry, every parked delivery, every event that was published for later.
    ///
    /// # Panics
    ///
    /// If something is left that never changes, such as what is owed to a subscription that is not there.
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
                    unchanged < STUCK_AFTER,
                    "this will never be done: {depth:?}; is it owed to a subscription that is not there?"
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

    /// Everything that was published, oldest first, whose type this pattern matches.
    ///
    /// # Panics
    ///
    /// If the pattern is none.
    pub async fn published(&self, pattern: &str) -> Vec<EventDetail> {
        self.events(pattern, EventFilter::default()).await
    }

    /// All that is in the dead-letter queue, newest first.
    pub async fn dead(&self) -> Vec<DeadLetter> {
        let page = DlqPage { limit: u32::MAX, ..DlqPage::default() };
        self.bus.dlq().list(DlqFilter::default(), page).await.expect("the store answers")
    }

    async fn events(&self, pattern: &str, filter: EventFilter) -> Vec<EventDetail> {
        let pattern: Pattern = pattern.parse().expect("a valid pattern");
        let page = EventPage { limit: u32::MAX, after: None };
        let mut events = self.bus.store().events(filter, page).await.expect("the store answers");
        events.retain(|event| pattern.matches(event.event_type.as_str()));
        events.reverse();
        events
    }

    async fn assert_count(&self, pattern: &str, status: Option<EventStatus>, count: usize, what: &str) {
        let found = self.events(pattern, EventFilter { status, ..EventFilter::default() }).await;
        assert_eq!(
            found.len(),
            count,
            "{count} × {pattern:?} should be {what}; these are: {}\nall events: {}",
            describe(&found),
            describe(&self.published("*").await)
        );
    }

    /// That so many events of this pattern were published.
    ///
    /// # Panics
    ///
    /// If not, with a list of all events; so do the others.
    pub async fn assert_published(&self, pattern: &str, count: usize) {
        self.assert_count(pattern, None, count, "published").await;
    }

    /// That so many events of this pattern are done.
    ///
    /// # Panics
    ///
    /// If not.
    pub async fn assert_done(&self, pattern: &str, count: usize) {
        self.assert_count(pattern, Some(EventStatus::Done), count, "done").await;
    }

    /// That so many events of this pattern are in the dead-letter queue.
    ///
    /// # Panics
    ///
    /// If not.
    pub async fn assert_dead(&self, pattern: &str, count: usize) {
        self.assert_count(pattern, Some(EventStatus::Dlq), count, "dead").await;
    }

    /// That the dead-letter queue is empty.
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
