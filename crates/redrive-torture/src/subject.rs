//! The bus under test: its policy, its subscriptions, and handlers that do what the payload of an event says.
//!
//! The worker runs it until something kills it; afterwards the harness runs the same bus to the end of all work.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use redrive::{
    BreakerConfig, BusError, ClassifyError, Event, EventBus, Failure, Jitter, Location, PostgresOptions,
    PostgresStore, RetryPolicy, SqliteOptions, SqliteStore, Tracking,
};

use crate::journal::{Fact, Journal};
use crate::plan::{Payload, Plan};

/// Every attempt a unit has. More than usual, because every death of the process charges one.
pub const MOST_ATTEMPTS: u32 = 6;

/// What stands in the errors of an attempt that ended with its process.
pub const CRASHED: &str = "process ended during the attempt";

/// What a failure says that nothing can mend.
pub const PERMANENT: &str = "cannot be mended";

/// The lease of a process that is not paused: longer than it waits for its turn on the busiest machine.
pub const LEASE: Duration = Duration::from_secs(15);

/// The life of the bus that does what is left.
const DRAIN: u64 = 0;

/// Its circuit opens after a few failures.
pub const FRAGILE: &str = "fragile";
/// Follows the plan; its circuit never opens.
pub const WORK: &str = "work";
/// Works always.
pub const AUDIT: &str = "audit";

/// The types of the events, each with those who want it, in their order.
pub const TYPES: [(&str, &[&str]); 6] = [
    ("t.work.alone", &[WORK]),
    ("t.work.audited", &[WORK, AUDIT]),
    ("t.fragile.alone", &[FRAGILE]),
    ("t.fragile.audited", &[FRAGILE, AUDIT]),
    ("t.fragile.work.audited", &[FRAGILE, WORK, AUDIT]),
    ("t.unwanted", &[]),
];

/// Who wants events of a type.
pub fn wanted_by(event_type: &str) -> &'static [&'static str] {
    TYPES.iter().find(|(name, _)| *name == event_type).map_or(&[], |(_, wanted)| wanted)
}

/// Whose handler follows the plan of an event; the others just work.
pub fn follows_plan(event_type: &str, subscription: &str) -> bool {
    let wanted = wanted_by(event_type);
    let follower = if wanted.contains(&WORK) { WORK } else { FRAGILE };
    subscription == follower && wanted.contains(&follower)
}

/// How failures are counted, as an argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Counting {
    /// By event.
    Event,
    /// By event and subscription.
    Subscription,
}

impl Counting {
    /// Its name as an argument.
    pub fn name(self) -> &'static str {
        match self {
            Counting::Event => "event",
            Counting::Subscription => "subscription",
        }
    }
}

impl From<Counting> for Tracking {
    fn from(counting: Counting) -> Self {
        match counting {
            Counting::Event => Tracking::Event,
            Counting::Subscription => Tracking::PerSubscription,
        }
    }
}

/// In which manner the store is used.
#[derive(Copy, Clone, Debug)]
pub struct Manner {
    /// How long others wait for it when it says nothing, where several share a database.
    pub lease: Duration,
    /// Who publishes alone commits on its own thread as long as commits take less than this.
    pub brief: Duration,
}

impl Default for Manner {
    fn default() -> Self {
        Manner { lease: LEASE, brief: SqliteOptions::default().brief }
    }
}

/// Opens the bus with all its subscriptions; it is not started yet.
pub async fn open(
    database: &Path,
    counting: Counting,
    journal: &Arc<Journal>,
    manner: Manner,
) -> Result<EventBus, BusError> {
    let policy = RetryPolicy::builder()
        .max_attempts(MOST_ATTEMPTS)
        .base_delay(Duration::from_millis(1))
        .max_delay(Duration::from_millis(5))
        .jitter(Jitter::Full)
        .build()?;
    let builder = EventBus::builder()
        .policy(policy)
        .tracking(counting.into())
        // Few, so that much waits on disk.
        .in_flight(32)
        .shutdown_timeout(Duration::from_secs(5));
    let bus = match Location::of(database) {
        Location::Sqlite(file) => {
            let options = SqliteOptions { brief: manner.brief, ..SqliteOptions::default() };
            let store = tokio::task::spawn_blocking(|| SqliteStore::open(file, options));
            builder.on(Arc::new(store.await.expect("opening a store does not panic")?)).await?
        }
        Location::Postgres(address) => {
            let options = PostgresOptions { lease: manner.lease, ..PostgresOptions::default() };
            let store = PostgresStore::open(&address, options).await?;
            builder.on(Arc::new(store)).await?
        }
    };
    let never = BreakerConfig::builder().min_samples(u32::MAX).build().expect("a valid breaker");
    let soon = BreakerConfig::builder()
        .min_samples(2)
        .window(Duration::from_millis(100))
        .open_for(Duration::from_millis(3))
        .build()
        .expect("a valid breaker");
    for (name, pattern, breaker) in
        [(FRAGILE, "*.fragile.*", soon), (WORK, "*.work.*", never), (AUDIT, "*.audited", never)]
    {
        let journal = Arc::clone(journal);
        let handler = move |event: Event| handle(event, Arc::clone(&journal));
        bus.subscribe(pattern, handler).name(name).breaker(breaker).register()?;
    }
    Ok(bus)
}

/// Does what the payload says, and takes down what it did before it says so to the bus.
async fn handle(event: Event, journal: Arc<Journal>) -> Result<(), Failure> {
    let payload: Payload = event.json()?;
    let subscription = event.subscription().to_string();
    let attempt = event.attempt();
    let plan =
        if follows_plan(event.event_type().as_str(), &subscription) { payload.plan } else { Plan::Succeed };
    let failed = || {
        let (subscription, created) = (subscription.clone(), event.created_at().as_millis());
        journal.note(&Fact::Failed { id: event.id(), subscription, attempt, created });
    };
    match plan {
        Plan::Succeed => {}
        Plan::Dawdle => tokio::time::sleep(Duration::from_millis(3)).await,
        Plan::Fail(times) if attempt > times => {}
        Plan::Panic(times) if attempt > times => {}
        Plan::Fail(_) | Plan::Never => {
            failed();
            return Err(Failure::new(error_of(attempt)));
        }
        Plan::Panic(_) => {
            failed();
            // Without the hook that prints it: it is meant.
            resume_unwind(Box::new(error_of(attempt)));
        }
        Plan::Permanent => {
            failed();
            return Err(format!("{PERMANENT}: {}", error_of(attempt)).permanent());
        }
    }
    journal.note(&Fact::Handled { id: event.id(), subscription, life: journal.life() });
    Ok(())
}

/// What a failed attempt says of itself.
pub fn error_of(attempt: u32) -> String {
    format!("as planned, attempt {attempt}")
}

/// How long work that is left may take.
#[derive(Copy, Clone, Debug)]
pub struct Patience {
    /// All of it.
    pub longest: Duration,
    /// While nothing happens at all.
    pub still: Duration,
}

/// Runs the bus until nothing is left to do, and shuts it down. `Err` says what would not end.
pub async fn drain(
    database: &Path,
    counting: Counting,
    journal: &Path,
    Patience { longest, still }: Patience,
) -> Result<(), String> {
    let progress = || std::fs::metadata(journal).map_or(0, |file| file.len());
    let journal = Journal::open(journal, DRAIN, false).map_err(|error| format!("the journal: {error}"))?;
    let failed = |error: BusError| format!("after the fault the bus does not work: {error}");
    let bus = open(database, counting, &Arc::new(journal), Manner::default()).await.map_err(failed)?;
    bus.start().await.map_err(failed)?;
    let began = Instant::now();
    let (mut last, mut moved) = (None, began);
    let rest = loop {
        let depth = bus.store().depth().await.map_err(|error| failed(error.into()))?;
        if depth.is_idle() {
            break Ok(());
        }
        let seen = Some((depth, progress()));
        if last != seen {
            (last, moved) = (seen, Instant::now());
        }
        if began.elapsed() > longest || moved.elapsed() > still {
            break Err(format!(
                "after {} s of work, {} s of them in silence, there is still something to do: {depth:?}",
                began.elapsed().as_secs(),
                moved.elapsed().as_secs()
            ));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    bus.shutdown().await.map_err(failed)?;
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_types_says_what_the_patterns_do() {
        let patterns = [(FRAGILE, "*.fragile.*"), (WORK, "*.work.*"), (AUDIT, "*.audited")];
        for (event_type, wanted) in TYPES {
            let matching: Vec<_> = patterns
                .iter()
                .filter(|(_, pattern)| pattern.parse::<redrive::Pattern>().unwrap().matches(event_type))
                .map(|(name, _)| *name)
                .collect();
            assert_eq!(matching, wanted, "{event_type}");
            let followers = wanted.iter().filter(|name| follows_plan(event_type, name)).count();
            assert_eq!(followers, usize::from(!wanted.is_empty()), "{event_type}");
        }
    }
}
