//! PostgreSQL behind the [`Store`](crate::Store) trait: the same semantics, for as many processes as there are.
//!
//! What is frequent goes by lanes: a few connections, each of which makes one statement of whatever waits. Claims, signs of life
//! and news have a connection each, and everything else shares a pool.

mod address;
mod append;
mod aside;
mod audit;
mod budget;
mod checks;
mod circuit;
mod claim;
mod connector;
mod dlq;
mod document;
mod elsewhere;
mod era;
mod estate;
mod failure;
mod herald;
mod holdings;
mod idempotency;
mod insist;
mod lane;
mod leader;
mod maintenance;
mod mark;
mod names;
mod options;
mod payload;
mod pool;
mod process;
mod queue;
mod read;
mod reconcile;
mod recover;
mod replay;
mod rows;
mod schema;
mod session;
mod settle;
mod status;
mod store;
mod subscribe;
mod survey;
mod text;
mod transfer;
mod upkeep;
mod value;
mod watch;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive_retry::{Clock, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use uuid::Uuid;

use self::address::Address;
use self::aside::Aside;
use self::connector::{Connector, Purpose};
use self::elsewhere::Elsewhere;
use self::era::Era;
use self::failure::Fate;
use self::herald::Herald;
use self::holdings::Holdings;
use self::lane::{Command, Lanes, Settle};
use self::mark::Mark;
use self::names::Names;
use self::pool::SessionPool;
use self::session::Session;
use self::upkeep::Upkeep;
use self::watch::Watch;
use crate::error::StoreError;
use crate::query::Stats;
use crate::store::Finished;
use crate::work::{ClaimSink, Claimed, DueHint, Settlement, Slot};

pub use self::append::append_in;
pub use self::options::PostgresOptions;
pub use self::survey::{ProcessRow, Survey};
pub use self::transfer::{Step, TablePlan, TableProof, Transfer};
pub use crate::sqlite::Durability;

/// The first pause before a claim that could not be ended is tried again.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// The longest one.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How long an answer may be on its way.
const ON_THE_WAY: Duration = Duration::from_secs(2);

/// What everything that works for a store has in common.
#[derive(Debug)]
pub(crate) struct Shared {
    options: PostgresOptions,
    names: Arc<Names>,
    connector: Arc<Connector>,
    pool: SessionPool,
    /// Who takes in what is claimed. A std mutex: held while places are taken, so that whoever is detached gets nothing more.
    sink: Mutex<Option<ClaimSink>>,
    due: Arc<DueHint>,
    event_mark: Mark,
    delivery_mark: Mark,
    holdings: Holdings,
    /// The connection that claims; whoever has it claims alone.
    claimer: tokio::sync::Mutex<Option<Session>>,
    /// The connection that says that this process lives. For nothing else that takes long: who waits for it is taken for dead.
    keeper: tokio::sync::Mutex<Option<Session>>,
    /// The connection that asks who leads, and takes over from the dead. Its own, so that somebody does, also if others have all
    /// connections.
    steward: tokio::sync::Mutex<Option<Session>>,
    /// Of the server, at the last sign of life.
    era: Era,
    watch: Watch,
    herald: Herald,
    elsewhere: Elsewhere,
    upkeep: Upkeep,
    /// This opening of the store, and no other.
    boot: Uuid,
    /// Under which key this process is known; 0 if it is not.
    owner: AtomicI64,
    registering: tokio::sync::Mutex<()>,
    /// Woken at every change of any idempotency key: waiting callers are few, and looking again is cheap.
    key_changed: tokio::sync::Notify,
    is_closed: AtomicBool,
    /// How far the database's clock is ahead of the machine's, in milliseconds.
    ahead_by: Arc<AtomicI64>,
    /// The database's clock, as far as it is known: looked at when the store is opened, and at every heartbeat. Processes that
    /// go by it mean the same by "due", whatever their machines think.
    time: Clock,
}

impl Shared {
    fn with_sink<T>(&self, work: impl FnOnce(Option<&ClaimSink>) -> T) -> T {
        work(self.sink.lock().unwrap_or_else(PoisonError::into_inner).as_ref())
    }

    fn sink(&self) -> Option<ClaimSink> {
        self.with_sink(|sink| sink.cloned())
    }

    /// As many places as there are, up to `most`, and whose they are.
    fn places(&self, most: usize) -> (Option<ClaimSink>, Vec<Slot>) {
        self.with_sink(|sink| {
            let slots = sink.map(|sink| std::iter::from_fn(|| sink.take()).take(most).collect());
            (sink.cloned(), slots.unwrap_or_default())
        })
    }

    /// Gives what was claimed to whom it was claimed for.
    fn hand_over(&self, sink: &ClaimSink, claimed: Vec<Claimed>) {
        let now = Instant::now();
        for claimed in claimed {
            sink.send(Claimed { handed_over: now, ..claimed });
        }
    }

    /// Something was stored that is due at this instant.
    fn waits(&self, at: Timestamp) {
        self.event_mark.lower(at.as_millis());
        self.delivery_mark.lower(at.as_millis());
        self.due.pull_forward(at);
    }

    /// Something is due, and nobody knows since when.
    fn is_due(&self) {
        self.due.pull_forward(Timestamp::EPOCH);
    }

    /// Something that was running waits again, perhaps since long ago, and perhaps for others.
    fn is_back(&self) {
        self.event_mark.forget();
        self.delivery_mark.forget();
        self.is_due();
        self.herald.say();
    }

    /// A connection that somebody has for itself; made if there is none.
    async fn lane_session<'a>(
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

    /// The same, with the usual patience.
    async fn own_session<'a>(&self, slot: &'a mut Option<Session>) -> Result<&'a Session, StoreError> {
        self.lane_session(slot, Instant::now() + self.options.patience).await
    }

    /// The keeper's connection. A new one may be of a server that has crashed since the last one, and has forgotten what it had
    /// not written down: until that is looked up, as after any lost connection, we may hold more than we know.
    async fn keeper_session<'a>(&self, slot: &'a mut Option<Session>) -> Result<&'a Session, StoreError> {
        if !slot.as_ref().is_some_and(Session::is_usable) {
            self.connector.has_lost.store(true, Ordering::Release);
        }
        self.own_session(slot).await
    }

    /// The error of a statement that changes something.
    fn explain(&self, error: tokio_postgres::Error) -> StoreError {
        match failure::fate(&error) {
            Fate::Lost => StoreError::Unknown { why: failure::said(&error) },
            Fate::Undone => StoreError::Busy,
            Fate::Refused => failure::explain(error),
        }
    }
}

/// Events in a PostgreSQL database, shared by as many processes as there are.
#[derive(Debug)]
pub struct PostgresStore {
    shared: Arc<Shared>,
    lanes: Lanes,
    aside: Aside,
    /// Where the store was opened: some of its callers are on threads without a runtime.
    runtime: Handle,
    /// Tasks that go on until the store is closed.
    background: Vec<AbortHandle>,
    closing: tokio::sync::Mutex<()>,
}

impl PostgresStore {
    /// Opens the store at an address such as `postgres://user:password@host:5432/database`. The schema is made if it is not
    /// there, and brought up to date. What the address says, as in `…/database?schema=billing&sslrootcert=/etc/ca.pem&poll_only=true`,
    /// goes before the options.
    pub async fn open(address: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let (config, options) = address.parse::<Address>()?.with(options);
        Self::open_with(config, options).await
    }

    /// The same with every part of the address by itself.
    pub async fn open_with(
        config: tokio_postgres::Config,
        options: PostgresOptions,
    ) -> Result<Self, StoreError> {
        let names = Arc::new(Names::new(&options.schema)?);
        let timeout = options.statement_timeout.as_millis();
        let commit =
            if options.durability == Durability::Relaxed { " -c synchronous_commit=off" } else { "" };
        let settings = format!(
            "-c statement_timeout={timeout} -c idle_in_transaction_session_timeout={timeout} -c jit=off{commit}"
        );
        let connector = Connector::new(
            config,
            Arc::clone(&names),
            options.poll_only,
            options.durability,
            settings,
            Some(options.statement_timeout + ON_THE_WAY),
            options.ca_certificate.as_deref(),
        )?;
        let connector = Arc::new(connector);
        // Who opens a store wants to know at once if there is no server.
        let session = connector.connect(Purpose::Other, Instant::now()).await?;
        checks::check(&session, options.durability).await?;
        if schema::is_unfinished(&session, &names).await? {
            return Err(StoreError::UnfinishedTransfer { schema: names.schema().to_owned() });
        }
        if !options.create {
            schema::must_exist(&session, &names).await?;
        }
        schema::migrate(&session, &names, options.patience).await?;
        let ahead_by = Arc::new(AtomicI64::new(process::ahead_by(&session).await?));
        drop(session);
        let pool = SessionPool::new(Arc::clone(&connector), options.pool, options.patience)?;
        let shared = Arc::new(Shared {
            sink: Mutex::default(),
            due: Arc::new(DueHint::new()),
            event_mark: Mark::new(options.look_again),
            delivery_mark: Mark::new(options.look_again),
            holdings: Holdings::new(),
            claimer: tokio::sync::Mutex::default(),
            keeper: tokio::sync::Mutex::default(),
            steward: tokio::sync::Mutex::default(),
            era: Era::default(),
            watch: Watch::default(),
            herald: Herald::default(),
            elsewhere: Elsewhere::default(),
            upkeep: Upkeep::default(),
            boot: Uuid::new_v4(),
            owner: AtomicI64::new(0),
            registering: tokio::sync::Mutex::default(),
            key_changed: tokio::sync::Notify::new(),
            is_closed: AtomicBool::new(false),
            time: Clock::following(Arc::clone(&ahead_by)),
            ahead_by,
            options,
            names,
            connector,
            pool,
        });
        let lanes = Lanes::start(&shared, shared.options.lanes, shared.options.queue);
        let aside = Aside::start(&shared, shared.options.queue);
        let mut background = vec![tokio::spawn(herald::run(Arc::clone(&shared))).abort_handle()];
        if !shared.options.poll_only {
            background.push(tokio::spawn(watch::run(Arc::clone(&shared))).abort_handle());
        }
        let (runtime, closing) = (Handle::current(), tokio::sync::Mutex::default());
        Ok(PostgresStore { shared, lanes, aside, runtime, background, closing })
    }

    /// Whether this process is the one that does, for all who share the database, what one must do; see
    /// [`maintain`](crate::Store::maintain).
    pub async fn leads(&self) -> Result<bool, StoreError> {
        self.read(async |session| leader::leads(&self.shared, session).await).await
    }

    /// What the leader counted last, and when: about once a minute. Cheap, where [`stats`](crate::Store::stats) looks at everything.
    pub async fn last_stats(&self) -> Result<Option<(Timestamp, Stats)>, StoreError> {
        self.read(upkeep::last_stats).await
    }

    /// Whether the store may still be used.
    fn open_shared(&self) -> Result<Arc<Shared>, StoreError> {
        let is_closed = self.shared.is_closed.load(Ordering::Acquire);
        if is_closed { Err(StoreError::Closed) } else { Ok(Arc::clone(&self.shared)) }
    }

    /// Does something that goes on to its end also if nobody waits for it any more: half of it would be worse.
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

    /// Looks at something, or does what can be done twice: again, where the connection was lost over it.
    async fn read<T>(&self, query: impl AsyncFn(&Session) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let until = Instant::now() + self.shared.options.patience;
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
        // Until it is done, or given up: a server comes back in real time, however virtual time goes meanwhile.
        let _busy = self.shared.options.clock.busy();
        let (mut wait, mut is_again, mut refusals) = (FIRST_WAIT, false, 0_u32);
        loop {
            self.open_shared()?;
            let (reply, answer) = oneshot::channel();
            self.lanes.send(Command::Settle(Settle { claimed, settlement, is_again, reply })).await?;
            match answer.await {
                Ok(Ok(finished)) => return Ok(finished),
                Ok(Err((error, back, again))) if may_be_settled_later(&error) => {
                    // That the server is away is said by whoever tries to reach it. Of the rest, once is enough.
                    if wait == FIRST_WAIT && !may_pass(&error) {
                        tracing::error!(target: "redrive::store", %error, "the end of an attempt waits to be written down");
                    }
                    is_again |= matches!(error, StoreError::Unknown { .. });
                    (claimed, settlement) = (back, again);
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                Ok(Err((error @ (StoreError::Closed | StoreError::Stopped { .. }), ..))) => {
                    return Err(error);
                }
                Ok(Err((error, back, again))) => {
                    tracing::error!(target: "redrive::store", %error, "the end of an attempt was refused");
                    claimed = back;
                    settlement = Box::new(settle::refused(*again, &error, refusals == 0));
                    refusals += 1;
                    // Somebody must change something before even that can be written down.
                    if refusals > 2 {
                        tokio::time::sleep(LONGEST_WAIT).await;
                    }
                }
                Err(_) => return Err(StoreError::Closed),
            }
        }
    }
}

/// Whether a claim that was not ended is tried again: the work was done, and a process that lives on would hold it for ever. So
/// as long as the reason may pass, also if somebody has to see to that: a table that is locked for long, a right that was taken
/// away, a password that was changed. Only what is wrong with the values stays wrong: that ends in the dead-letter queue.
fn may_be_settled_later(error: &StoreError) -> bool {
    match error {
        StoreError::Closed | StoreError::Stopped { .. } => false,
        StoreError::Server { source, .. } => source.code().is_some_and(|code| {
            // Data exceptions, and constraints.
            !code.code().starts_with("22") && !code.code().starts_with("23")
        }),
        _ => true,
    }
}

/// Whether nothing was done because of the server's state, which passes.
fn may_pass(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Unknown { .. }
            | StoreError::Unreachable { .. }
            | StoreError::Lost { .. }
            | StoreError::Busy
            | StoreError::DiskFull
            | StoreError::Exhausted
    )
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.lanes.shut();
        self.aside.shut();
        for task in &self.background {
            task.abort();
        }
    }
}
