//! SQLite behind the [`Store`] trait: one thread writes, read-only connections read.

mod append;
mod audit;
mod batch;
mod checkpoint;
mod claim;
mod committer;
mod desk;
mod dlq;
mod document;
#[cfg(feature = "postgres")]
mod held;
mod idempotency;
mod maintenance;
mod owner;
mod payload;
mod read;
mod readers;
mod replay;
mod rhythm;
mod rows;
mod schema;
mod settle;
mod status;
mod subscribe;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_retry::{Clock, Timestamp};
use rusqlite::Connection;

use self::append::Row;
use self::batch::Command;
use self::checkpoint::Checkpoint;
use self::owner::OwnerLock;
use self::readers::Readers;
use self::writer::Writer;
use crate::dead_letter::{DeadLetter, DlqFilter, DlqGroup, DlqPage, Redrive};
use crate::error::StoreError;
use crate::event::{EventId, NewEvent, SubscriptionName};
use crate::query::{
    Depth, EventDetail, EventFilter, EventPage, Stats, SubscriptionAttempt, SubscriptionRow, Unread,
};
use crate::store::{
    Appended, CLEAN_UP_BATCH, CLEAN_UP_EVERY, Call, CalledUp, Finished, Replayed, Store, StoreFuture,
    kept_since,
};
use crate::work::{ClaimSink, Claimed, DueHint, Recovered, Settlement};

pub use self::append::append_in;
#[cfg(feature = "postgres")]
pub(crate) use self::held::HeldFile;

/// What another process publishes or redrives is found within this time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// When a change counts as stored.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is on stable storage (`synchronous = FULL`). Survives power loss.
    #[default]
    Full,
    /// When the operating system has it (`synchronous = NORMAL`). Survives `kill -9`; power loss may take the last
    /// moments. By name, because it is not the promise.
    Relaxed,
}

/// How to open a file.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// When a change counts as stored.
    pub durability: Durability,
    /// Whether this process will dispatch: only one may.
    pub owner: bool,
    /// The largest payload, in bytes.
    pub max_payload: usize,
    /// How many commands may wait for the writer; publishers beyond wait themselves.
    pub queue: usize,
    /// Virtual time stands still while the store works.
    pub clock: Clock,
    /// The file may not grow beyond this many pages of 4 KiB; beyond, it is as if the disk were full.
    pub max_pages: Option<u32>,
    /// Who publishes alone commits on its own thread as long as commits take less than this: 1 ms. Zero leaves all of them to the
    /// writer's thread.
    pub brief: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        SqliteOptions {
            durability: Durability::Full,
            owner: true,
            max_payload: 1 << 20,
            queue: 4096,
            clock: Clock::system(),
            max_pages: None,
            brief: Duration::from_millis(1),
        }
    }
}

/// Events in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    max_payload: usize,
    clock: Clock,
    writer: Writer,
    readers: Arc<Readers>,
    /// Woken at every change of any idempotency key: waiting callers are few, and looking again is cheap.
    key_changed: tokio::sync::Notify,
    /// Let go when the store is closed. Declared after the writer: when it is just dropped, nothing is written any more.
    owner: Mutex<Option<OwnerLock>>,
}

impl SqliteStore {
    /// Opens or creates a file. `:memory:` is a database that ends with the process, for tests.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        let is_file = !schema::is_memory(path.as_ref());
        // One file has one name here, however it is reached, and so one owner.
        let path = if is_file { owner::real_path(path.as_ref()) } else { path.as_ref().to_owned() };
        let owner = (options.owner && is_file).then(|| OwnerLock::acquire(&path)).transpose()?;
        let mut connection = schema::open_writer(&path, options.durability)?;
        if let Some(pages) = options.max_pages {
            connection.pragma_update(None, "max_page_count", pages)?;
        }
        let checkpoint = is_file.then(|| Checkpoint::start(&path, &mut connection)).transpose()?;
        let writer = Writer::start(connection, &options, checkpoint);
        let SqliteOptions { max_payload, clock, .. } = options;
        Ok(SqliteStore {
            readers: Arc::new(Readers::new(&path)),
            path,
            max_payload,
            clock,
            writer,
            key_changed: tokio::sync::Notify::new(),
            owner: Mutex::new(owner),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a query on a read-only connection, away from the async threads.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let under_way = self.readers.begin().await;
        if self.writer.is_closed() {
            return Err(StoreError::Closed);
        }
        if schema::is_memory(&self.path) {
            // There is only one connection to it.
            return self.writer.run_unsynced(query).await;
        }
        let _busy = self.clock.busy();
        self.readers.run(under_way, query).await
    }

    /// Writes a consistent copy of the database to a new file, while everything goes on.
    pub async fn backup(&self, to: impl AsRef<Path>) -> Result<(), StoreError> {
        let to = to.as_ref().to_owned();
        self.read(move |connection| maintenance::backup(connection, &to)).await
    }

    /// Looks the file over, at most `limit` problems: empty if all is well.
    pub async fn check(&self, limit: u32) -> Result<Vec<String>, StoreError> {
        self.read(move |connection| maintenance::quick_check(connection, limit)).await
    }
}

impl Store for SqliteStore {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn attach(&self, sink: Option<ClaimSink>) {
        self.writer.attach(sink);
    }

    fn append(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Appended>> {
        let limit = self.max_payload;
        Box::pin(async move {
            NewEvent::check_all(&events, limit)?;
            let mut rows: Vec<Row> = events.into_iter().map(Row::from).collect();
            match rows.pop() {
                None => Ok(Vec::new()),
                Some(row) if rows.is_empty() && row.to.addressees().is_empty() => {
                    // Kept until the answer, so that the memory is given back here and not by the writer.
                    let _event = Arc::clone(&row.event);
                    let appended = self.writer.call(|reply| Command::AppendOne { row, reply }).await?;
                    Ok(vec![appended])
                }
                Some(row) => {
                    rows.push(row);
                    self.writer.call(|reply| Command::Append { rows, reply }).await
                }
            }
        })
    }

    fn claim(&self, now: Timestamp) -> StoreFuture<'_, usize> {
        Box::pin(self.writer.call(move |reply| Command::Claim { now, reply }))
    }

    fn claim_suspect(&self, now: Timestamp, sink: ClaimSink) -> StoreFuture<'_, Option<Claimed>> {
        Box::pin(self.writer.run_unsynced(move |connection| claim::claim_suspect(connection, now, &sink)))
    }

    fn has_suspects(&self, now: Timestamp) -> StoreFuture<'_, bool> {
        Box::pin(self.read(move |connection| claim::has_suspects(connection, now)))
    }

    fn due_hint(&self) -> Arc<DueHint> {
        self.writer.due_hint()
    }

    fn look_again(&self) -> Option<Duration> {
        (!schema::is_memory(&self.path)).then_some(LOOK_AGAIN)
    }

    fn refresh_due(&self) -> StoreFuture<'_, Option<Timestamp>> {
        Box::pin(async move {
            let due = self.read(claim::next_due).await?;
            if let Some(at) = due {
                self.writer.due_hint().pull_forward(at);
            }
            Ok(due)
        })
    }

    fn hold(&self, names: Vec<SubscriptionName>, now: Timestamp) -> StoreFuture<'_, Vec<usize>> {
        Box::pin(self.writer.run_unsynced(move |connection| claim::hold(connection, &names, now)))
    }

    fn call_up(&self, calls: Vec<Call>, now: Timestamp) -> StoreFuture<'_, Vec<CalledUp>> {
        Box::pin(self.writer.call(move |reply| Command::CallUp { calls, now, reply }))
    }

    fn settle(&self, claimed: Claimed, settlement: Settlement) -> StoreFuture<'_, Finished> {
        Box::pin(self.writer.settle(claimed, Box::new(settlement)))
    }

    fn heartbeat(&self) -> StoreFuture<'_, Option<Duration>> {
        // The owner's lock says it: it is let go with the process.
        Box::pin(async move { if self.writer.is_closed() { Err(StoreError::Closed) } else { Ok(None) } })
    }

    fn recover(&self, now: Timestamp) -> StoreFuture<'_, Vec<Recovered>> {
        Box::pin(self.writer.run(move |connection| settle::recover(connection, now)))
    }

    fn maintain(&self, now: Timestamp, retention: Option<Duration>) -> StoreFuture<'_, Duration> {
        Box::pin(async move {
            // A few at a time, so that publishers get their turns in between.
            while let Some(retention) = retention {
                let purged = self.purge_done(kept_since(now, retention), CLEAN_UP_BATCH).await?;
                if purged < u64::from(CLEAN_UP_BATCH) {
                    break;
                }
            }
            while self.reap_keys(CLEAN_UP_BATCH as usize).await? >= CLEAN_UP_BATCH as usize {}
            Ok(CLEAN_UP_EVERY)
        })
    }

    fn register(&self, subscription: SubscriptionRow) -> StoreFuture<'_, ()> {
        Box::pin(self.writer.run(move |connection| subscribe::register(connection, &subscription)))
    }

    fn unregister(&self, name: SubscriptionName) -> StoreFuture<'_, bool> {
        Box::pin(self.writer.run(move |connection| subscribe::unregister(connection, &name)))
    }

    fn subscriptions(&self) -> StoreFuture<'_, Vec<SubscriptionRow>> {
        Box::pin(self.read(subscribe::list))
    }

    fn event(&self, id: EventId) -> StoreFuture<'_, EventDetail> {
        Box::pin(self.read(move |connection| read::event(connection, id)))
    }

    fn events(&self, filter: EventFilter, page: EventPage) -> StoreFuture<'_, Vec<EventDetail>> {
        Box::pin(self.read(move |connection| read::events(connection, &filter, page)))
    }

    fn events_in_short(
        &self,
        filter: EventFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<EventDetail<Unread>>> {
        Box::pin(self.read(move |connection| read::events(connection, &filter, page)))
    }

    fn attempts_of(
        &self,
        name: SubscriptionName,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>> {
        Box::pin(self.read(move |connection| read::attempts_of(connection, &name, page)))
    }

    fn depth(&self) -> StoreFuture<'_, Depth> {
        let path = self.path.clone();
        Box::pin(self.read(move |connection| maintenance::depth(connection, &path)))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        let path = self.path.clone();
        Box::pin(self.read(move |connection| maintenance::stats(connection, &path)))
    }

    fn dead_letters(&self, filter: DlqFilter, page: DlqPage) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(self.read(move |connection| dlq::list(connection, &filter, page)))
    }

    fn dead_letters_in_short(
        &self,
        filter: DlqFilter,
        page: DlqPage,
    ) -> StoreFuture<'_, Vec<DeadLetter<Unread>>> {
        Box::pin(self.read(move |connection| dlq::list(connection, &filter, page)))
    }

    fn dead_letter(&self, id: EventId) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(self.read(move |connection| dlq::get(connection, id)))
    }

    fn dead_groups(&self, filter: DlqFilter) -> StoreFuture<'_, Vec<DlqGroup>> {
        Box::pin(self.read(move |connection| dlq::groups(connection, &filter)))
    }

    fn redrive(&self, id: EventId, redrive: Redrive) -> StoreFuture<'_, ()> {
        let limit = self.max_payload;
        Box::pin(async move {
            if let Some(bytes) = redrive.payload.as_ref().map(String::len).filter(|bytes| *bytes > limit) {
                return Err(StoreError::PayloadTooLarge { bytes, limit });
            }
            let at = redrive.at;
            self.writer.run(move |connection| dlq::redrive(connection, id, &redrive)).await?;
            self.writer.due_hint().pull_forward(at);
            Ok(())
        })
    }

    fn redrive_matching(&self, id: EventId, filter: DlqFilter, at: Timestamp) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let work = move |connection: &Connection| dlq::redrive_matching(connection, id, &filter, at);
            self.writer.run(work).await?;
            self.writer.due_hint().pull_forward(at);
            Ok(())
        })
    }

    fn replay(&self, id: EventId, to: SubscriptionName, at: Timestamp) -> StoreFuture<'_, Replayed> {
        Box::pin(async move {
            let work = move |connection: &Connection| replay::replay(connection, id, &to, at);
            let replayed = self.writer.run(work).await?;
            self.writer.due_hint().pull_forward(at);
            Ok(replayed)
        })
    }

    fn purge_dead(&self, published_until: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let mut purged = 0;
            loop {
                // A few at a time, so that publishers get their turns in between.
                let part = self.writer.run(move |connection| dlq::purge(connection, published_until)).await?;
                purged += part;
                if part == 0 {
                    return Ok(purged);
                }
            }
        })
    }

    fn purge_done(&self, finished_before: Timestamp, limit: u32) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            // Looked for beside the writer, which only deletes.
            let keys = self
                .read(move |connection| maintenance::finished(connection, finished_before, limit))
                .await?;
            if keys.is_empty() {
                return Ok(0);
            }
            self.writer.run(move |connection| maintenance::purge_done(connection, &keys)).await
        })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            // The last connection to close cleans the log up; that should be the writer.
            self.readers.close().await;
            let closed = self.writer.close().await;
            self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
            closed
        })
    }
}
