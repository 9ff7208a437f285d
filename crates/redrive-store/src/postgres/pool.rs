//! Connection pool for everything that has no connection of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};

use super::PostgresOptions;
use super::connector::{Connector, Purpose};
use super::session::Session;
use crate::error::StoreError;

/// A connection that has been idle for longer is checked before use.
const CHECK_AFTER_IDLE: Duration = Duration::from_secs(1);

pub(super) struct Sessions {
    connector: Arc<Connector>,
    outage_timeout: Duration,
}

impl Manager for Sessions {
    type Type = Session;
    type Error = StoreError;

    async fn create(&self) -> Result<Session, StoreError> {
        self.connector.connect(Purpose::Other, Instant::now() + self.outage_timeout).await
    }

    async fn recycle(&self, session: &mut Session, metrics: &Metrics) -> RecycleResult<StoreError> {
        if !session.is_usable() {
            return Err(RecycleError::message("closed, or inside a transaction"));
        }
        if metrics.last_used() > CHECK_AFTER_IDLE {
            session.check().await.map_err(|error| RecycleError::message(error.to_string()))?;
        }
        Ok(())
    }
}

/// A session of the pool, returned to it when dropped.
pub(super) type BorrowedSession = Object<Sessions>;

pub(super) struct SessionPool(Pool<Sessions>);

impl SessionPool {
    pub(super) fn new(connector: Arc<Connector>, options: &PostgresOptions) -> Result<Self, StoreError> {
        let outage_timeout = options.outage_timeout;
        // Waiting for a busy connection may take a little longer than connecting.
        let wait = outage_timeout + Duration::from_secs(5);
        let pool = Pool::builder(Sessions { connector, outage_timeout })
            .max_size(options.pool.max(1))
            .runtime(deadpool::Runtime::Tokio1)
            .wait_timeout(Some(wait))
            .build()
            .map_err(|error| StoreError::Stopped { why: error.to_string() })?;
        Ok(SessionPool(pool))
    }

    pub(super) async fn get(&self) -> Result<BorrowedSession, StoreError> {
        self.0.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error,
            PoolError::Timeout(_) => StoreError::Exhausted,
            PoolError::Closed => StoreError::Closed,
            other => StoreError::Stopped { why: other.to_string() },
        })
    }

    pub(super) fn close(&self) {
        self.0.close();
    }
}
