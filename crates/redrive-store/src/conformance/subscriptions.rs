//! The subscriptions on record.

use std::sync::Arc;

use super::scene::{Worker, addressee, at, done, event, name, parked, settle};
use crate::query::SubscriptionRow;
use crate::store::Store;

fn subscription(id: &str, who: &str, pattern: &str, since: i64) -> SubscriptionRow {
    SubscriptionRow { id: id.into(), name: name(who), event_type: pattern.into(), created_at: at(since) }
}

/// By name, because the order is the store's own affair.
async fn on_record(store: &dyn Store) -> Vec<SubscriptionRow> {
    let mut rows = store.subscriptions().await.unwrap();
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows
}

pub(super) async fn subscriptions_are_on_record(store: &Arc<dyn Store>) {
    assert!(on_record(store.as_ref()).await.is_empty());
    let (billing, shipping) =
        (subscription("id-1", "billing", "order.*", 1), subscription("id-2", "доставка \"1\"", "*", 2));
    store.register(shipping.clone()).await.unwrap();
    store.register(billing.clone()).await.unwrap();
    store.register(billing.clone()).await.unwrap();
    assert_eq!(on_record(store.as_ref()).await, [billing, shipping], "each once, with all its parts");
}

pub(super) async fn a_new_pattern_keeps_the_id(store: &Arc<dyn Store>) {
    store.register(subscription("id-1", "billing", "order.*", 1)).await.unwrap();
    store.register(subscription("id-2", "billing", "invoice.*", 9)).await.unwrap();
    assert_eq!(on_record(store.as_ref()).await, [subscription("id-1", "billing", "invoice.*", 1)]);
}

pub(super) async fn one_that_is_taken_down_many_times_at_once_is_on_record_once(store: &Arc<dyn Store>) {
    for round in 0..20 {
        let billing = subscription(&format!("id-{round}"), "billing", "order.*", 1);
        let tasks = (0..4).map(|_| {
            let (store, billing) = (Arc::clone(store), billing.clone());
            tokio::spawn(async move { store.register(billing).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap().unwrap();
        }
        assert_eq!(on_record(store.as_ref()).await, [billing]);
        assert!(store.unregister(name("billing")).await.unwrap());
    }
}

pub(super) async fn unregistering_says_whether_there_was_one(store: &Arc<dyn Store>) {
    store.register(subscription("id-1", "billing", "order.*", 1)).await.unwrap();
    assert!(!store.unregister(name("shipping")).await.unwrap());
    assert!(store.unregister(name("billing")).await.unwrap());
    assert!(!store.unregister(name("billing")).await.unwrap());
    assert!(on_record(store.as_ref()).await.is_empty());
    store.register(subscription("id-2", "billing", "*", 5)).await.unwrap();
    assert_eq!(on_record(store.as_ref()).await, [subscription("id-2", "billing", "*", 5)], "a new one");
}

pub(super) async fn what_an_unregistered_subscription_is_owed_stays(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    store.register(subscription("id-1", "billing", "order.*", 1)).await.unwrap();
    let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, parked(done(10), &[("billing", 100)])).await;
    assert!(store.unregister(name("billing")).await.unwrap());
    assert_eq!(addressee(&worker.claim_only(store.as_ref(), 100).await), Some("billing"));
}
