//! A new release beside an old one on the same server: what only the new one wants is not finished by the old one.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive::{BoxError, Event, EventBus, EventId, EventStatus, PostgresOptions, PostgresStore, Tracking};
use redrive_servers::Schema;

/// Long enough for a busy machine.
const LONGEST: Duration = Duration::from_secs(60);

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

/// Who has handled what, in all releases.
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
            assert!(began.elapsed() < LONGEST, "{release}: {} of {count}", self.of(release).len());
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
            assert!(began.elapsed() < LONGEST, "{event:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn what_only_the_new_release_wants_is_kept_for_it(tracking: Tracking) {
    let schema = schema();
    let (old, new) = (open(&schema, "old", tracking).await, open(&schema, "new", tracking).await);
    let calls = Calls::default();
    calls.subscribe(&old, "old", "order.*", "shipping");
    old.start().await.unwrap();
    calls.subscribe(&new, "shipping of new", "order.*", "shipping");
    calls.subscribe(&new, "mail", "order.*", "mail");
    calls.subscribe(&new, "ledger", "invoice.*", "ledger");
    new.start().await.unwrap();
    new.dispatcher().pause(); // so that the old one gets everything
    let (mut orders, mut invoices) = (Vec::new(), Vec::new());
    for n in 0..20 {
        orders.push(old.publish("order.created", &n).enqueue().await.unwrap());
        invoices.push(old.publish("invoice.sent", &n).enqueue().await.unwrap());
    }
    let nobodys = old.publish("nobody.cares", &0).await.unwrap();
    calls.until("old", 20).await;
    new.dispatcher().resume();
    calls.until("mail", 20).await;
    calls.until("ledger", 20).await;
    orders.sort();
    invoices.sort();
    until_done(&new, &orders).await;
    until_done(&new, &invoices).await;
    until_done(&new, &[nobodys]).await;
    assert_eq!((calls.of("old"), calls.of("mail")), (orders.clone(), orders));
    assert_eq!((calls.of("ledger"), calls.of("shipping of new")), (invoices, Vec::new()), "each once");

    // Who is gone wants nothing.
    new.shutdown().await.unwrap();
    let began = Instant::now();
    while !old.store().subscribed_elsewhere().await.unwrap().is_empty() {
        assert!(began.elapsed() < LONGEST, "it has left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let alone = tokio::time::timeout(LONGEST, async { old.publish("invoice.sent", &99).await });
    let alone = alone.await.expect("nobody waits for who is gone").unwrap();
    until_done(&old, &[alone]).await;
    old.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_release_finishes_nothing_that_a_new_one_wants() {
    what_only_the_new_release_wants_is_kept_for_it(Tracking::Event).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_release_that_tracks_each_subscription_finishes_nothing_that_a_new_one_wants() {
    what_only_the_new_release_wants_is_kept_for_it(Tracking::PerSubscription).await;
}
