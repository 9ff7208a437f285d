//! Promises about replays to one subscription.

use std::sync::Arc;

use redrive_retry::decision::DeadReason;

use super::scene::{
    Worker, at, dead, detail, done, event, name, of, settle, split_off, stats, subscription_of, to_each,
};
use crate::dead_letter::{DlqFilter, DlqPage};
use crate::error::StoreError;
use crate::event::{EventId, EventStatus};
use crate::query::Stats;
use crate::store::{Finished, Replayed, Store};

async fn replay(store: &dyn Store, id: EventId, to: &str, when: i64) -> Replayed {
    store.replay(id, name(to), at(when)).await.unwrap()
}

async fn dead_by(store: &dyn Store, subscription: &str) -> usize {
    let filter = DlqFilter { subscription: Some(name(subscription)), ..DlqFilter::default() };
    store.dead_letters(filter, DlqPage::default()).await.unwrap().len()
}

pub(super) async fn a_handled_event_is_replayed_to_one_subscription(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), to_each(1, &["hook"])).await;
    settle(store.as_ref(), claimed, done(5)).await;
    assert_eq!(replay(store.as_ref(), id, "hook", 100).await, Replayed::Again);
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Pending);
    assert!(worker.claim(store.as_ref(), 99).await.is_empty());
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!((subscription_of(&claimed), claimed.attempt), (Some("hook"), 1));
    assert_eq!(settle(store.as_ref(), claimed, done(101)).await, Finished::Done { retried: false });
    assert_eq!(stats(store.as_ref()).await, Stats { done: 1, ..Stats::default() });
}

pub(super) async fn a_dead_delivery_is_replayed_to_its_subscription(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = super::scene::append(store.as_ref(), vec![to_each(1, &["hook", "other"])]).await.remove(0);
    for claimed in worker.handed_over() {
        let subscription = subscription_of(&claimed).unwrap().to_owned();
        let end = of(&subscription, dead(5, DeadReason::Permanent, "410 Gone"));
        settle(store.as_ref(), claimed, end).await;
    }
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Dlq);
    assert_eq!((dead_by(store.as_ref(), "hook").await, dead_by(store.as_ref(), "other").await), (1, 1));
    assert_eq!(replay(store.as_ref(), id, "hook", 100).await, Replayed::Again);
    assert_eq!((dead_by(store.as_ref(), "hook").await, dead_by(store.as_ref(), "other").await), (0, 1));
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!(
        (subscription_of(&claimed), claimed.attempt),
        (Some("hook"), 1),
        "it starts with all its attempts"
    );
    let finished = settle(store.as_ref(), claimed, done(101)).await;
    assert!(matches!(finished, Finished::Dead { .. }), "the other dead letter remains: {finished:?}");
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.attempts.len()), (EventStatus::Dlq, 2), "earlier attempts are kept");
    assert_eq!(replay(store.as_ref(), id, "other", 200).await, Replayed::Again);
    let claimed = worker.claim_only(store.as_ref(), 200).await;
    assert!(matches!(settle(store.as_ref(), claimed, done(201)).await, Finished::Done { .. }));
    assert_eq!(stats(store.as_ref()).await, Stats { done: 1, ..Stats::default() });
}

pub(super) async fn an_event_is_replayed_to_a_new_subscription(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, done(5)).await;
    assert_eq!(replay(store.as_ref(), id, "newcomer", 10).await, Replayed::Again);
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    assert_eq!(subscription_of(&claimed), Some("newcomer"));
    assert_eq!(settle(store.as_ref(), claimed, done(11)).await, Finished::Done { retried: false });
}

pub(super) async fn replaying_an_open_delivery_changes_nothing(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (whole, claimed) = worker.start(store.as_ref(), event(1)).await;
    assert_eq!(replay(store.as_ref(), whole, "hook", 10).await, Replayed::Open);
    assert_eq!(settle(store.as_ref(), claimed, done(5)).await, Finished::Done { retried: false });
    let (single, claimed) = worker.start(store.as_ref(), to_each(1, &["hook"])).await;
    assert_eq!(replay(store.as_ref(), single, "hook", 10).await, Replayed::Open);
    assert_eq!(settle(store.as_ref(), claimed, done(5)).await, Finished::Done { retried: false });
    assert!(worker.claim(store.as_ref(), 1000).await.is_empty());
    // A replay to another subscription is independent of an open delivery.
    let (shared, claimed) = worker.start(store.as_ref(), to_each(1, &["hook"])).await;
    assert_eq!(replay(store.as_ref(), shared, "other", 10).await, Replayed::Again);
    assert_eq!(settle(store.as_ref(), claimed, done(11)).await, Finished::NotYet);
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    assert_eq!(settle(store.as_ref(), claimed, done(12)).await, Finished::Done { retried: false });
}

pub(super) async fn a_dead_event_stays_dead_beside_its_replay(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = worker.kill(store.as_ref(), event(1), 5, "no").await;
    assert_eq!(replay(store.as_ref(), id, "hook", 10).await, Replayed::Again);
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Dlq);
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    settle(store.as_ref(), claimed, split_off(done(11), &[])).await;
    assert_eq!(stats(store.as_ref()).await, Stats { dlq: 1, ..Stats::default() });
}

pub(super) async fn concurrent_replays_make_one_delivery(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), to_each(1, &["hook"])).await;
    settle(store.as_ref(), claimed, done(5)).await;
    store.attach(None);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(store);
        callers.spawn(async move { replay(store.as_ref(), id, "hook", 10).await });
    }
    let answers = callers.join_all().await;
    assert_eq!(answers.iter().filter(|answer| **answer == Replayed::Again).count(), 1, "{answers:?}");
    let mut worker = Worker::attach(store.as_ref(), 10);
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    settle(store.as_ref(), claimed, done(11)).await;
}

pub(super) async fn an_unknown_event_cannot_be_replayed(store: &Arc<dyn Store>) {
    let id = EventId::new();
    let error = store.replay(id, name("hook"), at(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchEvent { .. }), "{error}");
}
