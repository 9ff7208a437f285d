//! Chaos around a broker: schedulers between RabbitMQ and PostgreSQL, and everything around them goes wrong.
//!
//! Every message that the broker has confirmed to its sender must be handled in its queue or be in review, whatever dies in
//! between. Duplicates are counted, and have the same id.

mod line;
pub mod scheduler;
mod servers;
mod step;
mod trouble;
mod world;

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use redrive_store::{PostgresOptions, PostgresStore, traits::*};
use rustix::process::Signal;
use tempfile::TempDir;

use self::scheduler::{Process, SchedulerArgs};
use self::servers::Servers;
use self::step::Step;
pub use self::trouble::Trouble;
use self::world::{Place, World};
use crate::dice::Dice;
use crate::options::{Options, is_interrupted};
use crate::process::is_killed;
use crate::report::Report;

/// Timeout of the drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(90);

/// A scheduler that was to die at a step and has not reached it is killed after this.
const STEP_TIMEOUT: Duration = Duration::from_secs(8);

/// After the drain, duplicates are watched for during this time.
const DUPLICATE_WATCH: Duration = Duration::from_millis(500);

/// Maximum violations that are reported.
const MAX_VIOLATIONS: usize = 20;

/// RabbitMQ declares a queue before it has written it to disk. If it is killed within that time, it knows a quorum queue
/// that it cannot start, and never confirms a message to it.
const ON_DISK: &str = "mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()].";

/// Arguments of the command `broker`.
#[derive(Clone, Debug, Args)]
pub struct BrokerArgs {
    /// For everything together
    #[command(flatten)]
    pub options: Options,
    /// Only this; otherwise everything, one after the other
    #[arg(long, value_enum)]
    pub trouble: Option<Trouble>,
}

/// Runs the troubles, each for its share of the time.
pub fn run(args: &BrokerArgs) -> Vec<Report> {
    let troubles = args.trouble.map_or_else(|| Trouble::ALL.to_vec(), |trouble| vec![trouble]);
    let seconds = (args.options.seconds / troubles.len() as u64).max(1);
    let options = Options { seconds, ..args.options };
    let servers = match Servers::start() {
        Ok(servers) => servers,
        Err(missing) => return vec![Report::failed(missing)],
    };
    troubles.iter().map(|trouble| Report::timed(|| run_one(*trouble, &options, &servers))).collect()
}

fn run_one(trouble: Trouble, options: &Options, servers: &Servers) -> Report {
    let mut report = Report::of(trouble.name(), trouble.unit(), options.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(try_it(trouble, options, servers, &mut report)));
    report.failures.extend(outcome.err());
    report
}

async fn try_it(
    trouble: Trouble,
    options: &Options,
    servers: &Servers,
    report: &mut Report,
) -> Result<(), String> {
    let mut dice = Dice::split(options.seed, trouble as u64);
    let number = trouble as u64;
    let world = Arc::new(World::new(servers.rabbit.url(), number, trouble.deletes()));
    let everybody = world.begin(dice.roll()).await?;
    tokio::task::block_in_place(|| servers.rabbit.control(&["eval", ON_DISK]))
        .map_err(|missing| missing.to_string())?;
    let db = format!("{}?schema=broker_{number}", servers.postgres.url());
    let mut fleet = Fleet::new(trouble, &world, servers, &db)?;
    let limits = options.begin();
    fleet.start_all()?;
    while limits.allow(report.rounds) {
        fleet.trouble(&world, &mut dice).await?;
        trouble.strike(servers, &mut dice).await?;
        report.rounds += 1;
    }
    world.enough();
    fleet.calm_down()?;
    let settled = drain(&world, trouble, &mut fleet).await;
    world.over();
    for one in everybody {
        let _ = one.await; // it reports to the world
    }
    judge(&world, trouble, &db, report).await?;
    settled
}

/// The schedulers of one trouble.
struct Fleet {
    trouble: Trouble,
    args: SchedulerArgs,
    processes: Vec<Process>,
    folder: TempDir,
    deaths: usize,
}

impl Fleet {
    fn new(trouble: Trouble, world: &World, servers: &Servers, db: &str) -> Result<Self, String> {
        let args = SchedulerArgs {
            db: db.to_owned(),
            rabbit: servers.rabbit.url(),
            retry_queue: world.retry_queue(),
            review_queue: world.queue(Place::Review),
            die_after: None,
            times: 1,
        };
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Fleet { trouble, args, processes: Vec::new(), folder, deaths: 0 })
    }

    fn said(&self) -> std::path::PathBuf {
        self.folder.path().join("said")
    }

    fn start(&self, args: &SchedulerArgs) -> Result<Process, String> {
        Process::start(args, &self.said()).map_err(|error| error.to_string())
    }

    fn start_all(&mut self) -> Result<(), String> {
        while self.processes.len() < self.trouble.schedulers() {
            let process = self.start(&self.args)?;
            self.processes.push(process);
        }
        // A scheduler without a database at its start reports that and ends; so servers go away only after that.
        tokio::task::block_in_place(|| self.processes.iter_mut().try_for_each(Process::begun))
            .map_err(|error| error.to_string())
    }

    /// Applies the trouble to the schedulers themselves, once.
    async fn trouble(&mut self, world: &World, dice: &mut Dice) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        match self.trouble {
            Trouble::Kills => {
                tokio::time::sleep(dice.millis(50..700)).await;
                let place = usize::from(dice.percent(50));
                self.processes[place].kill().map_err(failed)?;
                self.processes[place] = self.start(&self.args)?;
            }
            Trouble::Steps => {
                // Dies at each step in turn, at a random time.
                let step = Step::ALL[self.deaths % Step::ALL.len()];
                let times = i64::try_from(dice.within(1..40)).unwrap_or(1);
                let doomed = SchedulerArgs { die_after: Some(step), times, ..self.args.clone() };
                self.processes[0].kill().map_err(failed)?;
                self.processes[0] = self.start(&doomed)?;
                if self.processes[0].end(STEP_TIMEOUT).await.map_err(failed)?.is_none() {
                    self.processes[0].kill().map_err(failed)?;
                }
                self.deaths += 1;
                self.processes[0] = self.start(&self.args)?;
            }
            Trouble::Deletions => {
                tokio::time::sleep(dice.millis(200..800)).await;
                // RabbitMQ may confirm a message to a queue in the moment of its deletion and lose it. So no scheduler
                // publishes in that moment.
                self.signal(Signal::STOP)?;
                let deleted = world.delete(Place::Second).await;
                self.signal(Signal::CONT)?;
                deleted?;
                tokio::time::sleep(dice.millis(100..1200)).await;
                world.declare(Place::Second).await?;
            }
            _ => {}
        }
        self.check()
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        self.processes
            .iter()
            .try_for_each(|process| process.signal(signal))
            .map_err(|error| error.to_string())
    }

    /// Fails if a scheduler has ended by itself.
    fn check(&mut self) -> Result<(), String> {
        for process in &mut self.processes {
            if let Some(status) = process.ended().map_err(|error| error.to_string())?
                && !is_killed(status)
            {
                let said = std::fs::read_to_string(self.folder.path().join("said")).unwrap_or_default();
                return Err(format!(
                    "a scheduler ended by itself, {status}: {}",
                    said.chars().take(1000).collect::<String>()
                ));
            }
        }
        Ok(())
    }

    /// Ends the trouble; the living schedulers do the rest.
    fn calm_down(&mut self) -> Result<(), String> {
        self.check()?;
        self.start_all()
    }
}

/// Waits until every message is handled or in review.
async fn drain(world: &World, trouble: Trouble, fleet: &mut Fleet) -> Result<(), String> {
    let until = Instant::now() + DRAIN_TIMEOUT;
    while Instant::now() < until && !is_interrupted() {
        let open = |entry: &world::Entry| entry.is_sent && !entry.is_settled(trouble.deletes());
        if !world.entries().values().any(open) {
            tokio::time::sleep(DUPLICATE_WATCH).await;
            return Ok(());
        }
        fleet.check()?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(()) // the judge reports missing messages
}

async fn judge(world: &World, trouble: Trouble, db: &str, report: &mut Report) -> Result<(), String> {
    let (entries, mut settled_in_review) = (world.entries().clone(), 0);
    let options = PostgresOptions { create: false, ..PostgresOptions::default() };
    let store = PostgresStore::open(db, options).await.map_err(|error| error.to_string())?;
    for (id, entry) in entries.iter().filter(|(_, entry)| entry.is_sent) {
        report.acknowledged += 1;
        report.duplicates += entry.duplicates();
        settled_in_review += u64::from(entry.reviewed > 0);
        if entry.is_settled(trouble.deletes()) {
            continue;
        }
        report.lost += 1;
        if report.violations.len() < MAX_VIOLATIONS {
            let mut tasks = Vec::new();
            let queues = [Place::First, Place::Second, Place::Nowhere].map(|place| world.queue(place));
            for (queue, count) in queues.iter().flat_map(|queue| (0..8).map(move |count| (queue, count))) {
                if let Ok(event) = store.event(redrive_scheduler::task_id(id, queue, count)).await {
                    let delivery = event.deliveries.first();
                    let owed =
                        delivery.map(|owed| (owed.status, owed.due_at, owed.retry_count, &owed.errors));
                    tasks.push(format!("{count}: {} {owed:?} {:?}", event.status, event.attempts));
                }
            }
            report
                .violations
                .push(format!("{id} is neither handled nor in review: {entry:?}; tasks {tasks:?}"));
        }
    }
    let complaints = world.complaints.lock().unwrap_or_else(PoisonError::into_inner);
    report.violations.extend(complaints.iter().take(MAX_VIOLATIONS).cloned());
    report.detail = format!("{settled_in_review} in review");
    Ok(())
}
