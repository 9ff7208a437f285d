//! `redrive scheduler`: the retry scheduler as a service, and what waits for a person.

pub(crate) mod args;
mod measures;
pub(crate) mod queue_policy;
mod review;
mod service;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use redrive_scheduler::{Scheduler as Engine, SchedulerError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use self::args::SchedulerArgs;
use self::review::ReviewCommand;
use self::service::Service;
use crate::api::door::Door;
use crate::api::{Limits, Meter};
use crate::database;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::serve::{LAST_WORDS, listen, log, signal};
use crate::telemetry::Telemetry;
use crate::tokens::book::TokenBook;
use crate::tokens::token;

const EXAMPLES: &str = "\
Examples:
  redrive scheduler                               RabbitMQ on this machine, tasks in redrive.db
  RABBITMQ_URL=amqp://anna:secret@host DATABASE_URL=postgres://anna:secret@host/shop redrive scheduler
  NATS_URL=nats://anna:secret@host redrive scheduler
  redrive scheduler --queue orders=base_delay:5s,max_retries:8
  redrive scheduler review list                   what waits for a person

Takes failed messages from the queue retry.scheduled, keeps them, and publishes each to its original queue when its backoff has \
passed; what was retried as often as it may be goes to manual-review.pending. The database is --db, DATABASE_URL, REDRIVE_DB, or \
redrive.db in this folder. Ends on SIGTERM and SIGINT: what was begun is finished first.";

/// Bring failed broker messages back when their backoff has passed, or to a person
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = false)]
pub(crate) struct Scheduler {
    #[command(subcommand)]
    command: Option<SchedulerCommand>,
    #[command(flatten)]
    args: SchedulerArgs,
}

#[derive(Debug, Subcommand)]
enum SchedulerCommand {
    Review(ReviewCommand),
}

impl Scheduler {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        if let Some(SchedulerCommand::Review(review)) = self.command {
            return review.run(&self.args.database.db, out, screen);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
            Failure::Failed(format!("the system gives no resources to work with: {error}"))
        })?;
        let args = self.args;
        let telemetry = args.telemetry.start(args.service_name(), Vec::new(), runtime.handle())?;
        log::start(args.log_format, telemetry.as_ref().map(Telemetry::event_spans));
        runtime.block_on(serve(args, telemetry, out))
    }
}

async fn serve(
    args: SchedulerArgs,
    telemetry: Option<Telemetry>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    // First of all, so that a signal is not missed.
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
            database::known(address)?;
            PathBuf::from(address)
        }
        None => db.path().map(PathBuf::from).unwrap_or_default(),
    };
    let settings = args.settings();
    let transport = args.connect(&settings)?;
    let engine = Engine::start(settings, location, transport).await.map_err(failed)?;
    let store = Arc::clone(engine.bus().store());
    let has_tokens = !store.versions(token::KIND).await?.is_empty();
    let (stopping, is_stopping) = watch::channel(false);
    let service = Arc::new(Service {
        scheduler: engine,
        door: Arc::new(Door {
            tokens: TokenBook::new(store, args.limits.token_rate_limit),
            limits: Limits::new(&args.limits),
            meter: Meter::default(),
            request_spans: telemetry.as_ref().map(Telemetry::request_spans),
            stopping: is_stopping,
        }),
    });
    let name = args.service_name();
    tracing::info!(target: "redrive::scheduler", service = name, %address, database = %db, broker, "scheduling");
    args.telemetry.say_misunderstanding();
    if !has_tokens && !args.listen().ip().to_canonical().is_loopback() {
        tracing::warn!(
            target: "redrive::scheduler",
            "there are no tokens: what is in review can be seen and decided by HTTP from this machine only; `redrive tokens create \
             --name admin --scope admin{}` makes one",
            db.flag()
        );
    }
    writeln!(out, "{name} listens on http://{address} (database {db}, broker {broker})")?;
    out.flush()?;
    let connections = Arc::clone(&service.door.limits.connections);
    let router = service::router(Arc::clone(&service));
    let server = listen::Server::new(listener, router, &args.limits, connections);
    let telemetry = telemetry.map(Arc::new);
    let measuring =
        telemetry.as_ref().map(|telemetry| tokio::spawn(Arc::clone(telemetry).measure(Arc::clone(&service))));
    server.run(stop.recv()).await;
    let until = Instant::now() + args.shutdown_timeout;
    tracing::info!(target: "redrive::scheduler", "shutting down; a second signal ends it at once");
    stopping.send_replace(true);
    let ending = async {
        // Requests first: who has decided something hears that it is stored.
        server.finish(until).await;
        let left = until.saturating_duration_since(Instant::now());
        service.scheduler.shutdown_within(left).await.map_err(failed)?;
        if let Some((telemetry, measuring)) = telemetry.zip(measuring) {
            measuring.abort();
            let within = until.saturating_duration_since(Instant::now()).min(LAST_WORDS);
            telemetry.finish(service.as_ref(), within).await;
        }
        Ok::<_, Failure>(())
    };
    tokio::select! {
        ended = ending => ended?,
        () = stop.recv() => return Err(Failure::Failed("ended at once by a second signal".to_owned())),
    }
    tracing::info!(target: "redrive::scheduler", "ended");
    Ok(())
}

fn failed(error: SchedulerError) -> Failure {
    match error {
        SchedulerError::Bus(error) => error.into(),
        SchedulerError::Store(error) => error.into(),
        error => Failure::Failed(error.to_string()),
    }
}
