//! Judges the store by the journal: finds lost events and inconsistent state.
//!
//! It [looks](Oracle::look) after every fault, while no process works on the store, and [judges](Oracle::judge) after a bus
//! has drained it. It uses only the [`Store`] trait.

mod checks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redrive::EventId;
use redrive::dlq::{DeadLetter, DlqFilter, DlqPage};
use redrive::events::{EventDetail, EventFilter, EventPage, EventStatus};
use redrive::store::{
    Location, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store, StoreError,
};

use tempfile::TempDir;

use crate::account::{Account, Acknowledged, EventAccount};
use crate::journal::{Fact, Reader};
use crate::process::beside;
use crate::report::Report;
use crate::subject::{self, CRASHED, Counting, DrainTimeouts, FRAGILE, wanted_by};

/// Page size of reads.
const PAGE: u32 = 1000;

/// Timeout of the drain. A bus that missed a notification polls after five seconds.
const DRAIN_TIMEOUTS: DrainTimeouts =
    DrainTimeouts { total: Duration::from_secs(30), idle: Duration::from_secs(12) };

/// The judge of one store, from its creation on.
#[derive(Debug)]
pub struct Oracle {
    account: Account,
    /// Read position of each journal.
    readers: HashMap<PathBuf, Reader>,
    counting: Counting,
    /// Whether commits without a sync may be lost.
    forgets_unsynced: bool,
    /// State of every event at the last look.
    seen: HashMap<EventId, Seen>,
    /// Batches that were checked.
    batches: HashSet<u64>,
    lost: BTreeMap<EventId, String>,
    violations: Vec<String>,
    said: HashSet<String>,
}

/// State of an event at the last look.
#[derive(Debug)]
struct Seen {
    status: EventStatus,
    retry_count: u32,
    deliveries: BTreeMap<String, (EventStatus, u32)>,
    /// Whether a crash was charged to it.
    was_charged: bool,
    /// Number of redrives.
    redrives: usize,
}

impl Oracle {
    /// For a new store.
    pub fn new(counting: Counting) -> Self {
        Oracle {
            account: Account::default(),
            readers: HashMap::new(),
            counting,
            forgets_unsynced: false,
            seen: HashMap::new(),
            batches: HashSet::new(),
            lost: BTreeMap::new(),
            violations: Vec::new(),
            said: HashSet::new(),
        }
    }

    /// For a store after a power loss: commits without a sync, such as settlements, may be lost.
    pub fn after_power_loss(counting: Counting) -> Self {
        Oracle { forgets_unsynced: true, ..Self::new(counting) }
    }

    /// Facts of the journals.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Reads new facts of a journal.
    pub fn read(&mut self, journal: &Path) {
        match self.readers.entry(journal.to_owned()).or_default().read(journal) {
            Ok(facts) => self.hear(facts),
            Err(error) => self.complain(format!("the journal: {error}")),
        }
    }

    /// Adds facts.
    pub fn hear(&mut self, facts: impl IntoIterator<Item = Fact>) {
        self.account.add(facts);
    }

    /// Checks the store while no process works on it: after a fault, before recovery.
    pub async fn look(&mut self, store: &dyn Store) {
        match Picture::take(store).await {
            Ok(picture) => self.compare(&picture),
            Err(error) => self.complain(format!("the store cannot be read: {error}")),
        }
    }

    /// Checks the store after a drain.
    pub async fn judge(&mut self, store: &dyn Store) {
        match Picture::take(store).await {
            Ok(picture) => {
                self.compare(&picture);
                self.compare_ends(&picture);
            }
            Err(error) => self.complain(format!("the store cannot be read: {error}")),
        }
    }

    /// All steps after the last fault: look, drain, judge, integrity check.
    pub async fn examine(&mut self, database: &Path, journal: &Path) {
        self.look_at_file(database, journal).await;
        if let Err(error) = subject::drain(database, self.counting, journal, DRAIN_TIMEOUTS).await {
            self.complain(error);
        }
        self.read(journal);
        self.judge_at(database).await;
    }

    /// Drains the database and judges it.
    pub async fn judge_at(&mut self, database: &Path) {
        self.at(database, async |oracle, store| oracle.judge(store).await).await;
        if let Location::Sqlite(file) = Location::of(database)
            && let Err(damage) = integrity(&file)
        {
            self.complain(damage);
        }
    }

    /// Looks at a copy of a file while no process works on it: opening the original would write its log back, which is left
    /// to the next process.
    pub async fn look_at_file(&mut self, database: &Path, journal: &Path) {
        self.read(journal);
        match copy_of(database) {
            Ok((_folder, copy)) => self.at(&copy, async |oracle, store| oracle.look(store).await).await,
            Err(error) => self.complain(format!("the store cannot be copied: {error}")),
        }
    }

    /// Looks at a database while no process works on it.
    pub async fn look_at(&mut self, database: &Path) {
        self.at(database, async |oracle, store| oracle.look(store).await).await;
    }

    /// Opens the store without dispatching: nothing is recovered or charged.
    async fn at(&mut self, database: &Path, work: impl AsyncFnOnce(&mut Self, &dyn Store)) {
        let opened: Result<Box<dyn Store>, StoreError> = match Location::of(database) {
            Location::Sqlite(file) => {
                let options = SqliteOptions { owner: false, ..SqliteOptions::default() };
                SqliteStore::open(file, options).map(|store| Box::new(store) as _)
            }
            Location::Postgres(address) => {
                let opened = PostgresStore::open(&address, PostgresOptions::default()).await;
                opened.map(|store| Box::new(store) as _)
            }
        };
        match opened {
            Ok(store) => {
                work(self, store.as_ref()).await;
                if let Err(error) = store.close().await {
                    self.complain(format!("the store cannot be closed: {error}"));
                }
            }
            Err(error) => self.complain(format!("the store cannot be opened: {error}")),
        }
    }

    /// Records a violation, once.
    pub fn complain(&mut self, sentence: String) {
        if self.said.insert(sentence.clone()) {
            self.violations.push(sentence);
        }
    }

    /// Adds the findings to a report.
    pub fn add_to(&self, report: &mut Report) {
        report.acknowledged += self.account.acknowledged();
        report.lost += self.lost.len() as u64;
        report.duplicates += self.duplicates();
        report.violations.extend(self.sentences().cloned());
    }

    /// Adds the findings of one of many tries to a report; every sentence names the try.
    pub fn add_to_for(&self, name: &str, report: &mut Report) {
        let before = report.violations.len();
        self.add_to(report);
        for sentence in &mut report.violations[before..] {
            *sentence = format!("{name}: {sentence}");
        }
    }

    /// Number of acknowledged events that are in no valid state.
    pub fn lost(&self) -> u64 {
        self.lost.len() as u64
    }

    /// All violations, lost events included.
    pub fn sentences(&self) -> impl Iterator<Item = &String> {
        self.lost.values().chain(&self.violations)
    }

    /// Whether there are no violations.
    pub fn is_content(&self) -> bool {
        self.sentences().next().is_none()
    }

    /// Violations beside lost events.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Number of repeated successful handler runs.
    pub fn duplicates(&self) -> u64 {
        self.account.events.values().map(|known| self.again(known, |_| true)).sum()
    }

    /// Events that were handled again by living processes: only unsettled work of dead processes may be repeated. Redriven
    /// events are left out.
    pub fn duplicates_of_the_living(&self, dead: &HashSet<u64>) -> Vec<EventId> {
        let lives = |life: &u64| !dead.contains(life);
        let kept = self.account.events.iter().filter(|(_, known)| known.redrives == 0);
        let again = kept.filter(|(_, known)| self.again(known, lives) > 0);
        again.map(|(id, _)| *id).collect()
    }

    /// Counts repetitions. With tracking by event, a handler runs again when one after it has failed: that is not counted.
    fn again(&self, known: &EventAccount, counts: impl Fn(&u64) -> bool) -> u64 {
        let has_followers = |known: &Acknowledged| wanted_by(&known.event_type).len() > 1;
        let is_whole =
            self.counting == Counting::Event && known.acknowledged.as_ref().is_none_or(has_followers);
        let by_accident = known.handled.iter().filter(|(name, _)| !(is_whole && *name == FRAGILE));
        let times = |lives: &Vec<u64>| lives.iter().filter(|life| counts(life)).count() as u64;
        by_accident.map(|(_, lives)| times(lives).saturating_sub(1)).sum()
    }
}

/// Snapshot of a store.
struct Picture {
    /// Complete for open and dead events; without deliveries and attempts for done ones.
    events: HashMap<EventId, EventDetail>,
    dead: Vec<DeadLetter>,
}

impl Picture {
    async fn take(store: &dyn Store) -> Result<Self, StoreError> {
        let mut events = HashMap::new();
        let mut after = None;
        loop {
            let page = store.events(EventFilter::default(), EventPage { limit: PAGE, after }).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.cursor);
            for event in page {
                let event =
                    if event.status == EventStatus::Done { event } else { store.event(event.id).await? };
                events.insert(event.id, event);
            }
        }
        let (mut dead, mut after) = (Vec::new(), None);
        loop {
            let page = DlqPage { offset: 0, limit: PAGE, after };
            let page = store.dead_letters(DlqFilter::default(), page).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.cursor);
            dead.extend(page);
        }
        Ok(Picture { events, dead })
    }
}

/// Copies a database with its logs into a new folder.
pub(crate) fn copy_of(database: &Path) -> io::Result<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("events.db");
    for suffix in ["", "-wal", "-journal"] {
        match std::fs::copy(beside(database, suffix), beside(&copy, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok((folder, copy))
}

/// Integrity check of the file by SQLite.
pub fn integrity(database: &Path) -> Result<(), String> {
    let check = || -> rusqlite::Result<Vec<String>> {
        let connection = rusqlite::Connection::open(database)?;
        let mut statement = connection.prepare("PRAGMA integrity_check(10)")?;
        let mut lines: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        lines.retain(|line| line != "ok");
        let mut statement = connection.prepare("PRAGMA foreign_key_check")?;
        let orphans = statement.query_map([], |row| row.get::<_, String>(0))?;
        for table in orphans {
            lines.push(format!("a row of {} belongs to no event", table?));
        }
        Ok(lines)
    };
    match check() {
        Ok(lines) if lines.is_empty() => Ok(()),
        Ok(lines) => Err(format!("the file is damaged: {}", lines.join("; "))),
        Err(error) => Err(format!("the file cannot be checked: {error}")),
    }
}

/// Number of errors that were charged for crashes.
fn charged(errors: &[String]) -> u32 {
    u32::try_from(errors.iter().filter(|error| *error == CRASHED).count()).unwrap_or(u32::MAX)
}

/// Subscriptions that match an event.
fn wanting(event: &EventDetail) -> &'static [&'static str] {
    wanted_by(event.event_type.as_str())
}
