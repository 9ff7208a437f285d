//! SQLite store: one thread writes, many commands share one transaction and one sync, and read-only connections read.
//!
//! **Writer thread.** SQLite has one writer at a time, so one connection makes all changes. A caller sends a command (`batch`: an append,
//! a settlement or a closure) through a channel to the thread of `writer` and waits for the reply.
//!
//! **Group commit.** The thread collects all waiting commands, and `group_commit` executes them in one transaction. The commit syncs the
//! write-ahead log once, so a hundred concurrent publishers share one sync. Replies wait in `transaction` for the commit: a publish that
//! returned `Ok` is on stable storage. A batch of only claims and settlements is not synced. A publisher without competitors commits
//! inline, on its own thread.
//!
//! **Readers.** `readers` runs queries on blocking threads with a pool of read-only connections. In WAL mode a query sees the last commit
//! before it; it waits for no writer, and no writer waits for it.
//!
//! **Statements.** `append` inserts a due event as running if the dispatcher has a free slot: the insert is its claim. All other work
//! waits on disk for `claim`. `settle` ends a claim. `recover` makes work due that a dead process left running. `checkpoint` copies the
//! write-ahead log into the database file.
//!
//! Each store trait is implemented beside its statements: `EventStore` in `read`, `WorkQueue` in `claim`, `DeadLetters` in `dlq`,
//! `Cluster` in `subscribe`, `Documents` in `document`. A method becomes a command of the writer, or a query on a read-only connection.

mod append;
mod audit;
mod batch;
mod checkpoint;
mod claim;
mod clock_step;
mod dlq;
mod document;
mod group_commit;
mod history;
mod idempotency;
#[cfg(feature = "postgres")]
mod locked_file;
mod maintenance;
mod owner;
mod private_file;
mod read;
mod readers;
mod recover;
mod rows;
mod schema;
mod settle;
mod subscribe;
mod transaction;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_retry::Clock;
use rusqlite::Connection;

use self::checkpoint::Checkpoint;
use self::owner::OwnerLock;
use self::readers::Readers;
use self::writer::Writer;
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::sql::status;
use crate::store::{Sealed, Store, StoreFuture};

pub use self::append::append_in;
pub use self::history::SqliteHistory;
#[cfg(feature = "postgres")]
pub(crate) use self::locked_file::LockedFile;

/// When a commit counts as durable.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Synced to stable storage (`synchronous = FULL`). Survives power loss.
    #[default]
    Full,
    /// Handed to the operating system (`synchronous = NORMAL`). Survives `kill -9`; a power loss may undo the last commits.
    /// Weaker than the promise of the crate, so it has to be chosen by name.
    Relaxed,
}

/// Options for opening a SQLite file.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// When a commit counts as durable.
    pub durability: Durability,
    /// Whether this process dispatches from the file. Only one process may.
    pub owner: bool,
    /// Maximum size of a payload, in bytes.
    pub max_payload: usize,
    /// Capacity of the writer's command queue. Callers wait when it is full.
    pub queue: usize,
    /// The clock. Virtual time stands still while the store works.
    pub clock: Clock,
    /// Maximum size of the file in pages of 4 KiB. Writes beyond it fail as on a full disk.
    pub max_pages: Option<u32>,
    /// An uncontended publisher commits inline, on its own thread, while commits take less than this. Default 1 ms; zero: never.
    pub inline_commit_below: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        SqliteOptions {
            durability: Durability::Full,
            owner: true,
            max_payload: NewEvent::DEFAULT_MAX_PAYLOAD_BYTES,
            queue: 4096,
            clock: Clock::system(),
            max_pages: None,
            inline_commit_below: Duration::from_millis(1),
        }
    }
}

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    max_payload: usize,
    /// Anchored, if this process dispatches: it follows the wall clock together with the waiting work.
    clock: Clock,
    /// Whether the clock was set back since it was last compared with the wall clock.
    was_set_back: AtomicBool,
    writer: Writer,
    readers: Arc<Readers>,
    /// Notified at every change of any idempotency key. Waiting callers are few, and reading a key again is cheap.
    key_changed: tokio::sync::Notify,
    /// Released when the store is closed. Declared after the writer, so that a dropped store releases it after the last write.
    owner: Mutex<Option<OwnerLock>>,
}

impl SqliteStore {
    /// Opens or creates a file. `:memory:` is a database that ends with the store, for tests.
    pub fn open(path: impl AsRef<Path>, mut options: SqliteOptions) -> Result<Self, StoreError> {
        if options.owner {
            options.clock = options.clock.anchored();
        }
        let is_file = !schema::is_memory(path.as_ref());
        // The canonical path: the owner lock must be the same however the file is addressed.
        let path = if is_file { owner::real_path(path.as_ref()) } else { path.as_ref().to_owned() };
        let owner = (options.owner && is_file).then(|| OwnerLock::acquire(&path)).transpose()?;
        let mut connection = schema::open_writer(&path, options.durability)?;
        if let Some(pages) = options.max_pages {
            connection.pragma_update(None, "max_page_count", pages)?;
        }
        let checkpoint =
            is_file.then(|| Checkpoint::start(&path, &mut connection, options.owner)).transpose()?;
        let writer = Writer::start(connection, &options, checkpoint);
        let SqliteOptions { max_payload, clock, .. } = options;
        Ok(SqliteStore {
            readers: Arc::new(Readers::new(&path)),
            path,
            max_payload,
            clock,
            was_set_back: AtomicBool::new(false),
            writer,
            key_changed: tokio::sync::Notify::new(),
            owner: Mutex::new(owner),
        })
    }

    /// Returns the canonical path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a query on a read-only connection, off the async threads.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let reading = self.readers.begin().await;
        if self.writer.is_closed() {
            return Err(StoreError::Closed);
        }
        if schema::is_memory(&self.path) {
            // A database in memory has one connection.
            return self.writer.run_unsynced(query).await;
        }
        let _busy = self.clock.busy();
        self.readers.run(reading, query).await
    }
}

impl Sealed for SqliteStore {}

impl Store for SqliteStore {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn follow_wall_clock(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.follow())
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            // The last connection to close checkpoints the log; that has to be the writer.
            self.readers.close().await;
            let closed = self.writer.close().await;
            self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
            closed
        })
    }
}
