//! Judges the store by the journal: was anything lost, and does everything that is there make sense?
//!
//! It [looks](Oracle::look) after every fault, when no process works on the store; and it [judges](Oracle::judge) when a bus
//! has done all that was left to do. It asks the store only what the [`Store`] trait offers.

mod checks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redrive::{
    DeadLetter, DlqFilter, DlqPage, EventDetail, EventFilter, EventId, EventPage, EventStatus, Location,
    PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store, StoreError,
};

use tempfile::TempDir;

use crate::account::{Account, Acknowledged, Known};
use crate::journal::{Fact, Reader};
use crate::process::beside;
use crate::report::Report;
use crate::subject::{self, CRASHED, Counting, FRAGILE, Patience, wanted_by};

/// So much is read at once.
const PAGE: u32 = 1000;

/// Nothing that is left after a fault takes longer than this. A bus that has missed a hint looks by itself after five seconds.
const PATIENCE: Patience = Patience { longest: Duration::from_secs(30), still: Duration::from_secs(12) };

/// The judge of one store, from its creation on.
#[derive(Debug)]
pub struct Oracle {
    account: Account,
    /// How far each journal was read.
    readers: HashMap<PathBuf, Reader>,
    counting: Counting,
    /// Whether what was committed without a sync may be gone.
    forgets_unsynced: bool,
    /// How every event stood at the last look.
    seen: HashMap<EventId, Seen>,
    /// Batches that were looked at.
    batches: HashSet<u64>,
    lost: BTreeMap<EventId, String>,
    violations: Vec<String>,
    said: HashSet<String>,
}

/// How an event stood at the last look.
#[derive(Debug)]
struct Seen {
    status: EventStatus,
    retry_count: u32,
    deliveries: BTreeMap<String, (EventStatus, u32)>,
    /// Whether a death of the process was charged to it.
    was_charged: bool,
    /// How often it had been sent back.
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

    /// For a store whose machine lost its power: what was committed without a sync may be gone. Settlements are.
    pub fn after_power_loss(counting: Counting) -> Self {
        Oracle { forgets_unsynced: true, ..Self::new(counting) }
    }

    /// What the journal says.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Reads what was added to the journal.
    pub fn read(&mut self, journal: &Path) {
        match self.readers.entry(journal.to_owned()).or_default().read(journal) {
            Ok(facts) => self.hear(facts),
            Err(error) => self.complain(format!("the journal: {error}")),
        }
    }

    /// Takes facts in.
    pub fn hear(&mut self, facts: impl IntoIterator<Item = Fact>) {
        self.account.add(facts);
    }

    /// Looks at the store while nobody works on it: after a fault, before anything is mended.
    pub async fn look(&mut self, store: &dyn Store) {
        match Picture::take(store).await {
            Ok(picture) => self.compare(&picture),
            Err(error) => self.complain(format!("the store cannot be read: {error}")),
        }
    }

    /// Judges the store after all that was left has been done.
    pub async fn judge(&mut self, store: &dyn Store) {
        match Picture::take(store).await {
            Ok(picture) => {
                self.compare(&picture);
                self.compare_ends(&picture);
            }
            Err(error) => self.complain(format!("the store cannot be read: {error}")),
        }
    }

    /// The whole way after the last fault: look, do what is left, judge, look the file over.
    pub async fn examine(&mut self, database: &Path, journal: &Path) {
        self.look_at_file(database, journal).await;
        if let Err(error) = subject::drain(database, self.counting, journal, PATIENCE).await {
            self.complain(error);
        }
        self.read(journal);
        self.judge_at(database).await;
    }

    /// Judges what is there when a bus has done all that was left to do.
    pub async fn judge_at(&mut self, database: &Path) {
        self.at(database, async |oracle, store| oracle.judge(store).await).await;
        if let Location::Sqlite(file) = Location::of(database)
            && let Err(damage) = integrity(&file)
        {
            self.complain(damage);
        }
    }

    /// Looks at a file while nobody works on it, and leaves it as it is: whoever opens it writes its log back, and that is for
    /// the next process to do.
    pub async fn look_at_file(&mut self, database: &Path, journal: &Path) {
        self.read(journal);
        match copy_of(database) {
            Ok((_folder, copy)) => self.at(&copy, async |oracle, store| oracle.look(store).await).await,
            Err(error) => self.complain(format!("the store cannot be copied: {error}")),
        }
    }

    /// Looks at a database while nobody works on it.
    pub async fn look_at(&mut self, database: &Path) {
        self.at(database, async |oracle, store| oracle.look(store).await).await;
    }

    /// Beside whoever dispatches, though nobody does: nothing is recovered, nothing is charged.
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

    /// Takes down what must not be, once.
    pub fn complain(&mut self, sentence: String) {
        if self.said.insert(sentence.clone()) {
            self.violations.push(sentence);
        }
    }

    /// Adds what was found to a report.
    pub fn add_to(&self, report: &mut Report) {
        report.acknowledged += self.account.acknowledged();
        report.lost += self.lost.len() as u64;
        report.duplicates += self.duplicates();
        report.violations.extend(self.sentences().cloned());
    }

    /// The same for one of many tries: every sentence says which.
    pub fn add_to_for(&self, name: &str, report: &mut Report) {
        let before = report.violations.len();
        self.add_to(report);
        for sentence in &mut report.violations[before..] {
            *sentence = format!("{name}: {sentence}");
        }
    }

    /// How many acknowledged events are in none of the places where they could be.
    pub fn lost(&self) -> u64 {
        self.lost.len() as u64
    }

    /// All that must not be, what is lost included.
    pub fn sentences(&self) -> impl Iterator<Item = &String> {
        self.lost.values().chain(&self.violations)
    }

    /// Whether nothing is wrong.
    pub fn is_content(&self) -> bool {
        self.sentences().next().is_none()
    }

    /// Everything else that must not be.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// How often a handler ran to its end again for an event.
    pub fn duplicates(&self) -> u64 {
        self.account.events.values().map(|known| self.again(known, |_| true)).sum()
    }

    /// The same for processes that lived on: what a dead one has done and could not say is done again, and nothing else. What
    /// somebody sent back is left out.
    pub fn duplicates_of_the_living(&self, dead: &HashSet<u64>) -> Vec<EventId> {
        let lives = |life: &u64| !dead.contains(life);
        let kept = self.account.events.iter().filter(|(_, known)| known.redrives == 0);
        let again = kept.filter(|(_, known)| self.again(known, lives) > 0);
        again.map(|(id, _)| *id).collect()
    }

    /// Where events are counted as a whole, a handler runs again when one after it has failed: that is no accident.
    fn again(&self, known: &Known, counts: impl Fn(&u64) -> bool) -> u64 {
        let has_followers = |known: &Acknowledged| wanted_by(&known.event_type).len() > 1;
        let is_whole =
            self.counting == Counting::Event && known.acknowledged.as_ref().is_none_or(has_followers);
        let by_accident = known.handled.iter().filter(|(name, _)| !(is_whole && *name == FRAGILE));
        let times = |lives: &Vec<u64>| lives.iter().filter(|life| counts(life)).count() as u64;
        by_accident.map(|(_, lives)| times(lives).saturating_sub(1)).sum()
    }
}

/// Everything in a store at one moment.
struct Picture {
    /// Whole where something is still open or dead; without deliveries and attempts where it is done.
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

/// A database with its logs, in a folder of its own.
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

/// Whether the file is whole: the part that knows the engine.
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

/// How many of these errors were charged because the process died.
fn charged(errors: &[String]) -> u32 {
    u32::try_from(errors.iter().filter(|error| *error == CRASHED).count()).unwrap_or(u32::MAX)
}

/// Who wants an event of the store.
fn wanting(event: &EventDetail) -> &'static [&'static str] {
    wanted_by(event.event_type.as_str())
}
