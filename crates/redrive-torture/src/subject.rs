//! The bus under test: its policy, its subscriptions, and handlers that follow the plan in an event's payload.
//!
//! The worker runs it until a fault kills it; afterwards the harness drains the database with the same bus.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{ClassifyError, Failure, Jitter, RetryPolicy};
use redrive::store::{Location, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore};
use redrive::{BusError, Event, EventBus, Tracking};

use crate::journal::{Fact, Journal};
use crate::plan::{Payload, Plan};

/// Maximum attempts of a delivery. More than usual, because every crash charges one.
pub const MAX_ATTEMPTS: u32 = 6;

/// Error of an attempt that ended with its process.
pub const CRASHED: &str = "process ended during the attempt";

/// Error of a permanent failure.
pub const PERMANENT: &str = "cannot be mended";

/// Lease of a process that is not paused: longer than it waits for a CPU on the busiest machine.
pub const LEASE: Duration = Duration::from_secs(15);

/// Life of the draining bus.
const DRAIN: u64 = 0;

/// Subscription whose circuit opens after a few failures.
pub const FRAGILE: &str = "fragile";
/// Subscription that follows the plan; its circuit never opens.
pub const WORK: &str = "work";
/// Subscription that always succeeds.
pub const AUDIT: &str = "audit";

/// Event types, each with its matching subscriptions in order.
pub const TYPES: [(&str, &[&str]); 6] = [
    ("t.work.alone", &[WORK]),
    ("t.work.audited", &[WORK, AUDIT]),
    ("t.fragile.alone", &[FRAGILE]),
    ("t.fragile.audited", &[FRAGILE, AUDIT]),
    ("t.fragile.work.audited", &[FRAGILE, WORK, AUDIT]),
    ("t.unwanted", &[]),
];

/// Subscriptions that match a type.
pub fn wanted_by(event_type: &str) -> &'static [&'static str] {
    TYPES.iter().find(|(name, _)| *name == event_type).map_or(&[], |(_, wanted)| wanted)
}

/// Whether the subscription's handler follows the plan; the others succeed.
pub fn follows_plan(event_type: &str, subscription: &str) -> bool {
    let wanted = wanted_by(event_type);
    let follower = if wanted.contains(&WORK) { WORK } else { FRAGILE };
    subscription == follower && wanted.contains(&follower)
}

/// Tracking of failures, as an argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Counting {
    /// By event.
    Event,
    /// By event and subscription.
    Subscription,
}

impl Counting {
    /// Returns the name of this tracking as an argument.
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

/// Options of the store.
#[derive(Copy, Clone, Debug)]
pub struct Manner {
    /// Lease, where several processes share a database.
    pub lease: Duration,
    /// Commits faster than this are made inline by a single publisher.
    pub inline_commit_below: Duration,
}

impl Default for Manner {
    fn default() -> Self {
        Manner { lease: LEASE, inline_commit_below: SqliteOptions::default().inline_commit_below }
    }
}

/// Opens the bus with all subscriptions, without starting it.
pub async fn open(
    database: &Path,
    counting: Counting,
    journal: &Arc<Journal>,
    manner: Manner,
) -> Result<EventBus, BusError> {
    let policy = RetryPolicy::builder()
        .max_attempts(MAX_ATTEMPTS)
        .base_delay(Duration::from_millis(1))
        .max_delay(Duration::from_millis(5))
        .jitter(Jitter::Full)
        .build()?;
    let builder = EventBus::builder()
        .policy(policy)
        .tracking(counting.into())
        // Few, so that many deliveries wait on disk.
        .in_flight(32)
        .shutdown_timeout(Duration::from_secs(5));
    let bus = match Location::of(database) {
        Location::Sqlite(file) => {
            let options =
                SqliteOptions { inline_commit_below: manner.inline_commit_below, ..SqliteOptions::default() };
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

/// Follows the plan, and journals the outcome before it returns it.
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
            // Without the panic hook, which would print it.
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

/// Error of a failed attempt.
pub fn error_of(attempt: u32) -> String {
    format!("as planned, attempt {attempt}")
}

/// Timeouts of a drain.
#[derive(Copy, Clone, Debug)]
pub struct DrainTimeouts {
    /// Whole drain.
    pub total: Duration,
    /// Time without progress.
    pub idle: Duration,
}

/// Drains the bus and shuts it down. `Err` describes the work that did not end.
pub async fn drain(
    database: &Path,
    counting: Counting,
    journal: &Path,
    DrainTimeouts { total, idle }: DrainTimeouts,
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
        if began.elapsed() > total || moved.elapsed() > idle {
            break Err(format!(
                "work is left after {} s, {} s of them without progress: {depth:?}",
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
                .filter(|(_, pattern)| {
                    pattern.parse::<redrive::subscription::Pattern>().unwrap().matches(event_type)
                })
                .map(|(name, _)| *name)
                .collect();
            assert_eq!(matching, wanted, "{event_type}");
            let followers = wanted.iter().filter(|name| follows_plan(event_type, name)).count();
            assert_eq!(followers, usize::from(!wanted.is_empty()), "{event_type}");
        }
    }
}
