//! Store of a test: a SQLite file, or, with `REDRIVE_TEST_STORE=postgres` (and the crate's feature `postgres`), a schema on a
//! PostgreSQL server.
#![allow(dead_code)] // not every test file uses everything

#[cfg(feature = "postgres")]
mod schema;

use std::path::PathBuf;
use std::process::Command;

use redrive::dlq::DlqInspector;
use redrive::retry::{Clock, VirtualTime};
use redrive::store::StoreError;
use redrive::testing::TestBus;
use redrive::{BusError, EventBus, EventBusBuilder};

/// Names the store under test.
const STORE: &str = "REDRIVE_TEST_STORE";

/// Store of the parent process.
const PASSED: &str = "REDRIVE_TEST_PASSED_STORE";

/// Store that several buses can open one after another.
#[derive(Debug)]
pub(crate) enum TestStore {
    /// File in its own folder, removed on drop by the process that created it.
    File(PathBuf, Option<tempfile::TempDir>),
    #[cfg(feature = "postgres")]
    Schema(redrive_servers::Schema),
}

impl TestStore {
    /// Creates an empty store.
    pub(crate) fn new() -> Self {
        match std::env::var(STORE).as_deref() {
            Err(_) | Ok("sqlite") => {
                let folder = tempfile::tempdir().unwrap();
                TestStore::File(folder.path().join("events.db"), Some(folder))
            }
            #[cfg(feature = "postgres")]
            Ok("postgres") => TestStore::Schema(
                redrive_servers::Schema::new().unwrap_or_else(|missing| panic!("{missing}")),
            ),
            Ok(other) => {
                panic!("{STORE}={other}: use sqlite, or postgres and build with --features postgres")
            }
        }
    }

    /// Whether several processes may share it.
    pub(crate) fn is_shared(&self) -> bool {
        !matches!(self, TestStore::File(..))
    }

    /// Passes the store to a child process.
    pub(crate) fn pass_to(&self, command: &mut Command) {
        match self {
            TestStore::File(file, _) => command.env(PASSED, file),
            #[cfg(feature = "postgres")]
            TestStore::Schema(schema) => {
                command.env(PASSED, schema.name()).env("REDRIVE_TEST_POSTGRES", schema.url())
            }
        };
    }

    /// Store passed by the parent process.
    pub(crate) fn passed() -> Self {
        let passed = std::env::var(PASSED).unwrap();
        #[cfg(feature = "postgres")]
        if std::env::var(STORE).as_deref() == Ok("postgres") {
            let url = std::env::var("REDRIVE_TEST_POSTGRES").unwrap();
            return TestStore::Schema(redrive_servers::Schema::of_another(url, passed));
        }
        TestStore::File(passed.into(), None)
    }

    /// Opens a bus on real time.
    pub(crate) async fn open(&self, builder: EventBusBuilder) -> EventBus {
        self.open_on(Clock::system(), builder).await
    }

    /// Opens a bus on virtual time.
    pub(crate) async fn open_at(&self, time: &VirtualTime, builder: EventBusBuilder) -> EventBus {
        self.open_on(time.clock(), builder).await
    }

    async fn open_on(&self, clock: Clock, builder: EventBusBuilder) -> EventBus {
        let builder = builder.clock(clock.clone());
        match self {
            TestStore::File(file, _) => builder.open(file).await.unwrap(),
            #[cfg(feature = "postgres")]
            TestStore::Schema(schema) => builder.on(schema::open(schema, clock).await).await.unwrap(),
        }
    }

    /// Waits until a bus dropped without a shutdown has released the store: its tasks end asynchronously.
    pub(crate) async fn is_free(&self) {
        match self {
            TestStore::File(file, _) => loop {
                match EventBus::open(file).await {
                    Ok(_) => return,
                    Err(BusError::Store(StoreError::InUse { .. })) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            },
            #[cfg(feature = "postgres")]
            TestStore::Schema(_) => {} // the next bus waits for the lease
        }
    }

    /// Locks the store against writes, as a busy process does.
    pub(crate) async fn hold(&self) -> Hold {
        match self {
            TestStore::File(file, _) => {
                let connection = rusqlite::Connection::open(file).unwrap();
                connection.execute_batch("BEGIN IMMEDIATE").unwrap();
                Hold::File(connection)
            }
            #[cfg(feature = "postgres")]
            TestStore::Schema(schema) => Hold::Schema(schema::hold(schema).await),
        }
    }

    /// Checks the integrity of the store.
    pub(crate) async fn is_sound(&self) {
        match self {
            TestStore::File(file, _) => {
                let connection = rusqlite::Connection::open(file).unwrap();
                let check = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
                assert_eq!(connection.query_row("PRAGMA integrity_check", [], check).unwrap(), "ok");
            }
            #[cfg(feature = "postgres")]
            TestStore::Schema(schema) => schema::is_sound(schema).await,
        }
    }

    /// Dead-letter queue without a bus, on real time.
    pub(crate) async fn dlq(&self) -> DlqInspector {
        match self {
            TestStore::File(file, _) => DlqInspector::open(file).await.unwrap(),
            #[cfg(feature = "postgres")]
            TestStore::Schema(schema) => DlqInspector::open(schema.address()).await.unwrap(),
        }
    }
}

/// Write lock on the store; released on drop.
pub(crate) enum Hold {
    File(rusqlite::Connection),
    #[cfg(feature = "postgres")]
    Schema(tokio_postgres::Client),
}

impl Hold {
    pub(crate) async fn let_go(self) {
        match self {
            Hold::File(connection) => connection.execute_batch("COMMIT").unwrap(),
            #[cfg(feature = "postgres")]
            Hold::Schema(client) => client.batch_execute("COMMIT").await.unwrap(),
        }
    }
}

/// [`TestBus`] with its store; in memory instead of a file.
#[derive(Debug)]
pub(crate) struct StoredBus {
    bus: TestBus,
    _place: TestStore,
}

impl StoredBus {
    pub(crate) async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub(crate) async fn with(change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Self {
        let store_under_test = TestStore::new();
        let bus = match &store_under_test {
            TestStore::File(..) => TestBus::with(change).await.unwrap(),
            #[cfg(feature = "postgres")]
            TestStore::Schema(_) => {
                let time = VirtualTime::new();
                TestBus::of(store_under_test.open_at(&time, change(EventBus::builder())).await, time)
            }
        };
        StoredBus { bus, _place: store_under_test }
    }
}

impl std::ops::Deref for StoredBus {
    type Target = TestBus;

    fn deref(&self) -> &TestBus {
        &self.bus
    }
}
