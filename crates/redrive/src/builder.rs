//! Opening a bus with other settings than the defaults.

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use redrive_retry::audit::{AuditSink, TracingSink};
use redrive_retry::{Clock, RetryPolicy};
use redrive_store::{ClaimSink, Durability, Location, SqliteOptions, SqliteStore, Store};
use tokio::sync::watch;

use crate::bus::EventBus;
use crate::core::{Core, Phase, Tracking, Unmatched};
use crate::error::BusError;
use crate::gate::Gate;
use crate::metrics::Counters;
use crate::middleware::Middleware;
use crate::waiters::Waiters;

/// The settings of a bus. Every one has a default.
#[must_use = "a builder does nothing until open()"]
pub struct EventBusBuilder {
    policy: RetryPolicy,
    tracking: Tracking,
    unmatched: Unmatched,
    durability: Durability,
    retention: Option<Duration>,
    in_flight: usize,
    max_payload: usize,
    shutdown_timeout: Duration,
    seed: u64,
    /// That of the store, unless somebody wants another one.
    clock: Option<Clock>,
    audit: Arc<dyn AuditSink>,
    middleware: Vec<Arc<dyn Middleware>>,
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
    /// The retry policy where nobody overrides it. Default: 3 retries, 1 s doubling up to 30 s, ±10 %.
    pub fn policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// How failures are counted. Default: by event.
    pub fn tracking(mut self, tracking: Tracking) -> Self {
        self.tracking = tracking;
        self
    }

    /// What becomes of an event that nobody wants. Default: done, and counted.
    pub fn unmatched(mut self, unmatched: Unmatched) -> Self {
        self.unmatched = unmatched;
        self
    }

    /// When a publish returns. Default: when the event is on stable storage.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long handled events are kept; `None` for ever. Default: 7 days.
    pub fn retention(mut self, retention: Option<Duration>) -> Self {
        self.retention = retention;
        self
    }

    /// How many events may be handled at the same time. Default: 1024. The rest waits on disk.
    pub fn in_flight(mut self, limit: usize) -> Self {
        self.in_flight = limit.max(1);
        self
    }

    /// The largest payload in bytes. Default: 1 MiB.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// How long a shutdown waits for what is being handled. Default: 30 s.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// Part of what jitter is computed from. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Where the time comes from. Default: from the store, which is the machine's clock for a file, and the database's for a
    /// server: then all who share it mean the same by "due".
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Where retry log entries go. Default: `tracing`.
    pub fn audit(mut self, sink: impl AuditSink + 'static) -> Self {
        self.audit = Arc::new(sink);
        self
    }

    /// Something around every handler. The first one is outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Opens or creates the file. `:memory:` is a database that ends with the process, for tests. With the feature `postgres`,
    /// `postgres://user:password@host/database` is a server that many processes share.
    pub async fn open(self, location: impl AsRef<Path>) -> Result<EventBus, BusError> {
        match Location::of(location) {
            Location::Sqlite(path) => self.open_file(path).await,
            Location::Postgres(address) => self.open_server(&address).await,
        }
    }

    async fn open_file(self, path: PathBuf) -> Result<EventBus, BusError> {
        let options = SqliteOptions {
            durability: self.durability,
            owner: true,
            max_payload: self.max_payload,
            clock: self.clock.clone().unwrap_or_default(),
            ..SqliteOptions::default()
        };
        // Opening reads and may migrate the file: not on an async thread.
        let store = tokio::task::spawn_blocking(move || SqliteStore::open(path, options))
            .await
            .expect("opening a store does not panic")?;
        self.on(Arc::new(store)).await
    }

    #[cfg(feature = "postgres")]
    async fn open_server(self, address: &str) -> Result<EventBus, BusError> {
        let options = redrive_store::PostgresOptions {
            durability: self.durability,
            max_payload: self.max_payload,
            clock: self.clock.clone().unwrap_or_default(),
            ..redrive_store::PostgresOptions::default()
        };
        let store = redrive_store::PostgresStore::open(address, options).await?;
        self.on(Arc::new(store)).await
    }

    #[cfg(not(feature = "postgres"))]
    async fn open_server(self, _address: &str) -> Result<EventBus, BusError> {
        Err(BusError::NoPostgres)
    }

    /// A bus on a store that you have opened yourself, with settings of its own. The bus closes it when it shuts down.
    pub async fn on(self, store: Arc<dyn Store>) -> Result<EventBus, BusError> {
        let (sink, claims) = ClaimSink::new(self.in_flight);
        let core = Core {
            clock: self.clock.unwrap_or_else(|| store.clock()),
            store,
            policy: self.policy,
            seed: self.seed,
            tracking: self.tracking,
            unmatched: self.unmatched,
            retention: self.retention,
            sink,
            in_flight: self.in_flight,
            subscriptions: RwLock::default(),
            waiters: Waiters::default(),
            counters: Counters::default(),
            audit: self.audit,
            phase: watch::Sender::new(Phase::Open),
            is_paused: watch::Sender::new(false),
            gate: Gate::default(),
            news: Arc::default(),
            room: Arc::default(),
            recording: tokio::sync::Mutex::default(),
        };
        EventBus::new(core, claims, self.middleware, self.shutdown_timeout).await
    }
}

impl std::fmt::Debug for EventBusBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventBusBuilder").field("policy", &self.policy).finish_non_exhaustive()
    }
}
