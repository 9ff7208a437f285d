//! Circuit breaker: stops calls to a destination that keeps failing and probes it before calls resume.
//!
//! ```text
//! closed ──(more than half failed, at least 4 samples in 1 min)──▶ open
//! open ──(30 s)──▶ half-open          half-open ──(probe succeeds)──▶ closed
//!                                     half-open ──(probe fails)─────▶ open
//! ```
//!
//! A sample is a call, or an event with the latest outcome of its calls ([`Breaker::record_event`]).
//!
//! [`Breaker`] is plain state with the time passed in: no clock and no lock.
//! [`CircuitBreaker`] wraps it for concurrent callers and hands out permits that release themselves on drop.

mod concurrent;
mod config;
pub(crate) mod window;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::concurrent::{BreakerPermit, CircuitBreaker};
pub use self::config::{BreakerConfig, BreakerConfigBuilder, BreakerError};
use self::window::CallWindow;
use crate::fault;
use crate::timestamp::Timestamp;

/// Delay before a caller that was refused because of a running probe asks again: a probe usually ends long before its lease.
const PROBE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// State machine of one circuit.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: State,
    /// Number of state changes and probes. An outcome that was admitted in an earlier generation is ignored.
    generation: u64,
    /// Number of openings since the circuit was last closed; the open time may grow with it.
    openings: u32,
}

#[derive(Clone, Debug)]
enum State {
    Closed {
        window: Box<CallWindow>,
    },
    /// Refuses calls; `length` is the planned open time.
    Open {
        until: Timestamp,
        length: Duration,
    },
    /// Admits one probe; `probe` is the end of its lease while it is in flight.
    HalfOpen {
        probe: Option<Timestamp>,
    },
}

/// Permission for one call, granted by [`Breaker::admit`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[must_use = "record the outcome or release the admission, or a probe holds its slot until its lease ends"]
pub struct BreakerAdmission {
    generation: u64,
    probe: bool,
}

impl BreakerAdmission {
    /// Whether this call is the probe, whose outcome closes or reopens the circuit.
    pub fn is_probe(self) -> bool {
        self.probe
    }
}

/// Refusal of a call by an open circuit.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the circuit is open until {until}")]
pub struct Refused {
    /// Expected time of the next probe.
    pub until: Timestamp,
}

/// State of a circuit as [`decide`](crate::decision::decide) sees it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BreakerSnapshot {
    /// Calls are admitted.
    #[default]
    Closed,
    /// Calls are refused.
    Open {
        /// Time of the next probe.
        until: Timestamp,
    },
    /// A probe is admitted or in flight.
    HalfOpen {
        /// Time to ask again: now, or soon while a probe is in flight.
        until: Timestamp,
    },
}

impl BreakerSnapshot {
    /// Time until which calls are refused, unless the circuit is closed.
    pub fn refuses_until(self) -> Option<Timestamp> {
        match self {
            BreakerSnapshot::Closed => None,
            BreakerSnapshot::Open { until } | BreakerSnapshot::HalfOpen { until } => Some(until),
        }
    }
}

impl Breaker {
    /// Creates a closed circuit.
    pub fn new(config: BreakerConfig) -> Self {
        let window = Box::new(CallWindow::new(config.window()));
        Breaker { config, state: State::Closed { window }, generation: 0, openings: 0 }
    }

    /// Admits or refuses a call. A half-open circuit admits one call at a time, the probe.
    pub fn admit(&mut self, now: Timestamp) -> Result<BreakerAdmission, Refused> {
        self.correct_clock_steps(now);
        match self.state {
            State::Closed { .. } => Ok(BreakerAdmission { generation: self.generation, probe: false }),
            State::Open { until, .. } if now < until => Err(Refused { until }),
            State::HalfOpen { probe: Some(lease_end) }
                if now < lease_end || fault!("half-open-slot-leaked") =>
            {
                Err(Refused { until: lease_end.min(now + PROBE_RETRY_DELAY) })
            }
            // The open time is over, the probe slot is free, or the lease of the previous probe has ended.
            State::Open { .. } | State::HalfOpen { .. } => {
                self.generation += 1;
                self.state = State::HalfOpen { probe: Some(now + self.config.probe_lease()) };
                Ok(BreakerAdmission { generation: self.generation, probe: true })
            }
        }
    }

    /// Records the outcome of an admitted call. Ignored if the circuit has changed its state since.
    pub fn record(&mut self, admission: BreakerAdmission, succeeded: bool, now: Timestamp) {
        self.count(admission, None, succeeded, now);
    }

    /// Records the outcome of an admitted call for an event, in place of the event's earlier outcome: however often an event is
    /// retried, it counts once.
    pub fn record_event(
        &mut self,
        admission: BreakerAdmission,
        event: u128,
        succeeded: bool,
        now: Timestamp,
    ) {
        self.count(admission, Some(event), succeeded, now);
    }

    /// Notes that an event whose call succeeded at `counted_at` comes again, so that its next outcome replaces that one.
    ///
    /// For the crates of Redrive, where one event has several handlers; not covered by the stability promise.
    #[doc(hidden)]
    pub fn expect_again(&mut self, event: u128, counted_at: Timestamp, now: Timestamp) {
        if let State::Closed { window } = &mut self.state {
            window.expect_again(event, counted_at, now);
        }
    }

    fn count(&mut self, admission: BreakerAdmission, event: Option<u128>, succeeded: bool, now: Timestamp) {
        if admission.generation != self.generation {
            return;
        }
        match &mut self.state {
            State::Closed { window } => {
                let counts = match event {
                    Some(event) => window.record_event(event, succeeded, now),
                    None => window.record(succeeded, now),
                };
                let enough = counts.total() >= self.config.min_samples();
                if enough && counts.failure_share_exceeds(self.config.failure_ratio()) {
                    self.open(now);
                }
            }
            State::HalfOpen { .. } if succeeded => self.reset(),
            State::HalfOpen { .. } if fault!("half-open-slot-leaked") => {}
            State::HalfOpen { .. } => self.open(now),
            State::Open { .. } => {}
        }
    }

    /// Releases an admission without an outcome: frees a probe's slot and counts nothing.
    pub fn release(&mut self, admission: BreakerAdmission) {
        if admission.probe && admission.generation == self.generation {
            self.state = State::HalfOpen { probe: None };
        }
    }

    /// State of the circuit as [`decide`](crate::decision::decide) sees it.
    pub fn snapshot(&self, now: Timestamp) -> BreakerSnapshot {
        match self.state {
            State::Closed { .. } => BreakerSnapshot::Closed,
            State::Open { until, .. } if now < until => BreakerSnapshot::Open { until },
            State::HalfOpen { probe: Some(lease_end) } if now < lease_end => {
                BreakerSnapshot::HalfOpen { until: lease_end.min(now + PROBE_RETRY_DELAY) }
            }
            State::Open { .. } | State::HalfOpen { .. } => BreakerSnapshot::HalfOpen { until: now },
        }
    }

    /// Shortens the open time and the probe lease after a backward clock step to their configured lengths.
    fn correct_clock_steps(&mut self, now: Timestamp) {
        match &mut self.state {
            State::Open { until, length } => *until = (*until).min(now + *length),
            State::HalfOpen { probe: Some(lease_end) } => {
                *lease_end = (*lease_end).min(now + self.config.probe_lease());
            }
            State::HalfOpen { probe: None } | State::Closed { .. } => {}
        }
    }

    fn open(&mut self, now: Timestamp) {
        let length = self.config.open_duration(self.openings);
        self.state = State::Open { until: now + length, length };
        self.openings = self.openings.saturating_add(1);
        self.generation += 1;
    }

    /// Closes the circuit and empties its window. Calls in flight are not counted.
    pub fn reset(&mut self) {
        self.state = State::Closed { window: Box::new(CallWindow::new(self.config.window())) };
        self.openings = 0;
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn at(secs: u64) -> Timestamp {
        T0 + Duration::from_secs(secs)
    }

    fn call(breaker: &mut Breaker, succeeded: bool, now: Timestamp) {
        let admission = breaker.admit(now).unwrap();
        breaker.record(admission, succeeded, now);
    }

    fn is_open(breaker: &Breaker, now: Timestamp) -> bool {
        matches!(breaker.snapshot(now), BreakerSnapshot::Open { .. })
    }

    fn opened_at(now: Timestamp) -> Breaker {
        let mut breaker = Breaker::new(BreakerConfig::default());
        (0..4).for_each(|_| call(&mut breaker, false, now));
        assert!(is_open(&breaker, now));
        breaker
    }

    #[test]
    fn more_than_half_failures_open_the_circuit_and_exactly_half_do_not() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        for succeeded in [true, false, true, false, true, false] {
            call(&mut breaker, succeeded, T0);
        }
        assert!(!is_open(&breaker, T0), "exactly 50 % is not more than 50 %");
        call(&mut breaker, false, T0);
        assert!(is_open(&breaker, T0));
    }

    #[test]
    fn three_samples_never_open_the_circuit_and_four_do() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        (0..3).for_each(|_| call(&mut breaker, false, T0));
        assert!(!is_open(&breaker, T0));
        call(&mut breaker, false, T0);
        assert!(is_open(&breaker, T0));
    }

    #[test]
    fn an_event_counts_once_however_often_it_fails() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        let mut fail = |event, now| {
            let admission = breaker.admit(now).unwrap();
            breaker.record_event(admission, event, false, now);
            is_open(&breaker, now)
        };
        for attempt in 0..8 {
            assert!(!fail(1, at(attempt)), "one poison event");
        }
        assert!(!fail(2, at(8)) && !fail(3, at(8)));
        assert!(fail(4, at(8)), "four events are an outage");
    }

    #[test]
    fn calls_older_than_the_window_do_not_count() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        (0..3).for_each(|_| call(&mut breaker, false, T0));
        call(&mut breaker, false, at(61));
        assert!(!is_open(&breaker, at(61)), "the three are a minute old");
        let mut breaker = Breaker::new(BreakerConfig::default());
        (0..3).for_each(|_| call(&mut breaker, false, T0));
        call(&mut breaker, false, at(58));
        assert!(is_open(&breaker, at(58)));
    }

    #[test]
    fn an_open_circuit_refuses_for_thirty_seconds_then_admits_one_probe() {
        let mut breaker = opened_at(T0);
        assert_eq!(breaker.admit(at(29)), Err(Refused { until: at(30) }));
        let probe = breaker.admit(at(30)).unwrap();
        assert!(probe.is_probe());
        assert!(breaker.admit(at(30)).is_err(), "one probe at a time");
        assert_eq!(breaker.snapshot(at(30)), BreakerSnapshot::HalfOpen { until: at(31) }, "ask again soon");
    }

    #[test]
    fn a_successful_probe_closes_the_circuit_with_an_empty_window() {
        let mut breaker = opened_at(T0);
        call(&mut breaker, true, at(30));
        assert_eq!(breaker.snapshot(at(30)), BreakerSnapshot::Closed);
        (0..3).for_each(|_| call(&mut breaker, false, at(31)));
        assert!(!is_open(&breaker, at(31)), "failures from before do not count");
    }

    #[test]
    fn a_failed_probe_reopens_the_circuit() {
        let mut breaker = opened_at(T0);
        call(&mut breaker, false, at(30));
        assert_eq!(breaker.admit(at(59)), Err(Refused { until: at(60) }));
        assert!(breaker.admit(at(60)).unwrap().is_probe());
    }

    #[test]
    fn the_open_time_grows_and_resets_after_a_success() {
        let config =
            BreakerConfig::builder().open_growth(2.0).max_open_for(Duration::from_secs(100)).build().unwrap();
        let mut breaker = Breaker::new(config);
        (0..4).for_each(|_| call(&mut breaker, false, T0));
        let mut now = T0;
        for open_for in [30, 60, 100, 100] {
            assert_eq!(breaker.admit(now).unwrap_err().until.since(now).as_secs(), open_for);
            now = now + Duration::from_secs(open_for);
            call(&mut breaker, false, now);
        }
        now = now + Duration::from_secs(100);
        call(&mut breaker, true, now);
        (0..4).for_each(|_| call(&mut breaker, false, now));
        assert_eq!(breaker.admit(now).unwrap_err().until.since(now).as_secs(), 30);
    }

    #[test]
    fn a_released_probe_frees_the_slot() {
        let mut breaker = opened_at(T0);
        let probe = breaker.admit(at(30)).unwrap();
        breaker.release(probe);
        assert!(breaker.admit(at(30)).unwrap().is_probe());
    }

    #[test]
    fn a_hung_probe_loses_its_slot_and_its_late_outcome_is_ignored() {
        let mut breaker = opened_at(T0);
        let hung = breaker.admit(at(30)).unwrap();
        let second = breaker.admit(at(60)).expect("the lease of thirty seconds is over");
        breaker.record(hung, true, at(61));
        assert_ne!(breaker.snapshot(at(61)), BreakerSnapshot::Closed, "the late success is ignored");
        breaker.release(hung);
        assert!(breaker.admit(at(61)).is_err(), "nor does it free the slot of its successor");
        breaker.record(second, true, at(61));
        assert_eq!(breaker.snapshot(at(61)), BreakerSnapshot::Closed);
    }

    #[test]
    fn a_clock_step_does_not_keep_the_circuit_open() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        (0..4).for_each(|_| call(&mut breaker, false, at(3600)));
        assert_eq!(
            breaker.admit(T0),
            Err(Refused { until: at(30) }),
            "an hour back: thirty seconds from there"
        );
        assert!(breaker.admit(at(30)).unwrap().is_probe());
        // A glitch forward must not keep old failures in the window.
        let mut breaker = Breaker::new(BreakerConfig::default());
        call(&mut breaker, true, at(6 * 3600));
        (0..3).for_each(|_| call(&mut breaker, false, T0));
        call(&mut breaker, true, at(120));
        call(&mut breaker, false, at(121));
        assert!(!is_open(&breaker, at(121)));
    }

    #[test]
    fn outcomes_from_before_the_opening_are_ignored() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        let early = breaker.admit(T0).unwrap();
        (0..4).for_each(|_| call(&mut breaker, false, T0));
        breaker.record(early, true, at(1));
        assert!(is_open(&breaker, at(1)));
        let probe = breaker.admit(at(30)).unwrap();
        breaker.record(early, false, at(30));
        breaker.record(probe, true, at(30));
        assert_eq!(breaker.snapshot(at(30)), BreakerSnapshot::Closed);
    }

    proptest! {
        /// In any order of steps there are never two probes at once, and the circuit never gets stuck.
        #[test]
        fn no_sequence_of_steps_leaves_the_circuit_stuck(steps in proptest::collection::vec((0u8..5, 0u64..40), 1..200)) {
            let mut breaker = Breaker::new(BreakerConfig::default());
            let mut now = T0;
            let mut admitted: Vec<(BreakerAdmission, Timestamp)> = Vec::new();
            for (action, secs) in steps {
                now = now + Duration::from_secs(secs);
                match action {
                    0 | 1 => {
                        if let Ok(admission) = breaker.admit(now) {
                            let lease = BreakerConfig::default().probe_lease();
                            let rival = admitted.iter().any(|(a, since)| a.is_probe() && now.since(*since) < lease);
                            prop_assert!(!(admission.is_probe() && rival), "two probes at once");
                            admitted.push((admission, now));
                        }
                    }
                    2 | 3 => if let Some((admission, _)) = admitted.pop() { breaker.record(admission, action == 2, now) },
                    _ => if let Some((admission, _)) = admitted.pop() { breaker.release(admission) },
                }
            }
            // After a lease and an open time without calls the circuit admits one.
            prop_assert!(breaker.admit(now + Duration::from_secs(60)).is_ok());
        }
    }
}
