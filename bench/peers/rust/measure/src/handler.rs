//! No-op handler that counts jobs and measures their age.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::job::Stamp;

/// Counts the jobs that begin and, when latency is measured, notes how old they are. Clones are one handler.
#[derive(Clone, Debug)]
pub struct Handler {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    wanted: usize,
    begun: AtomicUsize,
    all_begun: Notify,
    /// Only when latency is measured: otherwise jobs are not parsed.
    ages: Option<Mutex<Vec<Duration>>>,
}

impl Handler {
    pub(crate) fn counting(wanted: usize) -> Self {
        Self::new(wanted, None)
    }

    pub(crate) fn timing(wanted: usize) -> Self {
        Self::new(wanted, Some(Mutex::new(Vec::with_capacity(wanted))))
    }

    fn new(wanted: usize, ages: Option<Mutex<Vec<Duration>>>) -> Self {
        let inner = Inner { wanted, begun: AtomicUsize::new(0), all_begun: Notify::new(), ages };
        Handler { inner: Arc::new(inner) }
    }

    /// Call it first in a job, with a function that reads its stamp.
    pub fn begin<E: Error>(&self, stamp: impl FnOnce() -> Result<Stamp, E>) {
        if let Some(ages) = &self.inner.ages {
            let age = stamp().expect("every job has a stamp").age();
            ages.lock().unwrap_or_else(PoisonError::into_inner).push(age);
        }
        if self.inner.begun.fetch_add(1, Ordering::AcqRel) + 1 == self.inner.wanted {
            self.inner.all_begun.notify_one();
        }
    }

    /// Number of jobs to handle.
    pub fn wanted(&self) -> usize {
        self.inner.wanted
    }

    /// Number of jobs that have begun.
    pub fn begun(&self) -> usize {
        self.inner.begun.load(Ordering::Acquire)
    }

    /// Returns when the last wanted job has begun.
    pub async fn all_begun(&self) {
        self.inner.all_begun.notified().await;
    }

    pub(crate) fn ages(&self) -> Vec<Duration> {
        let ages = self.inner.ages.as_ref().map(|ages| ages.lock().unwrap_or_else(PoisonError::into_inner));
        ages.map(|ages| ages.clone()).unwrap_or_default()
    }
}
