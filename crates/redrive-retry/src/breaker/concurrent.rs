//! Circuit breaker for concurrent callers, with permits that release themselves on drop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Breaker, BreakerAdmission, BreakerConfig, BreakerSnapshot, Refused};
use crate::clock::Clock;
use crate::timestamp::Timestamp;

/// A [`Breaker`] for concurrent callers. Cheap to clone; all clones share one circuit.
///
/// ```
/// use redrive_retry::Clock;
/// use redrive_retry::breaker::{BreakerConfig, CircuitBreaker};
///
/// let breaker = CircuitBreaker::new(BreakerConfig::default(), Clock::system());
/// match breaker.acquire() {
///     Ok(permit) => permit.success(),
///     Err(refused) => println!("try again at {}", refused.until),
/// }
/// ```
#[derive(Clone, Debug)]
pub struct CircuitBreaker {
    clock: Clock,
    // In steady time, so that a step of the wall clock neither opens nor closes the circuit. A std mutex: held for a few instructions, never across an await.
    state: Arc<Mutex<Breaker>>,
}

impl CircuitBreaker {
    /// Creates a closed circuit on this clock.
    pub fn new(config: BreakerConfig, clock: Clock) -> Self {
        CircuitBreaker { clock, state: Arc::new(Mutex::new(Breaker::new(config))) }
    }

    /// Acquires a permit for one call, or says until when calls are refused.
    pub fn acquire(&self) -> Result<BreakerPermit, Refused> {
        let admission = self
            .lock()
            .admit(self.clock.steady())
            .map_err(|refused| Refused { until: self.clock.at_steady(refused.until) })?;
        Ok(BreakerPermit { breaker: self.clone(), admission: Some(admission) })
    }

    /// State of the circuit as [`decide`](crate::decision::decide) sees it.
    pub fn snapshot(&self) -> BreakerSnapshot {
        match self.lock().snapshot(self.clock.steady()) {
            BreakerSnapshot::Closed => BreakerSnapshot::Closed,
            BreakerSnapshot::Open { until } => BreakerSnapshot::Open { until: self.clock.at_steady(until) },
            BreakerSnapshot::HalfOpen { until } => {
                BreakerSnapshot::HalfOpen { until: self.clock.at_steady(until) }
            }
        }
    }

    /// Notes that an event whose call succeeded at `counted_at`, in steady time, comes again, so that its next outcome replaces that one.
    ///
    /// For the crates of Redrive, where one event has several handlers; not covered by the stability promise.
    #[doc(hidden)]
    pub fn expect_again(&self, event: u128, counted_at: Timestamp) {
        let now = self.clock.steady();
        self.lock().expect_again(event, counted_at, now);
    }

    /// Closes the circuit and empties its window. Calls in flight are not counted.
    pub fn reset(&self) {
        self.lock().reset();
    }

    fn lock(&self) -> MutexGuard<'_, Breaker> {
        // Every method leaves the state valid, so a poisoned lock is still good to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permit for one call. Report the outcome with [`success`](Self::success), [`failure`](Self::failure), or
/// [`record_event`](Self::record_event). A permit dropped
/// without an outcome (cancelled, panicked) frees a probe's slot and counts nothing; a leaked one does so when its lease ends.
#[derive(Debug)]
#[must_use = "dropping the permit at once means that the call was not made"]
pub struct BreakerPermit {
    breaker: CircuitBreaker,
    /// `None` once the outcome is recorded.
    admission: Option<BreakerAdmission>,
}

impl BreakerPermit {
    /// Records that the call succeeded.
    pub fn success(self) {
        self.record(None, true);
    }

    /// Records that the call failed.
    pub fn failure(self) {
        self.record(None, false);
    }

    /// Records the outcome of a call for an event, in place of the event's earlier outcome.
    pub fn record_event(self, event: u128, succeeded: bool) {
        self.record(Some(event), succeeded);
    }

    /// Whether this call is the probe, whose outcome closes or reopens the circuit.
    pub fn is_probe(&self) -> bool {
        self.admission.is_some_and(BreakerAdmission::is_probe)
    }

    fn record(mut self, event: Option<u128>, succeeded: bool) {
        if let Some(admission) = self.admission.take() {
            let now = self.breaker.clock.steady();
            let mut breaker = self.breaker.lock();
            match event {
                Some(event) => breaker.record_event(admission, event, succeeded, now),
                None => breaker.record(admission, succeeded, now),
            }
        }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            self.breaker.lock().release(admission);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::VirtualTime;
    use std::time::Duration;

    fn half_open() -> (VirtualTime, CircuitBreaker) {
        let time = VirtualTime::new();
        let breaker = CircuitBreaker::new(BreakerConfig::default(), time.clock());
        (0..4).for_each(|_| breaker.acquire().unwrap().failure());
        assert!(breaker.acquire().is_err());
        time.advance(Duration::from_secs(30));
        (time, breaker)
    }

    #[test]
    fn a_dropped_probe_frees_its_slot() {
        let (_time, breaker) = half_open();
        let probe = breaker.acquire().unwrap();
        assert!(probe.is_probe() && breaker.acquire().is_err());
        drop(probe);
        breaker.acquire().unwrap().success();
        assert_eq!(breaker.snapshot(), BreakerSnapshot::Closed);
    }

    #[test]
    fn a_panicking_probe_frees_its_slot() {
        let (_time, breaker) = half_open();
        let result = std::panic::catch_unwind(|| {
            let _probe = breaker.acquire().unwrap();
            panic!("during the probe");
        });
        assert!(result.is_err());
        assert!(breaker.acquire().unwrap().is_probe());
    }

    #[test]
    fn a_probe_that_times_out_frees_its_slot() {
        let (time, breaker) = half_open();
        let hung = breaker.acquire().unwrap();
        time.advance(Duration::from_secs(30));
        let next = breaker.acquire().expect("the lease is over");
        hung.success();
        assert!(breaker.acquire().is_err(), "the late result neither closes the circuit nor frees the slot");
        next.success();
        assert_eq!(breaker.snapshot(), BreakerSnapshot::Closed);
    }

    #[test]
    fn exactly_one_of_many_threads_gets_the_probe() {
        let (_time, breaker) = half_open();
        let permits: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| breaker.acquire().ok())).collect();
            threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(permits.len(), 1);
    }
}
