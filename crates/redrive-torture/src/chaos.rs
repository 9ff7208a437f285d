//! Chaos: several processes share one PostgreSQL server, and everything around them goes wrong.
//!
//! Every storm has a schema of its own on a server of its own. When it is over, the processes are asked to end, a last bus does
//! what is left, and the oracle judges by the journals of all of them.

mod guard;
mod proxy;
mod storm;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use redrive_servers::Postgres;
use rustix::process::Signal;
use tempfile::TempDir;

use self::proxy::Proxy;
pub use self::storm::Storm;
use crate::dice::Dice;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::process::{Site, Worker, this_program};
use crate::report::Report;
use crate::subject::{self, Counting, DrainTimeouts};

/// Number of processes that share the database.
const PROCESSES: usize = 4;

/// Timeout of an orderly end.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout of the drain. Claims of dead processes wait for their leases to run out.
const DRAIN_TIMEOUTS: DrainTimeouts =
    DrainTimeouts { total: Duration::from_secs(120), idle: Duration::from_secs(60) };

/// Poll interval of the harness.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Arguments of the command `chaos`.
#[derive(Clone, Debug, Args)]
pub struct ChaosArgs {
    /// For everything together
    #[command(flatten)]
    pub options: Options,
    /// Only this; otherwise everything, one after the other
    #[arg(long, value_enum)]
    pub storm: Option<Storm>,
    /// Run each storm until this many events were acknowledged, instead of for a time
    #[arg(long)]
    pub events: Option<u64>,
}

/// Runs the storms, each for its share of the time.
pub fn run(args: &ChaosArgs) -> Vec<Report> {
    let storms = args.storm.map_or_else(|| Storm::ALL.to_vec(), |storm| vec![storm]);
    let seconds = (args.options.seconds / storms.len() as u64).max(1);
    let options = Options { seconds, ..args.options };
    storms.iter().map(|storm| Report::timed(|| run_one(*storm, &options, args.events))).collect()
}

/// Runs one storm.
pub fn run_one(storm: Storm, options: &Options, events: Option<u64>) -> Report {
    let mut report = Report::of(storm.name(), storm.unit(), options.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(weather(storm, options, events, &mut report)));
    report.failures.extend(outcome.err());
    report
}

async fn weather(
    storm: Storm,
    options: &Options,
    events: Option<u64>,
    report: &mut Report,
) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let mut dice = Dice::split(options.seed, storm as u64);
    // Starting a server blocks: not on this runtime's threads.
    let server = tokio::task::block_in_place(Postgres::start).map_err(|missing| missing.to_string())?;
    let proxy = Proxy::start(&server.url()).await.map_err(failed)?;
    let counting = if dice.percent(50) { Counting::Event } else { Counting::Subscription };
    let by_way_of = |is_on_the_way: bool| {
        let address = if is_on_the_way { proxy.url() } else { server.url() };
        format!("{address}?schema=storm")
    };
    let databases = storm.is_on_the_way().map(by_way_of);
    let mut fleet = Fleet::new(databases, counting, dice.roll(), storm.lease()).map_err(failed)?;
    for place in 0..PROCESSES {
        fleet.start(place).map_err(failed)?;
    }
    let mut oracle = if storm.forgets() { Oracle::after_power_loss(counting) } else { Oracle::new(counting) };
    let mut sky = storm::Sky { server: &server, proxy: &proxy, storm, calls: Vec::new() };
    let (limits, mut gusts, mut looked) = (options.begin(), 0, Instant::now());
    let is_over = |oracle: &Oracle, gusts: u64| match events {
        Some(events) => oracle.account().acknowledged() >= events,
        None => !limits.allow(gusts),
    };
    guard::post(&server.url()).await?;
    while !is_over(&oracle, gusts) {
        let gust = sky.gust(&mut fleet, &mut dice).await;
        gusts += 1;
        // The oracle judges also after a failure of the storm.
        if let Err(why) = gust.and_then(|()| fleet.check()) {
            oracle.complain(why);
            break;
        }
        if looked.elapsed() > POLL_INTERVAL {
            fleet.journals.iter().for_each(|journal| oracle.read(journal));
            looked = Instant::now();
        }
    }
    sky.clear().await?;
    let (ended, died) = fleet.end().await;
    if let Err(why) = ended {
        oracle.complain(why);
    }
    fleet.journals.iter().for_each(|journal| oracle.read(journal));
    let database = PathBuf::from(format!("{}?schema=storm", server.url()));
    oracle.look_at(&database).await;
    report.violations.extend(guard::seen(&server.url()).await?);
    if !storm.buries() {
        let buried = sky.buried().await?;
        report.violations.extend(
            (buried > 0).then(|| format!("{buried} attempts were charged for deaths, and no process died")),
        );
    }
    let last = fleet.journal();
    if let Err(why) = subject::drain(&database, counting, &last, DRAIN_TIMEOUTS).await {
        oracle.complain(why);
    }
    oracle.read(&last);
    oracle.judge_at(&database).await;
    oracle.add_to(report);
    report.rounds = gusts;
    let living = oracle.duplicates_of_the_living(&died);
    report.detail = format!("{} processes died; {} repeated by live processes", died.len(), living.len());
    if storm.only_the_dead_repeat() {
        let known = |id| oracle.account().events.get(id);
        report.violations.extend(living.iter().map(|id| {
            format!("{id}: a handler ran again though none of its processes had died: {:?}", known(id))
        }));
    }
    Ok(())
}

/// The processes that share the database.
pub(crate) struct Fleet {
    folder: TempDir,
    program: PathBuf,
    /// Addresses of the database, used in turn.
    databases: [String; 2],
    counting: Counting,
    seed: u64,
    lease: Duration,
    lives: u64,
    workers: Vec<Worker>,
    /// The seed of each of them.
    lives_of: Vec<u64>,
    /// One for each life.
    journals: Vec<PathBuf>,
    died: HashSet<u64>,
}

impl Fleet {
    fn new(databases: [String; 2], counting: Counting, seed: u64, lease: Duration) -> io::Result<Self> {
        Ok(Fleet {
            folder: tempfile::tempdir()?,
            program: this_program()?,
            databases,
            counting,
            seed,
            lease,
            lives: 0,
            workers: Vec::new(),
            lives_of: Vec::new(),
            journals: Vec::new(),
            died: HashSet::new(),
        })
    }

    /// Starts a worker in this slot.
    fn start(&mut self, place: usize) -> io::Result<()> {
        self.lives += 1;
        let folder = self.folder.path().join(self.lives.to_string());
        std::fs::create_dir(&folder)?;
        let site = Site::with_database(&folder, self.databases[place % 2].clone().into(), self.counting);
        let seed = self.seed.wrapping_add(self.lives);
        let lease = self.lease.as_millis().to_string();
        let worker = site.start(&self.program, seed, &["--longest-wait", "90", "--lease-ms", &lease])?;
        self.journals.push(site.journal);
        match self.workers.get_mut(place) {
            Some(old) => {
                *old = worker;
                self.lives_of[place] = seed;
            }
            None => {
                self.workers.push(worker);
                self.lives_of.push(seed);
            }
        }
        Ok(())
    }

    /// A journal for another process.
    fn journal(&self) -> PathBuf {
        Path::new(self.folder.path()).join("journal")
    }

    /// A random slot.
    pub(crate) fn any(&self, dice: &mut Dice) -> usize {
        usize::try_from(dice.within(0..PROCESSES as u64)).unwrap_or(0)
    }

    /// Kills the worker of a slot and starts another one.
    pub(crate) fn kill(&mut self, place: usize) -> Result<(), String> {
        let life = self.lives_of[place];
        let worker = &mut self.workers[place];
        match worker.kill() {
            Ok(true) => {
                self.died.insert(life);
                self.start(place).map_err(|error| error.to_string())
            }
            Ok(false) => Err(format!("a worker ended by itself: {}", worker.complaints())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, place: usize, signal: Signal) -> Result<(), String> {
        self.workers[place].signal(signal).map_err(|error| error.to_string())
    }

    /// Fails if a worker has ended by itself.
    fn check(&mut self) -> Result<(), String> {
        for worker in &mut self.workers {
            if !worker.is_running().map_err(|error| error.to_string())? {
                return Err(format!("a worker ended by itself: {}", worker.complaints()));
            }
        }
        Ok(())
    }

    /// Asks all workers to end, and returns the lives that died before.
    async fn end(&mut self) -> (Result<(), String>, HashSet<u64>) {
        let ended = self.ask_to_end().await;
        self.workers.clear(); // kills workers that have not ended
        (ended, std::mem::take(&mut self.died))
    }

    async fn ask_to_end(&mut self) -> Result<(), String> {
        // A worker that has just started does not listen yet; its journal shows when it does.
        let newest = self.journals.iter().rev().take(PROCESSES);
        let begun =
            || newest.clone().all(|journal| std::fs::metadata(journal).is_ok_and(|file| file.len() > 0));
        let until = Instant::now() + END_TIMEOUT;
        while !begun() && Instant::now() < until {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        for place in 0..self.workers.len() {
            self.signal(place, Signal::TERM)?;
        }
        for worker in &mut self.workers {
            let ended = tokio::task::block_in_place(|| worker.wait(END_TIMEOUT));
            match ended.map_err(|error| error.to_string())? {
                Some(status) if status.success() => {}
                Some(status) => return Err(format!("a worker ended with {status}: {}", worker.complaints())),
                None => return Err("a worker that was asked to end did not".to_owned()),
            }
        }
        Ok(())
    }
}
