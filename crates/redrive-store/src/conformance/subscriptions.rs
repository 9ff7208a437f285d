//! Promises about the record of subscriptions.

use std::sync::Arc;

use super::backlog::{claim_backlog, to_backlog};
use super::scene::{Worker, append, at, done, event, name, settle, split_off, subscription_of, to_each};
use crate::query::SubscriptionRow;
use crate::store::Store;

fn subscription(id: &str, subscription: &str, pattern: &str, since: i64) -> SubscriptionRow {
    SubscriptionRow {
        id: id.into(),
        name: name(subscription),
        event_type: pattern.into(),
        created_at: at(since),
    }
}

/// Returns the records sorted by name, because their order is not promised.
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
    assert_eq!(on_record(store.as_ref()).await, [billing, shipping], "each once, with all fields");
}

pub(super) async fn a_new_pattern_keeps_the_id(store: &Arc<dyn Store>) {
    store.register(subscription("id-1", "billing", "order.*", 1)).await.unwrap();
    store.register(subscription("id-2", "billing", "invoice.*", 9)).await.unwrap();
    assert_eq!(on_record(store.as_ref()).await, [subscription("id-1", "billing", "invoice.*", 1)]);
}

pub(super) async fn concurrent_registrations_make_one_record(store: &Arc<dyn Store>) {
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
        assert!(store.unregister(name("billing"), at(50)).await.unwrap());
    }
}

pub(super) async fn unregistering_returns_whether_the_subscription_existed(store: &Arc<dyn Store>) {
    store.register(subscription("id-1", "billing", "order.*", 1)).await.unwrap();
    assert!(!store.unregister(name("shipping"), at(50)).await.unwrap());
    assert!(store.unregister(name("billing"), at(50)).await.unwrap());
    assert!(!store.unregister(name("billing"), at(50)).await.unwrap());
    assert!(on_record(store.as_ref()).await.is_empty());
    store.register(subscription("id-2", "billing", "*", 5)).await.unwrap();
    assert_eq!(on_record(store.as_ref()).await, [subscription("id-2", "billing", "*", 5)], "a new record");
}

pub(super) async fn open_deliveries_of_an_unregistered_subscription_stay(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    store.register(subscription("id-1", "billing", "order.*", 1)).await.unwrap();
    let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, split_off(done(10), &[("billing", 100)])).await;
    assert!(store.unregister(name("billing"), at(50)).await.unwrap());
    assert_eq!(subscription_of(&worker.claim_only(store.as_ref(), 100).await), Some("billing"));
}

pub(super) async fn the_backlog_of_an_unregistered_subscription_is_due(store: &Arc<dyn Store>) {
    for whose in ["billing", "shipping"] {
        store.register(subscription(whose, whose, "order.*", 1)).await.unwrap();
    }
    let mut worker = Worker::attach(store.as_ref(), 10);
    append(store.as_ref(), vec![to_each(1, &["billing", "shipping"]), to_each(2, &["billing"])]).await;
    for claimed in worker.handed_over() {
        settle(store.as_ref(), claimed, to_backlog(5)).await;
    }
    store.due_hint().set(None);
    assert!(store.unregister(name("billing"), at(50)).await.unwrap());
    assert!(store.due_hint().next().is_some_and(|due| due <= at(50)), "the dispatcher is woken");
    let claims = worker.claim(store.as_ref(), 50).await;
    assert_eq!(claims.iter().map(subscription_of).collect::<Vec<_>>(), [Some("billing"); 2]);
    assert!(claims.iter().all(|claimed| claimed.attempt == 1), "nothing is charged");
    assert_eq!(claim_backlog(store.as_ref(), "shipping", 10, 50).await, 1, "another one keeps its backlog");
}

pub(super) async fn maintenance_makes_the_backlog_of_an_unregistered_subscription_due(
    store: &Arc<dyn Store>,
) {
    store.register(subscription("id-1", "shipping", "order.*", 1)).await.unwrap();
    let mut worker = Worker::attach(store.as_ref(), 10);
    append(store.as_ref(), vec![to_each(1, &["billing", "shipping"]), to_each(2, &["archive", "billing"])])
        .await;
    // Their settlements arrive after the subscriptions were removed.
    for claimed in worker.handed_over() {
        settle(store.as_ref(), claimed, to_backlog(5)).await;
    }
    store.due_hint().set(None);
    store.maintain(at(50), None).await.unwrap();
    assert!(store.due_hint().next().is_some_and(|due| due <= at(50)), "the dispatcher is woken");
    let claims = worker.claim(store.as_ref(), 50).await;
    let mut names: Vec<_> = claims.iter().map(subscription_of).collect();
    names.sort_unstable();
    assert_eq!(names, [Some("archive"), Some("billing"), Some("billing")]);
    assert_eq!(claim_backlog(store.as_ref(), "shipping", 10, 50).await, 1, "one on record keeps its backlog");
}
