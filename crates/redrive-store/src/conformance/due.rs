//! Promises about the due hint: never later than the next work.

use std::sync::Arc;

use redrive_retry::decision::DeadReason;

use super::scene::{Worker, append, at, dead, defer, done, event, later, retry, settle, split_off};
use crate::dead_letter::Redrive;
use crate::store::Store;

pub(super) async fn the_hint_is_the_earliest_due_time(store: &Arc<dyn Store>) {
    let hint = store.due_hint();
    assert_eq!(hint.next(), None, "nothing waits");
    for (due, expected) in [(5000, 5000), (3000, 3000), (9000, 3000)] {
        append(store.as_ref(), vec![later(0, due)]).await;
        assert_eq!(hint.next(), Some(at(expected)));
    }
    append(store.as_ref(), vec![later(0, 2000), later(0, 2500)]).await;
    assert_eq!(hint.next(), Some(at(2000)), "the earliest of a batch");
}

pub(super) async fn an_earlier_due_time_wakes_a_sleeper(store: &Arc<dyn Store>) {
    let hint = store.due_hint();
    append(store.as_ref(), vec![later(0, 5000)]).await;
    hint.changed().await;
    let sleeper = tokio::spawn({
        let hint = store.due_hint();
        async move {
            hint.changed().await;
            hint.next()
        }
    });
    append(store.as_ref(), vec![later(0, 4000)]).await;
    assert_eq!(sleeper.await.unwrap(), Some(at(4000)));
}

pub(super) async fn work_without_a_slot_is_in_the_hint(store: &Arc<dyn Store>) {
    let hint = store.due_hint();
    let mut worker = Worker::attach(store.as_ref(), 1);
    let (_, running) = worker.start(store.as_ref(), event(1)).await;
    assert_eq!(hint.next(), None, "claimed work does not wait");
    append(store.as_ref(), vec![event(2)]).await;
    assert_eq!(hint.next(), Some(at(2)), "work without a slot waits");
    drop(running);
}

pub(super) async fn retries_and_parked_deliveries_are_in_the_hint(store: &Arc<dyn Store>) {
    let hint = store.due_hint();
    let mut worker = Worker::attach(store.as_ref(), 10);
    let ends = [
        (retry(10, 5000, "no"), 5000),
        (defer(10, 4000), 4000),
        (split_off(done(10), &[("billing", 3000), ("audit", 3500)]), 3000),
        (split_off(dead(10, DeadReason::Permanent, "no"), &[("billing", 2500)]), 2500),
    ];
    for (settlement, expected) in ends {
        let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
        settle(store.as_ref(), claimed, settlement).await;
        assert_eq!(hint.next(), Some(at(expected)));
    }
    let id = worker.kill(store.as_ref(), event(2), 10, "no").await;
    store.redrive(id, Redrive { at: at(2000), payload: None }).await.unwrap();
    assert_eq!(hint.next(), Some(at(2000)));
}

pub(super) async fn refreshing_finds_the_earliest_due_time(store: &Arc<dyn Store>) {
    let hint = store.due_hint();
    assert_eq!(store.refresh_due().await.unwrap(), None);
    let mut worker = Worker::attach(store.as_ref(), 10);
    let expect = async |due: i64| {
        hint.set(None); // as if another process had stored it
        assert_eq!(store.refresh_due().await.unwrap(), Some(at(due)));
        assert_eq!(hint.next(), Some(at(due)), "the hint is updated");
    };
    append(store.as_ref(), vec![later(0, 9000)]).await;
    expect(9000).await;
    let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, retry(10, 8000, "no")).await;
    expect(8000).await;
    let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, split_off(done(10), &[("billing", 7000)])).await;
    expect(7000).await;
    let delivery = worker.claim_only(store.as_ref(), 7000).await;
    settle(store.as_ref(), delivery, retry(7001, 7500, "no")).await;
    expect(7500).await;
    for claimed in worker.claim(store.as_ref(), 9000).await {
        settle(store.as_ref(), claimed, done(9001)).await;
    }
    assert_eq!(store.refresh_due().await.unwrap(), None, "nothing waits any more");
}
