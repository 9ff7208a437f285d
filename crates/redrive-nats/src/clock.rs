//! [`ServerClock`]: the NATS server's clock, read through the bucket.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive_retry::Timestamp;
use tokio::sync::Mutex as AsyncMutex;

use crate::bucket::Bucket;
use crate::error::NatsError;

/// Maximum age of a reading. The clocks drift apart by less than a millisecond meanwhile; a step of the server's clock is
/// noticed afterwards.
const MAX_READING_AGE: Duration = Duration::from_secs(5);

/// A stamp of the server and the local time at which it was read; the server's clock had reached the stamp by then.
#[derive(Copy, Clone, Debug)]
struct Reading {
    asked: Instant,
    read: Instant,
    stamp: Timestamp,
}

impl Reading {
    fn now(&self) -> Timestamp {
        self.stamp + self.read.elapsed()
    }
}

/// Estimate of the server's clock. Never ahead of it; behind by at most one round trip.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    last: Mutex<Option<Reading>>,
    /// Serialises readings, so that concurrent callers share one.
    reading: AsyncMutex<()>,
}

impl ServerClock {
    /// Time from a reading of at most [`MAX_READING_AGE`]. Sufficient to decide that a lease has *not* expired.
    pub(crate) async fn estimate(&self, bucket: &Bucket) -> Result<Timestamp, NatsError> {
        match self.last().filter(|reading| reading.read.elapsed() < MAX_READING_AGE) {
            Some(reading) => Ok(reading.now()),
            None => self.now(bucket).await,
        }
    }

    /// Time from a reading that began after this call.
    pub(crate) async fn now(&self, bucket: &Bucket) -> Result<Timestamp, NatsError> {
        let called = Instant::now();
        let _guard = self.reading.lock().await;
        if let Some(reading) = self.last().filter(|reading| reading.asked >= called) {
            return Ok(reading.now());
        }
        let asked = Instant::now();
        let stamp = bucket.time().await?;
        let reading = Reading { asked, read: Instant::now(), stamp };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        Ok(reading.now())
    }

    fn last(&self) -> Option<Reading> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
