//! Rolling deployment: an old release does not complete events that only a new release subscribes to.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive::events::EventStatus;
use redrive::retry::BoxError;
use redrive::store::{PostgresOptions, PostgresStore};
use redrive::{Event, EventBus, EventId, Tracking};
use redrive_servers::Schema;

const TIMEOUT: Duration = Duration::from_secs(60);

fn schema() -> Schema {
    Schema::new().unwrap_or_else(|missing| panic!("{missing}"))
}

async fn open(schema: &Schema, instance: &str, tracking: Tracking) -> EventBus {
    let options = PostgresOptions {
        schema: schema.name().into(),
        instance: instance.into(),
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(schema.url(), options).await.unwrap();
    EventBus::builder().tracking(tracking).on(Arc::new(store)).await.unwrap()
}

/// Handled events by release.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<(&'static str, EventId)>>>);

impl Calls {
    fn subscribe(&self, bus: &EventBus, release: &'static str, pattern: &str, name: &str) {
        let calls = self.clone();
        bus.subscribe(pattern, move |event: Event| {
            calls.0.lock().unwrap().push((release, event.id()));
            async { Ok::<_, BoxError>(()) }
        })
        .name(name)
        .register()
        .unwrap();
    }

    fn of(&self, release: &str) -> Vec<EventId> {
        let calls = self.0.lock().unwrap();
        let mut ids: Vec<_> = calls.iter().filter(|(by, _)| *by == release).map(|(_, id)| *id).collect();
        ids.sort();
        ids
    }

    async fn until(&self, release: &str, count: usize) {
        let began = Instant::now();
        while self.of(release).len() < count {
            assert!(began.elapsed() < TIMEOUT, "{release}: {} of {count}", self.of(release).len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn until_done(bus: &EventBus, ids: &[EventId]) {
    let began = Instant::now();
    for id in ids {
        loop {
            let event = bus.store().event(*id).await.unwrap();
            if event.status == EventStatus::Done {
                break;
            }
            assert!(began.elapsed() < TIMEOUT, "{event:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn events_for_a_subscription_of_the_new_release_wait_for_it(tracking: Tracking) {
    let schema = schema();
    let (old, new) = (open(&schema, "old", tracking).await, open(&schema, "new", tracking).await);
    let calls = Calls::default();
    calls.subscribe(&old, "old", "order.*", "shipping");
    old.start().await.unwrap();
    calls.subscribe(&new, "shipping of new", "order.*", "shipping");
    calls.subscribe(&new, "mail", "order.*", "mail");
    calls.subscribe(&new, "billing", "invoice.*", "billing");
    new.start().await.unwrap();
    new.dispatcher().pause(); // so that the old release claims everything
    let (mut orders, mut invoices) = (Vec::new(), Vec::new());
    for n in 0..20 {
        orders.push(old.publish("order.created", &n).enqueue().await.unwrap());
        invoices.push(old.publish("invoice.sent", &n).enqueue().await.unwrap());
    }
    let unmatched = old.publish("nobody.cares", &0).await.unwrap();
    calls.until("old", 20).await;
    new.dispatcher().resume();
    calls.until("mail", 20).await;
    calls.until("billing", 20).await;
    orders.sort();
    invoices.sort();
    until_done(&new, &orders).await;
    until_done(&new, &invoices).await;
    until_done(&new, &[unmatched]).await;
    assert_eq!((calls.of("old"), calls.of("mail")), (orders.clone(), orders));
    assert_eq!((calls.of("billing"), calls.of("shipping of new")), (invoices, Vec::new()), "each once");

    // A release that is gone takes nothing.
    new.shutdown().await.unwrap();
    let began = Instant::now();
    while !old.store().remote_subscriptions().await.unwrap().is_empty() {
        assert!(began.elapsed() < TIMEOUT, "it has left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let alone = tokio::time::timeout(TIMEOUT, async { old.publish("invoice.sent", &99).await });
    let alone =
        alone.await.expect("no publisher waits for a subscription of a process that is gone").unwrap();
    // Its subscription is on record: the event waits for it.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(old.store().event(alone).await.unwrap().status, EventStatus::Pending);
    assert_eq!(
        old.metrics().await.unwrap().unmatched,
        1,
        "of an event that no subscription on record matches"
    );
    old.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_release_does_not_complete_events_of_a_new_subscription() {
    events_for_a_subscription_of_the_new_release_wait_for_it(Tracking::Event).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_release_with_per_subscription_tracking_does_not_complete_events_of_a_new_subscription() {
    events_for_a_subscription_of_the_new_release_wait_for_it(Tracking::PerSubscription).await;
}
