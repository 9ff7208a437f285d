//! Timeouts, identity, default manager and counters of guarded calls, on virtual time.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::future::pending;
use std::io;
use std::time::Duration;

use redrive_retry::audit::{AuditEvent, ChannelSink};
use redrive_retry::decision::{Decision, Outcome};
use redrive_retry::{
    BoxError, Category, RetryExt, RetryManager, RetryPolicy, VirtualTime, get_retry_manager,
    set_retry_manager,
};

async fn down() -> Result<(), io::Error> {
    Err(io::ErrorKind::ConnectionRefused.into())
}

#[tokio::test]
async fn every_category_cancels_an_attempt_that_hangs() {
    for category in Category::ALL {
        let time = VirtualTime::new();
        let manager = RetryManager::builder().clock(time.clock()).build();
        let policy = manager.policy(&category);
        let limit = policy.attempt_timeout().unwrap_or_else(|| panic!("{category} has no attempt timeout"));
        assert!(limit >= Duration::from_secs(5), "{category}: {limit:?} cancels a healthy attempt");
        let began = time.now();
        let run = manager.execute(&category, "hang").run(|attempt| {
            assert_eq!(attempt.deadline().unwrap().since(time.now()), limit);
            pending::<Result<(), BoxError>>()
        });
        let error = time.drive(run).await.unwrap_err();
        assert_eq!(error.attempts(), policy.max_attempts());
        assert!(time.now().since(began) >= limit * policy.max_attempts(), "{category}");
    }
}

#[tokio::test]
async fn a_call_that_waits_ends_before_its_timeout() {
    let time = VirtualTime::new();
    let manager = RetryManager::builder().clock(time.clock()).build();
    let run = manager.execute(&Category::KvGet, "get").run(|_| async {
        time.clock().sleep(Duration::from_millis(4999)).await;
        Ok::<_, BoxError>(7)
    });
    assert_eq!(time.drive(run).await.unwrap(), 7);
}

/// Delays of a failing call, as its audit events tell them.
async fn delays(
    seed: u64,
    category: Category,
    operation: &str,
    tenant: Option<&str>,
    correlation: Option<&str>,
) -> Vec<u128> {
    let time = VirtualTime::new();
    let (sink, mut events, _) = ChannelSink::new(100);
    let manager = RetryManager::builder().clock(time.clock()).seed(seed).audit(sink).build();
    let mut call = manager.execute(&category, operation);
    if let Some(tenant) = tenant {
        call = call.tenant(tenant);
    }
    if let Some(correlation) = correlation {
        call = call.correlation(correlation);
    }
    time.drive(call.run(|_| down())).await.unwrap_err();
    let mut delays = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let AuditEvent::RetryDecision(decision) = event {
            decision.record.verify().unwrap();
            delays.extend(decision.record.decision().delay().map(|delay| delay.as_millis()));
        }
    }
    delays
}

#[tokio::test]
async fn a_call_with_a_correlation_id_replays_its_delays() {
    let connect = Category::NatsConnect;
    let first = delays(0, connect.clone(), "connect", Some("t"), Some("corr-456")).await;
    assert_eq!(first.len(), 4);
    assert_eq!(delays(0, connect.clone(), "connect", Some("t"), Some("corr-456")).await, first);
    for (seed, category, operation, tenant, correlation) in [
        (1, connect.clone(), "connect", Some("t"), Some("corr-456")),
        (0, connect.clone(), "reconnect", Some("t"), Some("corr-456")),
        (0, connect.clone(), "connect", Some("u"), Some("corr-456")),
        (0, connect.clone(), "connect", None, Some("corr-456")),
        (0, connect.clone(), "connect", Some("t"), Some("corr-457")),
        (0, connect.clone(), "connect", Some("t"), None),
    ] {
        let other = delays(seed, category, operation, tenant, correlation).await;
        assert_ne!(other, first, "{seed} {operation} {tenant:?} {correlation:?}");
    }
    let other = delays(0, Category::ApiRequest, "connect", Some("t"), Some("corr-456")).await;
    assert_ne!(other[0], first[0], "the category is part of the identity");
}

#[tokio::test]
async fn a_success_after_a_retry_is_recorded() {
    let time = VirtualTime::new();
    let (sink, mut events, _) = ChannelSink::new(100);
    let manager = RetryManager::builder().clock(time.clock()).audit(sink).build();
    let run = manager
        .execute(&Category::KvGet, "get")
        .run(|attempt| async move { if attempt.number() == 1 { Err("down") } else { Ok(()) } });
    time.drive(run).await.unwrap();
    let last = std::iter::from_fn(|| events.try_recv().ok()).last().unwrap();
    let AuditEvent::RetryDecision(decision) = last else { panic!("{last:?}") };
    decision.record.verify().unwrap();
    assert_eq!(decision.record.decision(), Decision::Done);
    let situation = decision.record.situation();
    assert_eq!((situation.attempt, situation.outcome), (2, Outcome::Succeeded));
}

#[tokio::test]
async fn finished_calls_are_counted_by_category() {
    let time = VirtualTime::new();
    let manager = RetryManager::builder().clock(time.clock()).build();
    let payment = Category::custom("RETRY_PAYMENT").unwrap();
    for (category, failures) in [(&Category::KvGet, 0), (&Category::KvGet, 2), (&payment, 9)] {
        let run = manager
            .execute(category, "op")
            .run(|attempt| async move { if attempt.number() <= failures { Err("down") } else { Ok(()) } });
        let _ = time.drive(run).await;
    }
    let metrics = manager.metrics();
    let kv_get = metrics["RETRY_KV_GET"];
    assert_eq!((kv_get.succeeded_at_once, kv_get.succeeded_after_retry, kv_get.failed), (1, 1, 0));
    assert_eq!(
        (kv_get.attempts, kv_get.success_rate(), kv_get.average_attempts()),
        (4, Some(1.0), Some(2.0))
    );
    let payment = metrics["RETRY_PAYMENT"];
    assert_eq!((payment.calls(), payment.failed, payment.success_rate()), (1, 1, Some(0.0)));
    assert_eq!(metrics.len(), 2, "categories without a call are left out");
}

#[tokio::test]
async fn the_default_manager_is_one_for_the_process_and_counts_functions_as_well() {
    let time = VirtualTime::new();
    let manager = RetryManager::builder().clock(time.clock()).build();
    set_retry_manager(manager).expect("no default yet");
    assert!(set_retry_manager(RetryManager::new()).is_err(), "set once");
    let began = time.now();
    let work = async { down.retry(RetryPolicy::call()).run().await };
    time.drive(work).await.unwrap_err();
    assert!(time.now() > began, "the clock of the default manager");
    time.drive(get_retry_manager().execute(&Category::KvGet, "get").run(|_| down())).await.unwrap_err();
    let metrics = get_retry_manager().metrics();
    assert_eq!((metrics["RETRY_CALL"].attempts, metrics["RETRY_KV_GET"].attempts), (3, 3));
}

#[test]
fn a_category_given_as_text_is_predefined_or_registered() {
    let payment = Category::custom("RETRY_PAYMENT").unwrap();
    let once = RetryPolicy::builder().max_attempts(1).build().unwrap();
    let manager = RetryManager::builder().policy(payment.clone(), once.clone()).build();
    assert_eq!(manager.category("RETRY_PAYMENT"), Ok(payment));
    assert_eq!(manager.policy(&manager.category("RETRY_PAYMENT").unwrap()), &once);
    assert_eq!(manager.category("API_REQUEST"), Ok(Category::ApiRequest));
    assert_eq!(manager.category("RETRY_API_REQUEST"), Ok(Category::ApiRequest));
    let error = manager.category("RETRY_PAYMET").unwrap_err().to_string();
    assert!(error.contains("\"RETRY_PAYMET\"") && error.contains("register a custom one"), "{error}");
    assert!(RetryManager::new().category("RETRY_PAYMENT").is_err(), "registered elsewhere");
}
