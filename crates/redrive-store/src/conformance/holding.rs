//! What is held until its subscription calls for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Restart;
use super::scene::{Worker, addressed, addressee, append, at, depth, detail, done, name, of, retry, settle};
use crate::event::{EventStatus, NewEvent};
use crate::query::Depth;
use crate::store::{Call, CalledUp, Finished, Store};
use crate::work::{HELD, Settlement, Verdict};

fn hold(when: i64) -> Settlement {
    Settlement { verdict: Verdict::Defer(HELD), ..done(when) }
}

/// Says how many were claimed.
async fn call_up(store: &dyn Store, whose: &str, most: usize, now: i64) -> usize {
    let calls = vec![Call { name: name(whose), most }];
    store.call_up(calls, at(now)).await.unwrap().iter().map(|called| called.claimed).sum()
}

pub(super) async fn what_is_held_waits_until_it_is_called_up(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), addressed(1, &["hook"])).await;
    assert_eq!(settle(store.as_ref(), claimed, hold(5)).await, Finished::NotYet);
    let delivery = detail(store.as_ref(), id).await.deliveries.remove(0);
    assert_eq!((delivery.status, delivery.retry_count, delivery.due_at), (EventStatus::Pending, 0, None));
    assert_eq!(depth(store.as_ref()).await, Depth { open_deliveries: 1, ..Depth::default() });
    assert!(worker.claim(store.as_ref(), 1_000_000_000_000).await.is_empty(), "however long it takes");
    assert_eq!(call_up(store.as_ref(), "hook", 10, 50).await, 1);
    assert_eq!(call_up(store.as_ref(), "hook", 10, 50).await, 0, "it is called up once");
    let claimed = worker.only();
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
    assert_eq!(call_up(store.as_ref(), "hook", 2, 50).await, 2);
    assert_eq!(call_up(store.as_ref(), "nobody", 2, 50).await, 0);
    assert_eq!(call_up(store.as_ref(), "hook", 0, 50).await, 0);
    let claims = worker.handed_over();
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
    assert_eq!(call_up(store.as_ref(), "hook", 1, 20).await, 1);
    let claimed = worker.only();
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
}

pub(super) async fn nothing_is_called_up_that_there_is_no_room_for(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    append(store.as_ref(), (1..=3).map(|created| addressed(created, &["hook"])).collect()).await;
    for claimed in worker.handed_over() {
        settle(store.as_ref(), claimed, hold(5)).await;
    }
    let (_, busy) = worker.start(store.as_ref(), addressed(6, &["other"])).await;
    let call_up =
        async |most| store.call_up(vec![Call { name: name("hook"), most }], at(50)).await.unwrap().remove(0);
    assert_eq!(call_up(1).await, CalledUp { claimed: 1, may_be_more: true });
    assert_eq!(call_up(5).await, CalledUp { claimed: 1, may_be_more: true }, "one place was left");
    assert_eq!(call_up(5).await, CalledUp { claimed: 0, may_be_more: true }, "and none now");
    settle(store.as_ref(), busy, done(51)).await;
    store.attach(None);
    assert_eq!(call_up(5).await, CalledUp { claimed: 0, may_be_more: true }, "nobody takes it in");
    let mut other = Worker::attach(store.as_ref(), 3);
    assert_eq!(call_up(5).await, CalledUp { claimed: 1, may_be_more: false });
    assert_eq!((worker.handed_over().len(), other.handed_over().len()), (2, 1));
}

pub(super) async fn several_are_called_up_at_once_each_as_many_as_it_wants(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    append(store.as_ref(), (1..=3).map(|created| addressed(created, &["one", "two"])).collect()).await;
    for claimed in worker.handed_over() {
        settle(store.as_ref(), claimed, hold(5)).await;
    }
    let call = |whose, most| Call { name: name(whose), most };
    let calls = vec![call("one", 2), call("nobody", 4), call("two", 4)];
    let called = store.call_up(calls, at(50)).await.unwrap();
    let shown: Vec<_> = called.iter().map(|called| (called.claimed, called.may_be_more)).collect();
    assert_eq!(shown, [(2, true), (0, false), (3, false)]);
    let claims = worker.handed_over();
    assert_eq!(claims.iter().filter(|claimed| addressee(claimed) == Some("two")).count(), 3);
    assert!(store.call_up(Vec::new(), at(50)).await.unwrap().is_empty());
}

pub(super) async fn who_has_nothing_takes_no_place_from_others(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 600);
    let (_, claimed) = worker.start(store.as_ref(), addressed(1, &["last"])).await;
    settle(store.as_ref(), claimed, hold(5)).await;
    let mut calls: Vec<_> = (0..50).map(|n| Call { name: name(&format!("idle-{n}")), most: 512 }).collect();
    calls.push(Call { name: name("last"), most: 2 });
    let called = store.call_up(calls, at(50)).await.unwrap();
    assert_eq!(called.last(), Some(&CalledUp { claimed: 1, may_be_more: false }));
    assert!(called[..50].iter().all(|called| *called == CalledUp { claimed: 0, may_be_more: false }));
}

pub(super) async fn what_is_due_to_one_is_held_without_being_claimed(store: &Arc<dyn Store>) {
    append(store.as_ref(), vec![addressed(1, &["hook", "other"]), addressed(2, &["hook"])]).await;
    append(store.as_ref(), vec![NewEvent { due_at: at(90), ..addressed(3, &["hook"]) }]).await;
    assert_eq!(store.hold(vec![name("nobody"), name("hook")], at(50)).await.unwrap(), [0, 2]);
    assert_eq!(store.hold(vec![name("hook")], at(50)).await.unwrap(), [0], "what is due later is not held");
    assert!(store.hold(Vec::new(), at(50)).await.unwrap().is_empty());
    let mut worker = Worker::attach(store.as_ref(), 10);
    assert_eq!(addressee(&worker.claim_only(store.as_ref(), 50).await), Some("other"));
    assert_eq!(call_up(store.as_ref(), "hook", 10, 60).await, 2);
    assert!(worker.handed_over().iter().all(|claimed| claimed.attempt == 1), "nothing is charged");
    assert_eq!(addressee(&worker.claim_only(store.as_ref(), 90).await), Some("hook"));
}

pub(super) async fn what_was_called_up_by_a_process_that_died_is_due_again(harness: &mut impl Restart) {
    let store = harness.store().as_ref();
    let mut worker = Worker::attach(store, 3);
    let (id, claimed) = worker.start(store, addressed(1, &["hook"])).await;
    settle(store, claimed, hold(5)).await;
    assert_eq!(call_up(store, "hook", 1, 50).await, 1);
    drop(worker.only()); // it dies with the process
    harness.restart().await;
    let store = harness.store().as_ref();
    assert_eq!(store.recover(at(60)).await.unwrap().len(), 1);
    let mut worker = Worker::attach(store, 3);
    let claimed = worker.claim_only(store, 60).await;
    assert_eq!((claimed.event.id, claimed.attempt), (id, 2));
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
        callers.spawn(async move { call_up(store.as_ref(), "hook", 5, 60).await });
    }
    // Who passes over what others are about to call up may get less; nobody gets what another one has.
    let called: usize = callers.join_all().await.into_iter().sum();
    let rest = call_up(store.as_ref(), "hook", 40, 60).await;
    assert_eq!(called + rest, 40);
    let claims = worker.handed_over();
    let ids: BTreeSet<_> = claims.iter().map(|claimed| claimed.event.id).collect();
    assert_eq!((claims.len(), ids.len()), (40, 40));
}
