//! The handle of a subscription: pause, resume, unsubscribe.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::{Event, EventBus, Limits, SubscriptionHandle, Tracking};

use crate::test_store::TestStore;

const TIMEOUT: Duration = Duration::from_secs(60);

struct Counted {
    handle: SubscriptionHandle,
    calls: Arc<AtomicU32>,
}

impl Counted {
    fn subscribe(bus: &EventBus, name: &str, limits: Option<Limits>) -> Self {
        let calls = Arc::<AtomicU32>::default();
        let counter = Arc::clone(&calls);
        let handler = move |_: Event| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, &str>(()) }
        };
        let mut subscribe = bus.subscribe("order.*", handler).name(name);
        if let Some(limits) = limits {
            subscribe = subscribe.limits(limits);
        }
        Counted { handle: subscribe.register().unwrap(), calls }
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, polling).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_subscription_gets_its_deliveries_after_resume() {
    let limits = Limits { concurrency: 2, per_second: None };
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        for limits in [None, Some(limits)] {
            let store_under_test = TestStore::new();
            let bus = store_under_test.open(EventBus::builder().tracking(tracking)).await;
            let (mail, index) =
                (Counted::subscribe(&bus, "mail", limits), Counted::subscribe(&bus, "index", None));
            bus.start().await.unwrap();
            mail.handle.pause();
            assert!(mail.handle.is_paused() && !index.handle.is_paused());

            let mut ids = Vec::new();
            for n in 0..5 {
                let publish = tokio::time::timeout(TIMEOUT, bus.publish("order.paid", &n).into_future());
                ids.push(publish.await.expect("no publish waits for a paused subscription").unwrap());
            }
            until("the other one has all of them", async || index.calls() == 5).await;
            assert_eq!(mail.calls(), 0);
            until("nothing stays in flight", async || bus.dispatcher().in_flight() == 0).await;

            mail.handle.resume();
            until("all are handled", async || bus.store().depth().await.unwrap().is_idle()).await;
            assert_eq!((mail.calls(), index.calls()), (5, 5));
            for id in ids {
                let event = bus.events().get(id).await.unwrap();
                assert_eq!(
                    (event.status, event.retry_count),
                    (EventStatus::Done, 0),
                    "no attempt is charged"
                );
            }
            bus.shutdown().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_releases_publishers_that_wait() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(EventBus::builder().tracking(Tracking::PerSubscription)).await;
    let handler = |_: Event| async { Err::<(), _>("down") };
    let handle = bus.subscribe("order.*", handler).name("mail").register().unwrap();
    bus.start().await.unwrap();
    let publishing = tokio::spawn(bus.publish("order.paid", &1).into_future());
    until("the first attempt has failed", async || bus.metrics().await.unwrap().attempts == 1).await;
    handle.pause();
    tokio::time::timeout(TIMEOUT, publishing).await.expect("the publisher goes on").unwrap().unwrap();
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_survives_a_replacement_and_ends_with_resume() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(EventBus::builder().tracking(Tracking::PerSubscription)).await;
    let old = Counted::subscribe(&bus, "mail", None);
    bus.start().await.unwrap();
    old.handle.pause();
    let calls = Arc::clone(&old.calls);
    let handler = move |_: Event| {
        calls.fetch_add(100, Ordering::SeqCst);
        async { Ok::<_, &str>(()) }
    };
    let new = bus.subscribe("order.*", handler).name("mail").replace().unwrap();
    assert!(new.is_paused());
    assert_eq!((new.id(), new.name()), (old.handle.id(), old.handle.name()));
    bus.publish("order.paid", &1).await.unwrap();
    old.handle.resume();
    until("the new handler has it", async || old.calls() == 100).await;
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_handle_removes_its_subscription() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(EventBus::builder()).await;
    let mail = Counted::subscribe(&bus, "mail", None);
    bus.start().await.unwrap();
    bus.publish("order.paid", &1).await.unwrap();
    assert!(mail.handle.unsubscribe().await.unwrap());
    assert!(!mail.handle.unsubscribe().await.unwrap());
    bus.publish("order.paid", &2).await.unwrap();
    assert_eq!((mail.calls(), bus.subscriptions().len()), (1, 0));
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_publish_does_not_wait_for_a_paused_subscription() {
    let store_under_test = TestStore::new();
    let bus = store_under_test.open(EventBus::builder()).await;
    let mail = Counted::subscribe(&bus, "mail", None);
    bus.start().await.unwrap();
    mail.handle.pause();
    let id = redrive::EventId::new();
    for _ in 0..2 {
        let publish = bus.publish("order.created", &7).id(id).into_future();
        tokio::time::timeout(TIMEOUT, publish).await.expect("no publisher waits").unwrap();
    }
    assert_eq!(mail.calls(), 0);
    mail.handle.resume();
    until("the event is handled after the resume", async || mail.calls() == 1).await;
    bus.shutdown().await.unwrap();
}
