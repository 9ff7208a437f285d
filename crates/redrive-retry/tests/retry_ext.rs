//! `RetryExt`: one-line retries of functions and closures, with the manager's decisions and audit records.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive_retry::audit::{AuditEvent, ChannelSink};
use redrive_retry::breaker::{BreakerConfig, CircuitBreaker};
use redrive_retry::budget::{BudgetConfig, RetryBudget};
use redrive_retry::decision::DeadReason;
use redrive_retry::{
    Category, ClassifyError, Failure, Jitter, RetryErrorReason, RetryExt, RetryManager, RetryPolicy,
    VirtualTime,
};
use tokio::sync::mpsc::Receiver;

fn exact(attempts: u32) -> RetryPolicy {
    RetryPolicy::builder().max_attempts(attempts).jitter(Jitter::None).build().unwrap()
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer")
}

fn drain(events: &mut Receiver<AuditEvent>) -> Vec<AuditEvent> {
    std::iter::from_fn(|| events.try_recv().ok()).collect()
}

#[tokio::test]
async fn a_failing_function_is_retried_until_it_succeeds() {
    let time = VirtualTime::new();
    let began = time.now();
    let calls = AtomicU32::new(0);
    let fetch = || async {
        match calls.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(timed_out()),
            _ => Ok(17),
        }
    };
    let stock = time.drive(fetch.retry(exact(4)).clock(time.clock()).into_future()).await;
    assert_eq!(stock.unwrap(), 17);
    assert_eq!(time.now().since(began), Duration::from_secs(3), "delays of 1 s and 2 s");
}

#[tokio::test]
async fn a_function_item_is_retried_and_names_the_operation() {
    async fn reserve() -> Result<(), Failure> {
        Err("no such article".permanent())
    }
    let error = reserve.retry(&exact(4)).await.unwrap_err();
    assert_eq!((error.attempts(), error.category()), (1, &Category::CALL));
    assert!(error.operation().ends_with("reserve"), "{}", error.operation());
    assert_eq!(error.reason(), &RetryErrorReason::Dead(DeadReason::Permanent));
}

#[tokio::test]
async fn decisions_and_audit_records_equal_those_of_the_manager() {
    let policy = exact(3);
    let mut recorded = Vec::new();
    for with_manager in [true, false] {
        let time = VirtualTime::new();
        let (sink, mut events, _log) = ChannelSink::new(100);
        let context = serde_json::json!({"order": 7});
        let category = Category::ApiRequest;
        let error = if with_manager {
            let manager = RetryManager::builder().clock(time.clock()).audit(sink).seed(5).build();
            let call = manager.execute(&category, "Fetch").policy(&policy);
            let call = call.tenant("t").correlation("c").trace("x").context(&context);
            time.drive(call.run(|_| async { Err::<(), _>(timed_out()) })).await.unwrap_err()
        } else {
            let call = (|| async { Err::<(), _>(timed_out()) }).retry(&policy);
            let call = call.operation("Fetch").category(category).clock(time.clock()).audit(sink).seed(5);
            let call = call.tenant("t").correlation("c").trace("x").context(&context);
            time.drive(call.into_future()).await.unwrap_err()
        };
        let mut events = drain(&mut events);
        for event in &mut events {
            if let AuditEvent::RetryDecision(decision) = event {
                decision.record.verify().unwrap();
                // The identity of a call without an idempotency key is random; its delays have no jitter here.
                let situation = decision.record.situation().clone();
                let situation = redrive_retry::decision::Situation { event: "any".into(), ..situation };
                decision.record = redrive_retry::decision::DecisionRecord::decide(situation);
            }
        }
        recorded.push((error.to_string(), events));
    }
    assert_eq!(recorded[0].1.len(), 3 + 2 + 1, "decisions, retried attempts, exhaustion");
    assert_eq!(recorded[0], recorded[1]);
}

#[tokio::test]
async fn the_facilities_of_a_manager_can_be_used() {
    let time = VirtualTime::new();
    let (sink, mut events, _log) = ChannelSink::new(100);
    let manager = RetryManager::builder().clock(time.clock()).audit(sink).build();
    let call = (|| async { Err::<(), _>("busy") }).retry(exact(2)).manager(&manager).operation("Charge");
    let error = time.drive(call.into_future()).await.unwrap_err();
    assert_eq!(error.attempts(), 2);
    assert!(
        matches!(drain(&mut events).last(), Some(AuditEvent::RetryExhausted(e)) if e.operation == "Charge")
    );
}

#[tokio::test]
async fn calls_share_a_budget_and_a_breaker() {
    let time = VirtualTime::new();
    let budget = Arc::new(RetryBudget::new(BudgetConfig::new(0.0, 1, 0.0).unwrap()));
    let breaker = CircuitBreaker::new(BreakerConfig::default(), time.clock());
    let mut reasons = Vec::new();
    for _ in 0..4 {
        let call = (|| async { Err::<(), _>("down") }).retry(exact(3)).clock(time.clock());
        let call = call.budget(Arc::clone(&budget)).breaker(&breaker);
        let error = time.drive(call.into_future()).await.unwrap_err();
        reasons.push((error.attempts(), error.reason().clone()));
    }
    let spent = RetryErrorReason::Dead(DeadReason::BudgetSpent);
    assert_eq!(reasons[..3], [(2, spent.clone()), (1, spent.clone()), (1, spent)]);
    assert!(matches!(reasons[3], (0, RetryErrorReason::CircuitOpen { .. })), "{:?}", reasons[3]);
}

#[tokio::test]
async fn a_deadline_of_the_policy_ends_the_call() {
    let time = VirtualTime::new();
    let policy = exact(9).to_builder().deadline(Duration::from_secs(4)).build().unwrap();
    let call = (|| async { Err::<(), _>("down") }).retry(policy).clock(time.clock());
    let error = time.drive(call.into_future()).await.unwrap_err();
    assert_eq!(error.reason(), &RetryErrorReason::Dead(DeadReason::DeadlineExceeded));
    assert_eq!(error.attempts(), 3, "at 0, 1 and 3 s");
}

#[tokio::test]
async fn the_awaited_future_is_send_and_run_accepts_futures_that_are_not() {
    let handle = tokio::spawn(async {
        let text = String::from("from another task");
        (|| async { Ok::<_, io::Error>(text.clone()) }).retry(RetryPolicy::call()).await
    });
    assert_eq!(handle.await.unwrap().unwrap(), "from another task");
    let calls = Rc::new(Cell::new(0));
    let count = || {
        let calls = Rc::clone(&calls);
        async move {
            calls.set(calls.get() + 1);
            Ok::<_, io::Error>(calls.get())
        }
    };
    assert_eq!(count.retry(RetryPolicy::call()).run().await.unwrap(), 1);
}

#[test]
fn a_blocking_function_is_retried() {
    let time = VirtualTime::new();
    let began = time.now();
    let mut calls = 0;
    let read = || {
        calls += 1;
        if calls < 3 { Err(timed_out()) } else { Ok("text") }
    };
    let text = read.retry(exact(3)).clock(time.clock()).run_blocking().unwrap();
    assert_eq!((text, time.now().since(began)), ("text", Duration::from_secs(3)));
}
