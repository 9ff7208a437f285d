//! What a policy does to a destination that fails: many events, one outage, limited capacity, virtual time.
//!
//! A policy is a few numbers, and what they do together is hard to see in one's head. Here they run: all events make
//! their first attempt at zero, the destination is down for a while and then takes so many attempts per second, and
//! every failure goes through [`decide`], the function that decides in production. No clock, no I/O: the same
//! simulation always has the same result.
//!
//! The model is simple on purpose. An attempt takes no time, all failures are transient, there is neither circuit
//! breaker nor retry budget, and a destination over its capacity refuses at once instead of becoming slow.
//!
//! ```
//! use redrive_retry::{RetryPolicy, simulation::Simulation};
//! use std::time::Duration;
//!
//! let simulation = Simulation {
//!     policy: RetryPolicy::webhook(),
//!     events: 1000,
//!     outage: Duration::from_secs(5),
//!     capacity_per_second: 200,
//!     seed: 7,
//! };
//! let both = simulation.compare()?;
//! assert!(both.with_jitter.delivered > both.without_jitter.delivered);
//! # Ok::<(), redrive_retry::simulation::SimulationError>(())
//! ```

mod destination;
mod peak;
mod series;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fmt::Write;
use std::time::Duration;

use self::destination::{Answer, Destination};
use self::peak::PeakRate;
pub use self::series::Series;
use self::series::{Recorder, bucket_width};
use crate::class::FailureClass;
use crate::decision::{Decision, Outcome, Situation, decide};
use crate::human_duration::format_duration;
use crate::identity::Identity;
use crate::jitter::Jitter;
use crate::policy::RetryPolicy;
use crate::ratio::Ratio;
use crate::timestamp::{Timestamp, saturating_millis};

/// The subscription that every simulated event is delivered to: part of what its jitter is drawn from.
const SUBSCRIPTION: &str = "simulation";

/// A policy, and what it is tried on.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// The policy under test.
    pub policy: RetryPolicy,
    /// How many events make their first attempt at zero. 1 to [`Simulation::MAX_EVENTS`].
    pub events: u64,
    /// How long from zero every attempt fails. At most [`RetryPolicy::LONGEST`].
    pub outage: Duration,
    /// How many attempts per second the destination takes once it is back; the others fail. At least 1.
    ///
    /// A token bucket, refilled continuously, that holds what comes in a tenth of a second (at least two) and is full
    /// when the outage ends.
    pub capacity_per_second: u64,
    /// The seed of all jitter.
    pub seed: u64,
}

impl Simulation {
    /// The most events: their state is kept in memory.
    pub const MAX_EVENTS: u64 = 1_000_000;
    /// The most attempts that all events together may make: about ten seconds of computing.
    pub const MAX_TOTAL_ATTEMPTS: u64 = 20_000_000;

    /// Runs the policy as it is.
    pub fn run(&self) -> Result<SimulationResult, SimulationError> {
        self.check()?;
        let run = Run::of(self, &self.policy);
        let bucket_ms = bucket_width(&[&run.recorder]);
        Ok(run.into_result(bucket_ms, 0))
    }

    /// Runs the policy with and without jitter, in buckets of the same width and number.
    ///
    /// A policy that has no jitter is compared with itself under full jitter; [`Comparison::assumed`] says so.
    pub fn compare(&self) -> Result<Comparison, SimulationError> {
        self.check()?;
        let assumed = spreads_nothing(self.policy.jitter());
        let jitter = if assumed { Jitter::Full } else { self.policy.jitter() };
        let with = Run::of(self, &self.with_jitter(jitter)?);
        let without = Run::of(self, &self.with_jitter(Jitter::None)?);
        let bucket_ms = bucket_width(&[&with.recorder, &without.recorder]);
        let buckets = with.recorder.buckets(bucket_ms).max(without.recorder.buckets(bucket_ms));
        Ok(Comparison {
            jitter,
            assumed,
            with_jitter: with.into_result(bucket_ms, buckets),
            without_jitter: without.into_result(bucket_ms, buckets),
        })
    }

    fn with_jitter(&self, jitter: Jitter) -> Result<RetryPolicy, SimulationError> {
        Ok(self.policy.to_builder().jitter(jitter).build()?)
    }

    fn check(&self) -> Result<(), SimulationError> {
        let events = self.events;
        if !(1..=Self::MAX_EVENTS).contains(&events) {
            return Err(SimulationError::Events { events });
        }
        let attempts_each = self.policy.max_attempts();
        if events * u64::from(attempts_each) > Self::MAX_TOTAL_ATTEMPTS {
            return Err(SimulationError::TooMuchWork { events, attempts_each });
        }
        if self.outage > RetryPolicy::LONGEST {
            return Err(SimulationError::Outage { outage: self.outage });
        }
        if self.capacity_per_second == 0 {
            return Err(SimulationError::Capacity);
        }
        Ok(())
    }
}

/// Jitter in name only: "0%" and "0..0s" spread as little as "none".
fn spreads_nothing(jitter: Jitter) -> bool {
    match jitter {
        Jitter::None => true,
        Jitter::Proportional(share) => share == Ratio::from_millionths(0),
        Jitter::Additive(amount) => amount < Duration::from_millis(1),
        Jitter::Full | Jitter::Equal => false,
    }
}

/// The same events under the same policy, with its waits spread and not spread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Comparison {
    /// The jitter of `with_jitter`.
    pub jitter: Jitter,
    /// Whether that jitter was assumed, because the policy has none.
    pub assumed: bool,
    /// With that jitter.
    pub with_jitter: SimulationResult,
    /// With every wait exactly as long as the policy says.
    pub without_jitter: SimulationResult,
}

/// What became of the events. All times are counted from the first attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimulationResult {
    /// Events that arrived.
    pub delivered: u64,
    /// Events that were given up.
    pub dead: u64,
    /// Attempts of all events together.
    pub attempts: u64,
    /// Attempts that failed after the outage, because the destination was at its capacity.
    pub rejected: u64,
    /// Attempts of the event that needed most.
    pub most_attempts: u32,
    /// The most retries within any one second. The first attempts are left out: they come at once under any policy.
    pub peak_per_second: u64,
    /// The same, counting only what comes after the outage: what the destination must stand while it recovers.
    pub peak_after_outage_per_second: u64,
    /// When the last event arrived, if any did.
    pub last_delivery: Option<Duration>,
    /// When half of the events that arrive had arrived.
    pub p50: Option<Duration>,
    /// When 95 % of the events that arrive had arrived.
    pub p95: Option<Duration>,
    /// When the last event had arrived or was given up.
    pub settled: Duration,
    /// Attempts, deliveries and rejections over time.
    pub series: Series,
}

/// One attempt to come. Ordered by time, then by event, so that nothing depends on the heap.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: u64,
    event: u32,
    attempt: u32,
}

/// A simulation that has run, before its series is cut into buckets.
struct Run {
    recorder: Recorder,
    /// In the order of time, so percentiles need no sorting.
    deliveries: Vec<u64>,
    dead: u64,
    attempts: u64,
    rejected: u64,
    most_attempts: u32,
    peak: PeakRate,
    peak_after_outage: PeakRate,
    settled: u64,
}

impl Run {
    fn of(simulation: &Simulation, policy: &RetryPolicy) -> Run {
        let outage = saturating_millis(simulation.outage);
        let mut destination = Destination::new(outage, simulation.capacity_per_second);
        let mut run = Run {
            recorder: Recorder::new(),
            deliveries: Vec::new(),
            dead: 0,
            attempts: 0,
            rejected: 0,
            most_attempts: 0,
            peak: PeakRate::new(),
            peak_after_outage: PeakRate::new(),
            settled: 0,
        };
        let events = u32::try_from(simulation.events).unwrap_or(u32::MAX);
        let first = |event| Due { at: 0, event, attempt: 1 };
        let mut due: BinaryHeap<Reverse<Due>> = (0..events).map(first).map(Reverse).collect();
        let mut name = String::new();
        while let Some(mut next) = due.peek_mut() {
            let Due { at, event, attempt } = next.0;
            let answer = destination.attempt(at);
            run.record(at, attempt, answer, outage);
            if answer == Answer::Accepted {
                PeekMut::pop(next);
                continue;
            }
            name.clear();
            let _ = write!(name, "{event}"); // writing into a String cannot fail
            let identity = Identity::new(simulation.seed, &name, SUBSCRIPTION);
            let failed = Outcome::Failed(FailureClass::Transient);
            let situation = Situation {
                started_at: Timestamp::EPOCH,
                ..Situation::new(policy, identity, attempt, failed, Timestamp::EPOCH.plus_millis(at))
            };
            if let Decision::Retry { delay_ms, .. } = decide(&situation) {
                // Changed in place: the heap moves it to where it now belongs, at half the price of pop and push.
                next.0.at = at.saturating_add(delay_ms);
                next.0.attempt = attempt + 1;
            } else {
                run.dead += 1;
                PeekMut::pop(next);
            }
        }
        run
    }

    fn record(&mut self, at: u64, attempt: u32, answer: Answer, outage: u64) {
        self.attempts += 1;
        self.most_attempts = self.most_attempts.max(attempt);
        self.settled = at;
        self.recorder.record(at, answer);
        match answer {
            Answer::Accepted => self.deliveries.push(at),
            Answer::Rejected => self.rejected += 1,
            Answer::Down => {}
        }
        if attempt > 1 {
            self.peak.count(at);
            if at >= outage {
                self.peak_after_outage.count(at);
            }
        }
    }

    /// The result with its series in buckets of this width, at least so many.
    fn into_result(self, bucket_ms: u64, buckets: usize) -> SimulationResult {
        SimulationResult {
            delivered: self.deliveries.len() as u64,
            dead: self.dead,
            attempts: self.attempts,
            rejected: self.rejected,
            most_attempts: self.most_attempts,
            peak_per_second: self.peak.highest(),
            peak_after_outage_per_second: self.peak_after_outage.highest(),
            last_delivery: percentile(&self.deliveries, 100),
            p50: percentile(&self.deliveries, 50),
            p95: percentile(&self.deliveries, 95),
            settled: Duration::from_millis(self.settled),
            series: self.recorder.into_series(bucket_ms, buckets),
        }
    }
}

/// The smallest value that at least so many percent of the sorted values do not exceed.
fn percentile(sorted: &[u64], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied().map(Duration::from_millis)
}

/// Why a simulation cannot run. Each message says what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// None, or more than memory is meant for.
    #[error("{events} events cannot be simulated: choose from 1 to {max}", max = Simulation::MAX_EVENTS)]
    Events {
        /// What was asked for.
        events: u64,
    },
    /// Too many events times attempts.
    #[error(
        "{events} events with up to {attempts_each} attempts each may make more than {max} attempts: \
         lower the number of events to {fitting} or the number of attempts",
        max = Simulation::MAX_TOTAL_ATTEMPTS,
        fitting = Simulation::MAX_TOTAL_ATTEMPTS / u64::from(*attempts_each)
    )]
    TooMuchWork {
        /// Events.
        events: u64,
        /// Attempts that the policy allows for each.
        attempts_each: u32,
    },
    /// Longer than a year.
    #[error("an outage of {} is longer than a year: shorten it", format_duration(*outage))]
    Outage {
        /// What was asked for.
        outage: Duration,
    },
    /// A destination that never takes anything.
    #[error("a capacity of 0 per second would never deliver anything: set it to 1 or more")]
    Capacity,
    /// The policy does not work under another jitter.
    #[error(transparent)]
    Policy(#[from] crate::policy::PolicyError),
}

#[cfg(test)]
mod tests;
