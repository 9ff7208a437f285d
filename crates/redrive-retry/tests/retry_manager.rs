//! Behaviour of the retry manager on virtual time.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive_retry::audit::{
    AuditError, AuditEvent, AuditSink, ChannelSink, Fanout, JsonLinesSink, RetryLogEntry,
};
use redrive_retry::breaker::{BreakerConfig, CircuitBreaker};
use redrive_retry::budget::BudgetConfig;
use redrive_retry::decision::DeadReason;
use redrive_retry::manager::RetryManagerBuilder;
use redrive_retry::policy::ErrorRule;
use redrive_retry::{
    BoxError, Category, ClassifyError, FailureClass, Jitter, RetryError, RetryErrorReason, RetryManager,
    RetryPolicy, Timestamp, VirtualTime,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

fn manager(time: &VirtualTime) -> RetryManagerBuilder {
    RetryManager::builder().clock(time.clock())
}

fn exact(category: &Category) -> RetryPolicy {
    RetryPolicy::for_category(category).to_builder().jitter(Jitter::None).build().unwrap()
}

fn drain(events: &mut Receiver<AuditEvent>) -> Vec<Value> {
    std::iter::from_fn(|| events.try_recv().ok()).map(|event| serde_json::to_value(event).unwrap()).collect()
}

fn of_type<'a>(events: &'a [Value], event_type: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event_type"] == event_type).collect()
}

/// Fails `failures` times, then returns the number of the attempt.
async fn flaky(attempt: u32, failures: u32) -> Result<u32, BoxError> {
    if attempt <= failures { Err(format!("failure {attempt}").into()) } else { Ok(attempt) }
}

#[tokio::test]
async fn a_successful_call_is_made_once_and_not_audited() {
    let time = VirtualTime::new();
    let (sink, mut events, _) = ChannelSink::new(100);
    let manager = manager(&time).audit(sink).build();
    let began = time.now();
    let run = manager.execute(&Category::ApiRequest, "op").run(|a| flaky(a.number(), 0));
    assert_eq!(time.drive(run).await.unwrap(), 1);
    assert_eq!(time.now(), began);
    assert!(drain(&mut events).is_empty());
}

#[tokio::test]
async fn a_failing_call_is_retried_after_the_policys_delays() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let policy = exact(&Category::NatsConnect);
    let moments = RefCell::new(Vec::new());
    let began = time.now();
    let run = manager.execute(&Category::NatsConnect, "connect").policy(&policy).run(|attempt| {
        moments.borrow_mut().push(time.now().since(began).as_millis());
        flaky(attempt.number(), 4)
    });
    assert_eq!(time.drive(run).await.unwrap(), 5);
    assert_eq!(*moments.borrow(), [0, 1000, 3000, 7000, 15_000]);
}

#[tokio::test]
async fn an_exhausted_call_reports_category_attempts_operation_and_the_last_error() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let run = manager.execute(&Category::KvGet, "Get kill switch status").run(|a| async move {
        Err::<(), _>(io::Error::new(io::ErrorKind::ConnectionReset, format!("reset {}", a.number())))
    });
    let error = time.drive(run).await.unwrap_err();
    assert_eq!(error.category(), &Category::KvGet);
    assert_eq!(error.attempts(), 3);
    assert_eq!(error.operation(), "Get kill switch status");
    assert_eq!(error.reason(), &RetryErrorReason::Dead(DeadReason::AttemptsExhausted));
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "reset 3");
    assert!(error.find::<io::Error>().is_some());
    assert_eq!(
        error.to_string(),
        "RETRY_KV_GET: Get kill switch status: failed after 3 attempts: all attempts are used up"
    );
}

#[tokio::test]
async fn a_permanent_error_is_audited_and_not_retried() {
    let time = VirtualTime::new();
    let (sink, mut events, _) = ChannelSink::new(100);
    let manager = manager(&time).audit(sink).build();
    let run = manager
        .execute(&Category::ApiRequest, "op")
        .run(|_| async { Err::<(), _>("no such customer".permanent()) });
    let error = time.drive(run).await.unwrap_err();
    assert_eq!((error.attempts(), error.reason()), (1, &RetryErrorReason::Dead(DeadReason::Permanent)));
    let events = drain(&mut events);
    assert!(of_type(&events, "retry_exhausted").is_empty(), "nothing was exhausted");
    let decisions = of_type(&events, "retry_decision");
    assert_eq!(decisions.len(), 1, "no silent drops");
    assert_eq!(decisions[0]["record"]["decision"], json!({"action": "dead", "because": "permanent"}));
}

#[tokio::test]
async fn a_non_retryable_error_is_returned_at_once_as_itself() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let strict = RetryPolicy::call().to_builder().non_retryable(ErrorRule::permanent_io()).build().unwrap();
    let denied = || async { Err::<(), _>(io::Error::new(io::ErrorKind::PermissionDenied, "no entry")) };
    let began = time.now();
    let run = manager.execute(&Category::ApiRequest, "op").policy(&strict).run(|_| denied());
    let error = time.drive(run).await.unwrap_err();
    assert_eq!((error.attempts(), time.now()), (1, began));
    assert_eq!(error.to_string(), "no entry", "the message of the error, and nothing else");
    assert_eq!(error.find::<io::Error>().unwrap().kind(), io::ErrorKind::PermissionDenied);
    let error = error.downcast::<std::fmt::Error>().unwrap_err();
    assert_eq!(error.downcast::<io::Error>().unwrap().kind(), io::ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn a_permanent_error_stays_permanent_for_an_outer_call() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let (inner, outer) = (&manager, AtomicU32::new(0));
    let run = manager.execute(&Category::ApiRequest, "outer").run(|attempt| {
        outer.store(attempt.number(), Ordering::SeqCst);
        async move {
            let refused = |_| async { Err::<(), _>("no such customer".permanent()) };
            inner.execute(&Category::KvGet, "inner").run(refused).await
        }
    });
    assert_eq!(time.drive(run).await.unwrap_err().to_string(), "no such customer");
    assert_eq!(outer.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_policy_is_found_by_category_by_code_and_by_name() {
    let manager = RetryManager::new();
    for category in Category::ALL {
        let by_code: Category = category.code().parse().unwrap();
        let by_name: Category = category.name().parse().unwrap();
        let policy = manager.policy(&category);
        assert_eq!((manager.policy(&by_code), manager.policy(&by_name)), (policy, policy));
        assert_eq!(&RetryPolicy::preset(category.code()).unwrap(), policy);
    }
}

#[tokio::test]
async fn every_category_makes_its_attempts_under_its_code() {
    let time = VirtualTime::new();
    let (sink, mut events, _) = ChannelSink::new(1000);
    let manager = manager(&time).audit(sink).build();
    for category in Category::ALL {
        let error = time.drive(manager.execute(&category, "op").run(always_failing)).await.unwrap_err();
        assert_eq!(error.attempts(), RetryPolicy::for_category(&category).max_attempts());
        assert!(category.code().ends_with(category.name()), "{category:?}");
        assert_eq!(format!("{category:?}").to_uppercase(), category.name().replace('_', ""));
    }
    let events = drain(&mut events);
    for category in Category::ALL {
        let own: Vec<_> = events.iter().filter(|event| event["retry_category"] == category.code()).collect();
        let attempts = RetryPolicy::for_category(&category).max_attempts() as usize;
        assert_eq!(own.iter().filter(|event| event["event_type"] == "retry_attempt").count(), attempts - 1);
        assert_eq!(own.iter().filter(|event| event["event_type"] == "retry_exhausted").count(), 1);
        assert_eq!(own.len(), 2 * attempts, "and a decision for each attempt");
    }
}

#[tokio::test]
async fn clones_of_a_manager_share_their_state() {
    let time = VirtualTime::new();
    let one = manager(&time)
        .budget(BudgetConfig::new(0.0, 2, 0.0).unwrap())
        .audit(Broken { panics: false })
        .build();
    let other = one.clone();
    let error = time.drive(one.execute(&Category::ApiRequest, "op").run(always_failing)).await.unwrap_err();
    assert_eq!(error.attempts(), 3);
    let error = time.drive(other.execute(&Category::ApiRequest, "op").run(always_failing)).await.unwrap_err();
    assert_eq!(error.attempts(), 1, "the other clone has spent the budget");
    assert_eq!(one.audit_failures(), other.audit_failures());
}

#[tokio::test]
async fn a_call_that_ends_at_an_open_circuit_is_audited() {
    let time = VirtualTime::new();
    let (sink, mut events, _) = ChannelSink::new(100);
    let manager = manager(&time).audit(sink).build();
    let config = BreakerConfig::builder().min_samples(1).build().unwrap();
    let breaker = CircuitBreaker::new(config, time.clock());
    breaker.acquire().unwrap().failure();
    let run = manager.execute(&Category::ApiRequest, "op").breaker(&breaker).run(always_failing);
    let error = time.drive(run).await.unwrap_err();
    assert!(matches!(error.reason(), RetryErrorReason::CircuitOpen { .. }));
    let events = drain(&mut events);
    let exhausted = of_type(&events, "retry_exhausted");
    assert_eq!(exhausted.len(), 1, "no silent drops");
    assert_eq!(
        (&exhausted[0]["total_attempts"], &exhausted[0]["final_exception_type"]),
        (&json!(0), &json!("CircuitOpen"))
    );
}

#[tokio::test]
async fn the_policys_rules_classify_errors() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let policy = RetryPolicy::call()
        .to_builder()
        .non_retryable(ErrorRule::of::<std::num::ParseIntError>())
        .build()
        .unwrap();
    let run = manager
        .execute(&Category::ApiValidation, "parse")
        .policy(&policy)
        .run(|_| async { "x".parse::<u8>() });
    assert_eq!(time.drive(run).await.unwrap_err().attempts(), 1);
}

#[tokio::test]
async fn a_requested_delay_is_honoured() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let began = time.now();
    let run = manager.execute(&Category::ApiRequest, "op").run(|attempt| async move {
        if attempt.number() == 1 { Err("slow down".retry_after(Duration::from_secs(120))) } else { Ok(()) }
    });
    time.drive(run).await.unwrap();
    assert!((120..=132).contains(&time.now().since(began).as_secs()));
}

#[tokio::test]
async fn the_audit_events_have_the_specified_fields() {
    let time = VirtualTime::starting_at("2026-01-25T21:15:00Z".parse().unwrap());
    let (sink, mut events, _) = ChannelSink::new(100);
    let manager = manager(&time).audit(sink).build();
    let policy = exact(&Category::NatsPublish);
    let context = json!({"subject": "exoarmur.audit.append.v1"});
    let run = manager
        .execute(&Category::NatsPublish, "Publish to exoarmur.audit.append.v1")
        .policy(&policy)
        .tenant("tenant-123")
        .correlation("corr-456")
        .trace("trace-789")
        .context(&context)
        .run(|_| async { Err::<(), _>(io::Error::new(io::ErrorKind::TimedOut, "Connection timeout")) });
    time.drive(run).await.unwrap_err();
    let events = drain(&mut events);
    let attempts = of_type(&events, "retry_attempt");
    assert_eq!(attempts.len(), 2, "one per failed attempt that is retried");
    assert_eq!(
        *attempts[1],
        json!({
            "event_type": "retry_attempt", "retry_category": "RETRY_NATS_PUBLISH",
            "operation": "Publish to exoarmur.audit.append.v1", "attempt_number": 2, "max_attempts": 3,
            "delay_seconds": 1.0, "exception_type": "std::io::Error(TimedOut)", "exception_message": "Connection timeout",
            "tenant_id": "tenant-123", "correlation_id": "corr-456", "trace_id": "trace-789",
            "timestamp": "2026-01-25T21:15:00.500Z",
        })
    );
    let exhausted = of_type(&events, "retry_exhausted");
    assert_eq!(
        *exhausted[0],
        json!({
            "event_type": "retry_exhausted", "retry_category": "RETRY_NATS_PUBLISH",
            "operation": "Publish to exoarmur.audit.append.v1", "total_attempts": 3,
            "final_exception_type": "std::io::Error(TimedOut)", "final_exception_message": "Connection timeout",
            "tenant_id": "tenant-123", "correlation_id": "corr-456", "trace_id": "trace-789",
            "timestamp": "2026-01-25T21:15:01.500Z",
        })
    );
    let decisions = of_type(&events, "retry_decision");
    assert_eq!(decisions.len(), 3, "every failed attempt records its inputs and its decision");
    assert!(decisions.iter().all(|event| event["context"] == context));
}

#[tokio::test]
async fn every_recorded_decision_of_a_call_verifies() {
    let time = VirtualTime::new();
    let (sink, mut events, _) = ChannelSink::new(100);
    let manager = manager(&time).audit(sink).seed(42).build();
    let run = manager.execute(&Category::NatsConnect, "connect").run(|a| flaky(a.number(), 9));
    time.drive(run).await.unwrap_err();
    let mut verified = 0;
    while let Ok(event) = events.try_recv() {
        if let AuditEvent::RetryDecision(decision) = event {
            decision.record.verify().unwrap();
            verified += 1;
        }
    }
    assert_eq!(verified, 5);
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_cancelled_and_retried() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let policy =
        exact(&Category::ApiRequest).to_builder().attempt_timeout(Duration::from_secs(5)).build().unwrap();
    let began = time.now();
    let dropped = Arc::new(AtomicU32::new(0));
    struct CountDrop(Arc<AtomicU32>);
    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let run = manager.execute(&Category::ApiRequest, "op").policy(&policy).run(|attempt| {
        let guard = CountDrop(Arc::clone(&dropped));
        let deadline = attempt.deadline().unwrap();
        assert_eq!(deadline.since(time.now()), Duration::from_secs(5));
        async move {
            let _guard = guard;
            std::future::pending::<Result<(), BoxError>>().await
        }
    });
    let error = time.drive(run).await.unwrap_err();
    assert_eq!(dropped.load(Ordering::SeqCst), 3, "each attempt was really dropped");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no result within 5s");
    assert_eq!(time.now().since(began), Duration::from_secs(5 + 1 + 5 + 2 + 5));
}

#[tokio::test]
async fn no_call_exceeds_its_deadline() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let policy = exact(&Category::NatsConnect).to_builder().deadline(Duration::from_secs(2)).build().unwrap();
    let began = time.now();
    let hang = manager
        .execute(&Category::NatsConnect, "hang")
        .policy(&policy)
        .run(|_| std::future::pending::<Result<(), BoxError>>());
    let error = time.drive(hang).await.unwrap_err();
    assert_eq!(error.reason(), &RetryErrorReason::Dead(DeadReason::DeadlineExceeded));
    assert_eq!(time.now().since(began), Duration::from_secs(2), "the deadline cancels a running attempt");
    let began = time.now();
    let fail = manager.execute(&Category::NatsConnect, "fail").policy(&policy).run(|a| flaky(a.number(), 9));
    let error = time.drive(fail).await.unwrap_err();
    assert_eq!(
        (error.attempts(), time.now().since(began).as_secs()),
        (2, 1),
        "no wait that leads past the deadline"
    );
}

#[test]
fn a_blocking_call_is_retried() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let policy = exact(&Category::ApiRequest);
    let began = time.now();
    let value = manager.execute(&Category::ApiRequest, "op").policy(&policy).run_blocking(|attempt| {
        if attempt.number() < 3 { Err(io::Error::other("not yet")) } else { Ok(attempt.number()) }
    });
    assert_eq!(value.unwrap(), 3);
    assert_eq!(time.now().since(began), Duration::from_secs(3));
}

#[tokio::test]
async fn a_custom_category_has_its_own_code_and_policy() {
    let time = VirtualTime::new();
    let payment = Category::custom("RETRY_PAYMENT").unwrap();
    let policy = RetryPolicy::builder().max_attempts(2).jitter(Jitter::None).build().unwrap();
    let manager = manager(&time).policy(payment.clone(), policy.clone()).build();
    assert_eq!(manager.policy(&payment), &policy);
    let unknown = Category::custom("RETRY_OTHER").unwrap();
    assert_eq!(manager.policy(&unknown), &RetryPolicy::call(), "one that was not registered");
    let run = manager.execute(&payment, "charge").run(|a| flaky(a.number(), 9));
    let error = time.drive(run).await.unwrap_err();
    assert_eq!((error.category().code(), error.attempts()), ("RETRY_PAYMENT", 2));
}

#[tokio::test]
async fn the_policy_of_a_specified_category_can_be_changed() {
    let time = VirtualTime::new();
    let once = RetryPolicy::builder().max_attempts(1).build().unwrap();
    let manager = manager(&time).policy(Category::KvGet, once.clone()).build();
    assert_eq!(manager.policy(&Category::KvGet), &once);
    assert_eq!(manager.policy(&Category::KvPut), &RetryPolicy::for_category(&Category::KvPut));
}

fn always_failing(_: redrive_retry::Attempt) -> impl Future<Output = Result<(), BoxError>> {
    std::future::ready(Err("down".into()))
}

#[tokio::test]
async fn an_open_circuit_refuses_the_call_at_once_with_its_end() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let breaker = CircuitBreaker::new(BreakerConfig::default(), time.clock());
    let once = RetryPolicy::builder().max_attempts(1).build().unwrap();
    let call = || manager.execute(&Category::ApiRequest, "op").policy(&once).breaker(&breaker);
    for _ in 0..4 {
        time.drive(call().run(always_failing)).await.unwrap_err();
    }
    let error = time.drive(call().run(|_| async { Ok::<_, BoxError>(()) })).await.unwrap_err();
    let until = time.now() + Duration::from_secs(30);
    assert_eq!((error.attempts(), error.reason()), (0, &RetryErrorReason::CircuitOpen { until }));
    time.advance(Duration::from_secs(30));
    time.drive(call().run(|_| async { Ok::<_, BoxError>(()) })).await.expect("the probe");
    time.drive(call().run(|_| async { Ok::<_, BoxError>(()) })).await.expect("closed again");
}

#[tokio::test]
async fn with_a_deadline_the_call_waits_for_the_circuit_without_consuming_attempts() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let breaker = CircuitBreaker::new(BreakerConfig::default(), time.clock());
    (0..4).for_each(|_| breaker.acquire().unwrap().failure());
    let patient = RetryPolicy::builder().max_attempts(1).deadline(Duration::from_secs(60)).build().unwrap();
    let began = time.now();
    let run = manager
        .execute(&Category::ApiRequest, "op")
        .policy(&patient)
        .breaker(&breaker)
        .run(|attempt| async move { Ok::<_, BoxError>(attempt.number()) });
    assert_eq!(time.drive(run).await.unwrap(), 1);
    assert_eq!(time.now().since(began), Duration::from_secs(30));
    (0..4).for_each(|_| breaker.acquire().unwrap().failure());
    let hasty = RetryPolicy::builder().max_attempts(1).deadline(Duration::from_secs(20)).build().unwrap();
    let run =
        manager.execute(&Category::ApiRequest, "op").policy(&hasty).breaker(&breaker).run(always_failing);
    let error = time.drive(run).await.unwrap_err();
    assert_eq!(error.reason(), &RetryErrorReason::Dead(DeadReason::DeadlineExceeded));
}

#[tokio::test]
async fn a_cancelled_probe_frees_the_circuit() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let breaker = CircuitBreaker::new(BreakerConfig::default(), time.clock());
    (0..4).for_each(|_| breaker.acquire().unwrap().failure());
    time.advance(Duration::from_secs(30));
    {
        let hang = manager
            .execute(&Category::ApiRequest, "op")
            .breaker(&breaker)
            .run(|_| std::future::pending::<Result<(), BoxError>>());
        let mut hang = std::pin::pin!(hang);
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(hang.as_mut().poll(cx))).await;
        assert!(polled.is_pending() && breaker.acquire().is_err(), "the probe is in flight");
    }
    assert!(breaker.acquire().unwrap().is_probe(), "dropping the call frees its slot");
}

#[tokio::test]
async fn a_spent_budget_stops_retries() {
    let time = VirtualTime::new();
    let manager = manager(&time).budget(BudgetConfig::new(0.0, 3, 0.0).unwrap()).build();
    let calls: Vec<RetryError> = {
        let mut errors = Vec::new();
        for _ in 0..3 {
            errors.push(
                time.drive(manager.execute(&Category::ApiRequest, "op").run(always_failing))
                    .await
                    .unwrap_err(),
            );
        }
        errors
    };
    let ends: Vec<_> = calls.iter().map(|e| (e.attempts(), e.reason().clone())).collect();
    let exhausted = RetryErrorReason::Dead(DeadReason::AttemptsExhausted);
    let spent = RetryErrorReason::Dead(DeadReason::BudgetSpent);
    assert_eq!(ends, [(3, exhausted), (2, spent.clone()), (1, spent)], "three retries in total");
}

#[derive(Debug)]
struct Broken {
    panics: bool,
}

impl AuditSink for Broken {
    fn record(&self, _: &AuditEvent) -> Result<(), AuditError> {
        assert!(!self.panics, "the sink is broken");
        Err(io::Error::other("disk full").into())
    }

    fn log(&self, _: &RetryLogEntry) -> Result<(), AuditError> {
        Err(AuditError::Closed)
    }
}

#[tokio::test]
async fn a_broken_audit_sink_is_counted_and_never_breaks_the_call() {
    for panics in [false, true] {
        let time = VirtualTime::new();
        let manager = manager(&time).audit(Broken { panics }).build();
        let run = manager.execute(&Category::ApiRequest, "op").run(|a| flaky(a.number(), 1));
        assert_eq!(time.drive(run).await.unwrap(), 2);
        assert_eq!(
            manager.audit_failures(),
            3,
            "the decision, the attempt, and the decision about the success"
        );
    }
}

#[tokio::test]
async fn several_sinks_all_get_every_event_even_if_one_fails() {
    let time = VirtualTime::new();
    let (one, mut first, _) = ChannelSink::new(100);
    let (two, mut second, _) = ChannelSink::new(1);
    let sinks: [Arc<dyn AuditSink>; 3] = [Arc::new(Broken { panics: false }), Arc::new(one), Arc::new(two)];
    let manager = manager(&time).audit(Fanout::new(sinks)).build();
    time.drive(manager.execute(&Category::KvGet, "op").run(always_failing)).await.unwrap_err();
    assert_eq!(drain(&mut first).len(), 6, "three decisions, two attempts, one exhaustion");
    assert_eq!(drain(&mut second).len(), 1, "as many as fit");
    assert_eq!(manager.audit_failures(), 6);
}

#[tokio::test]
async fn json_lines_are_whole_and_verify() {
    #[derive(Clone, Default)]
    struct Shared(Arc<std::sync::Mutex<Vec<u8>>>);
    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let time = VirtualTime::new();
    let written = Shared::default();
    let manager = manager(&time).audit(JsonLinesSink::new(written.clone())).build();
    time.drive(manager.execute(&Category::KvGet, "op").run(always_failing)).await.unwrap_err();
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let events: Vec<AuditEvent> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 6);
    let verified = events
        .iter()
        .filter(|event| matches!(event, AuditEvent::RetryDecision(d) if d.record.verify().is_ok()));
    assert_eq!(verified.count(), 3);
}

#[tokio::test]
async fn calls_of_one_operation_have_different_delays() {
    let time = VirtualTime::new();
    let (sink, mut events, _) = ChannelSink::new(1000);
    let manager = manager(&time).audit(sink).build();
    for _ in 0..20 {
        time.drive(manager.execute(&Category::ApiRequest, "op").run(|a| flaky(a.number(), 1))).await.unwrap();
    }
    let events = drain(&mut events);
    let mut delays: Vec<String> =
        of_type(&events, "retry_attempt").iter().map(|e| e["delay_seconds"].to_string()).collect();
    delays.sort();
    delays.dedup();
    assert!(delays.len() > 10, "{delays:?}");
}

#[tokio::test]
async fn a_throttled_http_error_keeps_its_requested_delay() {
    let failure = redrive_retry::Failure::http(429, Some("7"), Timestamp::EPOCH, "slow down");
    assert_eq!(failure.class(), Some(FailureClass::retry_after(Duration::from_secs(7))));
}

#[tokio::test]
async fn a_probe_that_exceeds_its_timeout_fails_and_frees_its_slot() {
    let time = VirtualTime::new();
    let manager = manager(&time).build();
    let breaker = CircuitBreaker::new(BreakerConfig::default(), time.clock());
    (0..4).for_each(|_| breaker.acquire().unwrap().failure());
    time.advance(Duration::from_secs(30));
    let once =
        RetryPolicy::builder().max_attempts(1).attempt_timeout(Duration::from_secs(2)).build().unwrap();
    let hang = manager
        .execute(&Category::ApiRequest, "op")
        .policy(&once)
        .breaker(&breaker)
        .run(|_| std::future::pending::<Result<(), BoxError>>());
    time.drive(hang).await.unwrap_err();
    assert!(breaker.acquire().is_err(), "open again");
    time.advance(Duration::from_secs(30));
    assert!(breaker.acquire().unwrap().is_probe(), "and the next probe has its slot");
}
