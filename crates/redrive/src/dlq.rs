//! The dead-letter queue: list, inspect, redrive, purge and export dead events.
//!
//! [`DlqInspector`] needs only the store, so it also works beside a running bus, from another process.
//!
//! ```
//! # async fn inspect(bus: &redrive::EventBus) -> Result<(), redrive::BusError> {
//! use redrive::dlq::{DlqFilter, DlqPage};
//!
//! for dead in bus.dlq().list(DlqFilter::default(), DlqPage::default()).await? {
//!     println!("{} {}: {:?}", dead.id, dead.event_type, dead.errors);
//!     bus.dlq().retry(dead.id).await?;
//! }
//! # Ok(()) }
//! ```

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::{Clock, Timestamp};
pub use redrive_store::{DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqPage};
use redrive_store::{EventId, Location, Redrive, SqliteOptions, Store, StoreError};
#[cfg(feature = "postgres")]
use redrive_store::{PostgresOptions, PostgresStore};
use serde::Serialize;

use crate::dlq_export;
use crate::error::BusError;
use crate::open::open_sqlite;
use crate::payload;

/// Number of dead letters that one query reads while a filter is applied to all.
const PAGE_SIZE: u32 = 500;

/// Lists dead events, redrives them and purges them; see [`EventBus::dlq`](crate::EventBus::dlq).
#[derive(Clone, Debug)]
pub struct DlqInspector {
    store: Arc<dyn Store>,
    clock: Clock,
}

/// Number of dead events that matched a filter, and that were redriven.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RetryReport {
    /// Dead events that the filter matched.
    pub matched: u64,
    /// Dead events that were redriven; 0 on a dry run.
    pub retried: u64,
}

/// Settings for redriving many events: the rate, or a dry run.
///
/// ```
/// use redrive::dlq::RetryAll;
///
/// let slowly = RetryAll { per_second: Some(100), ..RetryAll::default() };
/// let count_only = RetryAll { dry_run: true, ..RetryAll::default() };
/// # let _ = (slowly, count_only);
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryAll {
    /// Number of events that become due per second; `None` for all at once.
    pub per_second: Option<u32>,
    /// Counts the matching events and redrives none.
    pub dry_run: bool,
}

impl DlqInspector {
    /// Inspects a store.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        DlqInspector { store, clock }
    }

    /// Opens an existing file, beside the process that dispatches from it.
    ///
    /// With the feature `postgres`, `postgres://…` opens a database with an existing schema.
    pub async fn open(location: impl AsRef<Path>) -> Result<Self, BusError> {
        let store: Arc<dyn Store> = match Location::of(location) {
            Location::Sqlite(path) => {
                if let Err(source) = path.metadata() {
                    return Err(StoreError::File { path, source }.into());
                }
                open_sqlite(path, SqliteOptions { owner: false, ..SqliteOptions::default() }).await?
            }
            #[cfg(feature = "postgres")]
            Location::Postgres(address) => {
                let options = PostgresOptions { create: false, ..PostgresOptions::default() };
                Arc::new(PostgresStore::open(&address, options).await?)
            }
            #[cfg(not(feature = "postgres"))]
            Location::Postgres(_) => return Err(BusError::NoPostgres),
        };
        let clock = store.clock();
        Ok(Self::new(store, clock))
    }

    /// Lists dead events, newest first; the first hundred by default.
    pub async fn list(&self, filter: DlqFilter, page: DlqPage) -> Result<Vec<DeadLetter>, BusError> {
        Ok(self.store.dead_letters(filter, page).await?)
    }

    /// The dead letters of one event, with every failed attempt: one, or one for each subscription with its own deliveries.
    pub async fn get(&self, id: EventId) -> Result<Vec<DeadLetter>, BusError> {
        Ok(self.store.dead_letter(id).await?)
    }

    /// Groups dead events by target and error, the largest group first.
    pub async fn groups(&self, filter: DlqFilter) -> Result<Vec<DlqGroup>, BusError> {
        Ok(self.store.dead_groups(filter).await?)
    }

    /// Redrives one event: pending again, without retries and errors, also if it died in a delivery that was parked. A running bus
    /// picks it up within a second.
    pub async fn retry(&self, id: EventId) -> Result<(), BusError> {
        Ok(self.store.redrive(id, Redrive { at: self.clock.now(), payload: None }).await?)
    }

    /// Redrives one event with an edited payload; the original stays in its history.
    pub async fn retry_edited(&self, id: EventId, payload: &impl Serialize) -> Result<(), BusError> {
        let payload = Some(payload::to_json(payload)?.to_string());
        Ok(self.store.redrive(id, Redrive { at: self.clock.now(), payload }).await?)
    }

    /// Redrives all events that a filter matches, at the rate of `how`. A dry run only counts.
    ///
    /// Of an event with several dead letters, only the matching ones are redriven; an event that died as a whole is redriven as a whole.
    pub async fn retry_all(&self, filter: DlqFilter, how: RetryAll) -> Result<RetryReport, BusError> {
        let RetryAll { per_second, dry_run } = how;
        let mut report = RetryReport::default();
        let began = self.clock.now();
        let mut after = None;
        loop {
            let page = DlqPage { offset: 0, limit: PAGE_SIZE, after };
            let page = self.store.dead_letter_summaries(filter.clone(), page).await?;
            let Some(last) = page.last() else { return Ok(report) };
            // An event that dies again at once is not redriven a second time.
            after = Some(last.cursor.behind_event());
            // An event may have several dead letters; it is redriven once.
            let mut ids: Vec<EventId> = page.iter().map(|dead| dead.id).collect();
            ids.dedup();
            for id in ids {
                report.matched += 1;
                if dry_run {
                    continue;
                }
                // Spread by due times on disk: the rate holds even if this process ends now.
                let wait = per_second.map_or(0, |rate| report.retried * 1000 / u64::from(rate.max(1)));
                let at = self.clock.now().max(began + Duration::from_millis(wait));
                match self.store.redrive_matching(id, filter.clone(), at).await {
                    Ok(()) => report.retried += 1,
                    // Redriven or purged by another caller meanwhile.
                    Err(StoreError::NotDead { .. } | StoreError::NoSuchEvent { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// Deletes dead events that were published at or before this instant; returns how many.
    pub async fn purge_until(&self, published_until: Timestamp) -> Result<u64, BusError> {
        Ok(self.store.purge_dead(published_until).await?)
    }

    /// Deletes dead events that are at least this old.
    pub async fn purge_older_than(&self, age: Duration) -> Result<u64, BusError> {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        self.purge_until(Timestamp::from_millis(self.clock.now().as_millis().saturating_sub(age))).await
    }

    /// Writes all dead letters that a filter matches as JSON lines, with the names and times of the HTTP API; returns how many.
    pub async fn export(&self, filter: DlqFilter, writer: &mut (impl Write + Send)) -> Result<u64, BusError> {
        let failed = |source: std::io::Error| StoreError::File { path: "export".into(), source };
        let mut written = 0;
        let mut after = None;
        loop {
            let page = DlqPage { offset: 0, limit: PAGE_SIZE, after };
            let page = self.store.dead_letter_summaries(filter.clone(), page).await?;
            let Some(last) = page.last() else { return Ok(written) };
            after = Some(last.cursor);
            for dead in page {
                // Payloads one by one: a page of them may be more than there is memory for.
                let event = self.store.event(dead.id).await?;
                let dead = DeadLetter { attempts: event.attempts, ..dead.with(event.payload) };
                let mut line = dlq_export::line(&dead).map_err(|error| failed(error.into()))?;
                line.push(b'\n');
                writer.write_all(&line).map_err(failed)?;
                written += 1;
            }
        }
    }
}
