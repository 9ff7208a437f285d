//! What time it is for the server.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive_retry::Timestamp;
use tokio::sync::Mutex as Turn;

use crate::bucket::Bucket;
use crate::error::NatsError;

/// So long a reading serves. What the two clocks drift apart meanwhile is less than a millisecond; a server whose clock was set is
/// noticed after it.
const TRUSTED: Duration = Duration::from_secs(5);

/// The server's stamp, and when it had been read here: the server's clock was at least there by then.
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

/// The server's clock, read now and then. Never ahead of it, behind by as long as an answer takes.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    last: Mutex<Option<Reading>>,
    /// Of many who want to know, one asks.
    turn: Turn<()>,
}

impl ServerClock {
    /// By a reading that is some seconds old at most. Good enough to say that something is *not* over.
    pub(crate) async fn about(&self, bucket: &Bucket) -> Result<Timestamp, NatsError> {
        match self.last().filter(|reading| reading.read.elapsed() < TRUSTED) {
            Some(reading) => Ok(reading.now()),
            None => self.now(bucket).await,
        }
    }

    /// By a reading that was begun after this was called.
    pub(crate) async fn now(&self, bucket: &Bucket) -> Result<Timestamp, NatsError> {
        let called = Instant::now();
        let _turn = self.turn.lock().await;
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
