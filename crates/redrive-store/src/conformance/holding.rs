//! What is held until its subscription calls for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::scene::{Worker, addressed, addressee, append, at, depth, detail, done, name, of, retry, settle};
use crate::event::EventStatus;
use crate::query::Depth;
use crate::store::{Finished, Store};
use crate::work::{HELD, Settlement, Verdict};

fn hold(when: i64) -> Settlement {
    Settlement { verdict: Verdict::Defer(HELD), ..done(when) }
}

pub(super) async fn what_is_held_waits_until_it_is_called_up(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), addressed(1, &["hook"])).await;
    assert_eq!(settle(store.as_ref(), claimed, hold(5)).await, Finished::NotYet);
    let delivery = detail(store.as_ref(), id).await.deliveries.remove(0);
    assert_eq!((delivery.status, delivery.retry_count, delivery.due_at), (EventStatus::Pending, 0, None));
    assert_eq!(depth(store.as_ref()).await, Depth { open_deliveries: 1, ..Depth::default() });
    assert!(worker.claim(store.as_ref(), 1_000_000_000_000).await.is_empty(), "however long it takes");
    assert_eq!(store.call_up(name("hook"), 10, at(50)).await.unwrap(), 1);
    assert_eq!(store.call_up(name("hook"), 10, at(50)).await.unwrap(), 0, "it is called up once");
    let claimed = worker.claim_only(store.as_ref(), 50).await;
    assert_eq!((addressee(&claimed), claimed.attempt), (Some("hook"), 1));
    assert_eq!(settle(store.as_ref(), claimed, done(60)).await, Finished::Done { retried: false });
}

pub(super) async fn what_is_called_up_is_the_oldest_and_only_ones_own(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 20);
    let mut ids = Vec::new();
    for created in 1..=5 {
        ids.extend(append(store.as_ref(), vec![addressed(created, &["hook", "other"])]).await);
        for claimed in worker.handed_over() {
            settle(store.as_ref(), claimed, hold(created)).await;
        }
    }
    assert_eq!(store.call_up(name("hook"), 2, at(50)).await.unwrap(), 2);
    assert_eq!(store.call_up(name("nobody"), 2, at(50)).await.unwrap(), 0);
    assert_eq!(store.call_up(name("hook"), 0, at(50)).await.unwrap(), 0);
    let claims = worker.claim(store.as_ref(), 50).await;
    assert!(claims.iter().all(|claimed| addressee(claimed) == Some("hook")));
    assert_eq!(claims.iter().map(|claimed| claimed.event.id).collect::<Vec<_>>(), ids[..2]);
}

pub(super) async fn what_is_held_at_a_later_attempt_is_charged_nothing(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), addressed(1, &["hook"])).await;
    settle(store.as_ref(), claimed, of("hook", retry(5, 10, "no answer"))).await;
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    settle(store.as_ref(), claimed, hold(11)).await;
    let delivery = detail(store.as_ref(), id).await.deliveries.remove(0);
    assert_eq!((delivery.status, delivery.retry_count, delivery.due_at), (EventStatus::Processing, 1, None));
    assert_eq!(delivery.errors, ["no answer"]);
    assert_eq!(store.call_up(name("hook"), 1, at(20)).await.unwrap(), 1);
    let claimed = worker.claim_only(store.as_ref(), 20).await;
    assert_eq!((claimed.attempt, claimed.started_at), (2, at(5 - 25)));
    assert_eq!(settle(store.as_ref(), claimed, done(21)).await, Finished::Done { retried: true });
}

pub(super) async fn what_is_held_is_not_in_the_hint(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (_, claimed) = worker.start(store.as_ref(), addressed(1, &["hook"])).await;
    settle(store.as_ref(), claimed, hold(5)).await;
    store.due_hint().set(None);
    assert_eq!(store.refresh_due().await.unwrap(), None);
    assert_eq!(store.due_hint().next(), None);
    store.call_up(name("hook"), 1, at(70)).await.unwrap();
    assert_eq!(store.due_hint().next(), Some(at(70)));
    assert_eq!(store.refresh_due().await.unwrap(), Some(at(70)));
}

pub(super) async fn of_many_who_call_up_each_gets_its_own(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 40);
    append(store.as_ref(), (1..=40).map(|created| addressed(created, &["hook"])).collect()).await;
    for claimed in worker.handed_over() {
        settle(store.as_ref(), claimed, hold(50)).await;
    }
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(store);
        callers.spawn(async move { store.call_up(name("hook"), 5, at(60)).await.unwrap() });
    }
    // Who passes over what others are about to call up may get less; nobody gets what another one has.
    let called: usize = callers.join_all().await.into_iter().sum();
    let rest = store.call_up(name("hook"), 40, at(60)).await.unwrap();
    assert_eq!(called + rest, 40);
    let claims = worker.claim(store.as_ref(), 60).await;
    let ids: BTreeSet<_> = claims.iter().map(|claimed| claimed.event.id).collect();
    assert_eq!((claims.len(), ids.len()), (40, 40));
}
