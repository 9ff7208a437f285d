//! Worker process that faults kill: publishes in every way, handles, redrives, purges, and journals everything.

mod script;

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use redrive::store::Location;
use redrive::{BusError, EventBus, EventId};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::dice::Dice;
use crate::journal::{Fact, Journal, Whom};
use crate::plan::Plan;
use crate::publisher::{Order, Publisher, refused};
use crate::subject::{self, Counting, Manner, TYPES};

/// Timeout of the drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Consecutive refusals after which a stopped store counts as stopped for good.
const MAX_STOPPED_ERRORS: u32 = 5;

/// Delay before an absent server is tried again.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);

/// Exit code of a worker whose store has stopped.
pub const STOPPED: i32 = 71;

/// Exit code of a worker whose harness is gone.
const HARNESS_GONE: i32 = 72;

/// Arguments of the worker.
#[derive(Clone, Debug, Args)]
pub struct WorkerArgs {
    /// The database
    #[arg(long)]
    pub db: PathBuf,
    /// The harness's own log
    #[arg(long)]
    pub journal: PathBuf,
    /// Seed of its choices
    #[arg(long)]
    pub seed: u64,
    /// Operations of each publisher before the bus is shut down; without it, the worker runs until it is killed
    #[arg(long, default_value_t = u64::MAX)]
    pub operations: u64,
    /// Number of concurrent publishers
    #[arg(long, default_value_t = 4)]
    pub publishers: u64,
    /// Tracking of failures
    #[arg(long, value_enum, default_value_t = Counting::Event)]
    pub counting: Counting,
    /// Sync the journal after every line: for faults that the page cache does not survive
    #[arg(long)]
    pub sync_journal: bool,
    /// Let a single publisher commit inline, however long that takes
    #[arg(long)]
    pub alone: bool,
    /// Drain before an orderly end
    #[arg(long)]
    pub rest: bool,
    /// Script
    #[arg(long, value_enum, default_value_t = Script::Mixture)]
    pub script: Script,
    /// Seconds that a publisher waits for the end of an event before that counts as a missing answer: longer than any retry
    /// takes
    #[arg(long, default_value_t = 30)]
    pub longest_wait: u64,
    /// Lease in milliseconds, where several processes share a database
    #[arg(long, default_value_t = 15_000)]
    pub lease_ms: u64,
}

impl WorkerArgs {
    fn longest_wait(&self) -> Duration {
        Duration::from_secs(self.longest_wait)
    }

    fn manner(&self) -> Manner {
        let alone = Duration::from_secs(3600);
        let inline_commit_below = if self.alone { alone } else { Manner::default().inline_commit_below };
        Manner { lease: Duration::from_millis(self.lease_ms), inline_commit_below }
    }
}

/// Script of a worker.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Script {
    /// Everything concurrently, as the seed says.
    Mixture,
    /// Everything once and in sequence: the same system calls every time.
    Sequence,
    /// Enough concurrent publishers for background checkpoints.
    Crowd,
    /// One publisher with so much data that the writer checkpoints.
    Bulk,
    /// One publisher and no other work: it commits inline, where a sync is fast.
    Alone,
    /// Only drains.
    Rest,
}

impl Script {
    /// Returns the name of the script as an argument.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether one thread does everything outside of the store.
    pub fn is_single(self) -> bool {
        matches!(self, Script::Sequence | Script::Bulk | Script::Rest)
    }
}

/// Works until it is killed, asked to end, or done.
pub async fn run(args: &WorkerArgs) -> Result<(), String> {
    end_with_harness()?;
    let mut end = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let journal = Journal::open(&args.journal, args.seed, args.sync_journal)
        .map_err(|error| format!("the journal cannot be opened: {error}"))?;
    let journal = Arc::new(journal);
    journal.note(&Fact::Begin { seed: args.seed });
    let until = Instant::now() + args.longest_wait();
    let bus = loop {
        match begin(args, &journal).await {
            Ok(bus) => break bus,
            // A server may be away for a while; a file is there or not.
            Err(error)
                if matches!(Location::of(&args.db), Location::Postgres(_)) && Instant::now() < until =>
            {
                refused(&journal, Whom::Other, &error);
                tokio::time::sleep(RECONNECT_DELAY).await;
            }
            Err(error) => {
                refused(&journal, Whom::Other, &error);
                return Err(error.to_string());
            }
        }
    };
    let publisher = || Publisher::new(bus.clone(), Arc::clone(&journal), args.longest_wait());
    match args.script {
        Script::Mixture => {
            let mut publishers: JoinSet<()> = (0..args.publishers)
                .map(|number| Mixture::new(publisher(), Dice::split(args.seed, number)))
                .map(|mixture| mixture.run(args.operations))
                .collect();
            tokio::select! {
                ended = all(&mut publishers) => ended?,
                // An interrupted publisher never learns the outcome.
                _ = end.recv() => publishers.abort_all(),
            }
            if args.rest {
                publisher().rest(DRAIN_TIMEOUT).await;
            }
        }
        Script::Sequence => script::sequence(&mut publisher()).await,
        Script::Crowd => script::crowd(publisher).await,
        Script::Bulk => script::bulk(&mut publisher()).await,
        Script::Alone => script::alone(&mut publisher()).await,
        Script::Rest => publisher().rest(DRAIN_TIMEOUT).await,
    }
    bus.shutdown().await.map_err(|error| {
        refused(&journal, Whom::Other, &error);
        error.to_string()
    })
}

/// Ends the process with its harness, which holds the other end of its standard input.
fn end_with_harness() -> Result<(), String> {
    let wait = || {
        let mut nothing = [0];
        while std::io::stdin().read(&mut nothing).is_ok_and(|count| count > 0) {}
        std::process::exit(HARNESS_GONE);
    };
    let thread = std::thread::Builder::new().name("forsaken".to_owned()).spawn(wait);
    thread.map(drop).map_err(|error| error.to_string())
}

async fn begin(args: &WorkerArgs, journal: &Arc<Journal>) -> Result<EventBus, BusError> {
    let bus = subject::open(&args.db, args.counting, journal, args.manner()).await?;
    bus.start().await?;
    Ok(bus)
}

async fn all(publishers: &mut JoinSet<()>) -> Result<(), String> {
    while let Some(ended) = publishers.join_next().await {
        ended.map_err(|error| format!("a publisher failed: {error}"))?;
    }
    Ok(())
}

/// Page size: there are hardly ever more dead events.
const MAX_DEAD: u32 = 1000;

/// Events of one publisher that are remembered, to publish one of them again.
const REMEMBERED: usize = 64;

/// A publisher with random operations.
struct Mixture {
    publisher: Publisher,
    dice: Dice,
    /// Some acknowledged events, with their types.
    acknowledged: Vec<(EventId, &'static str)>,
}

impl Mixture {
    fn new(publisher: Publisher, dice: Dice) -> Self {
        Mixture { publisher, dice, acknowledged: Vec::new() }
    }

    async fn run(mut self, operations: u64) {
        for _ in 0..operations {
            self.operate().await;
            if self.publisher.stopped() >= MAX_STOPPED_ERRORS {
                std::process::exit(STOPPED);
            }
        }
    }

    async fn operate(&mut self) {
        match self.dice.within(0..100) {
            0..60 => self.publish().await,
            60..70 => self.publish_batch().await,
            70..76 => {
                let order = self.order();
                self.publisher.publish_and_wait(order).await;
            }
            76..84 => {
                let Some((id, event_type)) = self.dice.choose(&self.acknowledged).copied() else { return };
                self.publisher.publish_again(id, event_type).await;
            }
            84..97 => {
                let dead = self.publisher.dead(50).await;
                let mend = self.dice.percent(50);
                let Some(dead) = self.dice.choose(&dead) else { return };
                self.publisher.redrive(dead, mend).await;
            }
            _ => {
                let dead = self.publisher.dead(MAX_DEAD).await;
                // From the older half: the others are redriven.
                let Some(last) = self.dice.choose(&dead[dead.len() / 2..]) else { return };
                self.publisher.purge(last, &dead, MAX_DEAD).await;
            }
        }
    }

    fn any_type(&mut self) -> &'static str {
        self.dice.choose(&TYPES).map_or("t.unwanted", |(name, _)| name)
    }

    fn order(&mut self) -> Order {
        let (event_type, plan) = (self.any_type(), Plan::any(&mut self.dice));
        Order::new(event_type, plan, self.dice.roll() >> 32)
    }

    async fn publish(&mut self) {
        let mut order = self.order();
        if self.dice.percent(20) {
            order.id = self.dice.id();
        }
        order.has_metadata = self.dice.percent(20);
        order.delay = self.dice.percent(15).then(|| self.dice.millis(1..12));
        let is_stored = self.publisher.publish(order).await;
        // An id can be reused after its event was deleted, as dead ones are.
        if is_stored && !order.plan.dies() {
            self.acknowledged.push((order.id, order.event_type));
        }
        if self.acknowledged.len() > REMEMBERED {
            self.acknowledged.swap_remove(0);
        }
    }

    async fn publish_batch(&mut self) {
        let events: Vec<_> = (0..self.dice.within(2..12))
            .map(|_| {
                // Events that stay: deleted ones cannot be counted.
                let plan = if self.dice.percent(20) { Plan::Fail(1) } else { Plan::Succeed };
                (self.any_type(), plan, self.dice.roll() >> 32)
            })
            .collect();
        self.publisher.publish_batch(&events).await;
    }
}
