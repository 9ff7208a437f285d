//! Promises about the backlog of a subscription.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Restart;
use super::scene::{
    Worker, append, at, depth, detail, done, event, name, of, retry, settle, subscription_of, to_each,
};
use crate::due::Due;
use crate::event::{EventStatus, NewEvent};
use crate::query::Depth;
use crate::store::{BacklogClaimed, BacklogRequest, Finished, Store};
use crate::work::{Settlement, Verdict};

pub(super) fn to_backlog(when: i64) -> Settlement {
    Settlement { verdict: Verdict::Defer(Due::Backlog), ..done(when) }
}

/// Claims from the backlog of one subscription and returns the number of claims.
pub(super) async fn claim_backlog(store: &dyn Store, whose: &str, limit: usize, now: i64) -> usize {
    let requests = vec![BacklogRequest { name: name(whose), limit }];
    store.claim_backlog(requests, at(now)).await.unwrap().iter().map(|answer| answer.claimed).sum()
}

pub(super) async fn a_backlog_delivery_waits_until_the_backlog_is_claimed(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), to_each(1, &["hook"])).await;
    assert_eq!(settle(store.as_ref(), claimed, to_backlog(5)).await, Finished::NotYet);
    let delivery = detail(store.as_ref(), id).await.deliveries.remove(0);
    assert_eq!((delivery.status, delivery.retry_count, delivery.due_at), (EventStatus::Pending, 0, None));
    assert_eq!(depth(store.as_ref()).await, Depth { open_deliveries: 1, ..Depth::default() });
    assert!(worker.claim(store.as_ref(), 1_000_000_000_000).await.is_empty(), "a claim never takes it");
    assert_eq!(claim_backlog(store.as_ref(), "hook", 10, 50).await, 1);
    assert_eq!(claim_backlog(store.as_ref(), "hook", 10, 50).await, 0, "it is claimed once");
    let claimed = worker.only();
    assert_eq!((subscription_of(&claimed), claimed.attempt), (Some("hook"), 1));
    assert_eq!(settle(store.as_ref(), claimed, done(60)).await, Finished::Done { retried: false });
}

pub(super) async fn a_backlog_claim_takes_the_oldest_of_its_subscription(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 20);
    let mut ids = Vec::new();
    for created in 1..=5 {
        ids.extend(append(store.as_ref(), vec![to_each(created, &["hook", "other"])]).await);
        for claimed in worker.handed_over() {
            settle(store.as_ref(), claimed, to_backlog(created)).await;
        }
    }
    assert_eq!(claim_backlog(store.as_ref(), "hook", 2, 50).await, 2);
    assert_eq!(claim_backlog(store.as_ref(), "unknown", 2, 50).await, 0);
    assert_eq!(claim_backlog(store.as_ref(), "hook", 0, 50).await, 0);
    let claims = worker.handed_over();
    assert!(claims.iter().all(|claimed| subscription_of(claimed) == Some("hook")));
    assert_eq!(claims.iter().map(|claimed| claimed.event.id).collect::<Vec<_>>(), ids[..2]);
}

pub(super) async fn deferring_a_retry_to_the_backlog_charges_no_attempt(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), to_each(1, &["hook"])).await;
    settle(store.as_ref(), claimed, of("hook", retry(5, 10, "no answer"))).await;
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    settle(store.as_ref(), claimed, to_backlog(11)).await;
    let delivery = detail(store.as_ref(), id).await.deliveries.remove(0);
    assert_eq!((delivery.status, delivery.retry_count, delivery.due_at), (EventStatus::Processing, 1, None));
    assert_eq!(delivery.errors, ["no answer"]);
    assert_eq!(claim_backlog(store.as_ref(), "hook", 1, 20).await, 1);
    let claimed = worker.only();
    assert_eq!((claimed.attempt, claimed.started_at), (2, at(5 - 25)));
    assert_eq!(settle(store.as_ref(), claimed, done(21)).await, Finished::Done { retried: true });
}

pub(super) async fn the_backlog_is_not_in_the_hint(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (_, claimed) = worker.start(store.as_ref(), to_each(1, &["hook"])).await;
    settle(store.as_ref(), claimed, to_backlog(5)).await;
    store.due_hint().set(None);
    assert_eq!(store.refresh_due().await.unwrap(), None);
    assert_eq!(store.due_hint().next(), None);
}

pub(super) async fn a_backlog_claim_never_exceeds_the_free_slots(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    append(store.as_ref(), (1..=3).map(|created| to_each(created, &["hook"])).collect()).await;
    for claimed in worker.handed_over() {
        settle(store.as_ref(), claimed, to_backlog(5)).await;
    }
    let (_, busy) = worker.start(store.as_ref(), to_each(6, &["other"])).await;
    let claim_backlog = async |limit| {
        store
            .claim_backlog(vec![BacklogRequest { name: name("hook"), limit }], at(50))
            .await
            .unwrap()
            .remove(0)
    };
    assert_eq!(claim_backlog(1).await, BacklogClaimed { claimed: 1, may_be_more: true });
    assert_eq!(claim_backlog(5).await, BacklogClaimed { claimed: 1, may_be_more: true }, "one slot was free");
    assert_eq!(claim_backlog(5).await, BacklogClaimed { claimed: 0, may_be_more: true }, "no slot is free");
    settle(store.as_ref(), busy, done(51)).await;
    store.attach(None);
    assert_eq!(
        claim_backlog(5).await,
        BacklogClaimed { claimed: 0, may_be_more: true },
        "no sink is attached"
    );
    let mut other = Worker::attach(store.as_ref(), 3);
    assert_eq!(claim_backlog(5).await, BacklogClaimed { claimed: 1, may_be_more: false });
    assert_eq!((worker.handed_over().len(), other.handed_over().len()), (2, 1));
}

pub(super) async fn several_backlogs_are_claimed_in_one_call(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    append(store.as_ref(), (1..=3).map(|created| to_each(created, &["one", "two"])).collect()).await;
    for claimed in worker.handed_over() {
        settle(store.as_ref(), claimed, to_backlog(5)).await;
    }
    let request = |whose, limit| BacklogRequest { name: name(whose), limit };
    let requests = vec![request("one", 2), request("unknown", 4), request("two", 4)];
    let answers = store.claim_backlog(requests, at(50)).await.unwrap();
    let shown: Vec<_> = answers.iter().map(|answer| (answer.claimed, answer.may_be_more)).collect();
    assert_eq!(shown, [(2, true), (0, false), (3, false)]);
    let claims = worker.handed_over();
    assert_eq!(claims.iter().filter(|claimed| subscription_of(claimed) == Some("two")).count(), 3);
    assert!(store.claim_backlog(Vec::new(), at(50)).await.unwrap().is_empty());
}

pub(super) async fn an_empty_backlog_takes_no_slot_from_others(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 600);
    let (_, claimed) = worker.start(store.as_ref(), to_each(1, &["last"])).await;
    settle(store.as_ref(), claimed, to_backlog(5)).await;
    let mut requests: Vec<_> =
        (0..50).map(|n| BacklogRequest { name: name(&format!("idle-{n}")), limit: 512 }).collect();
    requests.push(BacklogRequest { name: name("last"), limit: 2 });
    let answers = store.claim_backlog(requests, at(50)).await.unwrap();
    assert_eq!(answers.last(), Some(&BacklogClaimed { claimed: 1, may_be_more: false }));
    assert!(answers[..50].iter().all(|answer| *answer == BacklogClaimed { claimed: 0, may_be_more: false }));
}

pub(super) async fn due_deliveries_are_deferred_to_the_backlog_without_a_claim(store: &Arc<dyn Store>) {
    append(store.as_ref(), vec![to_each(1, &["hook", "other"]), to_each(2, &["hook"])]).await;
    append(store.as_ref(), vec![NewEvent { due_at: at(90), ..to_each(3, &["hook"]) }]).await;
    assert_eq!(store.defer_to_backlog(vec![name("unknown"), name("hook")], at(50)).await.unwrap(), [0, 2]);
    assert_eq!(
        store.defer_to_backlog(vec![name("hook")], at(50)).await.unwrap(),
        [0],
        "later deliveries are not deferred"
    );
    assert!(store.defer_to_backlog(Vec::new(), at(50)).await.unwrap().is_empty());
    let mut worker = Worker::attach(store.as_ref(), 10);
    assert_eq!(subscription_of(&worker.claim_only(store.as_ref(), 50).await), Some("other"));
    assert_eq!(claim_backlog(store.as_ref(), "hook", 10, 60).await, 2);
    assert!(worker.handed_over().iter().all(|claimed| claimed.attempt == 1), "nothing is charged");
    assert_eq!(subscription_of(&worker.claim_only(store.as_ref(), 90).await), Some("hook"));
}

pub(super) async fn a_backlog_delivery_claimed_by_a_dead_process_is_due_again(harness: &mut impl Restart) {
    let store = harness.store().as_ref();
    let mut worker = Worker::attach(store, 3);
    let (id, claimed) = worker.start(store, to_each(1, &["hook"])).await;
    settle(store, claimed, to_backlog(5)).await;
    assert_eq!(claim_backlog(store, "hook", 1, 50).await, 1);
    drop(worker.only()); // the process dies
    harness.restart().await;
    let store = harness.store().as_ref();
    assert_eq!(store.recover(at(60)).await.unwrap().len(), 1);
    let mut worker = Worker::attach(store, 3);
    let claimed = worker.claim_only(store, 60).await;
    assert_eq!((claimed.event.id, claimed.attempt), (id, 2));
}

pub(super) async fn a_backlog_delivery_of_a_suspect_is_claimed_from_the_backlog(harness: &mut impl Restart) {
    let mut worker = Worker::attach(harness.store().as_ref(), 3);
    let (id, _first) = worker.start(harness.store().as_ref(), event(1)).await;
    harness.restart().await;
    harness.store().recover(at(100)).await.unwrap();
    let mut worker = Worker::attach(harness.store().as_ref(), 3);
    let _second = worker.claim_only(harness.store().as_ref(), 100).await;
    harness.restart().await;
    let store = harness.store().as_ref();
    store.recover(at(200)).await.unwrap();
    let mut worker = Worker::attach(store, 3);
    let suspect = store.claim_suspect(at(200), worker.sink.clone()).await.unwrap().expect("two crashes");
    settle(store, suspect, retry(210, 300, "it fails, and the process lives on")).await;

    let claimed = worker.claim_only(store, 300).await;
    let full = Settlement { split_off: vec![(name("hook"), Due::Backlog)], ..done(310) };
    assert_eq!(settle(store, claimed, full).await, Finished::NotYet);
    assert!(!store.has_suspects(at(1_000_000)).await.unwrap(), "no suspect scan finds it");
    assert_eq!(claim_backlog(store, "hook", 1, 320).await, 1);
    let claimed = worker.only();
    assert_eq!((claimed.event.id, subscription_of(&claimed)), (id, Some("hook")));
    assert_eq!(settle(store, claimed, done(330)).await, Finished::Done { retried: true });
}

pub(super) async fn concurrent_backlog_claims_share_no_delivery(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 40);
    append(store.as_ref(), (1..=40).map(|created| to_each(created, &["hook"])).collect()).await;
    for claimed in worker.handed_over() {
        settle(store.as_ref(), claimed, to_backlog(50)).await;
    }
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(store);
        callers.spawn(async move { claim_backlog(store.as_ref(), "hook", 5, 60).await });
    }
    // A caller that skips rows of a concurrent claim may get fewer; no two callers get the same delivery.
    let answers: usize = callers.join_all().await.into_iter().sum();
    let rest = claim_backlog(store.as_ref(), "hook", 40, 60).await;
    assert_eq!(answers + rest, 40);
    let claims = worker.handed_over();
    let ids: BTreeSet<_> = claims.iter().map(|claimed| claimed.event.id).collect();
    assert_eq!((claims.len(), ids.len()), (40, 40));
}
