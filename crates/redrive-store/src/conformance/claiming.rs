//! Promises about claims: each delivery once, when it is due, within the free slots, in one order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::scene::{
    Worker, append, at, depth, detail, done, event, later, retry, settle, shown, stats, to_each,
};
use crate::event::{EventStatus, NewEvent};
use crate::query::Depth;
use crate::store::{Finished, Store};
use crate::work::Claimed;

/// Asserts that no delivery is claimed twice.
fn assert_distinct(claims: &[Claimed]) {
    let distinct: HashSet<_> =
        claims.iter().map(|claimed| (claimed.event.id, claimed.subscription.clone())).collect();
    assert_eq!(distinct.len(), claims.len(), "each delivery is handed out once");
}

pub(super) async fn appended_work_is_claimed_at_once_when_a_sink_is_attached(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    assert_eq!((claimed.event.id, claimed.attempt), (id, 1));
    assert_eq!(worker.sink.free_slots(), 2);
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Processing);
    assert_eq!(depth(store.as_ref()).await, Depth { running: 1, ..Depth::default() });
    assert!(worker.claim(store.as_ref(), 100).await.is_empty(), "it is claimed already");

    let ids = append(store.as_ref(), vec![event(2), event(3)]).await;
    let batch: Vec<_> = worker.handed_over().iter().map(|claimed| claimed.event.id).collect();
    assert_eq!(batch, ids, "also for a batch");
}

pub(super) async fn appended_work_waits_when_no_sink_is_attached(store: &Arc<dyn Store>) {
    let id = append(store.as_ref(), vec![event(1)]).await.remove(0);
    assert_eq!(store.claim(at(100)).await.unwrap(), 0, "no sink is attached");
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Pending);
    let mut worker = Worker::attach(store.as_ref(), 3);
    assert!(worker.handed_over().is_empty(), "it has to be claimed");
    assert_eq!(worker.claim_only(store.as_ref(), 100).await.event.id, id);
    store.attach(None);
    append(store.as_ref(), vec![event(2)]).await;
    assert!(worker.handed_over().is_empty(), "detached again");
    assert_eq!(depth(store.as_ref()).await, Depth { pending: 1, running: 1, ..Depth::default() });
}

pub(super) async fn appended_work_beyond_the_free_slots_waits(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    append(store.as_ref(), vec![event(1), event(2)]).await;
    append(store.as_ref(), vec![event(3), event(4)]).await;
    append(store.as_ref(), vec![event(5)]).await;
    let claims = worker.handed_over();
    assert_eq!((claims.len(), worker.sink.free_slots()), (3, 0));
    assert_eq!(depth(store.as_ref()).await, Depth { pending: 2, running: 3, ..Depth::default() });
    assert!(worker.claim(store.as_ref(), 100).await.is_empty(), "no slot is free");
}

pub(super) async fn a_duplicate_takes_no_slot(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    let new = event(1);
    let (_, claimed) = worker.start(store.as_ref(), new.clone()).await;
    store.append(vec![new.clone()]).await.unwrap();
    store.append(vec![new.clone(), new]).await.unwrap();
    assert!(worker.handed_over().is_empty(), "it is one event");
    assert_eq!(worker.sink.free_slots(), 2);
    drop(claimed);
}

pub(super) async fn due_work_is_claimed_once(store: &Arc<dyn Store>) {
    append(store.as_ref(), (0..20).map(event).collect()).await;
    let mut worker = Worker::attach(store.as_ref(), 100);
    let (one, two) = tokio::join!(store.claim(at(100)), store.claim(at(100)));
    assert_eq!(one.unwrap() + two.unwrap(), 20);
    let claims = worker.handed_over();
    assert_eq!(claims.len(), 20);
    assert_distinct(&claims);
    assert_eq!(store.claim(at(200)).await.unwrap(), 0);
}

pub(super) async fn concurrent_claims_hand_out_each_delivery_once(store: &Arc<dyn Store>) {
    let whole = (0..200).map(event);
    let single = (200..250).map(|created| to_each(created, &["billing", "shipping"]));
    append(store.as_ref(), whole.chain(single).collect()).await;
    let mut worker = Worker::attach(store.as_ref(), 1000);
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let store = Arc::clone(store);
        tasks.spawn(async move { store.claim(at(1000)).await.unwrap() });
    }
    // Events of concurrent publishers are claimed as they are stored.
    for created in 300..350 {
        let store = Arc::clone(store);
        tasks.spawn(async move { store.append(vec![event(created)]).await.map(|_| 0).unwrap() });
    }
    tasks.join_all().await;
    let claims = worker.handed_over();
    assert_eq!(claims.len(), 350);
    assert_distinct(&claims);
}

pub(super) async fn a_claim_never_exceeds_the_free_slots(store: &Arc<dyn Store>) {
    append(store.as_ref(), (0..10).map(event).collect()).await;
    append(store.as_ref(), vec![to_each(11, &["billing", "shipping"])]).await;
    let mut worker = Worker::attach(store.as_ref(), 3);
    let mut seen = HashSet::new();
    for expected in [3, 3, 3, 3, 0] {
        let claims = worker.claim(store.as_ref(), 100).await;
        assert_eq!(claims.len(), expected);
        assert_eq!(worker.claim(store.as_ref(), 100).await.len(), 0, "no slot is free");
        for claimed in claims {
            assert!(seen.insert((claimed.event.id, claimed.subscription.clone())));
            settle(store.as_ref(), claimed, done(101)).await;
        }
        assert_eq!(worker.sink.free_slots(), 3);
    }
    let mut none = Worker::attach(store.as_ref(), 0);
    append(store.as_ref(), vec![event(12)]).await;
    assert!(none.claim(store.as_ref(), 100).await.is_empty(), "a sink without slots");
}

pub(super) async fn a_settled_claim_frees_its_slot(store: &Arc<dyn Store>) {
    append(store.as_ref(), vec![event(1), event(2)]).await;
    let mut worker = Worker::attach(store.as_ref(), 1);
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    assert_eq!(worker.sink.free_slots(), 0);
    settle(store.as_ref(), claimed, done(11)).await;
    worker.sink.freed().await;
    assert_eq!(worker.sink.free_slots(), 1);
    drop(worker.claim_only(store.as_ref(), 12).await);
}

pub(super) async fn a_dropped_claim_frees_its_slot_and_stays_claimed(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 1);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    drop(claimed);
    worker.sink.freed().await;
    assert_eq!(worker.sink.free_slots(), 1);
    assert!(worker.claim(store.as_ref(), 100).await.is_empty(), "until the next start");
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Processing);
}

pub(super) async fn a_new_sink_replaces_the_old_one(store: &Arc<dyn Store>) {
    let mut old = Worker::attach(store.as_ref(), 5);
    let (_, claimed) = old.start(store.as_ref(), event(1)).await;
    let mut new = Worker::attach(store.as_ref(), 5);
    drop(new.start(store.as_ref(), event(2)).await);
    assert!(old.handed_over().is_empty());
    let finished = settle(store.as_ref(), claimed, done(3)).await;
    assert_eq!(finished, Finished::Done { retried: false }, "a claim of the old sink stays valid");
    assert_eq!((old.sink.free_slots(), new.sink.free_slots()), (5, 5));
}

pub(super) async fn detaching_the_sink_at_any_time_loses_no_claim(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10_000);
    let is_over = Arc::new(AtomicBool::new(false));
    let switch = tokio::task::spawn_blocking({
        let (store, sink, is_over) = (Arc::clone(store), worker.sink.clone(), Arc::clone(&is_over));
        move || {
            while !is_over.load(Ordering::Relaxed) {
                store.attach(None);
                std::thread::yield_now();
                store.attach(Some(sink.clone()));
                std::thread::yield_now();
            }
        }
    });
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for created in 0..100 {
                store.append(vec![event(created)]).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    is_over.store(true, Ordering::Relaxed);
    switch.await.unwrap();
    let claims = worker.handed_over();
    let Depth { pending, running, .. } = depth(store.as_ref()).await;
    assert_eq!(running, claims.len() as u64, "every running event was handed over");
    assert_eq!(pending + running, 400);
}

pub(super) async fn a_heartbeat_changes_no_event(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    let (running, claimed) = worker.start(store.as_ref(), event(1)).await;
    let waiting = append(store.as_ref(), vec![later(2, 1000)]).await.remove(0);
    let before = (shown(store.as_ref(), running).await, shown(store.as_ref(), waiting).await);
    for _ in 0..3 {
        assert_ne!(
            store.heartbeat().await.unwrap(),
            Some(Duration::ZERO),
            "the next heartbeat is in the future"
        );
    }
    assert_eq!((shown(store.as_ref(), running).await, shown(store.as_ref(), waiting).await), before);
    assert_eq!(settle(store.as_ref(), claimed, done(3)).await, Finished::Done { retried: false });
}

pub(super) async fn nothing_is_claimed_before_it_is_due(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = append(store.as_ref(), vec![later(0, 1000)]).await.remove(0);
    append(store.as_ref(), vec![later(0, 2000), later(0, 2000)]).await;
    assert!(worker.handed_over().is_empty(), "not when it is stored");
    assert!(worker.claim(store.as_ref(), 999).await.is_empty(), "not a millisecond before");
    assert_eq!(worker.claim_only(store.as_ref(), 1000).await.event.id, id);
    assert_eq!(worker.claim(store.as_ref(), 5000).await.len(), 2);
}

pub(super) async fn work_is_claimed_in_the_order_of_its_due_time(store: &Arc<dyn Store>) {
    let events: Vec<_> =
        [500, 100, 900, 300, 700, 200, 800, 400, 600].into_iter().map(|due| later(0, due)).collect();
    let due_of: HashMap<_, _> = events.iter().map(|event| (event.id, event.due_at)).collect();
    append(store.as_ref(), events).await;
    let mut worker = Worker::attach(store.as_ref(), 2);
    let mut came = Vec::new();
    loop {
        let claims = worker.claim(store.as_ref(), 850).await;
        if claims.is_empty() {
            break;
        }
        for claimed in claims {
            came.push(due_of[&claimed.event.id]);
            settle(store.as_ref(), claimed, done(850)).await;
        }
    }
    let expected = [100, 200, 300, 400, 500, 600, 700, 800].map(at);
    assert_eq!(came, expected, "later work still waits");
}

/// The order that the traits document for every store.
pub(super) async fn deliveries_are_claimed_before_events_and_retries_by_their_due_time(
    store: &Arc<dyn Store>,
) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let mut retried = Vec::new();
    for (new, due) in
        [(event(1), 200), (to_each(2, &["billing"]), 150), (to_each(3, &["billing"]), 350), (event(4), 300)]
    {
        let (id, claimed) = worker.start(store, new).await;
        settle(store, claimed, retry(10, due, "no")).await;
        retried.push(id);
    }
    store.attach(None);
    let single = NewEvent { due_at: at(250), ..to_each(5, &["billing"]) };
    let waiting = append(store, vec![later(6, 300), later(7, 100), single, later(8, 300)]).await;
    let expected =
        [retried[1], waiting[2], retried[2], waiting[1], retried[0], retried[3], waiting[0], waiting[3]];
    let mut one_slot = Worker::attach(store, 1);
    for id in expected {
        let claimed = one_slot.claim_only(store, 1000).await;
        assert_eq!(claimed.event.id, id);
        settle(store, claimed, done(1000)).await;
    }
    assert!(one_slot.claim(store, 1000).await.is_empty());
}

pub(super) async fn a_long_queue_is_claimed_completely(store: &Arc<dyn Store>) {
    append(store.as_ref(), (0..1500).map(event).collect()).await;
    let mut worker = Worker::attach(store.as_ref(), 5000);
    let mut claims = Vec::new();
    loop {
        let more = worker.claim(store.as_ref(), 5000).await;
        if more.is_empty() {
            break;
        }
        claims.extend(more);
    }
    assert_eq!(claims.len(), 1500, "whatever the limit of one claim");
    assert_distinct(&claims);
    assert_eq!(stats(store.as_ref()).await.processing, 1500);
}
