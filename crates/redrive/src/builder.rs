//! The builder of a bus: retry policy, tracking, durability, limits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

use redrive_retry::audit::{AuditSink, TracingSink};
use redrive_retry::setters;
use redrive_retry::{Clock, RetryPolicy};
use redrive_store::{ClaimSink, Durability, Location, SqliteOptions, SqliteStore, Store};
use tokio::sync::watch;

use crate::bus::EventBus;
use crate::core::{Core, DispatchSwitch, Phase, Tracking, Unmatched};
use crate::error::BusError;
use crate::metrics::Counters;
use crate::middleware::Middleware;
use crate::waiters::Waiters;

/// The settings of a bus, each with a default; see [`EventBus::builder`].
#[must_use = "a builder does nothing until open()"]
pub struct EventBusBuilder {
    pub(crate) policy: RetryPolicy,
    pub(crate) tracking: Tracking,
    pub(crate) unmatched: Unmatched,
    pub(crate) durability: Durability,
    pub(crate) retention: Option<Duration>,
    pub(crate) in_flight: usize,
    pub(crate) max_payload: usize,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) seed: u64,
    /// `None` for the store's clock.
    pub(crate) clock: Option<Clock>,
    pub(crate) audit: Arc<dyn AuditSink>,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
}

impl Default for EventBusBuilder {
    fn default() -> Self {
        EventBusBuilder {
            policy: RetryPolicy::bus(),
            tracking: Tracking::Event,
            unmatched: Unmatched::Done,
            durability: Durability::Full,
            retention: Some(Duration::from_secs(7 * 24 * 3600)),
            in_flight: 1024,
            max_payload: 1 << 20,
            shutdown_timeout: Duration::from_secs(30),
            seed: 0,
            clock: None,
            audit: Arc::new(TracingSink),
            middleware: Vec::new(),
        }
    }
}

impl EventBusBuilder {
    setters! {
        /// Sets the retry policy, which subscriptions and events can override. Default: 3 retries, 1 s doubling up to 30 s, ±10 %.
        policy(policy: RetryPolicy) => policy = policy;
        /// Sets what is retried together: the event or each delivery. Default: the event.
        tracking(tracking: Tracking) => tracking = tracking;
        /// Sets what becomes of an event that no subscription matches. Default: done, and counted.
        unmatched(unmatched: Unmatched) => unmatched = unmatched;
        /// Sets what a publish guarantees when it returns. Default: the event is on stable storage.
        durability(durability: Durability) => durability = durability;
        /// Sets how long handled events are kept; `None` for ever. Default: 7 days.
        retention(retention: Option<Duration>) => retention = retention;
        /// Limits the deliveries in flight; further ones wait on disk. Default: 1024.
        in_flight(limit: usize) => in_flight = limit.max(1);
        /// Limits the size of a payload, in bytes. Default: 1 MiB.
        max_payload(bytes: usize) => max_payload = bytes;
        /// Limits the time that a shutdown waits for running handlers. Default: 30 s.
        shutdown_timeout(timeout: Duration) => shutdown_timeout = timeout;
        /// Sets the seed of the jitter, which is a keyed hash and so can be replayed. Default: 0.
        seed(seed: u64) => seed = seed;
        /// Sets the clock. Default: the store's, which is the machine's clock for a file and the database's for a server, so that all processes
        /// agree on due times.
        clock(clock: Clock) => clock = Some(clock);
        /// Sets the sink of retry log entries. Default: `tracing`.
        audit(sink: impl AuditSink + 'static) => audit = Arc::new(sink);
    }

    /// Wraps every handler in middleware. The first one is outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Opens or creates the file. `:memory:` is a database that ends with the process, for tests.
    ///
    /// With the feature `postgres`, `postgres://user:password@host/database` opens a database that many processes share.
    pub async fn open(self, location: impl AsRef<Path>) -> Result<EventBus, BusError> {
        let (durability, max_payload) = (self.durability, self.max_payload);
        let clock = self.clock.clone().unwrap_or_default();
        match Location::of(location) {
            Location::Sqlite(path) => {
                let options =
                    SqliteOptions { durability, owner: true, max_payload, clock, ..SqliteOptions::default() };
                self.on(open_sqlite(path, options).await?).await
            }
            #[cfg(feature = "postgres")]
            Location::Postgres(address) => {
                use redrive_store::{PostgresOptions, PostgresStore};
                let options =
                    PostgresOptions { durability, max_payload, clock, ..PostgresOptions::default() };
                self.on(Arc::new(PostgresStore::open(&address, options).await?)).await
            }
            #[cfg(not(feature = "postgres"))]
            Location::Postgres(_) => Err(BusError::NoPostgres),
        }
    }

    /// Opens a bus on a store that the caller has opened. The bus closes it when it shuts down.
    pub async fn on(self, store: Arc<dyn Store>) -> Result<EventBus, BusError> {
        let (sink, claims) = ClaimSink::new(self.in_flight);
        let core = Core {
            known: store.subscriptions().await?.into_iter().map(|row| (row.name.clone(), row)).collect(),
            clock: self.clock.clone().unwrap_or_else(|| store.clock()),
            settings: self,
            store,
            sink,
            claims: Mutex::new(Some(claims)),
            starting: tokio::sync::Mutex::default(),
            runtime: OnceLock::new(),
            subscriptions: RwLock::default(),
            waiters: Waiters::default(),
            counters: Counters::default(),
            phase: watch::Sender::new(Phase::Open),
            switch: watch::Sender::new(DispatchSwitch::default()),
            sync_wakeup: Arc::default(),
            backlog_wakeup: Arc::default(),
            recording: tokio::sync::Mutex::default(),
            pauses: watch::Sender::new(0),
            virtual_time: OnceLock::new(),
        };
        Ok(EventBus { core: Arc::new(core), tasks: Arc::default() })
    }
}

/// Opens a SQLite store. Reads and may migrate the file, so not on an async thread.
pub(crate) async fn open_sqlite(path: PathBuf, options: SqliteOptions) -> Result<Arc<dyn Store>, BusError> {
    let opened = tokio::task::spawn_blocking(move || SqliteStore::open(path, options)).await;
    Ok(Arc::new(opened.expect("opening a store does not panic")?))
}

impl std::fmt::Debug for EventBusBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventBusBuilder").field("policy", &self.policy).finish_non_exhaustive()
    }
}
