//! The demo in two processes: one works and is killed, the other starts it again and counts in the end.

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

/// Fewer kills than this would not be worth the name.
const LEAST_KILLS: u64 = 3;
/// Events in a second while the worker lives: each kill is to find something under way.
const RATE: f64 = 3000.0;
/// How long a worker lives after its first acknowledgement.
const LIFE_MS: std::ops::Range<u64> = 60..500;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// More attempts than usual, because every kill charges one to whatever was running; and shorter waits.
async fn open(shop: &Arc<Shop>, path: &Path) -> Result<EventBus, Failure> {
    let builder = EventBus::builder().policy(policy(12, Duration::from_millis(200))?);
    shop.open(builder, path, Duration::from_millis(200)).await
}

/// The process that is killed: publishes and handles until then.
pub(super) async fn work(demo: &Demo, path: &Path, acknowledged: &Path) -> Result<(), Failure> {
    let shop = Shop::new(demo.seed, None);
    let bus = open(&shop, path).await?;
    bus.start().await?;
    let so_far = acknowledged::count(acknowledged);
    let left = demo.events.map_or(u64::MAX, |events| events.saturating_sub(so_far));
    // Ends by itself, should the process that started it be gone.
    let until = Instant::now() + demo.time();
    let plan = Plan { first: so_far + 1, events: left, rate: RATE, until };
    let noted = Arc::new(Acknowledged::in_file(acknowledged)?);
    publish(&bus, &shop, &noted, plan).await?;
    tokio::time::sleep_until(until.into()).await;
    Ok(())
}

/// Starts the worker, kills it, starts it again; then finishes what is left, and counts.
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
        killed = kill_again_and_again(demo, path, &oracle, progress, &mut kills) => killed?,
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

async fn kill_again_and_again(
    demo: &Demo,
    path: &Path,
    oracle: &Path,
    progress: &Progress,
    kills: &mut u64,
) -> Result<(), Failure> {
    let until = Instant::now() + demo.publishing_time();
    let mut random = demo.seed;
    while Instant::now() < until || *kills < LEAST_KILLS {
        let before = acknowledged::count(oracle);
        let is_complete = demo.events.is_some_and(|events| before >= events);
        if is_complete && *kills >= LEAST_KILLS {
            break;
        }
        let mut worker = Worker::start(demo, path, oracle)?;
        // It is killed at work: not before it has acknowledged something, if there is something left.
        while !is_complete && acknowledged::count(oracle) == before {
            worker.must_live()?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let life = LIFE_MS.start + (random >> 33) % (LIFE_MS.end - LIFE_MS.start);
        let death = Instant::now() + Duration::from_millis(life);
        while Instant::now() < death {
            progress.killed(*kills, acknowledged::count(oracle));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        worker.must_live()?;
        worker.kill()?;
        *kills += 1;
        progress.killed(*kills, acknowledged::count(oracle));
    }
    Ok(())
}

/// The worker process. Killed when dropped, so that none is left behind.
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

    /// One that ended by itself has something to say.
    fn must_live(&mut self) -> Result<(), Failure> {
        if self.child.try_wait().map_err(demo_error)?.is_none() {
            return Ok(());
        }
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.take(4096).read_to_string(&mut said); // what can be had
        }
        Err(demo_error(format!("the worker ended before it was killed: {}", said.trim())))
    }

    /// SIGKILL: no handler, no cleaning up, no goodbye.
    fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill().and_then(|()| self.child.wait()).map(|_| ()).map_err(demo_error)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.kill(); // dead already, or dead now
    }
}
