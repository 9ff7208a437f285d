//! Opens a bus: its store, and the shared state on it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use redrive_store::{ClaimSink, Location, SqliteOptions, SqliteStore, Store};
use tokio::sync::{Semaphore, watch};

use crate::builder::EventBusBuilder;
use crate::bus::EventBus;
use crate::core::{Core, DispatchSwitch, LEASE_WORK, Phase};
use crate::error::BusError;
use crate::metrics::Counters;
use crate::waiters::Waiters;

/// Number of leases that consumers can end at the same time.
const MAX_LEASES_ENDED_AT_ONCE: usize = 1 << 16;

impl EventBusBuilder {
    /// Opens or creates the file. `:memory:` is a database that ends with the process, for tests.
    ///
    /// With the feature `postgres`, `postgres://user:password@host/database` opens a database that many processes share.
    pub async fn open(mut self, location: impl AsRef<Path>) -> Result<EventBus, BusError> {
        let (durability, max_payload) = (self.durability, self.max_payload);
        match Location::of(location) {
            Location::Sqlite(path) => {
                // The store anchors the clock, and the bus takes the store's.
                let clock = self.clock.take().unwrap_or_default();
                let options =
                    SqliteOptions { durability, owner: true, max_payload, clock, ..SqliteOptions::default() };
                self.on(open_sqlite(path, options).await?).await
            }
            #[cfg(feature = "postgres")]
            Location::Postgres(address) => {
                use redrive_store::{PostgresOptions, PostgresStore};
                let clock = self.clock.clone().unwrap_or_default();
                let options =
                    PostgresOptions { durability, max_payload, clock, ..PostgresOptions::default() };
                self.on(Arc::new(PostgresStore::open(&address, options).await?)).await
            }
            #[cfg(not(feature = "postgres"))]
            Location::Postgres(_) => Err(BusError::NoPostgres),
        }
    }

    /// Opens a bus on a store that the caller has opened. The bus closes it when it shuts down.
    ///
    /// The store keeps its own durability and payload limit: `durability` and `max_payload` of this builder have no effect here.
    pub async fn on(self, store: Arc<dyn Store>) -> Result<EventBus, BusError> {
        let (sink, claims) = ClaimSink::new(self.in_flight);
        let on_record = store.subscriptions().await?.into_iter().map(|row| (row.name.clone(), row)).collect();
        let core = Core {
            unregistered: Mutex::new(on_record),
            clock: self.clock.clone().unwrap_or_else(|| store.clock()),
            settings: self,
            sink,
            claims: Mutex::new(Some(claims)),
            starting: tokio::sync::Mutex::default(),
            started_at: OnceLock::new(),
            runtime: OnceLock::new(),
            subscriptions: RwLock::default(),
            waiters: Waiters::default(),
            lease_slots: ClaimSink::new(MAX_LEASES_ENDED_AT_ONCE).0,
            lease_work: Arc::new(Semaphore::new(LEASE_WORK as usize)),
            counters: Counters::default(),
            phase: watch::Sender::new(Phase::Open),
            switch: watch::Sender::new(DispatchSwitch::default()),
            sync_wakeup: Arc::default(),
            backlog_wakeup: Arc::default(),
            recording: tokio::sync::Mutex::default(),
            deferrals: watch::Sender::new(0),
            virtual_time: OnceLock::new(),
            store,
        };
        Ok(EventBus { core: Arc::new(core), tasks: Arc::default() })
    }
}

/// Opens a SQLite store. Reads and may migrate the file, so not on an async thread.
pub(crate) async fn open_sqlite(path: PathBuf, options: SqliteOptions) -> Result<Arc<dyn Store>, BusError> {
    let opened = tokio::task::spawn_blocking(move || SqliteStore::open(path, options)).await;
    Ok(Arc::new(opened.expect("opening a store does not panic")?))
}
