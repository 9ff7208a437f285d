//! Unit tests of the decision: attempts, deadlines, breakers, budgets, and its record.

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
fn a_success_is_done_and_a_permanent_error_is_dead() {
    let policy = exact();
    let done = Situation { outcome: Outcome::Succeeded, ..situation(&policy, 1, FailureClass::Transient) };
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
fn a_failed_last_attempt_is_dead() {
    for attempt in [4, 5, u32::MAX] {
        let decision = decide(&situation(&exact(), attempt, FailureClass::Transient));
        assert_eq!(decision, Decision::Dead { because: DeadReason::AttemptsExhausted });
    }
}

#[test]
fn a_requested_delay_is_honoured_in_full() {
    let class = FailureClass::retry_after(Duration::from_secs(600));
    let decision = decide(&situation(&exact(), 1, class));
    let expected =
        Decision::Retry { at: T0.plus_millis(600_000), delay_ms: 600_000, because: RetryReason::RetryAfter };
    assert_eq!(decision, expected);
    let short = decide(&situation(&exact(), 1, FailureClass::retry_after(Duration::from_millis(10))));
    assert!(
        matches!(short, Decision::Retry { delay_ms: 1000, because: RetryReason::Backoff, .. }),
        "{short:?}"
    );
}

#[test]
fn a_requested_delay_of_more_than_a_year_is_dead() {
    let class = FailureClass::retry_after(RetryPolicy::MAX_DURATION + Duration::from_secs(1));
    let decision = decide(&situation(&exact(), 1, class));
    assert_eq!(decision, Decision::Dead { because: DeadReason::WaitTooLong });
}

#[test]
fn an_open_circuit_parks_without_consuming_an_attempt() {
    let until = T0.plus_millis(30_000);
    // Even on the last attempt: a refusal consumes no attempt.
    let refused = Situation {
        outcome: Outcome::Refused,
        breaker: BreakerSnapshot::Open { until },
        ..situation(&exact(), 4, FailureClass::Transient)
    };
    assert_eq!(decide(&refused), Decision::Park { until, because: ParkReason::CircuitOpen });
}

#[test]
fn a_retry_is_scheduled_after_an_open_circuit() {
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
fn a_spent_budget_parks_durable_work_and_ends_a_call() {
    let failed = situation(&exact(), 1, FailureClass::Transient);
    let again_at = T0.plus_millis(700);
    let durable = Situation { budget: BudgetSnapshot::Spent { again_at: Some(again_at) }, ..failed.clone() };
    assert_eq!(decide(&durable), Decision::Park { until: again_at, because: ParkReason::BudgetSpent });
    let call = Situation { budget: BudgetSnapshot::Spent { again_at: None }, ..failed };
    assert_eq!(decide(&call), Decision::Dead { because: DeadReason::BudgetSpent });
}

#[test]
fn a_refused_retry_is_parked_without_consuming_an_attempt() {
    let again_at = T0.plus_millis(700);
    // Also the last attempt of the policy.
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
        "the later of the two"
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
        |(max_attempts, attempt, outcome, breaker, budget, (started, now, deadline_ms), seed)| Situation {
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
        },
    )
}

proptest! {
    /// In every situation: no panic, no surplus attempt, no step back in time, nothing past the deadline.
    #[test]
    fn decide_keeps_its_bounds_in_every_situation(situation in any_situation()) {
        let decision = decide(&situation);
        prop_assert_eq!(decision, decide(&situation), "deterministic");
        match decision {
            Decision::Done => prop_assert_eq!(situation.outcome, Outcome::Succeeded),
            Decision::Retry { at, .. } => {
                prop_assert!(situation.attempt < situation.max_attempts && at >= situation.now);
                prop_assert!(!situation.exceeds_deadline(at));
                let open_until = situation.breaker.refuses_until();
                prop_assert!(open_until.is_none_or(|until| at >= until), "not into an open circuit");
            }
            Decision::Park { until, .. } => prop_assert!(!situation.exceeds_deadline(until)),
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
