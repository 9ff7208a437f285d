//! Cost of the retry core: a guarded call that succeeds at once, and a decision.

use std::hint::black_box;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder, Retryable};
use redrive_retry::breaker::{Breaker, BreakerConfig, CircuitBreaker};
use redrive_retry::decision::{DecisionRecord, Identity, Outcome, Situation, decide};
use redrive_retry::{Category, Clock, FailureClass, RetryManager, RetryPolicy, Timestamp};

use crate::measure::{Contender, Report, group};

/// The smallest call there is: ready at once, its argument and its result kept from the optimiser.
async fn ready(value: u64) -> Result<u64, std::io::Error> {
    Ok(black_box(value))
}

/// The smallest call that waits: it yields to the runtime once.
async fn yielding(value: u64) -> Result<u64, std::io::Error> {
    tokio::task::yield_now().await;
    Ok(black_box(value))
}

/// A contender that awaits one call after another, each written where it is awaited, as a program would.
macro_rules! contender {
    ($name:literal, $runtime:expr, |$value:ident| $call:expr) => {{
        let runtime = $runtime;
        Contender::new($name, move |calls| {
            runtime.block_on(async {
                for n in 0..calls {
                    let $value = black_box(n);
                    let _ = black_box($call.await);
                }
            });
        })
    }};
}

macro_rules! calls {
    ($title:literal, $count:literal, $runtime:expr, $manager:expr, $operation:ident) => {{
        let (runtime, manager) = ($runtime, $manager);
        let timed = RetryPolicy::call().to_builder().attempt_timeout(Duration::from_secs(30)).build();
        let timed = timed.expect("a valid policy");
        let breaker = CircuitBreaker::new(BreakerConfig::default(), Clock::system());
        group(
            $title,
            $count,
            vec![
                contender!("bare future", runtime, |v| $operation(v)),
                contender!("RetryManager", runtime, |v| manager
                    .execute(&Category::ApiRequest, "call")
                    .run(|_| $operation(v))),
                contender!("backon", runtime, |v| (|| $operation(v))
                    .retry(ExponentialBuilder::default())
                    .sleep(|_| std::future::ready(()))),
                contender!("RetryManager with attempt timeout", runtime, |v| manager
                    .execute(&Category::ApiRequest, "call")
                    .policy(&timed)
                    .run(|_| $operation(v))),
                contender!("RetryManager with circuit breaker", runtime, |v| manager
                    .execute(&Category::ApiRequest, "call")
                    .breaker(&breaker)
                    .run(|_| $operation(v))),
            ],
        )
    }};
}

pub(crate) fn run() -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = &runtime.expect("a current-thread runtime needs nothing that can be missing");
    let manager = &RetryManager::new();
    let succeed = calls!("a call that is ready at once", 20_000, runtime, manager, ready);
    let wait = calls!("a call that waits once", 5_000, runtime, manager, yielding);
    Report { groups: vec![succeed, wait, decisions()] }
}

fn decisions() -> crate::measure::Group {
    let policy = RetryPolicy::bus();
    let now = Timestamp::from_millis(1_767_225_600_000);
    let identity = Identity::new(7, "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19", "shipping");
    let failed = Outcome::Failed(FailureClass::Transient);
    let situation = Situation::new(&policy, identity, 2, failed, now);
    let situation = &situation;
    let mut breaker = Breaker::new(BreakerConfig::default());
    group(
        "a decision",
        20_000,
        vec![
            Contender::new("decide()", move |n| {
                for _ in 0..n {
                    black_box(decide(black_box(situation)));
                }
            }),
            Contender::new("backon: next delay, for comparison", move |n| {
                for _ in 0..n {
                    black_box(black_box(ExponentialBuilder::default().with_jitter()).build().next());
                }
            }),
            Contender::new("breaker: admit and record", move |n| {
                for _ in 0..n {
                    if let Ok(admission) = breaker.admit(black_box(now)) {
                        breaker.record(admission, true, now);
                    }
                }
            }),
            Contender::new("decide() with its record and digest", move |n| {
                for _ in 0..n {
                    black_box(DecisionRecord::decide(black_box(situation).clone()));
                }
            }),
        ],
    )
}
