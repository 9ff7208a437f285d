//! The dead-letter queue, depending on the store alone: works beside a running bus, from another process.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::{Clock, Timestamp};
use redrive_store::{
    DeadLetter, DlqFilter, DlqGroup, DlqPage, EventId, Location, Redrive, SqliteOptions, SqliteStore, Store,
    StoreError,
};
#[cfg(feature = "postgres")]
use redrive_store::{PostgresOptions, PostgresStore};
use serde::Serialize;

use crate::error::BusError;
use crate::payload;

/// How many are looked at in one read when many are meant.
const PAGE: u32 = 500;

/// Looks at dead events, sends them back, deletes them.
#[derive(Clone, Debug)]
pub struct DlqInspector {
    store: Arc<dyn Store>,
    clock: Clock,
}

/// How many were meant, and how many were sent back.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RetryReport {
    /// That the filter matched.
    pub matched: u64,
    /// That are on their way again; 0 on a dry run.
    pub retried: u64,
}

impl DlqInspector {
    /// On a store.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        DlqInspector { store, clock }
    }

    /// On a file that is there, beside whoever dispatches from it. With the feature `postgres`, `postgres://…` is a server
    /// with a schema that is there.
    pub async fn open(location: impl AsRef<Path>) -> Result<Self, BusError> {
        let store: Arc<dyn Store> = match Location::of(location) {
            Location::Sqlite(path) => {
                if let Err(source) = path.metadata() {
                    return Err(StoreError::File { path, source }.into());
                }
                let options = SqliteOptions { owner: false, ..SqliteOptions::default() };
                // Opening reads and may migrate the file: not on an async thread.
                let opened = tokio::task::spawn_blocking(move || SqliteStore::open(path, options)).await;
                Arc::new(opened.expect("opening a store does not panic")?)
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

    /// Dead events, newest first; the first hundred by default.
    pub async fn list(&self, filter: DlqFilter, page: DlqPage) -> Result<Vec<DeadLetter>, BusError> {
        Ok(self.store.dead_letters(filter, page).await?)
    }

    /// What was given up of one event, with every failed attempt: one entry, or one for each subscription that is tracked on
    /// its own.
    pub async fn get(&self, id: EventId) -> Result<Vec<DeadLetter>, BusError> {
        Ok(self.store.dead_letter(id).await?)
    }

    /// Dead events by what killed them, largest group first.
    pub async fn groups(&self, filter: DlqFilter) -> Result<Vec<DlqGroup>, BusError> {
        Ok(self.store.dead_groups(filter).await?)
    }

    /// Sends one back: pending, no retries, no errors. A running bus picks it up within a second.
    pub async fn retry(&self, id: EventId) -> Result<(), BusError> {
        Ok(self.store.redrive(id, Redrive { at: self.clock.now(), payload: None }).await?)
    }

    /// Sends one back with another payload; the original is kept in its history.
    pub async fn retry_edited(&self, id: EventId, payload: &impl Serialize) -> Result<(), BusError> {
        let payload = payload::to_json(payload)?;
        Ok(self
            .store
            .redrive(id, Redrive { at: self.clock.now(), payload: Some(payload.to_string()) })
            .await?)
    }

    /// Sends back all that a filter matches, at most `per_second` events in a second. A dry run only counts. Of an event that several
    /// subscriptions have given up, only those get it again whose entries match; what died as a whole goes back as a whole.
    pub async fn retry_all(
        &self,
        filter: DlqFilter,
        per_second: Option<u32>,
        dry_run: bool,
    ) -> Result<RetryReport, BusError> {
        let mut report = RetryReport::default();
        let began = self.clock.now();
        let mut after = None;
        loop {
            let page = DlqPage { offset: 0, limit: PAGE, after };
            let page = self.store.dead_letters_in_short(filter.clone(), page).await?;
            let Some(last) = page.last() else { return Ok(report) };
            // What goes back and dies again at once is not sent back a second time.
            after = Some(last.cursor.behind_event());
            // Several subscriptions of one event may be dead; the event goes back once.
            let mut ids: Vec<EventId> = page.iter().map(|dead| dead.id).collect();
            ids.dedup();
            for id in ids {
                report.matched += 1;
                if dry_run {
                    continue;
                }
                // Spread on disk, by their due times: the rate holds even if this process ends now.
                let wait = per_second.map_or(0, |rate| report.retried * 1000 / u64::from(rate.max(1)));
                let at = self.clock.now().max(began + Duration::from_millis(wait));
                match self.store.redrive_matching(id, filter.clone(), at).await {
                    Ok(()) => report.retried += 1,
                    // Somebody else was faster.
                    Err(StoreError::NotDead { .. } | StoreError::NoSuchEvent { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// Deletes dead events that were published at or before this instant; says how many.
    pub async fn purge_until(&self, published_until: Timestamp) -> Result<u64, BusError> {
        Ok(self.store.purge_dead(published_until).await?)
    }

    /// Deletes dead events that are at least this old.
    pub async fn purge_older_than(&self, age: Duration) -> Result<u64, BusError> {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        self.purge_until(Timestamp::from_millis(self.clock.now().as_millis().saturating_sub(age))).await
    }

    /// Writes all that a filter matches as JSON lines; says how many.
    pub async fn export(&self, filter: DlqFilter, writer: &mut (impl Write + Send)) -> Result<u64, BusError> {
        let mut written = 0;
        let mut after = None;
        loop {
            let page = DlqPage { offset: 0, limit: PAGE, after };
            let page = self.store.dead_letters_in_short(filter.clone(), page).await?;
            let Some(last) = page.last() else { return Ok(written) };
            after = Some(last.cursor);
            for dead in page {
                // Payloads one by one: a page of them may be more than there is memory for.
                let event = self.store.event(dead.id).await?;
                let dead = DeadLetter { attempts: event.attempts, ..dead.with(event.payload) };
                serde_json::to_writer(&mut *writer, &dead)
                    .map_err(|error| self.export_failed(error.into()))?;
                writer.write_all(b"\n").map_err(|error| self.export_failed(error))?;
                written += 1;
            }
        }
    }

    fn export_failed(&self, source: std::io::Error) -> BusError {
        StoreError::File { path: "export".into(), source }.into()
    }
}
