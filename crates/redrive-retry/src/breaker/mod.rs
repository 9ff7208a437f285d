//! The circuit breaker: stop calling what keeps failing, and find out carefully when it works again.
//!
//! ```text
//! closed ──(more than half failed, at least 4 samples in 1 min)──▶ open
//! open ──(30 s)──▶ half-open          half-open ──(probe succeeds)──▶ closed
//!                                     half-open ──(probe fails)─────▶ open
//! ```
//!
//! [`Breaker`] is plain state with the time passed in: no clock, no lock, nothing to mock.
//! [`SharedBreaker`] wraps it for concurrent use and hands out permits that clean up after themselves. [`PooledBreaker`] is the
//! part of one node in a circuit that several processes have in common.

mod config;
mod pooled;
mod shared;
mod window;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::config::{BreakerConfig, BreakerError};
pub use self::pooled::{CallCounts, CircuitState, PooledAdmission, PooledBreaker};
pub use self::shared::{BreakerPermit, SharedBreaker};
use self::window::Window;
use crate::planted::Planted;
use crate::timestamp::Timestamp;

/// A probe is usually over long before its lease: who was refused because of it may ask again this soon.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One circuit.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: State,
    /// Counts state changes and probes. A permit carries the number it was given under, so what comes back late
    /// from an earlier life of the circuit changes nothing.
    generation: u64,
    /// How often it has opened without closing in between; the open time may grow with it.
    openings: u32,
}

#[derive(Clone, Debug)]
enum State {
    Closed {
        window: Box<Window>,
    },
    /// With how long that was meant to be.
    Open {
        until: Timestamp,
        length: Duration,
    },
    /// With the end of the lease if a probe is under way.
    HalfOpen {
        probe: Option<Timestamp>,
    },
}

/// The leave to make one call, given out by [`Breaker::admit`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[must_use = "record the outcome or release the admission, or a probe holds its slot until its lease ends"]
pub struct Admission {
    generation: u64,
    probe: bool,
}

impl Admission {
    /// Whether this call decides if the circuit closes.
    pub fn is_probe(self) -> bool {
        self.probe
    }
}

/// The call must not be made now.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the circuit is open until {until}")]
pub struct Refused {
    /// When the circuit will let a probe through, as far as is known now.
    pub until: Timestamp,
}

/// What a decision needs to know of the circuit.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BreakerSnapshot {
    /// Calls go through.
    #[default]
    Closed,
    /// No call before this instant.
    Open {
        /// When a probe may go.
        until: Timestamp,
    },
    /// A probe may go, or is under way.
    HalfOpen {
        /// When to ask again: now, or soon, if a probe is under way.
        until: Timestamp,
    },
}

impl BreakerSnapshot {
    /// Before when a call would be refused.
    pub fn refuses_until(self) -> Option<Timestamp> {
        match self {
            BreakerSnapshot::Closed => None,
            BreakerSnapshot::Open { until } | BreakerSnapshot::HalfOpen { until } => Some(until),
        }
    }
}

impl Breaker {
    /// A closed circuit.
    pub fn new(config: BreakerConfig) -> Self {
        let window = Box::new(Window::new(config.window));
        Breaker { config, state: State::Closed { window }, generation: 0, openings: 0 }
    }

    /// May a call be made now? In half-open state only one at a time, and that one is the probe.
    pub fn admit(&mut self, now: Timestamp) -> Result<Admission, Refused> {
        self.survive_clock_steps(now);
        match self.state {
            State::Closed { .. } => Ok(Admission { generation: self.generation, probe: false }),
            State::Open { until, .. } if now < until => Err(Refused { until }),
            State::HalfOpen { probe: Some(lease_end) }
                if now < lease_end || Planted::HalfOpenSlotLeaked.is_here() =>
            {
                Err(Refused { until: lease_end.min(now + LOOK_AGAIN) })
            }
            // Its time has come, the slot is free, or the probe that held it has outlived its lease.
            State::Open { .. } | State::HalfOpen { .. } => {
                self.generation += 1;
                self.state = State::HalfOpen { probe: Some(now + self.config.probe_lease) };
                Ok(Admission { generation: self.generation, probe: true })
            }
        }
    }

    /// Records how the call ended. Does nothing if the circuit has changed its state since it was admitted.
    pub fn record(&mut self, admission: Admission, succeeded: bool, now: Timestamp) {
        if admission.generation != self.generation {
            return;
        }
        match &mut self.state {
            State::Closed { window } => {
                let counts = window.record(succeeded, now);
                let enough = counts.total() >= self.config.min_samples;
                if enough && counts.failure_share_exceeds(self.config.failure_ratio) {
                    self.open(now);
                }
            }
            State::HalfOpen { .. } if succeeded => self.close(),
            State::HalfOpen { .. } if Planted::HalfOpenSlotLeaked.is_here() => {}
            State::HalfOpen { .. } => self.open(now),
            State::Open { .. } => {}
        }
    }

    /// The call was never made, or nobody knows how it ended: frees the probe's slot and counts nothing.
    pub fn release(&mut self, admission: Admission) {
        if admission.probe && admission.generation == self.generation {
            self.state = State::HalfOpen { probe: None };
        }
    }

    /// The state as a decision sees it.
    pub fn snapshot(&self, now: Timestamp) -> BreakerSnapshot {
        match self.state {
            State::Closed { .. } => BreakerSnapshot::Closed,
            State::Open { until, .. } if now < until => BreakerSnapshot::Open { until },
            State::HalfOpen { probe: Some(lease_end) } if now < lease_end => {
                BreakerSnapshot::HalfOpen { until: lease_end.min(now + LOOK_AGAIN) }
            }
            State::Open { .. } | State::HalfOpen { .. } => BreakerSnapshot::HalfOpen { until: now },
        }
    }

    /// A clock that was set back must not keep the circuit open for longer than it could ever have been meant to be.
    fn survive_clock_steps(&mut self, now: Timestamp) {
        match &mut self.state {
            State::Open { until, length } => *until = (*until).min(now + *length),
            State::HalfOpen { probe: Some(lease_end) } => {
                *lease_end = (*lease_end).min(now + self.config.probe_lease);
            }
            State::HalfOpen { probe: None } | State::Closed { .. } => {}
        }
    }

    fn open(&mut self, now: Timestamp) {
        let length = self.config.open_length(self.openings);
        self.state = State::Open { until: now + length, length };
        self.openings = self.openings.saturating_add(1);
        self.generation += 1;
    }

    /// Closes it with a clean slate, whatever has happened. Calls that are under way count for nothing.
    pub fn reset(&mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.state = State::Closed { window: Box::new(Window::new(self.config.window)) };
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
    fn three_samples_never_open_it_and_four_do() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        (0..3).for_each(|_| call(&mut breaker, false, T0));
        assert!(!is_open(&breaker, T0));
        call(&mut breaker, false, T0);
        assert!(is_open(&breaker, T0));
    }

    #[test]
    fn only_the_last_minute_counts() {
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
    fn an_open_circuit_refuses_for_thirty_seconds_then_lets_one_probe_through() {
        let mut breaker = opened_at(T0);
        assert_eq!(breaker.admit(at(29)), Err(Refused { until: at(30) }));
        let probe = breaker.admit(at(30)).unwrap();
        assert!(probe.is_probe());
        assert!(breaker.admit(at(30)).is_err(), "one probe at a time");
        assert_eq!(breaker.snapshot(at(30)), BreakerSnapshot::HalfOpen { until: at(31) }, "ask again soon");
    }

    #[test]
    fn a_successful_probe_closes_it_with_a_clean_slate() {
        let mut breaker = opened_at(T0);
        call(&mut breaker, true, at(30));
        assert_eq!(breaker.snapshot(at(30)), BreakerSnapshot::Closed);
        (0..3).for_each(|_| call(&mut breaker, false, at(31)));
        assert!(!is_open(&breaker, at(31)), "failures from before do not count");
    }

    #[test]
    fn a_failed_probe_opens_it_again() {
        let mut breaker = opened_at(T0);
        call(&mut breaker, false, at(30));
        assert_eq!(breaker.admit(at(59)), Err(Refused { until: at(60) }));
        assert!(breaker.admit(at(60)).unwrap().is_probe());
    }

    #[test]
    fn the_open_time_may_grow_and_starts_over_after_a_success() {
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
    fn a_hung_probe_loses_its_slot_and_its_late_result_is_harmless() {
        let mut breaker = opened_at(T0);
        let hung = breaker.admit(at(30)).unwrap();
        let second = breaker.admit(at(60)).expect("the lease of thirty seconds is over");
        breaker.record(hung, true, at(61));
        assert_ne!(breaker.snapshot(at(61)), BreakerSnapshot::Closed, "the late success decides nothing");
        breaker.release(hung);
        assert!(breaker.admit(at(61)).is_err(), "nor does it free the slot of its successor");
        breaker.record(second, true, at(61));
        assert_eq!(breaker.snapshot(at(61)), BreakerSnapshot::Closed);
    }

    #[test]
    fn a_clock_that_steps_does_not_keep_the_circuit_open() {
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
    fn results_from_before_the_opening_are_harmless() {
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
        /// Whatever happens in whatever order: never two probes at once, never stuck, never open without cause.
        #[test]
        fn no_history_leaves_the_circuit_stuck(steps in proptest::collection::vec((0u8..5, 0u64..40), 1..200)) {
            let mut breaker = Breaker::new(BreakerConfig::default());
            let mut now = T0;
            let mut held: Vec<(Admission, Timestamp)> = Vec::new();
            for (action, secs) in steps {
                now = now + Duration::from_secs(secs);
                match action {
                    0 | 1 => {
                        if let Ok(admission) = breaker.admit(now) {
                            let lease = BreakerConfig::default().probe_lease;
                            let rival = held.iter().any(|(a, since)| a.is_probe() && now.since(*since) < lease);
                            prop_assert!(!(admission.is_probe() && rival), "two probes at once");
                            held.push((admission, now));
                        }
                    }
                    2 | 3 => if let Some((admission, _)) = held.pop() { breaker.record(admission, action == 2, now) },
                    _ => if let Some((admission, _)) = held.pop() { breaker.release(admission) },
                }
            }
            // Left alone for as long as a lease and an open time last, it lets somebody through.
            prop_assert!(breaker.admit(now + Duration::from_secs(60)).is_ok());
        }
    }
}
