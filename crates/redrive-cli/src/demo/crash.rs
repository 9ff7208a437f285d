//! Demo in two processes: a worker that is killed repeatedly, and a supervisor that restarts it and counts the outcomes.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::EventBus;

use super::acknowledged::{self, Acknowledged};
use super::progress::Progress;
use super::publisher::{Plan, publish};
use super::report::Report;
use super::shop::{Shop, policy};
use super::{Demo, demo_error, drain, interrupted};
use crate::database::open_file;
use crate::failure::Failure;

const MIN_KILLS: u64 = 3;
/// High enough that each kill hits work in flight.
const EVENTS_PER_SECOND: f64 = 3000.0;
/// Lifetime of a worker after its first acknowledgement.
const LIFETIME_MS: std::ops::Range<u64> = 60..500;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Opens the bus with more attempts than by default, because every kill charges one, and with shorter delays.
async fn open(shop: &Arc<Shop>, path: &Path) -> Result<EventBus, Failure> {
    let builder = EventBus::builder().policy(policy(12, Duration::from_millis(200))?);
    shop.open(builder, path, Duration::from_millis(200)).await
}

/// Worker process: publishes and handles until it is killed.
pub(super) async fn work(demo: &Demo, path: &Path, acknowledged: &Path) -> Result<(), Failure> {
    let shop = Shop::new(demo.seed, None);
    let bus = open(&shop, path).await?;
    bus.start().await?;
    let so_far = acknowledged::count(acknowledged);
    let left = demo.events.map_or(u64::MAX, |events| events.saturating_sub(so_far));
    // Also ends without its supervisor.
    let until = Instant::now() + demo.time();
    let plan = Plan { first: so_far + 1, events: left, rate: EVENTS_PER_SECOND, until };
    let noted = Arc::new(Acknowledged::open(acknowledged)?);
    publish(&bus, &shop, &noted, plan).await?;
    tokio::time::sleep_until(until.into()).await;
    Ok(())
}

/// Starts and kills workers, then handles the remaining events and counts the outcomes.
pub(super) async fn run(
    demo: &Demo,
    path: &Path,
    folder: &Path,
    progress: &Progress,
) -> Result<Report, Failure> {
    let began = Instant::now();
    let oracle = folder.join("acknowledged");
    let mut kills = 0;
    tokio::select! {
        killed = kill_repeatedly(demo, path, &oracle, progress, &mut kills) => killed?,
        () = interrupted() => {}
    }
    let acknowledged = acknowledged::read(&oracle)?;
    let shop = Shop::new(demo.seed, None);
    let bus = open(&shop, path).await?;
    bus.start().await?;
    tokio::select! {
        drained = drain(&bus) => drained?,
        () = interrupted() => {}
    }
    let elapsed = began.elapsed();
    let report = Report::of(&bus, &acknowledged, elapsed, demo.seed).await?;
    bus.shutdown().await?;
    drop(bus);
    let damage = open_file(path)?.check(1).await?.into_iter().next();
    Ok(Report { kills: Some(kills), damage, ..report })
}

async fn kill_repeatedly(
    demo: &Demo,
    path: &Path,
    oracle: &Path,
    progress: &Progress,
    kills: &mut u64,
) -> Result<(), Failure> {
    let until = Instant::now() + demo.publishing_time();
    let mut random = demo.seed;
    while Instant::now() < until || *kills < MIN_KILLS {
        let before = acknowledged::count(oracle);
        let is_complete = demo.events.is_some_and(|events| before >= events);
        if is_complete && *kills >= MIN_KILLS {
            break;
        }
        let mut worker = Worker::start(demo, path, oracle)?;
        // Kill a worker only after it has acknowledged an event, unless all are published.
        while !is_complete && acknowledged::count(oracle) == before {
            worker.check_alive()?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let lifetime = LIFETIME_MS.start + (random >> 33) % (LIFETIME_MS.end - LIFETIME_MS.start);
        let end = Instant::now() + Duration::from_millis(lifetime);
        while Instant::now() < end {
            progress.killed(*kills, acknowledged::count(oracle));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        worker.check_alive()?;
        worker.kill()?;
        *kills += 1;
        progress.killed(*kills, acknowledged::count(oracle));
    }
    Ok(())
}

/// Worker process; killed on drop.
#[derive(Debug)]
struct Worker {
    child: Child,
}

impl Worker {
    fn start(demo: &Demo, path: &Path, oracle: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe().map_err(demo_error)?);
        command.arg("demo").arg("--db").arg(path).arg("--worker").arg(oracle);
        command.args(["--seed", &demo.seed.to_string(), "--seconds", &demo.seconds.to_string()]);
        if let Some(events) = demo.events {
            command.args(["--events", &events.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Worker { child: command.spawn().map_err(demo_error)? })
    }

    /// Fails with the worker's stderr if it has ended by itself.
    fn check_alive(&mut self) -> Result<(), Failure> {
        if self.child.try_wait().map_err(demo_error)?.is_none() {
            return Ok(());
        }
        let mut output = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.take(4096).read_to_string(&mut output); // best effort
        }
        Err(demo_error(format!("the worker ended before it was killed: {}", output.trim())))
    }

    /// Sends SIGKILL and waits for the end of the process.
    fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill().and_then(|()| self.child.wait()).map(|_| ()).map_err(demo_error)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.kill(); // may have ended already
    }
}
