//! Runs the scheduler as a process that is killed and started again.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

use clap::Args;
use redrive_scheduler::{Rabbit, RabbitSettings, Scheduler, Settings, Transport};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use super::step::{Dying, Step};
use crate::process::this_program;

/// Exit code of a scheduler whose harness is gone.
const HARNESS_GONE: i32 = 72;

/// Line that a working scheduler prints.
const BEGUN: &str = "begun";

/// Arguments of the process.
#[derive(Clone, Debug, Args)]
pub struct SchedulerArgs {
    /// The database
    #[arg(long)]
    pub db: String,
    /// The broker
    #[arg(long)]
    pub rabbit: String,
    /// Queue that failed messages come from
    #[arg(long)]
    pub retry_queue: String,
    /// Queue for messages in manual review
    #[arg(long)]
    pub review_queue: String,
    /// After which step it dies, if it does
    #[arg(long)]
    pub die_after: Option<Step>,
    /// At which occurrence of that step
    #[arg(long, default_value_t = 1)]
    pub times: i64,
}

/// Short delays, as a run is short.
fn settings(args: &SchedulerArgs) -> Settings {
    Settings {
        retry_queue: args.retry_queue.clone(),
        review_queue: args.review_queue.clone(),
        base_delay: Duration::from_millis(50),
        max_delay: Duration::from_millis(200),
        jitter: Duration::from_millis(50),
        poll_interval: Duration::from_secs(1),
        unroutable_attempts: 3,
        republish_delay: Duration::from_millis(50),
        shutdown_timeout: Duration::from_secs(10),
        ..Settings::default()
    }
}

/// Schedules until it is asked to end, or dies.
pub async fn run(args: &SchedulerArgs) -> Result<(), String> {
    // The harness holds the other end of this pipe; the process ends with the harness.
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(HARNESS_GONE);
    });
    let settings = settings(args);
    let rabbit = RabbitSettings::new(&args.rabbit, &settings);
    let rabbit: Arc<dyn Transport> = Arc::new(Rabbit::connect(rabbit).map_err(|error| error.to_string())?);
    let transport: Arc<dyn Transport> = match args.die_after {
        Some(at) => Arc::new(Dying { inner: rabbit, at, left: AtomicI64::new(args.times) }),
        None => rabbit,
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let scheduler =
        Scheduler::start(settings, &args.db, transport).await.map_err(|error| error.to_string())?;
    let _ = writeln!(io::stdout(), "{BEGUN}"); // the harness may be gone
    terminate.recv().await;
    scheduler.shutdown().await.map_err(|error| error.to_string())
}

/// A scheduler process. Killed when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
}

impl Process {
    pub(super) fn start(args: &SchedulerArgs, said: &Path) -> io::Result<Self> {
        let mut command = Command::new(this_program()?);
        command.arg("scheduler").args(["--db", &args.db, "--rabbit", &args.rabbit]);
        command.args(["--retry-queue", &args.retry_queue, "--review-queue", &args.review_queue]);
        if let Some(step) = args.die_after {
            command.args(["--die-after", step.name(), "--times", &args.times.to_string()]);
        }
        let said = std::fs::OpenOptions::new().create(true).append(true).open(said)?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said).spawn()?;
        Ok(Process { child })
    }

    /// Waits until it works, or fails if it has ended.
    pub(super) fn begun(&mut self) -> io::Result<()> {
        let Some(stdout) = self.child.stdout.take() else { return Ok(()) };
        BufReader::new(stdout).read_line(&mut String::new()).map(drop)
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(process.ok_or(io::ErrorKind::NotFound)?, signal)?)
    }

    pub(super) fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// Exit status, if it has ended.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for its end, up to the timeout.
    pub(super) async fn end(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + timeout;
        while Instant::now() < until {
            if let Some(status) = self.ended()? {
                return Ok(Some(status));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(None)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill(); // dead already, or dead now
    }
}
