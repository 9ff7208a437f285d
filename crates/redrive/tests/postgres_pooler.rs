//! A bus behind a real transaction pooler with fewer server connections than client connections.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redrive::dlq::{DlqFilter, DlqPage};
use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, RetryPolicy};
use redrive::store::{PostgresOptions, PostgresStore};
use redrive::{Event, EventBus};
use redrive_servers::{Pooler, Postgres};

/// Behaviour of the handlers.
#[derive(Clone, Default)]
struct Shop {
    handled: Arc<AtomicU32>,
    is_broken: Arc<AtomicBool>,
}

async fn open(pooler: &Pooler, instance: &str, shop: &Shop) -> EventBus {
    let options = PostgresOptions { instance: instance.into(), ..PostgresOptions::default() };
    let store =
        PostgresStore::open(&format!("{}?poll_only=true&schema=behind_pooler", pooler.url()), options)
            .await
            .unwrap();
    let policy = RetryPolicy::builder()
        .max_attempts(3)
        .base_delay(Duration::from_millis(5))
        .max_delay(Duration::from_millis(20))
        .build()
        .unwrap();
    let bus = EventBus::builder().policy(policy).on(Arc::new(store)).await.unwrap();
    let Shop { handled, is_broken } = shop.clone();
    bus.subscribe("order.*", move |event: Event| {
        let (handled, is_broken) = (Arc::clone(&handled), Arc::clone(&is_broken));
        async move {
            let fails_once = event.event_type().as_str() == "order.shaky" && event.attempt() == 1;
            if is_broken.load(Ordering::SeqCst) || fails_once {
                return Err(BoxError::from("out of order"));
            }
            handled.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    })
    .name("shop")
    // The events that fail once may be the first ones: an open circuit would park the others.
    .breaker(BreakerConfig::builder().min_samples(u32::MAX).build().unwrap())
    .register()
    .unwrap();
    bus.start().await.unwrap();
    bus
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publish_redrive_crash_and_restart_work_behind_a_transaction_pooler() {
    let server = tokio::task::block_in_place(Postgres::start).unwrap_or_else(|missing| panic!("{missing}"));
    let pooler =
        tokio::task::block_in_place(|| Pooler::before(&server)).unwrap_or_else(|missing| panic!("{missing}"));
    let shop = Shop::default();
    let (one, other) = (open(&pooler, "one", &shop).await, open(&pooler, "other", &shop).await);

    // Handled, also at the second attempt, with contention for connections.
    let mut publishing = tokio::task::JoinSet::new();
    for n in 0..64 {
        let bus = if n % 2 == 0 { one.clone() } else { other.clone() };
        let kind = if n % 8 == 0 { "order.shaky" } else { "order.placed" };
        publishing.spawn(async move { bus.publish(kind, &n).await.unwrap() });
    }
    publishing.join_all().await;
    assert_eq!(shop.handled.load(Ordering::SeqCst), 64);

    // Dead-lettered, listed, redriven and handled.
    shop.is_broken.store(true, Ordering::SeqCst);
    let id = one.publish("order.lost", &0).await.unwrap();
    assert_eq!(other.store().event(id).await.unwrap().status, EventStatus::Dlq);
    assert_eq!(other.store().dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap().len(), 1);
    shop.is_broken.store(false, Ordering::SeqCst);
    other.dlq().retry(id).await.unwrap();
    until("it is redriven and handled", async || {
        one.store().event(id).await.unwrap().status == EventStatus::Done
    })
    .await;

    // The server crashes behind the pooler; all buses recover.
    tokio::task::block_in_place(|| server.crash()).unwrap();
    tokio::task::block_in_place(|| server.resume()).unwrap();
    until("it takes events again", async || one.publish("order.placed", &1).enqueue().await.is_ok()).await;
    until("nothing is left", async || one.store().depth().await.is_ok_and(|depth| depth.is_idle())).await;

    // A process leaves and returns; the other one handles the events published meanwhile.
    one.shutdown().await.unwrap();
    let before = shop.handled.load(Ordering::SeqCst);
    let id = other.publish("order.placed", &2).await.unwrap();
    assert_eq!(other.store().event(id).await.unwrap().status, EventStatus::Done);
    assert_eq!(shop.handled.load(Ordering::SeqCst), before + 1);
    let one = open(&pooler, "one", &shop).await;
    one.publish("order.placed", &3).await.unwrap();
    for bus in [one, other] {
        bus.shutdown().await.unwrap();
    }
}
