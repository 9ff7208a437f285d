//! `redrive serve`: the engine as a service. Events in by HTTP, and everything about them out.

pub(crate) mod bucket;
mod connection;
pub(crate) mod defaults;
pub(crate) mod listen;
pub(crate) mod log;
mod open_files;
pub(crate) mod places;
pub(crate) mod secret_key;
pub(crate) mod sending;
pub(crate) mod signal;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use redrive::{
    EventBus, PostgresOptions, PostgresStore, RetryPolicy, SqliteOptions, SqliteStore, Store, Tracking,
};
use redrive_retry::idempotency::IdempotencyStore;
use redrive_retry::parse_duration;
use redrive_webhook::{EndpointBook, Webhooks};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

use self::defaults::DeliveryArgs;
use self::log::LogFormat;
use self::secret_key::SecretKeyArgs;
use self::sending::SendingArgs;
use crate::api::door::Door;
use crate::api::{self, Api, Feed, LimitArgs, Limits, Meter};
use crate::database::{self, Database, DatabaseArgs};
use crate::failure::Failure;
use crate::queues::Queues;
use crate::telemetry::{Telemetry, TelemetryArgs};
use crate::tokens::book::TokenBook;
use crate::tokens::token;

/// What has gathered for a collector is sent within this time at the end, or what is left of that for shutting down.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  redrive serve
  redrive serve --db postgres://anna@host/shop --listen 0.0.0.0:8080
  curl -X POST localhost:8080/v1/events -H 'content-type: application/json' -d '{\"type\": \"order.created\", \"payload\": {\"order\": 7}}'

While there are no tokens, whoever is on this machine may do everything, and nobody else anything. `redrive tokens create` \
makes one; as soon as there is one, every request needs one. Ends on SIGTERM and SIGINT: what was begun is finished first.";

/// Serve the HTTP API, and dispatch what is published by it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", env = "REDRIVE_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// How log lines are written, to standard error; RUST_LOG says which
    #[arg(long, value_name = "FORMAT", env = "REDRIVE_LOG_FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    /// How long what was begun may take to end when the server is stopped
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    shutdown_timeout: Duration,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    delivery: DeliveryArgs,
    #[command(flatten)]
    secret_key: SecretKeyArgs,
    #[command(flatten)]
    sending: SendingArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

impl Serve {
    pub(crate) fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
            Failure::Failed(format!("the system gives no resources to work with: {error}"))
        })?;
        let telemetry = self.telemetry.start("redrive", self.sending.authorities()?, runtime.handle())?;
        log::start(self.log_format, telemetry.as_ref().map(Telemetry::event_spans));
        open_files::raise_limit();
        runtime.block_on(self.serve(telemetry, out))
    }

    /// What cannot be said of each setting alone: whether they go together.
    pub(crate) fn check(&self) -> Result<RetryPolicy, Failure> {
        self.telemetry.headers()?;
        self.delivery
            .policy()
            .map_err(|error| Failure::Usage(format!("the retry policy cannot be used: {error}")))
    }

    async fn serve(self, telemetry: Option<Telemetry>, out: &mut impl Write) -> Result<(), Failure> {
        // First of all, so that a signal is not missed.
        let mut stop = signal::listen()?;
        let db = &self.database.db;
        let Opened { store, keys } = open(db).await?;
        let has_tokens = !store.versions(token::KIND).await?.is_empty();
        self.must_be_safe(has_tokens)?;
        let has_endpoints = !store.versions("endpoint").await?.is_empty();
        if let Some(path) = self.secret_key.missing(db).filter(|_| has_endpoints) {
            // A new one would open nothing of what is there.
            return Err(Failure::Failed(format!(
                "there is no key at {}, and endpoints are sealed by one: bring it back, or name it by --secret-key-file or \
                 REDRIVE_SECRET_KEY",
                path.display()
            )));
        }
        let (client, vault) = (self.sending.client()?, Arc::new(self.secret_key.vault(db)?));
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            Failure::Failed(format!(
                "cannot listen on {}: {error}; choose another one with --listen",
                self.listen
            ))
        })?;
        let address = listener.local_addr()?;
        let bus = EventBus::builder()
            .policy(self.check()?)
            .tracking(Tracking::PerSubscription)
            .in_flight(self.delivery.in_flight())
            .retention(self.delivery.retention())
            .shutdown_timeout(self.shutdown_timeout)
            .on(Arc::clone(&store))
            .await?;
        let book = EndpointBook::new(Arc::clone(&store), client, vault);
        let (webhooks, watching) =
            Webhooks::open(bus.clone(), book).await.map_err(|error| Failure::Failed(error.to_string()))?;
        let queues = Queues::open(bus.clone()).await.map_err(|error| Failure::Failed(error.to_string()))?;
        let recovered = bus.start().await?;
        let watching_queues = tokio::spawn(Arc::clone(&queues).watch());
        let (stopping, is_stopping) = watch::channel(false);
        let api = Arc::new(Api {
            bus: bus.clone(),
            webhooks,
            queues: Arc::clone(&queues),
            door: Arc::new(Door {
                tokens: TokenBook::new(Arc::clone(&store), self.limits.token_rate_limit),
                limits: Limits::new(&self.limits),
                meter: Meter::default(),
                request_spans: telemetry.as_ref().map(Telemetry::request_spans),
                stopping: is_stopping,
            }),
            store,
            keys,
            feed: Feed::new(),
        });
        tracing::info!(target: "redrive::serve", %address, database = %db, recovered, "serving");
        self.telemetry.say_misunderstanding();
        if !has_tokens {
            tracing::warn!(
                target: "redrive::serve",
                "there are no tokens: whoever is on this machine may do everything; `redrive tokens create` makes one"
            );
        }
        writeln!(out, "redrive listens on http://{address} (database {db})")?;
        out.flush()?;
        let looking = Arc::clone(&api);
        tokio::spawn(async move {
            looking.feed.run(Arc::clone(&looking.store), looking.door.stopping.clone()).await;
        });
        let connections = Arc::clone(&api.door.limits.connections);
        let router = api::router(Arc::clone(&api));
        let server = listen::Server::new(listener, router, &self.limits, connections);
        let telemetry = telemetry.map(Arc::new);
        let measuring =
            telemetry.as_ref().map(|telemetry| tokio::spawn(Arc::clone(telemetry).measure(Arc::clone(&api))));
        server.run(stop.recv()).await;
        let until = Instant::now() + self.shutdown_timeout;
        tracing::info!(target: "redrive::serve", "shutting down; a second signal ends it at once");
        stopping.send_replace(true);
        // What is published by requests that are under way is stored. Who delivers it has all its time, and not what is left here.
        bus.dispatcher().pause();
        tokio::select! {
            () = server.finish(until) => {}
            () = stop.recv() => return Err(Failure::Failed("ended at once by a second signal".to_owned())),
        }
        drop(watching);
        watching_queues.abort();
        queues.close(); // nobody can say any more how it went
        tokio::select! {
            closed = bus.shutdown_within(until.saturating_duration_since(Instant::now())) => closed?,
            () = stop.recv() => return Err(Failure::Failed("ended at once by a second signal".to_owned())),
        }
        if let Some((telemetry, measuring)) = telemetry.zip(measuring) {
            measuring.abort();
            let within = until.saturating_duration_since(Instant::now()).min(LAST_WORDS);
            tokio::select! {
                () = telemetry.finish(api.as_ref(), within) => {}
                () = stop.recv() => return Err(Failure::Failed("ended at once by a second signal".to_owned())),
            }
        }
        tracing::info!(target: "redrive::serve", "ended");
        Ok(())
    }

    /// Who can be reached by others asks for tokens.
    fn must_be_safe(&self, has_tokens: bool) -> Result<(), Failure> {
        if has_tokens || self.listen.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "{} can be reached from other machines, and there is no token on record: make one with `redrive tokens create \
             --name admin --scope admin{}`, or listen on 127.0.0.1",
            self.listen,
            self.database.db.flag()
        )))
    }
}

/// One database, for events and for idempotency keys.
struct Opened {
    store: Arc<dyn Store>,
    keys: Arc<dyn IdempotencyStore>,
}

/// Opens the database to dispatch from it.
async fn open(db: &Database) -> Result<Opened, Failure> {
    if let Some(address) = db.address() {
        database::known(address)?;
        let store = Arc::new(PostgresStore::open(address, PostgresOptions::default()).await?);
        return Ok(Opened { store: Arc::clone(&store) as _, keys: store });
    }
    let path = db.path().map(std::path::Path::to_owned).unwrap_or_default();
    // Opening reads and may migrate the file: not on an async thread.
    let opened = tokio::task::spawn_blocking(move || SqliteStore::open(path, SqliteOptions::default())).await;
    let store = Arc::new(opened.expect("opening a store does not panic")?);
    Ok(Opened { store: Arc::clone(&store) as _, keys: store })
}
