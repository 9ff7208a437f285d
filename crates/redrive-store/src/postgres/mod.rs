//! PostgreSQL store, shared by any number of processes.
//!
//! A publish enters the queue of the `write_batcher`. A free connection takes all queued commands and stores their events with one
//! statement (`append`), which also claims due events for the free slots of the dispatcher. All other work waits for `claim`. A
//! settlement enters the same queue (`settle`). Claims, heartbeats, leader election and notifications have a connection each.
//! Everything else shares a pool.

mod address;
mod append;
mod audit;
mod background_writes;
mod checks;
mod claim;
mod claims_page;
mod clock_step;
mod cluster;
mod connector;
mod database_time;
mod diagnostics;
mod dlq;
mod document;
mod failure;
mod history;
mod idempotency;
mod leader;
mod leader_tasks;
mod leases;
mod listen;
mod low_water_mark;
mod maintenance;
mod names;
mod notify;
mod nul_escape;
mod options;
mod owned_claims;
mod pool;
mod process;
mod process_state;
mod queue;
mod read;
mod reconcile;
mod recover;
mod remote_subscriptions;
mod replay;
mod retry_idempotent;
mod rows;
mod schema;
mod server_epoch;
mod session;
mod settle;
mod store;
mod transfer;
mod value;
mod write_batcher;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redrive_retry::{Clock, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use uuid::Uuid;

use self::address::Address;
use self::background_writes::BackgroundWrite;
use self::connector::{Connector, Purpose};
use self::failure::ErrorClass;
use self::leader_tasks::LeaderTasks;
use self::listen::ListenConnection;
use self::low_water_mark::LowWaterMark;
use self::owned_claims::OwnedClaims;
use self::pool::SessionPool;
use self::queue::Workers;
use self::remote_subscriptions::RemoteSubscriptions;
use self::server_epoch::ServerEpoch;
use self::session::Session;
use self::write_batcher::{Command, Settle};
use crate::error::StoreError;
use crate::query::Stats;
use crate::sql::status;
use crate::store::Finished;
use crate::work::{ClaimSink, Claimed, DueHint, Settlement, Slot};

pub use self::append::append_in;
pub use self::diagnostics::{Diagnostics, ProcessRow};
pub use self::options::PostgresOptions;
pub use self::transfer::{Step, TablePlan, TableProof, Transfer};
pub use crate::sqlite::Durability;

/// The delay before the first retry of a failed settlement.
const FIRST_SETTLE_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The delay doubles with each retry, up to this.
const MAX_SETTLE_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Time for an answer on the network, on top of the statement timeout.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Locks a std mutex, even if another holder has panicked: no holder leaves its data inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that all parts of a store share.
pub(crate) struct Shared {
    options: PostgresOptions,
    connector: Arc<Connector>,
    pool: SessionPool,
    /// Receives the claims. A std mutex: held while slots are taken, so that a detached sink gets no more claims.
    sink: Mutex<Option<ClaimSink>>,
    due: Arc<DueHint>,
    event_low_water: LowWaterMark,
    delivery_low_water: LowWaterMark,
    owned_claims: OwnedClaims,
    /// The connection that claims. Its lock serialises claims.
    claim_session: tokio::sync::Mutex<Option<Session>>,
    /// The connection for heartbeats. Nothing slow may use it: a late heartbeat loses the lease.
    heartbeat_session: tokio::sync::Mutex<Option<Session>>,
    /// The connection for leader election and takeover, which must work even if the pool is exhausted.
    leader_session: tokio::sync::Mutex<Option<Session>>,
    /// The server's epoch at the last heartbeat.
    server_epoch: ServerEpoch,
    /// The connection for notifications, which also holds the liveness lock.
    listener: tokio::sync::Mutex<ListenConnection>,
    /// Requests a notification of other processes. Several requests are merged into one.
    notify_requested: tokio::sync::Notify,
    remote_subscriptions: RemoteSubscriptions,
    leader_tasks: LeaderTasks,
    /// Identifies this open store, across all processes and restarts.
    boot: Uuid,
    /// The key of this process in the table of processes; 0 if it is not registered.
    owner: AtomicI64,
    registering: tokio::sync::Mutex<()>,
    /// Woken at every change of any idempotency key by this process. Waiting callers are few, and their check is cheap.
    key_changed: tokio::sync::Notify,
    is_closed: AtomicBool,
    /// The database's clock, so that all processes agree on due times.
    time: Clock,
}

impl Shared {
    fn with_sink<T>(&self, work: impl FnOnce(Option<&ClaimSink>) -> T) -> T {
        work(lock(&self.sink).as_ref())
    }

    fn sink(&self) -> Option<ClaimSink> {
        self.with_sink(|sink| sink.cloned())
    }

    /// Takes the free slots of the attached sink, at most `max`.
    fn take_slots(&self, max: usize) -> (Option<ClaimSink>, Vec<Slot>) {
        self.with_sink(|sink| {
            let slots = sink.map(|sink| std::iter::from_fn(|| sink.take()).take(max).collect());
            (sink.cloned(), slots.unwrap_or_default())
        })
    }

    /// Sends claims to the sink whose slots they have.
    fn hand_over(&self, sink: &ClaimSink, claimed: Vec<Claimed>) {
        let now = Instant::now();
        for claimed in claimed {
            sink.send(Claimed { sent_at: now, ..claimed });
        }
    }

    /// Records that something was stored that is due at this instant.
    fn note_due(&self, at: Timestamp) {
        self.event_low_water.lower(at.as_millis());
        self.delivery_low_water.lower(at.as_millis());
        self.due.pull_forward(at);
    }

    /// Wakes the dispatcher for work with an unknown due time.
    fn note_due_now(&self) {
        self.due.pull_forward(Timestamp::EPOCH);
    }

    /// Runs a transaction that makes work due at this instant, and notifies other processes.
    async fn make_due<T>(
        &self,
        at: Timestamp,
        work: impl AsyncFnOnce(&Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let session = self.pool.get().await?;
        let done = match session.transaction(work(&session)).await {
            // An earlier call, whose answer was lost, may have redriven it.
            Err(error @ StoreError::NotDead { .. }) => {
                session.barrier().await?;
                return Err(error);
            }
            done => done?,
        };
        self.note_due(at);
        self.notify_requested.notify_one();
        Ok(done)
    }

    /// Records that running work was released: it may have any due time, and other processes may claim it.
    fn note_released(&self) {
        self.event_low_water.reset();
        self.delivery_low_water.reset();
        self.note_due_now();
        self.notify_requested.notify_one();
    }

    /// Returns the dedicated connection in `slot`, and reconnects until `deadline` if it is not usable.
    async fn session_until<'a>(
        &self,
        slot: &'a mut Option<Session>,
        deadline: Instant,
    ) -> Result<&'a Session, StoreError> {
        if !slot.as_ref().is_some_and(Session::is_usable) {
            *slot = None;
            *slot = Some(self.connector.connect(Purpose::Work, deadline).await?);
        }
        slot.as_ref().ok_or(StoreError::Closed)
    }

    /// Returns the dedicated connection in `slot`, and reconnects for up to `outage_timeout` if it is not usable.
    async fn dedicated_session<'a>(&self, slot: &'a mut Option<Session>) -> Result<&'a Session, StoreError> {
        self.session_until(slot, Instant::now() + self.options.outage_timeout).await
    }

    /// Returns the heartbeat connection. A reconnect requests a reconciliation: a crash of the server may have undone settlements.
    async fn usable_heartbeat_session<'a>(
        &self,
        slot: &'a mut Option<Session>,
    ) -> Result<&'a Session, StoreError> {
        if !slot.as_ref().is_some_and(Session::is_usable) {
            self.connector.has_lost.store(true, Ordering::Release);
        }
        self.dedicated_session(slot).await
    }

    /// Turns the error of a statement that changes something into a store error.
    fn explain(&self, error: tokio_postgres::Error) -> StoreError {
        match failure::classify(&error) {
            ErrorClass::ConnectionLost => StoreError::Unknown { why: failure::full_message(&error) },
            ErrorClass::Conflict => StoreError::Busy,
            ErrorClass::Rejected => error.into(),
        }
    }
}

/// Event store in a PostgreSQL database, shared by any number of processes.
pub struct PostgresStore {
    shared: Arc<Shared>,
    /// Batches appends and settlements. Each task has its own connection.
    write_batcher: Workers<Command>,
    /// Stores audit lines and released idempotency keys that no caller waits for.
    background_writes: Workers<BackgroundWrite>,
    /// The runtime that opened the store. Callers may be on threads without one.
    runtime: Handle,
    /// Tasks that run until the store is closed.
    background: Vec<AbortHandle>,
    closing: tokio::sync::Mutex<()>,
}

impl PostgresStore {
    /// Opens the store at an address such as `postgres://user:password@host:5432/database`, and creates or migrates the schema.
    /// Parameters of the address override the options: `…/database?schema=billing&sslrootcert=/etc/ca.pem&poll_only=true`.
    pub async fn open(address: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let (config, options) = address.parse::<Address>()?.with(options);
        Self::open_with(config, options).await
    }

    /// Opens the store with a client configuration instead of an address.
    pub async fn open_with(
        config: tokio_postgres::Config,
        options: PostgresOptions,
    ) -> Result<Self, StoreError> {
        let timeout = options.statement_timeout.as_millis();
        let commit =
            if options.durability == Durability::Relaxed { " -c synchronous_commit=off" } else { "" };
        let access = if options.read_only { " -c default_transaction_read_only=on" } else { "" };
        let settings = format!(
            "-c statement_timeout={timeout} -c idle_in_transaction_session_timeout={timeout} -c jit=off{commit}{access}"
        );
        let answer_timeout = options.statement_timeout + ANSWER_GRACE;
        let (connector, session) = Connector::open(config, &options, settings, Some(answer_timeout)).await?;
        let names = &connector.names;
        if schema::is_unfinished(&session, names).await? {
            return Err(StoreError::UnfinishedTransfer { schema: names.schema().to_owned() });
        }
        if !options.create && !schema::exists(&session, names).await? {
            return Err(StoreError::NoSchema { schema: names.schema().to_owned() });
        }
        schema::migrate(&session, names, options.outage_timeout).await?;
        let time = database_time::clock(&session, &options.clock).await?;
        drop(session);
        let connector = Arc::new(connector);
        let pool = SessionPool::new(Arc::clone(&connector), &options)?;
        let shared = Arc::new(Shared {
            sink: Mutex::default(),
            due: Arc::new(DueHint::new()),
            event_low_water: LowWaterMark::new(options.poll_interval),
            delivery_low_water: LowWaterMark::new(options.poll_interval),
            owned_claims: OwnedClaims::new(),
            claim_session: tokio::sync::Mutex::default(),
            heartbeat_session: tokio::sync::Mutex::default(),
            leader_session: tokio::sync::Mutex::default(),
            server_epoch: ServerEpoch::default(),
            listener: tokio::sync::Mutex::default(),
            notify_requested: tokio::sync::Notify::new(),
            remote_subscriptions: RemoteSubscriptions::default(),
            leader_tasks: LeaderTasks::default(),
            boot: Uuid::new_v4(),
            owner: AtomicI64::new(0),
            registering: tokio::sync::Mutex::default(),
            key_changed: tokio::sync::Notify::new(),
            is_closed: AtomicBool::new(false),
            time,
            options,
            connector,
            pool,
        });
        let PostgresOptions { write_connections, queue, poll_only, .. } = shared.options;
        let write_batcher =
            Workers::start(write_connections, queue, |queue| write_batcher::run(Arc::clone(&shared), queue));
        let background_writes =
            Workers::start(1, queue, |queue| background_writes::run(Arc::clone(&shared), queue));
        let mut background = vec![
            tokio::spawn(notify::run(Arc::clone(&shared))).abort_handle(),
            tokio::spawn(database_time::run(Arc::clone(&shared))).abort_handle(),
        ];
        if !poll_only {
            background.push(tokio::spawn(listen::run(Arc::clone(&shared))).abort_handle());
        }
        let (runtime, closing) = (Handle::current(), tokio::sync::Mutex::default());
        Ok(PostgresStore { shared, write_batcher, background_writes, runtime, background, closing })
    }

    /// Whether this process is the leader, which runs the [maintenance](crate::traits::WorkQueue::maintain) for all processes.
    pub async fn leads(&self) -> Result<bool, StoreError> {
        self.read(async |session| leader::leads(&self.shared, session).await).await
    }

    /// Returns the statistics that the leader collects every minute, and their time. Unlike [`stats`](crate::traits::EventStore::stats), no scan.
    pub async fn last_stats(&self) -> Result<Option<(Timestamp, Stats)>, StoreError> {
        self.read(leader_tasks::last_stats).await
    }

    /// Fails if the store is closed.
    fn open_shared(&self) -> Result<Arc<Shared>, StoreError> {
        let is_closed = self.shared.is_closed.load(Ordering::Acquire);
        if is_closed { Err(StoreError::Closed) } else { Ok(Arc::clone(&self.shared)) }
    }

    /// Runs work in a task of its own, so that it completes even if the caller is cancelled.
    async fn run<T, W>(&self, work: impl FnOnce(Arc<Shared>) -> W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let shared = self.open_shared()?;
        let _busy = self.shared.options.clock.busy();
        self.runtime
            .spawn(work(shared))
            .await
            .map_err(|error| StoreError::Stopped { why: error.to_string() })?
    }

    /// Runs a purge of a limited number of rows until none is left. Returns the number of purged rows.
    async fn purge_all<W>(&self, purge: impl Fn(Arc<Shared>) -> W) -> Result<u64, StoreError>
    where
        W: Future<Output = Result<u64, StoreError>> + Send + 'static,
    {
        let mut purged = 0;
        loop {
            match self.run(&purge).await? {
                0 => return Ok(purged),
                part => purged += part,
            }
        }
    }

    /// Runs a query that only reads or is idempotent. Retries it if the connection is lost, for up to `outage_timeout`.
    async fn read<T>(&self, query: impl AsyncFn(&Session) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let until = Instant::now() + self.shared.options.outage_timeout;
        loop {
            let shared = self.open_shared()?;
            let _busy = self.shared.options.clock.busy();
            let session = shared.pool.get().await?;
            match query(&session).await {
                Err(StoreError::Lost { .. }) if Instant::now() < until => {}
                other => return other,
            }
        }
    }

    async fn settle_until_done(
        &self,
        mut claimed: Claimed,
        mut settlement: Box<Settlement>,
    ) -> Result<Finished, StoreError> {
        // Virtual time stands still meanwhile: the server recovers in real time.
        let _busy = self.shared.options.clock.busy();
        let (mut wait, mut was_resent, mut refusals) = (FIRST_SETTLE_RETRY_DELAY, false, 0_u32);
        loop {
            self.open_shared()?;
            let (reply, answer) = oneshot::channel();
            let command = Command::Settle(Settle { claimed, settlement, was_resent, reply });
            self.write_batcher.queue.send(command).await?;
            match answer.await {
                Ok(Ok(finished)) => return Ok(finished),
                Ok(Err((error, back, again))) if is_settle_retryable(&error) => {
                    // The connector logs an unreachable server. Other errors are logged once.
                    if wait == FIRST_SETTLE_RETRY_DELAY && !error.is_temporary() {
                        tracing::error!(target: "redrive::store", %error, "a settlement failed and is retried");
                    }
                    was_resent |= matches!(error, StoreError::Unknown { .. });
                    (claimed, settlement) = (back, again);
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(MAX_SETTLE_RETRY_DELAY);
                }
                Ok(Err((error @ (StoreError::Closed | StoreError::Stopped { .. }), ..))) => {
                    return Err(error);
                }
                Ok(Err((error, back, again))) => {
                    tracing::error!(target: "redrive::store", %error, "a settlement was rejected");
                    claimed = back;
                    settlement = Box::new(settle::as_dead_letter(*again, &error, refusals == 0));
                    refusals += 1;
                    // Even the dead letter was rejected: an operator must change something first.
                    if refusals > 2 {
                        tokio::time::sleep(MAX_SETTLE_RETRY_DELAY).await;
                    }
                }
                Err(_) => return Err(StoreError::Closed),
            }
        }
    }
}

/// Whether a failed settlement is retried. The attempt has ended, and a living process would keep its claim for ever, so the
/// store retries while the cause may go away, even if an operator must remove it: a locked table, a revoked privilege, a
/// changed password. Rejected values stay rejected: their settlement becomes a dead letter.
fn is_settle_retryable(error: &StoreError) -> bool {
    match error {
        StoreError::Closed | StoreError::Stopped { .. } => false,
        StoreError::Server { source, .. } => source.code().is_some_and(|code| {
            // Data exceptions, and constraints.
            !code.code().starts_with("22") && !code.code().starts_with("23")
        }),
        _ => true,
    }
}

/// Shows the server by its host, never by its address, which may have a password.
impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { connector, options, .. } = &*self.shared;
        f.debug_struct("PostgresStore")
            .field("server", &connector.server())
            .field("options", options)
            .finish_non_exhaustive()
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.write_batcher.queue.shut();
        self.background_writes.queue.shut();
        for task in &self.background {
            task.abort();
        }
    }
}
