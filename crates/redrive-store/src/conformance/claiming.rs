//! Claiming: once, when due, and never more than there is room for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::scene::{Worker, addressed, append, at, depth, detail, done, event, later, settle, shown, stats};
use crate::event::EventStatus;
use crate::query::Depth;
use crate::store::{Finished, Store};
use crate::work::Claimed;

/// That no unit is among them twice.
fn assert_distinct(claims: &[Claimed]) {
    let units: HashSet<_> =
        claims.iter().map(|claimed| (claimed.event.id, claimed.addressee.clone())).collect();
    assert_eq!(units.len(), claims.len(), "each unit is handed out once");
}

pub(super) async fn appended_work_is_claimed_at_once_when_a_sink_is_attached(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    assert_eq!((claimed.event.id, claimed.attempt), (id, 1));
    assert_eq!(worker.sink.room(), 2);
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Processing);
    assert_eq!(depth(store.as_ref()).await, Depth { running: 1, ..Depth::default() });
    assert!(worker.claim(store.as_ref(), 100).await.is_empty(), "it is claimed already");

    let ids = append(store.as_ref(), vec![event(2), event(3)]).await;
    let batch: Vec<_> = worker.handed_over().iter().map(|claimed| claimed.event.id).collect();
    assert_eq!(batch, ids, "a batch as well");
}

pub(super) async fn appended_work_waits_when_no_sink_is_attached(store: &Arc<dyn Store>) {
    let id = append(store.as_ref(), vec![event(1)]).await.remove(0);
    assert_eq!(store.claim(at(100)).await.unwrap(), 0, "there is nobody to take it in");
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Pending);
    let mut worker = Worker::attach(store.as_ref(), 3);
    assert!(worker.handed_over().is_empty(), "it has to be claimed");
    assert_eq!(worker.claim_only(store.as_ref(), 100).await.event.id, id);
    store.attach(None);
    append(store.as_ref(), vec![event(2)]).await;
    assert!(worker.handed_over().is_empty(), "detached again");
    assert_eq!(depth(store.as_ref()).await, Depth { pending: 1, running: 1, ..Depth::default() });
}

pub(super) async fn appended_work_beyond_the_room_waits(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    append(store.as_ref(), vec![event(1), event(2)]).await;
    append(store.as_ref(), vec![event(3), event(4)]).await;
    append(store.as_ref(), vec![event(5)]).await;
    let claims = worker.handed_over();
    assert_eq!((claims.len(), worker.sink.room()), (3, 0));
    assert_eq!(depth(store.as_ref()).await, Depth { pending: 2, running: 3, ..Depth::default() });
    assert!(worker.claim(store.as_ref(), 100).await.is_empty(), "no room");
}

pub(super) async fn a_duplicate_takes_no_room(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    let new = event(1);
    let (_, claimed) = worker.start(store.as_ref(), new.clone()).await;
    store.append(vec![new.clone()]).await.unwrap();
    store.append(vec![new.clone(), new]).await.unwrap();
    assert!(worker.handed_over().is_empty(), "it is one event");
    assert_eq!(worker.sink.room(), 2);
    drop(claimed);
}

pub(super) async fn what_is_due_is_claimed_once(store: &Arc<dyn Store>) {
    append(store.as_ref(), (0..20).map(event).collect()).await;
    let mut worker = Worker::attach(store.as_ref(), 100);
    let (one, two) = tokio::join!(store.claim(at(100)), store.claim(at(100)));
    assert_eq!(one.unwrap() + two.unwrap(), 20);
    let claims = worker.handed_over();
    assert_eq!(claims.len(), 20);
    assert_distinct(&claims);
    assert_eq!(store.claim(at(200)).await.unwrap(), 0);
}

pub(super) async fn many_concurrent_claims_hand_each_unit_out_once(store: &Arc<dyn Store>) {
    let whole = (0..200).map(event);
    let single = (200..250).map(|created| addressed(created, &["billing", "shipping"]));
    append(store.as_ref(), whole.chain(single).collect()).await;
    let mut worker = Worker::attach(store.as_ref(), 1000);
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let store = Arc::clone(store);
        tasks.spawn(async move { store.claim(at(1000)).await.unwrap() });
    }
    // Publishers go on meanwhile; theirs are claimed as they come.
    for created in 300..350 {
        let store = Arc::clone(store);
        tasks.spawn(async move { store.append(vec![event(created)]).await.map(|_| 0).unwrap() });
    }
    tasks.join_all().await;
    let claims = worker.handed_over();
    assert_eq!(claims.len(), 350);
    assert_distinct(&claims);
}

pub(super) async fn a_claim_respects_the_room_in_the_sink(store: &Arc<dyn Store>) {
    append(store.as_ref(), (0..10).map(event).collect()).await;
    append(store.as_ref(), vec![addressed(11, &["billing", "shipping"])]).await;
    let mut worker = Worker::attach(store.as_ref(), 3);
    let mut seen = HashSet::new();
    for expected in [3, 3, 3, 3, 0] {
        let claims = worker.claim(store.as_ref(), 100).await;
        assert_eq!(claims.len(), expected);
        assert_eq!(worker.claim(store.as_ref(), 100).await.len(), 0, "no room is left");
        for claimed in claims {
            assert!(seen.insert((claimed.event.id, claimed.addressee.clone())));
            settle(store.as_ref(), claimed, done(101)).await;
        }
        assert_eq!(worker.sink.room(), 3);
    }
    let mut none = Worker::attach(store.as_ref(), 0);
    append(store.as_ref(), vec![event(12)]).await;
    assert!(none.claim(store.as_ref(), 100).await.is_empty(), "room for nothing");
}

pub(super) async fn a_settled_unit_gives_its_room_back(store: &Arc<dyn Store>) {
    append(store.as_ref(), vec![event(1), event(2)]).await;
    let mut worker = Worker::attach(store.as_ref(), 1);
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    assert_eq!(worker.sink.room(), 0);
    settle(store.as_ref(), claimed, done(11)).await;
    worker.sink.freed().await;
    assert_eq!(worker.sink.room(), 1);
    drop(worker.claim_only(store.as_ref(), 12).await);
}

pub(super) async fn a_dropped_claim_gives_its_room_back_and_stays_claimed(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 1);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    drop(claimed);
    worker.sink.freed().await;
    assert_eq!(worker.sink.room(), 1);
    assert!(worker.claim(store.as_ref(), 100).await.is_empty(), "until the next start");
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Processing);
}

pub(super) async fn a_new_sink_takes_over(store: &Arc<dyn Store>) {
    let mut old = Worker::attach(store.as_ref(), 5);
    let (_, claimed) = old.start(store.as_ref(), event(1)).await;
    let mut new = Worker::attach(store.as_ref(), 5);
    drop(new.start(store.as_ref(), event(2)).await);
    assert!(old.handed_over().is_empty());
    let finished = settle(store.as_ref(), claimed, done(3)).await;
    assert_eq!(finished, Finished::Done { retried: false }, "what the old one took in is still its own");
    assert_eq!((old.sink.room(), new.sink.room()), (5, 5));
}

pub(super) async fn detaching_the_sink_at_any_moment_strands_nothing(store: &Arc<dyn Store>) {
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
    assert_eq!(running, claims.len() as u64, "what is running is in somebody's hands");
    assert_eq!(pending + running, 400);
}

pub(super) async fn a_heartbeat_leaves_everything_as_it_is(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 3);
    let (running, claimed) = worker.start(store.as_ref(), event(1)).await;
    let waiting = append(store.as_ref(), vec![later(2, 1000)]).await.remove(0);
    let before = (shown(store.as_ref(), running).await, shown(store.as_ref(), waiting).await);
    for _ in 0..3 {
        assert_ne!(store.heartbeat().await.unwrap(), Some(Duration::ZERO), "there is time until the next");
    }
    assert_eq!((shown(store.as_ref(), running).await, shown(store.as_ref(), waiting).await), before);
    assert_eq!(settle(store.as_ref(), claimed, done(3)).await, Finished::Done { retried: false });
}

pub(super) async fn nothing_is_claimed_before_it_is_due(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = append(store.as_ref(), vec![later(0, 1000)]).await.remove(0);
    append(store.as_ref(), vec![later(0, 2000), later(0, 2000)]).await;
    assert!(worker.handed_over().is_empty(), "not when it is stored");
    assert!(worker.claim(store.as_ref(), 999).await.is_empty(), "not a moment before");
    assert_eq!(worker.claim_only(store.as_ref(), 1000).await.event.id, id);
    assert_eq!(worker.claim(store.as_ref(), 5000).await.len(), 2);
}

pub(super) async fn work_is_claimed_in_order_of_its_due_time(store: &Arc<dyn Store>) {
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
    assert_eq!(came, expected, "and what is due later still waits");
}

pub(super) async fn a_long_queue_is_claimed_to_its_end(store: &Arc<dyn Store>) {
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
    assert_eq!(claims.len(), 1500, "however much a store takes at a time");
    assert_distinct(&claims);
    assert_eq!(stats(store.as_ref()).await.processing, 1500);
}
