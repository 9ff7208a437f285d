//! A few connections for whatever is not frequent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};

use super::connector::{Connector, Purpose};
use super::session::Session;
use crate::error::StoreError;

/// A connection that has been idle for longer is asked whether it still works.
const TRUSTED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Sessions {
    connector: Arc<Connector>,
    patience: Duration,
}

impl Manager for Sessions {
    type Type = Session;
    type Error = StoreError;

    async fn create(&self) -> Result<Session, StoreError> {
        self.connector.connect(Purpose::Other, Instant::now() + self.patience).await
    }

    async fn recycle(&self, session: &mut Session, metrics: &Metrics) -> RecycleResult<StoreError> {
        if !session.is_usable() {
            return Err(RecycleError::message("closed, or in the middle of a transaction"));
        }
        if metrics.last_used() > TRUSTED {
            session.check().await.map_err(|error| RecycleError::message(error.to_string()))?;
        }
        Ok(())
    }
}

/// The pool.
#[derive(Clone, Debug)]
pub(super) struct SessionPool(Pool<Sessions>);

impl SessionPool {
    pub(super) fn new(
        connector: Arc<Connector>,
        size: usize,
        patience: Duration,
    ) -> Result<Self, StoreError> {
        // Who waits for a connection that others have waits a little longer than for one that is to be made.
        let wait = patience + Duration::from_secs(5);
        let pool = Pool::builder(Sessions { connector, patience })
            .max_size(size.max(1))
            .runtime(deadpool::Runtime::Tokio1)
            .wait_timeout(Some(wait))
            .build()
            .map_err(|error| StoreError::Stopped { why: error.to_string() })?;
        Ok(SessionPool(pool))
    }

    pub(super) async fn get(&self) -> Result<Object<Sessions>, StoreError> {
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
