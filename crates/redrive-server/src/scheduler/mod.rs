//! `redrive scheduler`: runs the retry scheduler with its HTTP API.

pub(crate) mod args;
mod delay;
mod metrics;
pub(crate) mod queue_policy;
mod service;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use redrive_scheduler::{Scheduler as Engine, SchedulerError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::args::SchedulerArgs;
use self::service::Service;
use crate::api::http_context::HttpContext;
use crate::api::peer::OWN_USERS;
use crate::database;
use crate::failure::Failure;
use crate::open_files;
use crate::serve::await_database::await_database;
use crate::serve::{listen, log, runtime, signal};
use crate::telemetry::Telemetry;
use crate::tokens::token;

/// Runs the retry scheduler until SIGTERM or SIGINT.
pub fn run(args: SchedulerArgs, out: &mut impl Write) -> Result<(), Failure> {
    let runtime = runtime()?;
    let telemetry = args.telemetry.start(&args.service_name, Vec::new(), runtime.handle())?;
    let _log = log::start(args.log_format, args.log_retries, telemetry.as_ref().map(Telemetry::event_spans));
    open_files::raise_limit();
    runtime.block_on(serve(args, telemetry, out))
}

async fn serve(
    args: SchedulerArgs,
    telemetry: Option<Telemetry>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    // First, so that no signal is missed.
    let mut stop = signal::listen()?;
    let (db, broker) = (&args.database.db, args.check()?);
    let listener = TcpListener::bind(args.listen()).await.map_err(|error| {
        Failure::Failed(format!(
            "cannot listen on {}: {error}; choose another port with --http-port or HTTP_PORT",
            args.listen()
        ))
    })?;
    let address = listener.local_addr()?;
    let location = match db.address() {
        Some(address) => {
            database::check_scheme(address)?;
            PathBuf::from(address)
        }
        None => db.path().map(PathBuf::from).unwrap_or_default(),
    };
    let settings = args.settings();
    let transport = args.connect(&settings)?;
    let start = async || {
        let started = Engine::start(settings.clone(), &location, Arc::clone(&transport)).await;
        started.map_err(failed)
    };
    let Some(engine) = await_database(db, &mut stop, start).await? else { return Ok(()) };
    let store = Arc::clone(engine.bus().store());
    let has_tokens = !store.versions(token::KIND).await?.is_empty();
    let (stopping, is_stopping) = watch::channel(false);
    let service = Arc::new(Service {
        scheduler: engine,
        http: HttpContext::new(store, &args.limits, telemetry.as_ref(), is_stopping),
    });
    let name = &args.service_name;
    tracing::info!(target: "redrive::scheduler", service = name, %address, database = %db, broker, "scheduling");
    args.telemetry.warn_unsupported_protocol();
    if !has_tokens && !args.listen().ip().to_canonical().is_loopback() {
        tracing::warn!(
            target: "redrive::scheduler",
            "there are no tokens: only local clients of {OWN_USERS} can list and decide reviews by HTTP; create one with `redrive tokens create \
             --name admin --scope admin{}`",
            db.flag()
        );
    }
    writeln!(out, "{name} listens on http://{address} (database {db}, broker {broker})")?;
    out.flush()?;
    let connections = Arc::clone(&service.http.limits.connections);
    let router = service::router(Arc::clone(&service));
    let server = listen::Server::new(listener, router, &args.limits, connections);
    let metrics = telemetry.map(|telemetry| telemetry.export_metrics(Arc::clone(&service)));
    server.run(stop.recv()).await;
    let deadline = Instant::now() + args.shutdown_timeout;
    tracing::info!(target: "redrive::scheduler", "shutting down; a second signal stops at once");
    stopping.send_replace(true);
    let shutdown = async {
        // Requests first: each review decision is answered after it is stored.
        server.finish(deadline).await;
        let remaining = deadline.saturating_duration_since(Instant::now());
        service.scheduler.shutdown_within(remaining).await.map_err(failed)?;
        if let Some(metrics) = metrics {
            metrics.finish(deadline).await;
        }
        Ok(())
    };
    stop.or_interrupt(shutdown).await?;
    tracing::info!(target: "redrive::scheduler", "stopped");
    Ok(())
}

fn failed(error: SchedulerError) -> Failure {
    match error {
        SchedulerError::Bus(error) => error.into(),
        SchedulerError::Store(error) => error.into(),
        error => Failure::failed(error),
    }
}
