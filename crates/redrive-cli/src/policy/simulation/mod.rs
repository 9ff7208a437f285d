//! Simulates a retry policy against a destination with an outage: many events, limited capacity, virtual time.
//!
//! All events make their first attempt at zero. The destination is down for a while and then accepts a fixed number of
//! attempts per second. Every failure goes through [`decide`], the function that decides in production. There is no clock
//! and no I/O: equal simulations have equal results.
//!
//! The model is simple on purpose. An attempt takes no time, all failures are transient, there is neither circuit
//! breaker nor retry budget, and a destination over its capacity refuses at once instead of becoming slow.

mod destination;
mod peak;
mod series;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fmt::Write;
use std::time::Duration;

use redrive_retry::decision::{Decision, Identity, Outcome, Situation, decide};
use redrive_retry::duration::format_duration;
use redrive_retry::policy::{PolicyError, Ratio};
use redrive_retry::{FailureClass, Jitter, RetryPolicy, Timestamp};
use serde::Serialize;

use self::destination::{Answer, Destination};
use self::peak::PeakRate;
use self::series::{Recorder, Series, bucket_width};
use crate::time_format::millis;

/// Subscription name of every simulated delivery; part of the identity that seeds its jitter.
const SUBSCRIPTION: &str = "simulation";

/// A policy and the scenario that it runs against.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Simulation {
    /// The policy under test.
    pub(crate) policy: RetryPolicy,
    /// Number of events that make their first attempt at zero, from 1 to [`Simulation::MAX_EVENTS`].
    pub(crate) events: u64,
    /// Length of the outage, which begins at zero. At most [`RetryPolicy::MAX_DURATION`].
    pub(crate) outage: Duration,
    /// Attempts per second that the destination accepts after the outage, at least 1; it rejects the rest.
    ///
    /// A continuously refilled token bucket. Its burst is the capacity of a tenth of a second (at least two attempts), and
    /// it is full when the outage ends.
    pub(crate) capacity_per_second: u64,
    /// Seed of the jitter.
    pub(crate) seed: u64,
}

impl Simulation {
    /// Largest number of events; their state is kept in memory.
    pub(crate) const MAX_EVENTS: u64 = 1_000_000;
    /// Largest number of attempts of all events together: about ten seconds of computing.
    pub(crate) const MAX_TOTAL_ATTEMPTS: u64 = 20_000_000;

    /// Runs the policy as it is.
    pub(crate) fn run(&self) -> Result<SimulationResult, SimulationError> {
        self.check()?;
        let run = Run::of(self, &self.policy);
        let bucket_ms = bucket_width(&[&run.recorder]);
        Ok(run.into_result(bucket_ms, 0))
    }

    /// Runs the policy with and without jitter and returns both series in buckets of equal width and number.
    ///
    /// A policy that has no jitter is compared with itself under full jitter; [`Comparison::assumed`] says so.
    pub(crate) fn compare(&self) -> Result<Comparison, SimulationError> {
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
        if self.outage > RetryPolicy::MAX_DURATION {
            return Err(SimulationError::Outage { outage: self.outage });
        }
        if self.capacity_per_second == 0 {
            return Err(SimulationError::Capacity);
        }
        Ok(())
    }
}

/// Whether the jitter adds no randomness: `none`, "0%" and "0..0s".
fn spreads_nothing(jitter: Jitter) -> bool {
    match jitter {
        Jitter::None => true,
        Jitter::Proportional(share) => share == Ratio::from_millionths(0),
        Jitter::Additive(amount) => amount < Duration::from_millis(1),
        Jitter::Full | Jitter::Equal => false,
    }
}

/// Results of one policy with and without jitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Jitter of `with_jitter`.
    pub(crate) jitter: Jitter,
    /// Whether that jitter was assumed because the policy has none.
    pub(crate) assumed: bool,
    /// Result with that jitter.
    pub(crate) with_jitter: SimulationResult,
    /// Result without jitter: every delay is exactly the policy's.
    pub(crate) without_jitter: SimulationResult,
}

/// Outcome of a simulation. All times are in milliseconds since the first attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SimulationResult {
    /// Delivered events.
    pub(crate) delivered: u64,
    /// Dead-lettered events.
    pub(crate) dead: u64,
    /// Attempts of all events together.
    pub(crate) attempts: u64,
    /// Attempts that failed after the outage because the destination was at its capacity.
    pub(crate) rejected: u64,
    /// Largest number of attempts of a single event.
    pub(crate) most_attempts: u32,
    /// Largest number of retries within any one second. First attempts are not counted: they are simultaneous under any policy.
    pub(crate) peak_per_second: u64,
    /// Largest number of retries within any one second after the outage: the load on the recovering destination.
    pub(crate) peak_after_outage_per_second: u64,
    /// Time of the last delivery, if there was one.
    pub(crate) last_delivery_ms: Option<u64>,
    /// Median delivery time.
    pub(crate) p50_ms: Option<u64>,
    /// 95th percentile of the delivery times.
    pub(crate) p95_ms: Option<u64>,
    /// Time at which every event was delivered or dead.
    pub(crate) settled_ms: u64,
    /// Attempts, deliveries and rejections over time.
    pub(crate) series: Series,
}

/// A scheduled attempt. Ordered by time, then by event, so that the order does not depend on the heap.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: u64,
    event: u32,
    attempt: u32,
}

/// A finished simulation before its series is divided into buckets.
struct Run {
    recorder: Recorder,
    /// Delivery times in ascending order, so percentiles need no sorting.
    deliveries: Vec<u64>,
    peak: PeakRate,
    peak_after_outage: PeakRate,
    /// Counters; the other fields are set at the end.
    result: SimulationResult,
}

impl Run {
    fn of(simulation: &Simulation, policy: &RetryPolicy) -> Run {
        let outage = millis(simulation.outage);
        let mut destination = Destination::new(outage, simulation.capacity_per_second);
        let mut run = Run {
            recorder: Recorder::new(),
            deliveries: Vec::new(),
            peak: PeakRate::new(),
            peak_after_outage: PeakRate::new(),
            result: SimulationResult::default(),
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
                // Changed in place: the heap sifts it down at half the cost of pop and push.
                next.0.at = at.saturating_add(delay_ms);
                next.0.attempt = attempt + 1;
            } else {
                run.result.dead += 1;
                PeekMut::pop(next);
            }
        }
        run
    }

    fn record(&mut self, at: u64, attempt: u32, answer: Answer, outage: u64) {
        self.result.attempts += 1;
        self.result.most_attempts = self.result.most_attempts.max(attempt);
        self.result.settled_ms = at;
        self.recorder.record(at, answer);
        match answer {
            Answer::Accepted => self.deliveries.push(at),
            Answer::Rejected => self.result.rejected += 1,
            Answer::Down => {}
        }
        if attempt > 1 {
            self.peak.count(at);
            if at >= outage {
                self.peak_after_outage.count(at);
            }
        }
    }

    /// Builds the result, with a series of at least `buckets` buckets of this width.
    fn into_result(self, bucket_ms: u64, buckets: usize) -> SimulationResult {
        SimulationResult {
            delivered: self.deliveries.len() as u64,
            peak_per_second: self.peak.highest(),
            peak_after_outage_per_second: self.peak_after_outage.highest(),
            last_delivery_ms: percentile(&self.deliveries, 100),
            p50_ms: percentile(&self.deliveries, 50),
            p95_ms: percentile(&self.deliveries, 95),
            series: self.recorder.into_series(bucket_ms, buckets),
            ..self.result
        }
    }
}

/// Nearest-rank percentile of sorted values.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// A simulation that cannot run. Each message says what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum SimulationError {
    /// The number of events is 0 or too large.
    #[error("{events} events cannot be simulated: choose from 1 to {max}", max = Simulation::MAX_EVENTS)]
    Events {
        /// The requested value.
        events: u64,
    },
    /// Events times attempts exceed the limit.
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
    /// The outage is longer than a year.
    #[error("an outage of {} is longer than a year: shorten it", format_duration(*outage))]
    Outage {
        /// The requested value.
        outage: Duration,
    },
    /// The destination accepts nothing.
    #[error("a capacity of 0 per second would never deliver anything: set it to 1 or more")]
    Capacity,
    /// The policy is invalid with another jitter.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

#[cfg(test)]
mod tests;
