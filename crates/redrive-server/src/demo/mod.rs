//! `redrive demo`: a shop whose parts fail in every usual way, and the proof that nothing was lost.

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
use crate::database::Database;
use crate::failure::Failure;
use crate::screen::Screen;

/// The share of the time in which events are published; in the rest, what is left is handled.
const PUBLISHING: f64 = 0.8;
/// How long what is left may take before the demo says so and gives up.
const PATIENCE: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  redrive demo
  redrive demo --crash                      kill -9, again and again
  redrive demo --seconds 5 --db shop.db     keep the file to look around in it
  redrive demo --json | jq .lost

Five subscriptions share the events of a shop. One is flaky, one is slow, one is down for a while so that its circuit \
opens, and one event is poison. With --crash the shop runs in a process of its own, which is killed with SIGKILL several \
times. At the end every event that was acknowledged to its publisher is looked up in the file: it is done, or in the \
dead-letter queue, or lost. Exit code 1 if anything is lost or left.";

/// Run a shop whose parts fail, and prove that no event is lost
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// How long it takes, about
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// How many events are published; by default as many as the time allows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    events: Option<u64>,
    /// A new file that stays; by default a temporary one
    #[arg(long, value_name = "PATH")]
    db: Option<Database>,
    /// Kill the worker process with SIGKILL several times on the way
    #[arg(long)]
    crash: bool,
    /// What the misfortunes are computed from
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The process that is killed: where it notes what was acknowledged
    #[arg(long, hide = true, requires = "db")]
    worker: Option<PathBuf>,
}

/// What to do instead.
const FILE_ONLY: &str = "the demo wants a file of its own; give a path";

impl Demo {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(demo_error)?;
        if let (Some(acknowledged), Some(db)) = (&self.worker, &self.db) {
            return runtime.block_on(crash::work(&self, db.file(FILE_ONLY)?, acknowledged));
        }
        // Held to the end; then it is gone, with everything in it.
        let folder = tempfile::Builder::new().prefix("redrive-demo-").tempdir().map_err(demo_error)?;
        let path = match &self.db {
            // Handlers of a demo must never get hold of somebody's own events.
            Some(db) => match db.file(FILE_ONLY)? {
                path if path.exists() => {
                    return Err(Failure::Failed(format!(
                        "{db} exists: the demo wants a file of its own; choose a new name"
                    )));
                }
                path => path.to_owned(),
            },
            None => folder.path().join("shop.db"),
        };
        if !self.json {
            writeln!(out, "{}\n", screen.wrap(&self.intention()))?;
            out.flush()?;
        }
        let progress = Progress::new(self.time(), !self.json && io::stderr().is_terminal());
        let report = runtime.block_on(async {
            if self.crash {
                crash::run(&self, &path, folder.path(), &progress).await
            } else {
                steady::run(&self, &path, &progress).await
            }
        });
        progress.finish();
        self.print(&report?, out, screen)
    }

    fn print(&self, report: &Report, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        if self.json {
            serde_json::to_writer(&mut *out, report)?;
            writeln!(out)?;
        } else {
            report.print(self.db.as_ref(), out, screen)?;
        }
        report.verdict()
    }

    fn intention(&self) -> String {
        let what = if self.crash {
            "and its process is killed with SIGKILL again and again"
        } else {
            "one goes down for a while, and one event is poison"
        };
        format!("A shop, for about {}s: one subscription is flaky, one is slow, {what}.", self.seconds)
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    fn publishing_time(&self) -> Duration {
        self.time().mul_f64(PUBLISHING)
    }
}

/// Waits until nothing is left to be handled, or until patience ends; what is left is counted afterwards.
async fn drain(bus: &EventBus) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = bus.store().stats().await?;
        if stats.pending + stats.processing == 0 || Instant::now() > deadline {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whoever has seen enough presses Ctrl-C, and gets the table of what was so far.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn demo_error(error: impl Display) -> Failure {
    Failure::Failed(format!("the demo cannot go on: {error}"))
}
