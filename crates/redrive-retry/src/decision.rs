//! What happens next: one pure function over recorded facts.
//!
//! [`decide`] reads no clock, draws no random number and touches nothing, so a decision can be recomputed from its
//! record at any time (see [`DecisionRecord`](crate::DecisionRecord)) and explained to whoever asks why.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::breaker::BreakerSnapshot;
use crate::budget::BudgetSnapshot;
use crate::class::FailureClass;
use crate::identity::Identity;
use crate::policy::RetryPolicy;
use crate::timestamp::{Timestamp, saturating_millis};

/// How an attempt ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// It worked.
    Succeeded,
    /// It failed.
    Failed(FailureClass),
    /// It was not made, because the circuit is open or the budget is spent. No attempt is consumed.
    Refused,
}

/// Everything that a decision depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Situation<'a> {
    /// Attempts in all that the policy allows.
    pub max_attempts: u32,
    /// The policy's delays.
    pub backoff: Backoff,
    /// How long all attempts and waits may take together, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The attempt that has just ended (or was refused), counted from 1.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// When the first attempt began.
    pub started_at: Timestamp,
    /// The time of the decision.
    pub now: Timestamp,
    /// The circuit of the destination.
    #[serde(default)]
    pub breaker: BreakerSnapshot,
    /// The retry budget of the destination.
    #[serde(default)]
    pub budget: BudgetSnapshot,
    /// Which replayable run this belongs to.
    pub seed: u64,
    /// The event's or the call's id.
    pub event: Cow<'a, str>,
    /// The subscription or the operation.
    pub subscription: Cow<'a, str>,
}

impl<'a> Situation<'a> {
    /// After `attempt` under this policy, with a closed circuit and no budget. Set the other fields as they are.
    pub fn new(
        policy: &RetryPolicy,
        identity: Identity<'a>,
        attempt: u32,
        outcome: Outcome,
        now: Timestamp,
    ) -> Self {
        Situation {
            max_attempts: policy.max_attempts(),
            backoff: *policy.backoff(),
            deadline_ms: policy.deadline().map(saturating_millis),
            attempt,
            outcome,
            started_at: now,
            now,
            breaker: BreakerSnapshot::Closed,
            budget: BudgetSnapshot::Unlimited,
            seed: identity.seed,
            event: Cow::Borrowed(identity.event),
            subscription: Cow::Borrowed(identity.subscription),
        }
    }

    fn identity(&self) -> Identity<'_> {
        Identity::new(self.seed, &self.event, &self.subscription)
    }

    /// Whether something that begins at `at` would begin too late.
    fn is_too_late(&self, at: Timestamp) -> bool {
        self.deadline_ms.is_some_and(|deadline| at >= self.started_at.plus_millis(deadline))
    }

    /// The same facts, owned, to be kept.
    pub fn into_owned(self) -> Situation<'static> {
        Situation {
            event: Cow::Owned(self.event.into_owned()),
            subscription: Cow::Owned(self.subscription.into_owned()),
            ..self
        }
    }
}

/// What happens next.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum Decision {
    /// Finished.
    Done,
    /// Another attempt.
    Retry {
        /// When.
        at: Timestamp,
        /// How long that is from now, in milliseconds.
        delay_ms: u64,
        /// What fixed the delay.
        because: RetryReason,
    },
    /// Not now, and without consuming an attempt.
    Park {
        /// Until when.
        until: Timestamp,
        /// Why.
        because: ParkReason,
    },
    /// Given up.
    Dead {
        /// Why.
        because: DeadReason,
    },
}

/// What fixed the delay of a retry.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryReason {
    /// The policy's backoff.
    Backoff,
    /// The other side asked for at least this long.
    RetryAfter,
    /// The circuit is open until then.
    CircuitOpen,
}

/// Why work is parked.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkReason {
    /// The circuit lets nothing through before then.
    CircuitOpen,
    /// The retry budget has nothing left before then.
    BudgetSpent,
}

/// Why work is given up.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// The error is of a kind that no retry can mend.
    Permanent,
    /// All attempts are used up.
    AttemptsExhausted,
    /// The next attempt would begin after the deadline.
    DeadlineExceeded,
    /// The retry budget is spent.
    BudgetSpent,
    /// The other side asked for a wait of more than a year.
    WaitTooLong,
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeadReason::Permanent => "the error is permanent",
            DeadReason::AttemptsExhausted => "all attempts are used up",
            DeadReason::DeadlineExceeded => "the next attempt would begin after the deadline",
            DeadReason::BudgetSpent => "the retry budget is spent",
            DeadReason::WaitTooLong => "the other side asked for a wait of more than a year",
        })
    }
}

/// Decides. The same situation always gives the same decision.
///
/// ```
/// use redrive_retry::*;
/// let now = Timestamp::from_millis(1_767_225_600_000);
/// let work = Identity::new(7, "order-1", "shipping");
/// let failed = Outcome::Failed(FailureClass::Transient);
/// let first = Situation::new(&RetryPolicy::bus(), work, 1, failed, now);
/// assert!(matches!(decide(&first), Decision::Retry { delay_ms: 900..=1100, .. }));
/// let last = Situation { attempt: 4, ..first };
/// assert_eq!(decide(&last), Decision::Dead { because: DeadReason::AttemptsExhausted });
/// ```
pub fn decide(situation: &Situation<'_>) -> Decision {
    match situation.outcome {
        Outcome::Succeeded => Decision::Done,
        Outcome::Refused => {
            let circuit = situation.breaker.refuses_until().unwrap_or(situation.now).max(situation.now);
            match situation.budget {
                BudgetSnapshot::Spent { again_at: Some(until) } if until > circuit => {
                    park(situation, until, ParkReason::BudgetSpent)
                }
                _ => park(situation, circuit, ParkReason::CircuitOpen),
            }
        }
        Outcome::Failed(class) => after_failure(situation, class),
    }
}

fn after_failure(situation: &Situation<'_>, class: FailureClass) -> Decision {
    if !class.is_retryable() {
        return Decision::Dead { because: DeadReason::Permanent };
    }
    if situation.attempt >= situation.max_attempts {
        return Decision::Dead { because: DeadReason::AttemptsExhausted };
    }
    if let BudgetSnapshot::Spent { again_at } = situation.budget {
        return match again_at {
            Some(until) => park(situation, until, ParkReason::BudgetSpent),
            None => Decision::Dead { because: DeadReason::BudgetSpent },
        };
    }
    // What the other side asked for and what the circuit demands are both minimums: neither is undercut, and jitter
    // above them keeps everybody from coming back at the same instant.
    let requested = class.requested_wait().unwrap_or_default();
    let circuit =
        situation.breaker.refuses_until().map_or(Duration::ZERO, |until| until.since(situation.now));
    if requested > RetryPolicy::LONGEST {
        return Decision::Dead { because: DeadReason::WaitTooLong };
    }
    let minimum = requested.max(circuit);
    let next = situation.attempt + 1;
    let at = situation.now + situation.backoff.delay(next, Some(minimum), situation.identity());
    let because = if minimum <= situation.backoff.range(next, None).min() {
        RetryReason::Backoff
    } else if circuit >= requested {
        RetryReason::CircuitOpen
    } else {
        RetryReason::RetryAfter
    };
    if situation.is_too_late(at) {
        return Decision::Dead { because: DeadReason::DeadlineExceeded };
    }
    Decision::Retry { at, delay_ms: saturating_millis(at.since(situation.now)), because }
}

fn park(situation: &Situation<'_>, until: Timestamp, because: ParkReason) -> Decision {
    if situation.is_too_late(until) {
        return Decision::Dead { because: DeadReason::DeadlineExceeded };
    }
    Decision::Park { until, because }
}

impl Decision {
    /// How long a retry waits.
    pub fn delay(self) -> Option<Duration> {
        match self {
            Decision::Retry { delay_ms, .. } => Some(Duration::from_millis(delay_ms)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jitter::Jitter;
    use proptest::prelude::*;

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn situation(policy: &RetryPolicy, attempt: u32, class: FailureClass) -> Situation<'static> {
        Situation::new(policy, Identity::new(1, "event", "sub"), attempt, Outcome::Failed(class), T0)
    }

    fn exact() -> RetryPolicy {
        RetryPolicy::builder().jitter(Jitter::None).build().unwrap()
    }

    #[test]
    fn success_is_done_and_a_permanent_error_is_dead_at_once() {
        let policy = exact();
        let done =
            Situation { outcome: Outcome::Succeeded, ..situation(&policy, 1, FailureClass::Transient) };
        assert_eq!(decide(&done), Decision::Done);
        let dead = decide(&situation(&policy, 1, FailureClass::Permanent));
        assert_eq!(dead, Decision::Dead { because: DeadReason::Permanent });
    }

    #[test]
    fn every_other_class_is_retried_with_the_delay_of_the_next_attempt() {
        for class in [
            FailureClass::Transient,
            FailureClass::Timeout,
            FailureClass::Crashed,
            FailureClass::Throttled { retry_after: None },
        ] {
            for (attempt, delay_ms) in [(1, 1000), (2, 2000), (3, 4000)] {
                let decision = decide(&situation(&exact(), attempt, class));
                let expected =
                    Decision::Retry { at: T0.plus_millis(delay_ms), delay_ms, because: RetryReason::Backoff };
                assert_eq!(decision, expected);
            }
        }
    }

    #[test]
    fn the_last_attempt_is_dead() {
        for attempt in [4, 5, u32::MAX] {
            let decision = decide(&situation(&exact(), attempt, FailureClass::Transient));
            assert_eq!(decision, Decision::Dead { because: DeadReason::AttemptsExhausted });
        }
    }

    #[test]
    fn a_requested_wait_is_honoured_in_full() {
        let class = FailureClass::retry_after(Duration::from_secs(600));
        let decision = decide(&situation(&exact(), 1, class));
        let expected = Decision::Retry {
            at: T0.plus_millis(600_000),
            delay_ms: 600_000,
            because: RetryReason::RetryAfter,
        };
        assert_eq!(decision, expected);
        let short = decide(&situation(&exact(), 1, FailureClass::retry_after(Duration::from_millis(10))));
        assert!(
            matches!(short, Decision::Retry { delay_ms: 1000, because: RetryReason::Backoff, .. }),
            "{short:?}"
        );
    }

    #[test]
    fn a_wait_of_more_than_a_year_is_not_waited_for() {
        let class = FailureClass::retry_after(RetryPolicy::LONGEST + Duration::from_secs(1));
        let decision = decide(&situation(&exact(), 1, class));
        assert_eq!(decision, Decision::Dead { because: DeadReason::WaitTooLong });
    }

    #[test]
    fn an_open_circuit_parks_without_consuming_an_attempt() {
        let until = T0.plus_millis(30_000);
        // Even on the last attempt: nothing was tried, so nothing is used up.
        let refused = Situation {
            outcome: Outcome::Refused,
            breaker: BreakerSnapshot::Open { until },
            ..situation(&exact(), 4, FailureClass::Transient)
        };
        assert_eq!(decide(&refused), Decision::Park { until, because: ParkReason::CircuitOpen });
    }

    #[test]
    fn a_retry_is_not_planned_into_an_open_circuit() {
        let until = T0.plus_millis(30_000);
        let failed = Situation {
            breaker: BreakerSnapshot::Open { until },
            ..situation(&exact(), 1, FailureClass::Transient)
        };
        let expected = Decision::Retry { at: until, delay_ms: 30_000, because: RetryReason::CircuitOpen };
        assert_eq!(decide(&failed), expected);
    }

    #[test]
    fn retries_after_an_open_circuit_are_spread_and_never_too_early() {
        let until = T0.plus_millis(30_000);
        let at = |event: u32| {
            let failed = Situation {
                breaker: BreakerSnapshot::Open { until },
                event: event.to_string().into(),
                ..situation(&RetryPolicy::bus(), 1, FailureClass::Transient)
            };
            match decide(&failed) {
                Decision::Retry { at, because: RetryReason::CircuitOpen, .. } => at,
                other => panic!("{other:?}"),
            }
        };
        let mut moments: Vec<_> = (0..100).map(at).collect();
        assert!(moments.iter().all(|at| (30_000..=33_000).contains(&at.since(T0).as_millis())));
        moments.sort();
        moments.dedup();
        assert!(moments.len() > 80, "spread over three seconds");
    }

    #[test]
    fn a_spent_budget_is_said_and_waits_only_where_waiting_is_possible() {
        let failed = situation(&exact(), 1, FailureClass::Transient);
        let again_at = T0.plus_millis(700);
        let durable =
            Situation { budget: BudgetSnapshot::Spent { again_at: Some(again_at) }, ..failed.clone() };
        assert_eq!(decide(&durable), Decision::Park { until: again_at, because: ParkReason::BudgetSpent });
        let call = Situation { budget: BudgetSnapshot::Spent { again_at: None }, ..failed };
        assert_eq!(decide(&call), Decision::Dead { because: DeadReason::BudgetSpent });
    }

    #[test]
    fn a_retry_that_cannot_be_paid_for_is_not_made_and_waits_without_consuming_an_attempt() {
        let again_at = T0.plus_millis(700);
        // Also the last one that the policy allows.
        let refused = Situation {
            outcome: Outcome::Refused,
            budget: BudgetSnapshot::Spent { again_at: Some(again_at) },
            ..situation(&exact(), 4, FailureClass::Transient)
        };
        assert_eq!(decide(&refused), Decision::Park { until: again_at, because: ParkReason::BudgetSpent });
        let until = T0.plus_millis(30_000);
        let both = Situation { breaker: BreakerSnapshot::Open { until }, ..refused.clone() };
        assert_eq!(
            decide(&both),
            Decision::Park { until, because: ParkReason::CircuitOpen },
            "the later one"
        );
        let late = Situation { deadline_ms: Some(700), ..refused };
        assert_eq!(decide(&late), Decision::Dead { because: DeadReason::DeadlineExceeded });
    }

    #[test]
    fn nothing_is_planned_past_the_deadline() {
        let policy = exact().to_builder().deadline(Duration::from_millis(1000)).build().unwrap();
        let too_late = Decision::Dead { because: DeadReason::DeadlineExceeded };
        assert_eq!(decide(&situation(&policy, 1, FailureClass::Transient)), too_late);
        let policy = exact().to_builder().deadline(Duration::from_millis(1001)).build().unwrap();
        assert!(matches!(decide(&situation(&policy, 1, FailureClass::Transient)), Decision::Retry { .. }));
        let parked = Situation {
            outcome: Outcome::Refused,
            breaker: BreakerSnapshot::Open { until: T0.plus_millis(5000) },
            ..situation(&policy, 1, FailureClass::Transient)
        };
        assert_eq!(decide(&parked), too_late);
    }

    fn any_situation() -> impl Strategy<Value = Situation<'static>> {
        let class = prop_oneof![
            Just(FailureClass::Transient),
            Just(FailureClass::Timeout),
            Just(FailureClass::Crashed),
            Just(FailureClass::Permanent),
            any::<u64>().prop_map(|ms| FailureClass::Throttled { retry_after: Some(ms) }),
        ];
        let outcome = prop_oneof![1 => Just(Outcome::Succeeded), 1 => Just(Outcome::Refused), 8 => class.prop_map(Outcome::Failed)];
        let breaker = prop_oneof![
            Just(BreakerSnapshot::Closed),
            any::<i64>().prop_map(|ms| BreakerSnapshot::Open { until: Timestamp::from_millis(ms) }),
            any::<i64>().prop_map(|ms| BreakerSnapshot::HalfOpen { until: Timestamp::from_millis(ms) }),
        ];
        let budget = prop_oneof![
            Just(BudgetSnapshot::Unlimited),
            Just(BudgetSnapshot::Granted),
            Just(BudgetSnapshot::Spent { again_at: None }),
            any::<i64>().prop_map(|ms| BudgetSnapshot::Spent { again_at: Some(Timestamp::from_millis(ms)) }),
        ];
        let times = (any::<i64>(), any::<i64>(), proptest::option::of(any::<u64>()));
        (1u32..20, any::<u32>(), outcome, breaker, budget, times, any::<u64>()).prop_map(
            |(max_attempts, attempt, outcome, breaker, budget, (started, now, deadline_ms), seed)| {
                Situation {
                    max_attempts,
                    attempt,
                    outcome,
                    breaker,
                    budget,
                    deadline_ms,
                    started_at: Timestamp::from_millis(started),
                    now: Timestamp::from_millis(now),
                    seed,
                    ..situation(&RetryPolicy::bus(), 1, FailureClass::Transient)
                }
            },
        )
    }

    proptest! {
        /// Whatever the situation: no panic, no attempt too many, no step back in time, nothing past the deadline.
        #[test]
        fn decide_keeps_its_bounds_in_every_situation(situation in any_situation()) {
            let decision = decide(&situation);
            prop_assert_eq!(decision, decide(&situation), "the same every time");
            match decision {
                Decision::Done => prop_assert_eq!(situation.outcome, Outcome::Succeeded),
                Decision::Retry { at, .. } => {
                    prop_assert!(situation.attempt < situation.max_attempts && at >= situation.now);
                    prop_assert!(!situation.is_too_late(at));
                    let open_until = situation.breaker.refuses_until();
                    prop_assert!(open_until.is_none_or(|until| at >= until), "not into an open circuit");
                }
                Decision::Park { until, .. } => prop_assert!(!situation.is_too_late(until)),
                Decision::Dead { .. } => prop_assert!(situation.outcome != Outcome::Succeeded),
            }
        }

        #[test]
        fn decide_never_exceeds_the_attempts_and_never_goes_back_in_time(
            max_attempts in 1u32..20, seed: u64, event in "[a-z0-9]{1,36}",
        ) {
            let policy = RetryPolicy::builder().max_attempts(max_attempts).build().unwrap();
            let mut made = 0;
            let mut now = T0;
            loop {
                made += 1;
                let identity = Identity::new(seed, &event, "sub");
                let failed = Outcome::Failed(FailureClass::Transient);
                match decide(&Situation::new(&policy, identity, made, failed, now)) {
                    Decision::Retry { at, delay_ms, .. } => {
                        prop_assert_eq!(at, now.plus_millis(delay_ms));
                        now = at;
                    }
                    Decision::Dead { because } => {
                        prop_assert_eq!(because, DeadReason::AttemptsExhausted);
                        break;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert_eq!(made, max_attempts);
        }
    }
}
