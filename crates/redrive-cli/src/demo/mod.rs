//! `redrive demo`: runs a shop with failing subscriptions and proves that no event was lost.

mod acknowledged;
mod census;
mod crash;
mod progress;
mod publisher;
mod report;
mod shop;
mod steady;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use redrive::EventBus;

use self::progress::Progress;
use self::report::Report;
use crate::api::write_json;
use crate::database::Database;
use crate::failure::Failure;
use crate::screen::Screen;

/// Share of the time in which events are published; the rest is for handling.
const PUBLISHING_SHARE: f64 = 0.8;
/// Maximum time to handle the remaining events.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  redrive demo
  redrive demo --crash                      with repeated kill -9
  redrive demo --seconds 5 --db shop.db     keep the database file
  redrive demo --json | jq .lost

Five subscriptions handle the events of a shop. One is flaky, one is slow, one is down for a while so that its circuit \
opens, and one event is poison. With --crash the shop runs in its own process, which is killed with SIGKILL several times. \
At the end the demo looks up every acknowledged event in the file: it is done, in the dead-letter queue, or lost. Exit code \
1 if an event is lost or not handled.";

/// Run a shop with failing subscriptions and prove that no event is lost
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Approximate duration in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Number of events to publish; by default as many as the time allows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    events: Option<u64>,
    /// New database file to keep; by default a temporary one
    #[arg(long, value_name = "PATH")]
    db: Option<Database>,
    /// Kill the worker process with SIGKILL several times
    #[arg(long)]
    crash: bool,
    /// Seed of all simulated failures
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Run as the worker process, and record acknowledged ids in this file
    #[arg(long, hide = true, requires = "db")]
    worker: Option<PathBuf>,
}

const FILE_ONLY: &str = "the demo needs its own file; give a path";

impl Demo {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(demo_error)?;
        if let (Some(acknowledged), Some(db)) = (&self.worker, &self.db) {
            return runtime.block_on(crash::work(&self, db.file(FILE_ONLY)?, acknowledged));
        }
        // Removed on drop.
        let folder = tempfile::Builder::new().prefix("redrive-demo-").tempdir().map_err(demo_error)?;
        let path = match &self.db {
            // The demo's handlers must never run on the events of an existing database.
            Some(db) => match db.file(FILE_ONLY)? {
                path if path.exists() => {
                    return Err(Failure::Failed(format!(
                        "{db} exists: the demo needs its own file; choose a new name"
                    )));
                }
                path => path.to_owned(),
            },
            None => folder.path().join("shop.db"),
        };
        if !self.json {
            writeln!(out, "{}\n", screen.wrap(&self.headline()))?;
            out.flush()?;
        }
        let progress = Progress::new(self.time(), !self.json && io::stderr().is_terminal());
        let report = runtime.block_on(async {
            if self.crash {
                crash::run(&self, &path, folder.path(), &progress).await
            } else {
                steady::run(&self, &path, folder.path(), &progress).await
            }
        });
        progress.finish();
        self.print(&report?, out, screen)
    }

    fn print(&self, report: &Report, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        if self.json {
            write_json(out, report)?;
        } else {
            report.print(self.db.as_ref(), out, screen)?;
        }
        report.verdict()
    }

    fn headline(&self) -> String {
        let what = if self.crash {
            "and its process is killed with SIGKILL repeatedly"
        } else {
            "one goes down for a while, and one event is poison"
        };
        format!("A shop, for about {}s: one subscription is flaky, one is slow, {what}.", self.seconds)
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    fn publishing_time(&self) -> Duration {
        self.time().mul_f64(PUBLISHING_SHARE)
    }
}

/// Waits until every event is handled, at most [`DRAIN_TIMEOUT`]; the report counts the rest.
async fn drain(bus: &EventBus) -> Result<(), Failure> {
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    loop {
        let stats = bus.store().stats().await?;
        if stats.pending + stats.processing == 0 || Instant::now() > deadline {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Resolves at Ctrl-C, which ends the demo early with a report.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn demo_error(error: impl Display) -> Failure {
    Failure::Failed(format!("the demo failed: {error}"))
}
