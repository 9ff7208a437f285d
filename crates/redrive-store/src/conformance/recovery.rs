//! Promises about recovery after the death of the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, RetryOverride};
use tokio::task::JoinSet;

use super::Restart;
use super::scene::{
    Worker, append, at, dead, defer, depth, detail, done, event, later, name, of, retry, settle, shown,
    split_off, stats, subscription_of, to_each,
};
use crate::dead_letter::{DlqFilter, DlqPage};
use crate::error::StoreError;
use crate::event::{EventId, EventStatus, NewEvent};
use crate::query::{Depth, EventFilter, EventPage, Stats, SubscriptionRow};
use crate::store::{Finished, Store};
use crate::work::{ClaimSink, Recovered, Settlement, Verdict};

/// Returns all fields of these events.
async fn picture(store: &dyn Store, ids: &[EventId]) -> Vec<serde_json::Value> {
    let mut all = Vec::new();
    for id in ids {
        all.push(shown(store, *id).await);
    }
    all
}

/// Makes one event in every state but running: pending, waiting, deferred, done, dead, parked.
async fn not_running(store: &dyn Store, worker: &mut Worker) -> Vec<EventId> {
    let mut ids = append(store, vec![later(1, 90_000)]).await;
    let ends = [
        retry(20, 91_000, "no"),
        defer(20, 92_000),
        done(20),
        dead(20, DeadReason::Permanent, "never"),
        split_off(done(20), &[("billing", 93_000)]),
        split_off(dead(20, DeadReason::Permanent, "never"), &[("billing", 94_000)]),
    ];
    for settlement in ends {
        let (id, claimed) = worker.start(store, event(2)).await;
        settle(store, claimed, settlement).await;
        ids.push(id);
    }
    ids
}

pub(super) async fn a_restart_keeps_everything(harness: &mut impl Restart) {
    let mut worker = Worker::attach(harness.store().as_ref(), 10);
    let ids = not_running(harness.store().as_ref(), &mut worker).await;
    let subscription = SubscriptionRow {
        id: "id-1".into(),
        name: name("billing"),
        event_type: "order.*".into(),
        created_at: at(1),
    };
    harness.store().register(subscription.clone()).await.unwrap();
    let before = picture(harness.store().as_ref(), &ids).await;
    let counts = stats(harness.store().as_ref()).await;
    let list = |store: Arc<dyn Store>| async move {
        let letters = store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
        letters.iter().map(|letter| serde_json::to_value(letter).unwrap()).collect::<Vec<_>>()
    };
    let letters = list(Arc::clone(harness.store())).await;
    assert_eq!(letters.len(), 2);

    for is_closed_first in [false, true] {
        if is_closed_first {
            harness.store().close().await.unwrap();
        }
        harness.restart().await;
        let store = harness.store();
        assert_eq!(picture(store.as_ref(), &ids).await, before);
        assert_eq!(stats(store.as_ref()).await, counts);
        assert_eq!(store.subscriptions().await.unwrap(), std::slice::from_ref(&subscription));
        assert_eq!(list(Arc::clone(store)).await, letters);
        assert_eq!(store.refresh_due().await.unwrap(), Some(at(90_000)), "waiting work still waits");
    }
}

pub(super) async fn recovery_charges_running_work_and_nothing_else(harness: &mut impl Restart) {
    let store = harness.store().as_ref();
    let mut worker = Worker::attach(store, 20);
    let untouched = not_running(store, &mut worker).await;
    let own_policy = Some(RetryOverride::new().max_retries(9));
    let (first, claim_1) = worker.start(store, NewEvent { retry: own_policy.clone(), ..event(30) }).await;
    let (second, claimed) = worker.start(store, event(31)).await;
    settle(store, claimed, retry(40, 50, "refused")).await;
    let claim_2 = worker.claim_only(store, 50).await;
    let (delivering, claimed) = worker.start(store, event(60)).await;
    settle(store, claimed, split_off(done(61), &[("audit", 70), ("billing", 95_000)])).await;
    let claim_3 = worker.claim_only(store, 70).await;
    let before = picture(store, &untouched).await;
    harness.restart().await;
    drop((claim_1, claim_2, claim_3)); // claims of the dead process
    let store = harness.store().as_ref();

    let recovered = store.recover(at(1000)).await.unwrap();
    let by_id: BTreeMap<EventId, &Recovered> = recovered.iter().map(|one| (one.id, one)).collect();
    assert_eq!((recovered.len(), by_id.len()), (3, 3), "{recovered:?}");
    for (id, subscription, attempt) in [(first, None, 1), (second, None, 2), (delivering, Some("audit"), 1)] {
        let charged = by_id[&id];
        assert_eq!(charged.event_type.as_str(), "order.created");
        assert_eq!(
            (charged.subscription.as_ref().map(|name| name.as_str()), charged.attempt),
            (subscription, attempt)
        );
        assert!(!charged.error.is_empty(), "the error names the cause");
        assert_eq!(charged.retry, own_policy.clone().filter(|_| id == first), "the event's own retry policy");
    }
    assert_eq!(picture(store, &untouched).await, before, "waiting work is not charged");

    let error = by_id[&first].error.clone();
    let shown = detail(store, first).await;
    assert_eq!((shown.status, shown.retry_count), (EventStatus::Pending, 1));
    assert_eq!(shown.errors, std::slice::from_ref(&error));
    assert_eq!((shown.created_at, shown.updated_at), (at(30), at(1000)));
    assert!(shown.due_at.is_some_and(|due| due <= at(1000)), "due now: {:?}", shown.due_at);
    assert_eq!(shown.attempts.len(), 1);
    let attempt = &shown.attempts[0];
    assert_eq!((attempt.attempt, attempt.class, &attempt.error), (1, Some(FailureClass::Crashed), &error));
    assert_eq!((attempt.started_at, attempt.duration_ms, attempt.delay_ms), (at(30), 970, 0));

    let shown = detail(store, second).await;
    assert_eq!((shown.status, shown.retry_count), (EventStatus::Pending, 2));
    assert_eq!(shown.errors, ["refused".to_owned(), error.clone()], "earlier errors are kept");
    let numbers: Vec<_> = shown.attempts.iter().map(|attempt| attempt.attempt).collect();
    assert_eq!(numbers, [1, 2]);

    let shown = detail(store, delivering).await;
    assert_eq!((shown.status, shown.retry_count, shown.errors.len()), (EventStatus::Processing, 1, 1));
    for delivery in &shown.deliveries {
        let expected =
            if delivery.subscription == name("audit") { (1, vec![error.clone()]) } else { (0, vec![]) };
        assert_eq!((delivery.retry_count, delivery.errors.clone()), expected, "{delivery:?}");
        assert_eq!(delivery.status, EventStatus::Pending);
    }
    assert_eq!(shown.attempts[0].subscription, "audit");
    assert_eq!(depth(store).await, Depth { pending: 4, waiting: 1, open_deliveries: 4, ..Depth::default() });
    assert!(store.refresh_due().await.unwrap().is_some_and(|due| due <= at(1000)));
    assert!(store.recover(at(1001)).await.unwrap().is_empty(), "once");
}

pub(super) async fn recovery_without_anything_running_changes_nothing(harness: &mut impl Restart) {
    assert!(harness.store().recover(at(0)).await.unwrap().is_empty(), "in an empty store");
    let mut worker = Worker::attach(harness.store().as_ref(), 10);
    let ids = not_running(harness.store().as_ref(), &mut worker).await;
    let before = picture(harness.store().as_ref(), &ids).await;
    harness.restart().await;
    assert!(harness.store().recover(at(1000)).await.unwrap().is_empty());
    assert_eq!(picture(harness.store().as_ref(), &ids).await, before);
}

pub(super) async fn recovered_work_is_claimed_as_its_next_attempt(harness: &mut impl Restart) {
    let mut worker = Worker::attach(harness.store().as_ref(), 10);
    let whole = append(harness.store().as_ref(), vec![event(1)]).await.remove(0);
    append(harness.store().as_ref(), vec![to_each(2, &["audit"])]).await;
    assert_eq!(worker.handed_over().len(), 2);
    harness.restart().await;
    let store = harness.store().as_ref();
    let mut worker = Worker::attach(store, 10);
    assert!(worker.claim(store, 1000).await.is_empty(), "the dead process still owns it");
    assert_eq!(store.recover(at(1000)).await.unwrap().len(), 2);
    let claims = worker.claim(store, 1000).await;
    assert_eq!(claims.len(), 2);
    for claimed in claims {
        assert_eq!(claimed.attempt, 2);
        assert_eq!(subscription_of(&claimed), if claimed.event.id == whole { None } else { Some("audit") });
        assert_eq!(settle(store, claimed, done(1001)).await, Finished::Done { retried: true });
    }
    assert_eq!(stats(store).await, Stats { done: 2, ..Stats::default() });
}

/// Makes one event and one delivery that were running at two crashes, and one event that was running at the second only.
async fn two_crashes(harness: &mut impl Restart) -> [EventId; 3] {
    let mut worker = Worker::attach(harness.store().as_ref(), 10);
    let mut ids = append(harness.store().as_ref(), vec![event(1), to_each(2, &["audit"])]).await;
    assert_eq!(worker.handed_over().len(), 2);
    harness.restart().await;
    harness.store().recover(at(100)).await.unwrap();
    let mut worker = Worker::attach(harness.store().as_ref(), 10);
    assert_eq!(worker.claim(harness.store().as_ref(), 100).await.len(), 2, "one crash makes no suspect");
    ids.extend(append(harness.store().as_ref(), vec![event(101)]).await);
    harness.restart().await;
    assert_eq!(harness.store().recover(at(200)).await.unwrap().len(), 3);
    ids.try_into().unwrap()
}

pub(super) async fn work_that_was_running_at_two_crashes_is_a_suspect(harness: &mut impl Restart) {
    let [whole, single, other] = two_crashes(harness).await;
    let store = harness.store().as_ref();
    let mut worker = Worker::attach(store, 10);
    let claimed = worker.claim_only(store, 200).await;
    assert_eq!((claimed.event.id, claimed.attempt), (other, 2), "the other event is no suspect");
    settle(store, claimed, done(201)).await;
    assert!(worker.claim(store, 1_000_000).await.is_empty(), "an ordinary claim takes no suspects");
    assert_eq!(store.refresh_due().await.unwrap(), None, "suspects are not in the hint");

    let mut found = Vec::new();
    while let Some(claimed) = store.claim_suspect(at(300), worker.sink.clone()).await.unwrap() {
        assert_eq!((claimed.attempt, worker.sink.free_slots()), (3, 9));
        found.push((claimed.event.id, subscription_of(&claimed).map(str::to_owned)));
        assert_eq!(settle(store, claimed, done(301)).await, Finished::Done { retried: true });
    }
    found.sort();
    let mut expected = vec![(whole, None), (single, Some("audit".to_owned()))];
    expected.sort();
    assert_eq!(found, expected);
    assert!(worker.handed_over().is_empty(), "a suspect is returned, not sent");
    assert_eq!(stats(store).await, Stats { done: 3, ..Stats::default() });
}

pub(super) async fn suspects_are_claimed_one_at_a_time(harness: &mut impl Restart) {
    two_crashes(harness).await;
    let store = harness.store().as_ref();
    let (full, _receiver) = ClaimSink::new(0);
    assert!(store.claim_suspect(at(300), full).await.unwrap().is_none(), "no slot is free");
    let (sink, _receiver) = ClaimSink::new(10);
    let one = store.claim_suspect(at(300), sink.clone()).await.unwrap().unwrap();
    let two = store.claim_suspect(at(300), sink.clone()).await.unwrap().unwrap();
    assert_ne!(one.event.id, two.event.id);
    assert!(store.claim_suspect(at(300), sink.clone()).await.unwrap().is_none(), "both are claimed");
    assert_eq!(sink.free_slots(), 8);
    drop((one, two));
    assert_eq!(sink.free_slots(), 10);
}

pub(super) async fn suspect_events_are_claimed_before_suspect_deliveries_each_by_due_time(
    harness: &mut impl Restart,
) {
    let mut worker = Worker::attach(harness.store().as_ref(), 10);
    let work = vec![event(1), event(2), event(3), to_each(4, &["audit"]), to_each(5, &["audit"])];
    let ids = append(harness.store().as_ref(), work).await;
    assert_eq!(worker.handed_over().len(), 5);
    harness.restart().await;
    harness.store().recover(at(100)).await.unwrap();
    let mut worker = Worker::attach(harness.store().as_ref(), 10);
    assert_eq!(worker.claim(harness.store().as_ref(), 100).await.len(), 5);
    harness.restart().await;
    let store = harness.store().as_ref();
    store.recover(at(200)).await.unwrap();
    // Due against the order of storing; two events at the same time.
    let until = [600, 500, 500, 400, 300];
    let (sink, _receiver) = ClaimSink::new(10);
    while let Some(claimed) = store.claim_suspect(at(299), sink.clone()).await.unwrap() {
        let index = ids.iter().position(|id| *id == claimed.event.id).unwrap();
        settle(store, claimed, defer(210, until[index])).await;
    }
    let mut order = Vec::new();
    while let Some(claimed) = store.claim_suspect(at(700), sink.clone()).await.unwrap() {
        order.push(ids.iter().position(|id| *id == claimed.event.id).unwrap());
    }
    assert_eq!(order, [1, 2, 0, 4, 3]);
}

pub(super) async fn a_retried_suspect_is_no_suspect_any_more(harness: &mut impl Restart) {
    let [whole, ..] = two_crashes(harness).await;
    let store = harness.store().as_ref();
    let (sink, _receiver) = ClaimSink::new(10);
    while let Some(claimed) = store.claim_suspect(at(300), sink.clone()).await.unwrap() {
        settle(store, claimed, retry(310, 400, "it is alive")).await;
    }
    let mut worker = Worker::attach(store, 10);
    let claims = worker.claim(store, 400).await;
    let claimed = claims.iter().find(|claimed| claimed.event.id == whole).expect("claimed with the rest");
    assert_eq!(claimed.attempt, 4);
    assert!(store.claim_suspect(at(400), sink).await.unwrap().is_none());
}

pub(super) async fn a_released_suspect_is_ordinary_work_and_is_charged_nothing(harness: &mut impl Restart) {
    let [whole, single, _] = two_crashes(harness).await;
    let store = harness.store().as_ref();
    let (sink, _receiver) = ClaimSink::new(10);
    while let Some(claimed) = store.claim_suspect(at(300), sink.clone()).await.unwrap() {
        let release = Settlement::new(at(310), Verdict::ReleaseSuspect(at(400).into()));
        assert_eq!(settle(store, claimed, release).await, Finished::NotYet);
    }
    assert!(!store.has_suspects(at(1_000_000)).await.unwrap());
    let mut worker = Worker::attach(store, 10);
    let claims = worker.claim(store, 400).await;
    for id in [whole, single] {
        let claimed = claims.iter().find(|claimed| claimed.event.id == id).expect("claimed with the rest");
        assert_eq!(claimed.attempt, 3, "no attempt is charged");
    }
}

pub(super) async fn a_deferred_suspect_stays_a_suspect(harness: &mut impl Restart) {
    let [_, _, other] = two_crashes(harness).await;
    let store = harness.store().as_ref();
    let mut worker = Worker::attach(store, 10);
    let claimed = worker.claim_only(store, 200).await;
    assert_eq!(claimed.event.id, other);
    settle(store, claimed, defer(210, 400)).await;
    let (sink, _receiver) = ClaimSink::new(10);
    while let Some(claimed) = store.claim_suspect(at(300), sink.clone()).await.unwrap() {
        settle(store, claimed, defer(310, 400)).await;
    }
    assert!(!store.has_suspects(at(399)).await.unwrap(), "not before it is due");
    assert!(store.claim_suspect(at(399), sink.clone()).await.unwrap().is_none());
    assert_eq!(
        worker.claim_only(store, 400).await.event.id,
        other,
        "an event that is no suspect is claimed as usual"
    );
    for _ in 0..2 {
        let claimed =
            store.claim_suspect(at(400), sink.clone()).await.unwrap().expect("alone, when it is time");
        assert_eq!(claimed.attempt, 3, "no attempt was charged");
        settle(store, claimed, done(401)).await;
    }
}

pub(super) async fn a_parked_delivery_of_a_suspect_is_a_suspect(harness: &mut impl Restart) {
    let [whole, ..] = two_crashes(harness).await;
    let store = harness.store().as_ref();
    let (sink, _receiver) = ClaimSink::new(10);
    while let Some(claimed) = store.claim_suspect(at(300), sink.clone()).await.unwrap() {
        let parked_for: &[_] = if claimed.event.id == whole { &[("billing", 400)] } else { &[] };
        settle(store, claimed, split_off(done(310), parked_for)).await;
    }
    let mut worker = Worker::attach(store, 10);
    assert!(
        worker.claim(store, 400).await.iter().all(|claimed| claimed.event.id != whole),
        "not with the rest"
    );
    assert!(store.claim_suspect(at(399), sink.clone()).await.unwrap().is_none(), "not before it is due");
    let claimed =
        store.claim_suspect(at(400), sink).await.unwrap().expect("it may be what killed the process");
    assert_eq!((claimed.event.id, subscription_of(&claimed)), (whole, Some("billing")));
    assert_eq!(settle(store, claimed, done(401)).await, Finished::Done { retried: true });
}

pub(super) async fn a_suspect_is_listed_as_pending(harness: &mut impl Restart) {
    let [whole, _, other] = two_crashes(harness).await;
    let store = harness.store().as_ref();
    assert_eq!(detail(store, whole).await.status, EventStatus::Pending);
    assert_eq!(
        stats(store).await,
        Stats { pending: 2, processing: 1, open_deliveries: 1, ..Stats::default() }
    );
    assert_eq!(depth(store).await, Depth { pending: 2, open_deliveries: 1, ..Depth::default() });
    let filter = EventFilter { status: Some(EventStatus::Pending), event_type: None };
    let listed = store.events(filter, EventPage::default()).await.unwrap();
    assert_eq!(listed.iter().map(|shown| shown.id).collect::<Vec<_>>(), [other, whole]);
}

pub(super) async fn a_late_settlement_changes_nothing(harness: &mut impl Restart) {
    let ends = [
        done(400),
        retry(400, 500, "late"),
        defer(400, 500),
        dead(400, DeadReason::Permanent, "late"),
        split_off(done(400), &[("billing", 500)]),
    ];
    let mut worker = Worker::attach(harness.store().as_ref(), 100);
    append(harness.store().as_ref(), (0..5).map(event).collect()).await;
    append(harness.store().as_ref(), (5..10).map(|created| to_each(created, &["audit"])).collect()).await;
    let late = worker.handed_over();
    assert_eq!(late.len(), 10);
    harness.restart().await;
    let store = harness.store().as_ref();
    store.recover(at(300)).await.unwrap();
    for (claimed, settlement) in late.into_iter().zip(ends.into_iter().cycle()) {
        let id = claimed.event.id;
        let before = shown(store, id).await;
        let what = format!("{settlement:?}");
        assert_eq!(settle(store, claimed, settlement).await, Finished::Fenced, "{what}");
        assert_eq!(shown(store, id).await, before, "{what}");
    }
    assert!(store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap().is_empty());
    let mut worker = Worker::attach(store, 100);
    assert_eq!(worker.claim(store, 300).await.len(), 10, "all can be claimed");
}

pub(super) async fn a_late_success_does_not_end_the_next_attempt(harness: &mut impl Restart) {
    let ends = [done(400), retry(400, 500, "late"), dead(400, DeadReason::Permanent, "late")];
    let mut worker = Worker::attach(harness.store().as_ref(), 100);
    append(harness.store().as_ref(), (0..3).map(event).collect()).await;
    append(harness.store().as_ref(), (3..6).map(|created| to_each(created, &["audit"])).collect()).await;
    let late = worker.handed_over();
    assert_eq!(late.len(), 6);
    harness.restart().await;
    let store = harness.store().as_ref();
    store.recover(at(300)).await.unwrap();
    let mut worker = Worker::attach(store, 100);
    let successors = worker.claim(store, 300).await;
    assert_eq!(successors.len(), 6, "each was claimed again");
    for (claimed, settlement) in late.into_iter().zip(ends.into_iter().cycle()) {
        let id = claimed.event.id;
        let before = shown(store, id).await;
        let what = format!("{settlement:?} of {:?}", claimed.subscription);
        assert_eq!(settle(store, claimed, settlement).await, Finished::Fenced, "{what}");
        assert_eq!(shown(store, id).await, before, "{what}");
    }
    for claimed in successors {
        let settlement = of("audit", dead(450, DeadReason::Permanent, "the last claim decides"));
        assert_eq!(settle(store, claimed, settlement).await, Finished::Dead { retried: true });
    }
    assert_eq!(stats(store).await, Stats { dlq: 6, ..Stats::default() });
}

pub(super) async fn events_acknowledged_while_closing_are_stored(harness: &mut impl Restart) {
    let mut tasks = JoinSet::new();
    for created in 0..100 {
        let store = Arc::clone(harness.store());
        tasks.spawn(async move {
            let new = event(created);
            (new.id, store.append(vec![new]).await)
        });
    }
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(tasks.join_next().await.unwrap().unwrap());
    }
    harness.store().close().await.unwrap();
    answers.extend(tasks.join_all().await);
    harness.restart().await;
    let store = harness.store().as_ref();
    for (id, answer) in answers {
        match answer {
            Ok(_) => assert_eq!(detail(store, id).await.status, EventStatus::Pending),
            Err(StoreError::Closed) => {
                assert!(
                    matches!(store.event(id).await, Err(StoreError::NoSuchEvent { .. })),
                    "refused, so not stored"
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
}
