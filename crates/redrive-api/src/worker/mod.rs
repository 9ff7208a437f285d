//! [`Worker`]: pulls the events of a subscription and runs a handler for each, until it is stopped.
//!
//! ```no_run
//! use redrive_api::client::Client;
//! use redrive_api::subscriptions::LeasedEvent;
//! use redrive_api::worker::{ClassifyError as _, Context, HandlerResult, Snooze};
//! use std::time::Duration;
//!
//! #[derive(serde::Deserialize)]
//! struct Order { cents: i64, is_on_hold: bool }
//!
//! async fn bill(event: LeasedEvent, _context: Context) -> HandlerResult {
//!     let order: Order = event.json()?; // any error fails the attempt: the event is retried
//!     if order.cents < 0 {
//!         return Err("a negative amount".permanent().into()); // a dead letter at once
//!     }
//!     if order.is_on_hold {
//!         return Err(Snooze::new(Duration::from_secs(3600)).into()); // again in an hour, no attempt charged
//!     }
//!     charge(order.cents).await.map_err(|error| error.retry_after(Duration::from_secs(30)))?;
//!     Ok(())
//! }
//! # async fn charge(_: i64) -> std::io::Result<()> { Ok(()) }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::http("http://127.0.0.1:8080".parse()?, None)?;
//! let worker = client.worker("billing", bill).patterns(["order.*"]).concurrency(32);
//! let stats = worker.run_until(tokio::signal::ctrl_c()).await?; // the library installs no signal handlers of its own
//! println!("{} handled, {} failed", stats.handled, stats.failed);
//! # Ok(()) }
//! ```
//!
//! | a handler returns | the event |
//! |---|---|
//! | `Ok(())` | is acked |
//! | `Err(Snooze)` | comes again later, no attempt charged |
//! | `Err(error.permanent())` | is a dead letter at once |
//! | `Err(error.retry_after(wait))` | is retried after at least this wait |
//! | any other error, or it panics | is retried by the policy of the subscription, or after [`Worker::retry_delay`] |
//!
//! Delivery is at least once: [`LeasedEvent::id`] is the same for every attempt.
//!
//! **Leases.** The worker extends the lease of an event as long as its handler runs. A lease is valid on every server of the database, and
//! after a restart: the worker continues with whichever server answers. If the server says that a lease has ended, the future of its handler
//! is dropped, because another consumer may have the event. If no server answers for the length of a lease, [`Context::cancelled`] tells the
//! handler; its result is sent all the same. A handler that blocks its thread keeps the worker from extending: use `spawn_blocking`.
//!
//! **Stop.** [`WorkerHandle::stop`] ends pulling and waits for running handlers, at most [`Worker::stop_timeout`]; then their futures are
//! dropped and their events are released for other consumers, no attempt charged.
//!
//! **Errors** of pulls, acks and extensions are repeated and written to `tracing`. The worker ends with an error only if a repetition cannot
//! help: the subscription or the token is gone, or the scope is missing.

mod handle;
mod handler;
mod job;
mod leases;
mod outcome;
mod pull;
mod settler;
mod state;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use redrive_retry::{BoxError, ClassifyError, ClassifyResult, Failure};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

pub use self::handle::WorkerHandle;
use self::handler::BoxHandler;
pub use self::handler::{CancelReason, Context, HandlerResult};
use self::leases::extend_loop;
pub use self::outcome::Snooze;
use self::pull::pull_until_stopped;
use self::settler::{Pending, settle_loop};
pub use self::state::WorkerStats;
use self::state::{Settings, State};
use crate::client::{Client, Result};
use crate::subscriptions::{LeasedEvent, MAX_LEASES, PutSubscription};

/// Deliveries that are handled and not settled yet, at which pulls wait for acks.
const MAX_UNSETTLED: usize = 1000;

/// Parallel pulls of a worker whose concurrency is larger than one pull.
const MAX_PULLS: usize = 4;

/// Pulls the events of a subscription and runs a handler for each. [`Client::worker`] creates it; [`start`](Self::start) or
/// [`run_until`](Self::run_until) runs it.
#[must_use = "a worker does nothing until `start` or `run_until`"]
pub struct Worker {
    client: Client,
    subscription: String,
    handler: BoxHandler,
    settings: Settings,
}

impl Client {
    /// Creates a worker that runs this handler for the events of a pull subscription.
    ///
    /// See the module [`worker`](crate::worker) for an example.
    pub fn worker<H, F, E>(&self, subscription: impl Into<String>, handler: H) -> Worker
    where
        H: Fn(LeasedEvent, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let (client, subscription) = (self.clone(), subscription.into());
        Worker { client, subscription, handler: handler::boxed(handler), settings: Settings::default() }
    }
}

impl Worker {
    /// Sets the number of handlers that run at a time; 16 by default, at least 1. The worker pulls no event that it cannot begin at once.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.settings.concurrency = handlers.clamp(1, Semaphore::MAX_PERMITS - MAX_UNSETTLED);
        self
    }

    /// Sets the length of a lease, which is extended as long as the handler runs; 30 s by default. After a crash of the worker the event
    /// comes again when its lease ends.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets how long one pull waits for an event; 20 s by default, at most 30 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets the time limit of a handler, after which its future is dropped and the attempt fails; none by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Sets the time in which acks are collected for one request; 5 ms by default.
    pub fn ack_delay(mut self, delay: Duration) -> Self {
        self.settings.ack_delay = delay;
        self
    }

    /// Sets how long a stop waits for running handlers; 30 s by default.
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stop_timeout = timeout;
        self
    }

    /// Creates or changes the subscription at the start, with these patterns. Needs a token with the scope `admin`.
    pub fn patterns<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.create(PutSubscription::new(patterns))
    }

    /// Creates or changes the subscription at the start, such as with a retry policy. Needs a token with the scope `admin`.
    pub fn create(mut self, subscription: PutSubscription) -> Self {
        self.settings.create = Some(subscription);
        self
    }

    /// Sets the shortest wait before the next attempt after an error; `None` leaves it to the retry policy, which decides alone by default.
    ///
    /// ```no_run
    /// # fn configure(worker: redrive_api::worker::Worker) {
    /// # use std::time::Duration;
    /// let worker = worker.retry_delay(|event, _error| Some(Duration::from_secs(10) * event.attempt));
    /// # drop(worker); }
    /// ```
    pub fn retry_delay<D>(mut self, delay: D) -> Self
    where
        D: Fn(&LeasedEvent, &Failure) -> Option<Duration> + Send + Sync + 'static,
    {
        self.settings.retry_delay = Some(Arc::new(delay));
        self
    }

    /// Starts the worker on the current tokio runtime.
    ///
    /// ```no_run
    /// # async fn run(client: redrive_api::client::Client) -> redrive_api::client::Result<()> {
    /// let worker = client.worker("audit", |event, _context| async move {
    ///     println!("{} {}", event.id, event.payload);
    ///     Ok::<(), std::io::Error>(())
    /// });
    /// let handle = worker.start();
    /// println!("{:?}", handle.stats());
    /// handle.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn start(self) -> WorkerHandle {
        let (state, settlements) = self.prepare();
        WorkerHandle::new(Arc::clone(&state), tokio::spawn(run(state, settlements)))
    }

    /// Runs the worker until `shutdown` completes or the worker cannot go on, and stops it. Dropping the future ends it at once; the leases
    /// of its events end by themselves then.
    pub async fn run_until<S: Future>(self, shutdown: S) -> Result<WorkerStats> {
        let (state, settlements) = self.prepare();
        let running = run(Arc::clone(&state), settlements);
        let stopping = async {
            shutdown.await;
            state.stop();
            std::future::pending().await
        };
        tokio::select! {
            ended = running => ended.map(|()| state.stats()),
            never = stopping => never,
        }
    }

    fn prepare(self) -> (Arc<State>, mpsc::UnboundedReceiver<Pending>) {
        let Worker { client, subscription, handler, settings } = self;
        let (sender, settlements) = mpsc::unbounded_channel();
        (Arc::new(State::new(client, subscription, handler, settings, sender)), settlements)
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("subscription", &self.subscription).finish_non_exhaustive()
    }
}

/// Runs a worker until it is stopped and everything is settled.
async fn run(state: Arc<State>, settlements: mpsc::UnboundedReceiver<Pending>) -> Result<()> {
    let _ended = state.mark_ended_on_drop();
    if let Some(subscription) = &state.settings.create {
        tokio::select! {
            put = state.put(subscription) => put?,
            () = state.stopping() => return Ok(()),
        }
    }
    state.mark_ready();
    // Ended by dropping it, after the last settlement.
    let mut background = JoinSet::new();
    background.spawn(settle_loop(state.settle_target(), settlements));
    background.spawn(extend_loop(Arc::clone(&state.leases), state.extend_target()));
    let concurrency = state.settings.concurrency;
    let (slots, unsettled) = (Semaphore::new(concurrency), Semaphore::new(concurrency + MAX_UNSETTLED));
    let (slots, unsettled) = (Arc::new(slots), Arc::new(unsettled));
    let mut pulls = JoinSet::new();
    for _ in 0..concurrency.div_ceil(MAX_LEASES).min(MAX_PULLS) {
        pulls.spawn(pull_until_stopped(Arc::clone(&state), Arc::clone(&slots), Arc::clone(&unsettled)));
    }
    let mut result = Ok(());
    while let Some(joined) = pulls.join_next().await {
        let ended = joined.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(payload) => std::panic::resume_unwind(payload),
            Err(_) => Ok(()), // cancelled with the runtime
        });
        result = result.and(ended);
    }
    result
}
