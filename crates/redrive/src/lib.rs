//! A durable event bus in process: publish, subscribe, retry, dead-letter. On SQLite without a broker, or on PostgreSQL for many processes.
//!
//! A published event is written to disk and synced before the publish returns. The dispatcher claims it from there, calls the handler of
//! every matching subscription, and settles the result in the store: done, retry at a later time, or dead letter. A crash at any point
//! loses nothing: the next start finds the event on disk and continues.
//!
//! > A publish that returned `Ok` is on stable storage. It survives `kill -9` and power loss on storage that honours flush. It is then
//! > handled by every matching subscription at least once, or it is in the dead-letter queue with every error of every attempt. Nothing is
//! > ever dropped silently.
//!
//! # Open, subscribe, publish
//!
//! ```
//! use redrive::{Event, EventBus, HandlerResult};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order { number: u64 }
//!
//! async fn ship(event: Event) -> HandlerResult {
//!     let order: Order = event.json()?;
//!     println!("shipping order {}", order.number);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::BusError> {
//! let bus = EventBus::open(":memory:").await?; // a path such as "events.db" in a program
//! bus.subscribe("order.*", ship).name("shipping").register()?;
//! bus.start().await?;
//!
//! bus.publish("order.created", &Order { number: 7 }).await?;
//! bus.publish("order.created", &Order { number: 8 }).enqueue().await?;
//! bus.shutdown().await?;
//! # Ok(()) }
//! ```
//!
//! - Awaiting [`publish`](EventBus::publish) returns when every matching handler has succeeded, or the event is a dead letter, or only
//!   deliveries are left that are parked (open circuit, spent budget), in the backlog (limit), leased by a pull consumer, or for a paused or absent subscription.
//! - [`enqueue`](publish::Publish::enqueue) returns as soon as the event is on stable storage. The bus delivers it in the background.
//!
//! Handlers run at least once. [`Event::idempotency_key`] is equal for all attempts of one delivery: pass it to the services that the
//! handler calls. [`EventPayload`] ties a Rust type to its event type, for `publish_typed` and `subscribe_typed`.
//!
//! # Retries
//!
//! Every error is retried: three times by default, after 1 s, 2 s and 4 s, each ±10 %. A subscription or a single event can override the
//! [policy](retry::RetryPolicy) field by field, and an error can say that a retry is useless or when it makes sense.
//!
//! ```
//! use std::time::Duration;
//! use redrive::retry::{ClassifyError, Failure, RetryOverride};
//! use redrive::{Event, EventBus, HandlerResult};
//!
//! async fn charge(event: Event) -> HandlerResult<Failure> {
//!     match call_bank(event.payload()) {
//!         200 => Ok(()),
//!         400 => Err("the bank refuses this payment".permanent()), // a dead letter at once
//!         429 => Err("too many requests".retry_after(Duration::from_secs(30))),
//!         status => Err(Failure::new(format!("status {status}"))), // retried
//!     }
//! }
//! # fn call_bank(_payload: &str) -> u16 { 200 }
//!
//! # async fn subscribe(bus: &EventBus) -> Result<(), redrive::BusError> {
//! bus.subscribe("order.paid", charge)
//!     .name("bank")
//!     .timeout(Duration::from_secs(10))
//!     .retry(RetryOverride::new().max_retries(5).base_delay_ms(500))
//!     .register()?;
//! # Ok(()) }
//! ```
//!
//! A handler that cannot process an event yet returns a [`Snooze`]: the bus runs the delivery again after that time and charges no
//! attempt. A circuit breaker per subscription stops calls to a receiver that fails all the time; its deliveries are parked on disk.
//!
//! # Dead letters
//!
//! After the last attempt the event is in the [dead-letter queue](dlq), with its payload and every error. Inspect it, fix the cause, and
//! redrive it.
//!
//! ```
//! # async fn redrive_all(bus: &redrive::EventBus) -> Result<(), redrive::BusError> {
//! use redrive::dlq::{DlqFilter, DlqPage, RetryAll};
//!
//! for dead in bus.dlq().list(DlqFilter::default(), DlqPage::default()).await? {
//!     println!("{} {}: {:?}", dead.id, dead.event_type, dead.errors);
//! }
//! let slowly = RetryAll { per_second: Some(100), ..RetryAll::default() };
//! let report = bus.dlq().retry_all(DlqFilter::default(), slowly).await?;
//! println!("{} of {} redriven", report.retried, report.matched);
//! # Ok(()) }
//! ```
//!
//! [`EventBus::events`] looks up events of any status.
//!
//! # Two tracking modes, side by side
//!
//! | | [`Tracking::Event`] (default) | [`Tracking::PerSubscription`] |
//! |---|---|---|
//! | unit of a retry | the whole event | one subscription's delivery |
//! | handlers of one event | one after the other, in order of registration | independent of each other |
//! | a handler that succeeded | runs again when a later one fails, unless it is [idempotent](subscription::Subscribe::idempotent) | does not run again |
//! | attempts, backoff, dead letter | one set for the event | one set for each subscription |
//! | one slow or failing handler | delays the next ones | affects no other handler |
//!
//! ```
//! use redrive::{EventBus, Tracking};
//! # async fn open() -> Result<(), redrive::BusError> {
//! let bus = EventBus::builder().tracking(Tracking::PerSubscription).open("events.db").await?;
//! # Ok(()) }
//! ```
//!
//! # Limits and pauses
//!
//! [`Limits`] bound concurrency and rate of one subscription. Deliveries over the limit wait in a backlog on disk, so a slow receiver
//! delays no other subscription. The handle that `register` returns pauses a subscription and removes it.
//!
//! ```
//! # use redrive::{Event, EventBus, Limits};
//! # async fn subscribe(bus: &EventBus) -> Result<(), redrive::BusError> {
//! let mail = bus
//!     .subscribe("order.*", async |_: Event| Ok::<_, &str>(()))
//!     .name("mail")
//!     .limits(Limits { concurrency: 4, per_second: Some(20.0) })
//!     .register()?;
//! mail.pause(); // its deliveries wait on disk, no attempt is charged, no publisher waits for them
//! mail.resume();
//! # Ok(()) }
//! ```
//!
//! # Testing
//!
//! A [`TestBus`](testing::TestBus) runs in memory on virtual time: a backoff of an hour passes at once.
//!
//! ```
//! use redrive::Event;
//! use redrive::testing::TestBus;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::BusError> {
//! let bus = TestBus::new().await?;
//! bus.subscribe("order.*", async |event: Event| if event.attempt() == 1 { Err("not yet") } else { Ok(()) }).register()?;
//! bus.start().await?;
//! bus.publish("order.created", &7).await?;
//! bus.assert_done("order.created", 1).await;
//! # Ok(()) }
//! ```
//!
//! # Further
//!
//! - [`store`]: options of SQLite and PostgreSQL, and publishing inside your own transaction.
//! - [`pull`]: consumers that fetch events under a lease, instead of handlers.
//! - [`handler`] and [`middleware`]: blocking handlers, code around handlers. [`metrics`] and [`trace`]: counters and W3C trace context.
//! - [`retry`]: policies, breakers, budgets, and a retry manager for calls without a bus.

mod admission;
mod backlog;
mod budget;
mod budget_queue;
mod builder;
mod bus;
mod circuit;
mod cluster_breaker;
mod cluster_budget;
mod core;
pub mod dispatcher;
pub mod dlq;
mod dlq_export;
pub mod error;
mod event;
pub mod events;
pub mod handler;
mod handover;
#[cfg(feature = "metrics")]
mod histogram;
#[doc(hidden)]
pub mod internal;
mod limiter;
mod lock;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
mod metrics;
pub mod middleware;
mod open;
mod pattern;
mod payload;
pub mod prelude;
pub mod publish;
pub mod pull;
mod registration;
mod snooze;
pub mod store;
mod subscribe;
pub mod subscription;
mod subscription_handle;
mod subscriptions;
pub mod testing;
pub mod trace;
mod wait_for_end;
mod waiters;

pub use redrive_retry as retry;
pub use redrive_store::{EventId, EventType};

pub use crate::builder::{EventBusBuilder, Tracking, Unmatched};
pub use crate::bus::EventBus;
pub use crate::error::BusError;
pub use crate::event::Event;
pub use crate::handler::HandlerResult;
pub use crate::limiter::Limits;
pub use crate::payload::EventPayload;
pub use crate::snooze::Snooze;
pub use crate::subscription_handle::SubscriptionHandle;
