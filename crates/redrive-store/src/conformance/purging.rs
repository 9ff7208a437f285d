//! Promises about purges: they delete exactly what they name.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::decision::DeadReason;

use super::scene::{
    Worker, append, at, dead, done, event, later, of, retry, settle, shown, split_off, stats,
    subscription_of, to_each,
};
use crate::dead_letter::{DlqFilter, DlqPage};
use crate::error::StoreError;
use crate::event::EventId;
use crate::query::Stats;
use crate::store::{Appended, Store};

async fn is_there(store: &dyn Store, id: EventId) -> bool {
    match store.event(id).await {
        Ok(_) => true,
        Err(StoreError::NoSuchEvent { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Makes one event in every open state, published at 1: pending, running, waiting, parked.
async fn unfinished(store: &dyn Store, worker: &mut Worker) -> Vec<EventId> {
    let (running, claimed) = worker.start(store, event(1)).await;
    drop(claimed);
    let (waiting, claimed) = worker.start(store, event(1)).await;
    settle(store, claimed, retry(2, 90_000, "no")).await;
    let (delivering, claimed) = worker.start(store, event(1)).await;
    settle(store, claimed, split_off(done(2), &[("billing", 90_000)])).await;
    let mut ids = append(store, vec![later(1, 90_000)]).await;
    ids.extend([running, waiting, delivering]);
    ids
}

async fn finish(store: &dyn Store, worker: &mut Worker, created: i64, finished: i64) -> EventId {
    let (id, claimed) = worker.start(store, event(created)).await;
    settle(store, claimed, done(finished)).await;
    id
}

pub(super) async fn purging_dead_events_includes_the_instant_itself(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let mut killed = Vec::new();
    for created in [999, 1000, 1001] {
        // Purged by the time of publishing: all died at the same time.
        killed.push(worker.kill(store.as_ref(), event(created), 5000, "no").await);
    }
    assert_eq!(store.purge_dead(at(998)).await.unwrap(), 0);
    assert_eq!(store.purge_dead(at(1000)).await.unwrap(), 2);
    assert!(!is_there(store.as_ref(), killed[0]).await && !is_there(store.as_ref(), killed[1]).await);
    let letters = store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
    assert_eq!(letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), [killed[2]]);
    assert_eq!(store.dead_groups(DlqFilter::default()).await.unwrap()[0].count, 1);
    assert_eq!(store.purge_dead(at(1000)).await.unwrap(), 0, "purged once");
}

pub(super) async fn purging_dead_events_leaves_everything_else(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let mut kept = unfinished(store.as_ref(), &mut worker).await;
    kept.push(finish(store.as_ref(), &mut worker, 1, 2).await);
    let mut before = Vec::new();
    for id in &kept {
        before.push(shown(store.as_ref(), *id).await);
    }
    worker.kill(store.as_ref(), event(1), 3, "no").await;
    assert_eq!(store.purge_dead(at(1_000_000)).await.unwrap(), 1);
    for (id, before) in kept.into_iter().zip(before) {
        assert_eq!(shown(store.as_ref(), id).await, before);
    }
}

pub(super) async fn a_dead_event_is_purged_with_all_its_dead_letters(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = append(store.as_ref(), vec![to_each(1, &["audit", "billing", "mail"])]).await.remove(0);
    let mut claims = worker.handed_over();
    let last = claims.pop().unwrap();
    for claimed in claims {
        let subscription = subscription_of(&claimed).unwrap().to_owned();
        settle(store.as_ref(), claimed, of(&subscription, dead(10, DeadReason::Permanent, "no"))).await;
    }
    assert_eq!(store.purge_dead(at(1000)).await.unwrap(), 0, "one subscription has not finished");
    settle(store.as_ref(), last, done(11)).await;
    assert_eq!(store.purge_dead(at(1000)).await.unwrap(), 1, "events are counted, not their entries");
    assert!(!is_there(store.as_ref(), id).await);
    assert!(store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap().is_empty());
    assert_eq!(stats(store.as_ref()).await, Stats::default());
}

pub(super) async fn purging_done_events_excludes_the_instant_itself(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let mut finished = Vec::new();
    for when in [999, 1000, 1001] {
        // Purged by the time of their end: all were published at the same time.
        finished.push(finish(store.as_ref(), &mut worker, 1, when).await);
    }
    assert_eq!(store.purge_done(at(999), 100).await.unwrap(), 0);
    assert_eq!(store.purge_done(at(1000), 100).await.unwrap(), 1);
    assert!(!is_there(store.as_ref(), finished[0]).await);
    assert!(is_there(store.as_ref(), finished[1]).await && is_there(store.as_ref(), finished[2]).await);
    assert_eq!(store.purge_done(at(5000), 100).await.unwrap(), 2);
    assert_eq!(stats(store.as_ref()).await, Stats::default());
}

pub(super) async fn purging_done_events_stops_at_the_limit(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    for created in 0..10 {
        finish(store.as_ref(), &mut worker, created, 100).await;
    }
    assert_eq!(store.purge_done(at(1000), 0).await.unwrap(), 0);
    for (purged, left) in [(4, 6), (4, 2), (2, 0), (0, 0)] {
        assert_eq!(store.purge_done(at(1000), 4).await.unwrap(), purged);
        assert_eq!(stats(store.as_ref()).await.done, left);
    }
}

pub(super) async fn purging_done_events_leaves_everything_else(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let mut kept = unfinished(store.as_ref(), &mut worker).await;
    kept.push(worker.kill(store.as_ref(), event(1), 3, "no").await);
    let mut before = Vec::new();
    for id in &kept {
        before.push(shown(store.as_ref(), *id).await);
    }
    finish(store.as_ref(), &mut worker, 1, 2).await;
    assert_eq!(store.purge_done(at(1_000_000), 100).await.unwrap(), 1);
    for (id, before) in kept.into_iter().zip(before) {
        assert_eq!(shown(store.as_ref(), id).await, before);
    }
}

pub(super) async fn purging_done_events_finds_events_published_out_of_order(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    // The clock of one publisher is ahead.
    let ahead = finish(store.as_ref(), &mut worker, 5000, 5001).await;
    let behind = finish(store.as_ref(), &mut worker, 10, 20).await;
    assert_eq!(store.purge_done(at(1000), 100).await.unwrap(), 1);
    assert!(is_there(store.as_ref(), ahead).await && !is_there(store.as_ref(), behind).await);
}

pub(super) async fn maintenance_deletes_events_after_their_retention(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let mut finished = Vec::new();
    for when in [999, 1000] {
        finished.push(finish(store.as_ref(), &mut worker, 1, when).await);
    }
    let again = store.maintain(at(2000), None).await.unwrap();
    assert!(!again.is_zero(), "the next run is in the future");
    assert_eq!(stats(store.as_ref()).await.done, 2, "without a retention events stay for ever");
    store.maintain(at(101_000), Some(Duration::from_secs(100))).await.unwrap();
    assert!(!is_there(store.as_ref(), finished[0]).await && is_there(store.as_ref(), finished[1]).await);
    store.maintain(at(202_000), Some(Duration::MAX)).await.unwrap();
    assert!(is_there(store.as_ref(), finished[1]).await);
}

pub(super) async fn a_purged_id_can_be_stored_again(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let new = event(1);
    let (_, claimed) = worker.start(store.as_ref(), new.clone()).await;
    settle(store.as_ref(), claimed, retry(2, 10, "no")).await;
    let claimed = worker.claim_only(store.as_ref(), 10).await;
    settle(store.as_ref(), claimed, dead(11, DeadReason::Permanent, "no")).await;
    assert_eq!(store.purge_dead(at(1)).await.unwrap(), 1);
    assert_eq!(store.append(vec![new.clone()]).await.unwrap(), [Appended::New]);
    assert_eq!(worker.only().attempt, 1);
    let shown = store.event(new.id).await.unwrap();
    assert!(shown.errors.is_empty() && shown.attempts.is_empty(), "no trace of the purged event is left");
}
