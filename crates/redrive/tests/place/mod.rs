//! Where a test opens its buses: a file of its own, or, with `REDRIVE_TEST_STORE=postgres` (and the crate's feature
//! `postgres`), a schema of its own on a PostgreSQL server. What a bus does must not depend on it.
#![allow(dead_code)] // not every test file uses everything

#[cfg(feature = "postgres")]
mod schema;

use std::path::PathBuf;
use std::process::Command;

use redrive::testing::TestBus;
use redrive::{BusError, Clock, DlqInspector, EventBus, EventBusBuilder, StoreError, VirtualTime};

/// Names the store under test.
const STORE: &str = "REDRIVE_TEST_STORE";

/// Where the process that has started this one works.
const PASSED: &str = "REDRIVE_TEST_PLACE";

/// A bus that is opened at the same place again finds what the one before has left.
#[derive(Debug)]
pub(crate) enum Place {
    /// The file, in a folder of its own, which is gone with the place unless it is another process's.
    File(PathBuf, Option<tempfile::TempDir>),
    #[cfg(feature = "postgres")]
    Schema(redrive_servers::Schema),
}

impl Place {
    /// An empty one.
    pub(crate) fn new() -> Self {
        match std::env::var(STORE).as_deref() {
            Err(_) | Ok("sqlite") => {
                let folder = tempfile::tempdir().unwrap();
                Place::File(folder.path().join("events.db"), Some(folder))
            }
            #[cfg(feature = "postgres")]
            Ok("postgres") => {
                Place::Schema(redrive_servers::Schema::new().unwrap_or_else(|missing| panic!("{missing}")))
            }
            Ok(other) => {
                panic!("{STORE}={other}: use sqlite, or postgres and build with --features postgres")
            }
        }
    }

    /// Whether many processes may share it.
    pub(crate) fn is_shared(&self) -> bool {
        !matches!(self, Place::File(..))
    }

    /// Makes it the place of a process that is about to be started.
    pub(crate) fn pass_to(&self, command: &mut Command) {
        match self {
            Place::File(file, _) => command.env(PASSED, file),
            #[cfg(feature = "postgres")]
            Place::Schema(schema) => {
                command.env(PASSED, schema.name()).env("REDRIVE_TEST_POSTGRES", schema.url())
            }
        };
    }

    /// The one that this process was given.
    pub(crate) fn passed() -> Self {
        let passed = std::env::var(PASSED).unwrap();
        #[cfg(feature = "postgres")]
        if std::env::var(STORE).as_deref() == Ok("postgres") {
            let url = std::env::var("REDRIVE_TEST_POSTGRES").unwrap();
            return Place::Schema(redrive_servers::Schema::of_another(url, passed));
        }
        Place::File(passed.into(), None)
    }

    /// A bus on real time.
    pub(crate) async fn open(&self, builder: EventBusBuilder) -> EventBus {
        self.open_on(Clock::system(), builder).await
    }

    /// A bus on virtual time.
    pub(crate) async fn open_at(&self, time: &VirtualTime, builder: EventBusBuilder) -> EventBus {
        self.open_on(time.clock(), builder).await
    }

    async fn open_on(&self, clock: Clock, builder: EventBusBuilder) -> EventBus {
        let builder = builder.clock(clock.clone());
        match self {
            Place::File(file, _) => builder.open(file).await.unwrap(),
            #[cfg(feature = "postgres")]
            Place::Schema(schema) => builder.on(schema::open(schema, clock).await).await.unwrap(),
        }
    }

    /// Resolves when a bus that was dropped without a shutdown has let the place go: its tasks end when the runtime gets to it.
    pub(crate) async fn is_free(&self) {
        match self {
            Place::File(file, _) => loop {
                match EventBus::open(file).await {
                    Ok(_) => return,
                    Err(BusError::Store(StoreError::InUse { .. })) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            },
            #[cfg(feature = "postgres")]
            Place::Schema(_) => {} // whoever comes back waits for it by itself
        }
    }

    /// From now on nobody can store anything, as if another process were busy with it.
    pub(crate) async fn hold(&self) -> Hold {
        match self {
            Place::File(file, _) => {
                let connection = rusqlite::Connection::open(file).unwrap();
                connection.execute_batch("BEGIN IMMEDIATE").unwrap();
                Hold::File(connection)
            }
            #[cfg(feature = "postgres")]
            Place::Schema(schema) => Hold::Schema(schema::hold(schema).await),
        }
    }

    /// Whether what is stored fits together.
    pub(crate) async fn is_sound(&self) {
        match self {
            Place::File(file, _) => {
                let connection = rusqlite::Connection::open(file).unwrap();
                let check = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
                assert_eq!(connection.query_row("PRAGMA integrity_check", [], check).unwrap(), "ok");
            }
            #[cfg(feature = "postgres")]
            Place::Schema(schema) => schema::is_sound(schema).await,
        }
    }

    /// The dead-letter queue without a bus, on real time.
    pub(crate) async fn dlq(&self) -> DlqInspector {
        match self {
            Place::File(file, _) => DlqInspector::open(file).await.unwrap(),
            #[cfg(feature = "postgres")]
            Place::Schema(schema) => DlqInspector::open(schema.address()).await.unwrap(),
        }
    }
}

/// A place that nobody can write to.
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

/// A [`TestBus`] with its place. In memory, where the place would be a file.
#[derive(Debug)]
pub(crate) struct PlacedBus {
    bus: TestBus,
    _place: Place,
}

impl PlacedBus {
    pub(crate) async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub(crate) async fn with(change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Self {
        let place = Place::new();
        let bus = match &place {
            Place::File(..) => TestBus::with(change).await.unwrap(),
            #[cfg(feature = "postgres")]
            Place::Schema(_) => {
                let time = VirtualTime::new();
                TestBus::of(place.open_at(&time, change(EventBus::builder())).await, time)
            }
        };
        PlacedBus { bus, _place: place }
    }
}

impl std::ops::Deref for PlacedBus {
    type Target = TestBus;

    fn deref(&self) -> &TestBus {
        &self.bus
    }
}
