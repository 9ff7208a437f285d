//! `redrive serve`: runs the HTTP API, the dispatcher and webhook delivery in one process.

pub(crate) mod await_database;
mod connection;
pub(crate) mod defaults;
pub(crate) mod listen;
pub(crate) mod log;
pub mod secret_key;
pub mod sending;
pub(crate) mod signal;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use redrive::retry::RetryPolicy;
use redrive::store::Store;
use redrive::{EventBus, Tracking};
use redrive_retry::duration::parse_duration;
use redrive_webhook::{EndpointStore, Vault};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::Instant;

use self::await_database::await_database;
use self::defaults::DeliveryArgs;
use self::log::{LogFormat, LogRetries};
use self::secret_key::SecretKeyArgs;
use self::sending::SendingArgs;
use crate::api::http_context::HttpContext;
use crate::api::peer::OWN_USERS;
use crate::api::{self, Api, LimitArgs};
use crate::database::{DatabaseArgs, Opened};
use crate::failure::Failure;
use crate::open_files;
use crate::telemetry::{Telemetry, TelemetryArgs};
use crate::tokens::token;

const EXAMPLES: &str = "\
Examples:
  redrive serve
  redrive serve --db postgres://anna@host/shop --listen 0.0.0.0:8080
  curl -X POST localhost:8080/v1/events -H 'content-type: application/json' -d '{\"type\": \"order.created\", \"payload\": {\"order\": 7}}'

Without tokens, local clients of the server's own user and of root have full access, and everybody else has none. As soon as \
`redrive tokens create` has created a token, every request needs one. SIGTERM and SIGINT stop the server after it has finished the work in flight.";

/// Serve the HTTP API and deliver the published events
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", env = "REDRIVE_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Format of the log lines on standard error; RUST_LOG selects them
    #[arg(long, value_name = "FORMAT", env = "REDRIVE_LOG_FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Log failed attempts one by one, or as one line per endpoint and minute
    #[arg(long, value_name = "MODE", value_enum, default_value = "each")]
    log_retries: LogRetries,
    /// Maximum time to finish work in flight when the server is stopped
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
    /// Runs the server until SIGTERM or SIGINT.
    pub fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let runtime = runtime()?;
        let telemetry = self.telemetry.start("redrive", self.sending.authorities()?, runtime.handle())?;
        let _log =
            log::start(self.log_format, self.log_retries, telemetry.as_ref().map(Telemetry::event_spans));
        open_files::raise_limit();
        runtime.block_on(self.serve(telemetry, out))
    }

    /// Validates the settings together; returns the retry policy.
    pub fn check(&self) -> Result<RetryPolicy, Failure> {
        self.telemetry.headers()?;
        self.delivery
            .policy()
            .map_err(|error| Failure::Usage(format!("the retry policy cannot be used: {error}")))
    }

    async fn serve(self, telemetry: Option<Telemetry>, out: &mut impl Write) -> Result<(), Failure> {
        // First, so that no signal is missed.
        let mut stop = signal::listen()?;
        let db = &self.database.db;
        let opened = await_database(db, &mut stop, async || db.open_as_dispatcher().await).await?;
        let Some(Opened { store, idempotency }) = opened else { return Ok(()) };
        let has_tokens = !store.versions(token::KIND).await?.is_empty();
        self.require_token_beyond_loopback(has_tokens)?;
        let (client, vault) = (self.sending.client()?, self.vault(&store).await?);
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            Failure::Failed(format!(
                "cannot listen on {}: {error}; choose another one with --listen",
                self.listen
            ))
        })?;
        let address = listener.local_addr()?;
        let bus = self.open_bus(&store).await?;
        let endpoints = EndpointStore::new(Arc::clone(&store), client, vault);
        let (stopping, is_stopping) = watch::channel(false);
        let http = HttpContext::new(store, &self.limits, telemetry.as_ref(), is_stopping);
        let (api, webhook_tasks) = Api::open(bus.clone(), idempotency, endpoints, http, true).await?;
        let started = await_database(db, &mut stop, async || Ok(bus.start().await?)).await?;
        let Some(recovered) = started else { return Ok(()) };
        let watching_subscriptions = tokio::spawn(Arc::clone(&api.pull_subscriptions).watch());
        tracing::info!(target: "redrive::serve", %address, database = %db, recovered, "serving");
        self.telemetry.warn_unsupported_protocol();
        if !has_tokens {
            tracing::warn!(
                target: "redrive::serve",
                "there are no tokens: local clients of {OWN_USERS} have full access; create one with `redrive tokens create`, and do so \
                 before a proxy forwards requests to this server"
            );
        }
        writeln!(out, "redrive listens on http://{address} (database {db})")?;
        out.flush()?;
        let connections = Arc::clone(&api.http.limits.connections);
        let router = api::router(Arc::clone(&api));
        let server = listen::Server::new(listener, router, &self.limits, connections);
        let metrics = telemetry.map(|telemetry| telemetry.export_metrics(Arc::clone(&api)));
        server.run(stop.recv()).await;
        let deadline = Instant::now() + self.shutdown_timeout;
        tracing::info!(target: "redrive::serve", "shutting down; a second signal stops at once");
        stopping.send_replace(true);
        // Requests in flight may still publish: their events are stored, and delivered after the next start.
        bus.dispatcher().pause();
        let shutdown = async {
            server.finish(deadline).await;
            drop(webhook_tasks);
            watching_subscriptions.abort();
            api.pull_subscriptions.close(); // ends waiting pulls; leases stay valid on disk
            bus.shutdown_within(deadline.saturating_duration_since(Instant::now())).await?;
            if let Some(metrics) = metrics {
                metrics.finish(deadline).await;
            }
            Ok(())
        };
        stop.or_interrupt(shutdown).await?;
        tracing::info!(target: "redrive::serve", "stopped");
        Ok(())
    }

    /// Refuses to listen beyond this machine without tokens.
    fn require_token_beyond_loopback(&self, has_tokens: bool) -> Result<(), Failure> {
        if has_tokens || self.listen.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "{} can be reached from other machines, and there are no tokens: create one with `redrive tokens create \
             --name admin --scope admin{}`, or listen on 127.0.0.1",
            self.listen,
            self.database.db.flag()
        )))
    }

    /// Opens the vault. A new key is created only for a database without endpoints, whose secrets it could not decrypt.
    async fn vault(&self, store: &Arc<dyn Store>) -> Result<Arc<Vault>, Failure> {
        let db = &self.database.db;
        let has_endpoints = !store.versions("endpoint").await?.is_empty();
        if let Some(path) = self.secret_key.missing(db).filter(|_| has_endpoints) {
            return Err(Failure::Failed(format!(
                "there is no key at {}, and the endpoint secrets are encrypted with one: restore it, or name it with \
                 --secret-key-file or REDRIVE_SECRET_KEY",
                path.display()
            )));
        }
        Ok(Arc::new(self.secret_key.vault(db)?))
    }

    async fn open_bus(&self, store: &Arc<dyn Store>) -> Result<EventBus, Failure> {
        let builder = EventBus::builder()
            .policy(self.check()?)
            .tracking(Tracking::PerSubscription)
            .in_flight(self.delivery.in_flight as usize)
            .retention(self.delivery.retention.0)
            .shutdown_timeout(self.shutdown_timeout);
        Ok(builder.on(Arc::clone(store)).await?)
    }
}

/// Starts the async runtime of a service.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start the async runtime: {error}")))
}
