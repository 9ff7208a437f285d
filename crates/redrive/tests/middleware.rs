//! Handler middleware.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::Event;
use redrive::middleware::{Middleware, Next};
use redrive::retry::{BoxError, ClassifyError, RetryOverride};

use crate::test_store::StoredBus;

type Log = Arc<Mutex<Vec<String>>>;

/// Middleware that records entry and result.
fn noting(log: &Log, name: &'static str) -> impl Middleware + use<> {
    let log = Arc::clone(log);
    move |event: Event, next: Next| {
        let log = Arc::clone(&log);
        async move {
            log.lock().unwrap().push(format!("{name} in"));
            let result = next.run(event).await;
            log.lock().unwrap().push(format!("{name} {}", if result.is_ok() { "ok" } else { "failed" }));
            result
        }
    }
}

#[tokio::test]
async fn middleware_wraps_every_attempt_in_order_of_registration() {
    let log = Log::default();
    let bus =
        StoredBus::with(|builder| builder.middleware(noting(&log, "one")).middleware(noting(&log, "two")))
            .await;
    let handler_log = Arc::clone(&log);
    bus.subscribe("x", move |event: Event| {
        handler_log.lock().unwrap().push(format!("handler {}", event.attempt()));
        async move { if event.attempt() == 1 { Err("not yet") } else { Ok(()) } }
    })
    .middleware(noting(&log, "own"))
    .register()
    .unwrap();
    bus.start().await.unwrap();
    bus.publish("x", &1).await.unwrap();
    let expected = [
        "one in",
        "two in",
        "own in",
        "handler 1",
        "own failed",
        "two failed",
        "one failed",
        "one in",
        "two in",
        "own in",
        "handler 2",
        "own ok",
        "two ok",
        "one ok",
    ];
    assert_eq!(*log.lock().unwrap(), expected);
}

#[tokio::test]
async fn the_result_of_middleware_is_the_result_of_the_attempt() {
    let bus = StoredBus::with(|builder| {
        builder.middleware(|event: Event, next: Next| async move {
            match event.event_type().as_str() {
                "forgiven" => next.run(event).await.or(Ok(())),
                "forbidden" => Err("not today".permanent()),
                _ => next.run(event).await,
            }
        })
    })
    .await;
    bus.subscribe("*", |event: Event| async move {
        assert_ne!(event.event_type().as_str(), "forbidden", "the handler is not reached");
        Err::<(), _>(BoxError::from("never works"))
    })
    .retry(RetryOverride::new().max_retries(0))
    .register()
    .unwrap();
    bus.start().await.unwrap();
    for event_type in ["forgiven", "forbidden", "plain"] {
        bus.publish(event_type, &1).await.unwrap();
    }
    bus.assert_done("forgiven", 1).await;
    let dead: Vec<_> = bus.dead().await.into_iter().map(|dead| (dead.reason, dead.errors)).collect();
    let (exhausted, permanent) = ("attempts_exhausted".to_owned(), "permanent".to_owned());
    assert_eq!(
        dead,
        [(exhausted, vec!["never works".to_owned()]), (permanent, vec!["not today".to_owned()])]
    );
}

#[tokio::test]
async fn a_middleware_panic_is_a_failure_and_its_time_counts_for_the_timeout() {
    let bus = StoredBus::new().await;
    bus.subscribe("panics", |_: Event| async { Ok::<_, BoxError>(()) })
        .middleware(|_: Event, _: Next| async { panic!("in the middle") })
        .retry(RetryOverride::new().max_retries(0))
        .register()
        .unwrap();
    bus.subscribe("hangs", |_: Event| async { Ok::<_, BoxError>(()) })
        .middleware(|event: Event, next: Next| async move {
            std::future::pending::<()>().await;
            next.run(event).await
        })
        .timeout(Duration::from_secs(2))
        .retry(RetryOverride::new().max_retries(0))
        .register()
        .unwrap();
    bus.start().await.unwrap();
    bus.publish("panics", &1).await.unwrap();
    bus.publish("hangs", &1).await.unwrap();
    let errors: Vec<_> = bus.dead().await.into_iter().flat_map(|dead| dead.errors).collect();
    assert_eq!(errors, ["no result within 2s", "panicked: in the middle"]);
}
