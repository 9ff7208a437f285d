//! Promises about redriving dead letters.

use std::sync::Arc;

use redrive_retry::Timestamp;
use redrive_retry::decision::DeadReason;
use tokio::task::JoinSet;

use super::MAX_PAYLOAD;
use super::scene::{
    Worker, append, at, dead, detail, done, event, later, name, of, retry, settle, shown, split_off, stats,
    subscription_of, to_each,
};
use crate::dead_letter::{DlqFilter, DlqPage, Redrive, fingerprint};
use crate::error::StoreError;
use crate::event::{EventId, EventStatus, NewEvent};
use crate::query::{EventFilter, EventPage, Stats};
use crate::store::{Finished, Store};

fn back(when: i64) -> Redrive {
    Redrive { at: at(when), payload: None }
}

/// Makes a dead event with two errors.
async fn dead_event(store: &dyn Store, worker: &mut Worker, new: NewEvent) -> EventId {
    let (id, claimed) = worker.start(store, new).await;
    settle(store, claimed, retry(50, 100, "refused")).await;
    let claimed = worker.claim_only(store, 100).await;
    settle(store, claimed, dead(130, DeadReason::AttemptsExhausted, "refused again")).await;
    id
}

async fn letters(store: &dyn Store) -> usize {
    store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap().len()
}

pub(super) async fn a_redriven_event_starts_over(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let new = event(1);
    let id = dead_event(store.as_ref(), &mut worker, new.clone()).await;
    store.redrive(id, back(500)).await.unwrap();
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count, shown.errors.len()), (EventStatus::Pending, 0, 0));
    assert_eq!((shown.created_at, shown.due_at), (at(1), Some(at(500))));
    assert_eq!(shown.payload.get(), &*new.payload);
    assert_eq!(letters(store.as_ref()).await, 0, "it left the queue");
    assert!(store.dead_groups(DlqFilter::default()).await.unwrap().is_empty());
    assert_eq!(stats(store.as_ref()).await, Stats { pending: 1, ..Stats::default() });

    let claimed = worker.claim_only(store.as_ref(), 500).await;
    assert_eq!((claimed.event.id, claimed.attempt), (id, 1));
    assert_eq!(settle(store.as_ref(), claimed, done(510)).await, Finished::Done { retried: false });
    assert_eq!(stats(store.as_ref()).await, Stats { done: 1, ..Stats::default() });
}

pub(super) async fn a_redriven_event_can_die_again(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_event(store.as_ref(), &mut worker, event(1)).await;
    for round in 1..=3 {
        let now = round * 1000;
        store.redrive(id, back(now)).await.unwrap();
        let claimed = worker.claim_only(store.as_ref(), now).await;
        let error = format!("round {round}");
        let finished = settle(store.as_ref(), claimed, dead(now + 1, DeadReason::Permanent, &error)).await;
        assert_eq!(finished, Finished::Dead { retried: false });
        let all = store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
        assert_eq!(all.len(), 1, "one dead letter after every redrive");
        assert_eq!(
            (all[0].retry_count, all[0].dlq_at, all[0].reason.as_str()),
            (1, at(now + 1), "permanent")
        );
        assert_eq!(all[0].errors, [error], "only the errors since the redrive");
    }
}

pub(super) async fn a_redriven_event_is_due_at_the_given_time(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_event(store.as_ref(), &mut worker, event(1)).await;
    store.redrive(id, back(5000)).await.unwrap();
    assert_eq!(store.refresh_due().await.unwrap(), Some(at(5000)));
    assert!(worker.claim(store.as_ref(), 4999).await.is_empty());
    assert_eq!(worker.claim_only(store.as_ref(), 5000).await.event.id, id);
}

pub(super) async fn a_redriven_event_can_get_a_new_payload(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_event(store.as_ref(), &mut worker, event(1)).await;
    let payload = r#"{"created":1, "corrected":"é"}"#;
    store.redrive(id, Redrive { at: at(500), payload: Some(payload.to_owned()) }).await.unwrap();
    assert_eq!(detail(store.as_ref(), id).await.payload.get(), payload);
    let claimed = worker.claim_only(store.as_ref(), 500).await;
    assert_eq!(&*claimed.event.payload, payload);
    settle(store.as_ref(), claimed, dead(510, DeadReason::Permanent, "no")).await;
    assert_eq!(store.dead_letter(id).await.unwrap()[0].payload.get(), payload);
}

pub(super) async fn a_payload_that_is_too_large_is_refused_and_the_event_stays_dead(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_event(store.as_ref(), &mut worker, event(1)).await;
    let before = shown(store.as_ref(), id).await;
    let large = format!("\"{}\"", "x".repeat(MAX_PAYLOAD));
    let error = store.redrive(id, Redrive { at: at(500), payload: Some(large) }).await.unwrap_err();
    assert!(matches!(error, StoreError::PayloadTooLarge { limit: MAX_PAYLOAD, .. }), "{error}");
    assert_eq!(shown(store.as_ref(), id).await, before);
    assert_eq!(letters(store.as_ref()).await, 1);
}

pub(super) async fn only_dead_events_can_be_redriven(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let redriven = dead_event(store.as_ref(), &mut worker, event(1)).await;
    store.redrive(redriven, back(9000)).await.unwrap();
    let (waiting, claimed) = worker.start(store.as_ref(), event(2)).await;
    settle(store.as_ref(), claimed, retry(50, 9000, "no")).await;
    let (running, _claimed) = worker.start(store.as_ref(), event(3)).await;
    let (finished, claimed) = worker.start(store.as_ref(), event(4)).await;
    settle(store.as_ref(), claimed, done(50)).await;
    let pending = append(store.as_ref(), vec![later(5, 9000)]).await.remove(0);
    for (id, expected) in [
        (redriven, EventStatus::Pending),
        (waiting, EventStatus::Processing),
        (running, EventStatus::Processing),
        (finished, EventStatus::Done),
        (pending, EventStatus::Pending),
    ] {
        let before = shown(store.as_ref(), id).await;
        let error = store.redrive(id, Redrive { at: at(100), payload: Some("7".into()) }).await.unwrap_err();
        assert!(
            matches!(error, StoreError::NotDead { id: which, status } if which == id && status == expected),
            "{error}"
        );
        assert_eq!(shown(store.as_ref(), id).await, before, "nothing is changed");
    }
    let unknown = EventId::new();
    let error = store.redrive(unknown, back(100)).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchEvent { id } if id == unknown), "{error}");
}

pub(super) async fn only_one_of_concurrent_redrives_succeeds(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_event(store.as_ref(), &mut worker, event(1)).await;
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let store = Arc::clone(store);
        tasks.spawn(async move { store.redrive(id, back(500)).await });
    }
    let answers = tasks.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    let refused = |answer: &&Result<(), StoreError>| matches!(answer, Err(StoreError::NotDead { .. }));
    assert_eq!(answers.iter().filter(refused).count(), 15, "{answers:?}");
    drop(worker.claim_only(store.as_ref(), 500).await);
}

pub(super) async fn a_redriven_parked_event_is_pending_until_its_delivery_is_claimed(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, split_off(done(10), &[("billing", 20)])).await;
    let claimed = worker.claim_only(store.as_ref(), 20).await;
    settle(store.as_ref(), claimed, of("billing", dead(30, DeadReason::Permanent, "no"))).await;
    store.redrive(id, back(500)).await.unwrap();
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count, shown.errors.len()), (EventStatus::Pending, 0, 0));
    let pending = EventFilter { status: Some(EventStatus::Pending), ..EventFilter::default() };
    let listed = store.events(pending, EventPage::default()).await.unwrap();
    assert_eq!(listed.iter().map(|shown| shown.id).collect::<Vec<_>>(), [id]);

    let claimed = worker.claim_only(store.as_ref(), 500).await;
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Processing);
    let finished = settle(store.as_ref(), claimed, done(510)).await;
    assert_eq!(finished, Finished::Done { retried: false });
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Done);
}

pub(super) async fn only_dead_deliveries_are_redriven(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = append(store.as_ref(), vec![to_each(1, &["audit", "billing", "mail"])]).await.remove(0);
    for claimed in worker.handed_over() {
        match subscription_of(&claimed) {
            Some("audit") => settle(store.as_ref(), claimed, done(10)).await,
            subscription => {
                let settlement = of(subscription.unwrap(), dead(10, DeadReason::Permanent, "no"));
                settle(store.as_ref(), claimed, settlement).await
            }
        };
    }
    store.redrive(id, back(500)).await.unwrap();
    assert_eq!(letters(store.as_ref()).await, 0);
    assert_eq!(stats(store.as_ref()).await, Stats { pending: 1, open_deliveries: 2, ..Stats::default() });
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.due_at), (EventStatus::Pending, None));
    for delivery in &shown.deliveries {
        let expected: (EventStatus, Option<Timestamp>) = match delivery.subscription.as_str() {
            "audit" => (EventStatus::Done, None),
            _ => (EventStatus::Pending, Some(at(500))),
        };
        assert_eq!((delivery.status, delivery.due_at), expected, "{delivery:?}");
        assert_eq!((delivery.retry_count, delivery.errors.len()), (0, 0), "{delivery:?}");
    }

    assert!(worker.claim(store.as_ref(), 499).await.is_empty());
    let claims = worker.claim(store.as_ref(), 500).await;
    assert_eq!(claims.len(), 2);
    let mut ends = Vec::new();
    for claimed in claims {
        assert_ne!(subscription_of(&claimed), Some("audit"), "a done delivery is not repeated");
        assert_eq!(claimed.attempt, 1);
        ends.push(settle(store.as_ref(), claimed, done(510)).await);
    }
    assert_eq!(ends, [Finished::NotYet, Finished::Done { retried: false }]);
    assert_eq!(stats(store.as_ref()).await, Stats { done: 1, ..Stats::default() });
}

/// Returns the subscriptions with a dead letter of this event.
async fn dead_for(store: &dyn Store, id: EventId) -> Vec<Option<String>> {
    let letters = store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
    let mut subscription: Vec<_> = letters
        .into_iter()
        .filter(|letter| letter.id == id)
        .map(|letter| letter.subscription.map(String::from))
        .collect();
    subscription.sort();
    subscription
}

fn some(names: &[&str]) -> Vec<Option<String>> {
    names.iter().map(|name| Some((*name).to_owned())).collect()
}

/// Makes an event with three dead deliveries, each with its own error and one with another reason.
async fn dead_for_three(store: &dyn Store, worker: &mut Worker, created: i64) -> EventId {
    let id = append(store, vec![to_each(created, &["audit", "billing", "mail"])]).await.remove(0);
    for claimed in worker.handed_over() {
        let subscription = subscription_of(&claimed).unwrap().to_owned();
        let reason =
            if subscription == "billing" { DeadReason::AttemptsExhausted } else { DeadReason::Permanent };
        settle(store, claimed, of(&subscription, dead(10, reason, &format!("{subscription} says no")))).await;
    }
    assert_eq!(dead_for(store, id).await, some(&["audit", "billing", "mail"]));
    id
}

/// Makes an event that is dead as a whole and has a dead parked delivery.
async fn dead_as_a_whole_and_for_one(store: &dyn Store, worker: &mut Worker) -> EventId {
    let (id, claimed) = worker.start(store, event(1)).await;
    settle(store, claimed, split_off(dead(10, DeadReason::Permanent, "no"), &[("billing", 20)])).await;
    let claimed = worker.claim_only(store, 20).await;
    settle(store, claimed, of("billing", dead(30, DeadReason::AttemptsExhausted, "bad card"))).await;
    assert_eq!(dead_for(store, id).await, [None, Some("billing".to_owned())]);
    id
}

pub(super) async fn only_dead_letters_that_match_the_filter_are_redriven(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let none = DlqFilter::default;
    let filters = [
        DlqFilter { subscription: Some(name("billing")), ..none() },
        DlqFilter { reason: Some("attempts_exhausted".into()), ..none() },
        DlqFilter { text: Some("billing says".into()), ..none() },
        DlqFilter { fingerprint: Some(fingerprint("billing says no")), ..none() },
    ];
    for (now, filter) in (1000..).step_by(1000).zip(filters) {
        let id = dead_for_three(store.as_ref(), &mut worker, now).await;
        store.redrive_matching(id, filter.clone(), at(now)).await.unwrap();
        assert_eq!(dead_for(store.as_ref(), id).await, some(&["audit", "mail"]), "{filter:?}");
        let claimed = worker.claim_only(store.as_ref(), now).await;
        assert_eq!((subscription_of(&claimed), claimed.attempt), (Some("billing"), 1), "{filter:?}");
        let finished = settle(store.as_ref(), claimed, done(now + 1)).await;
        assert!(matches!(finished, Finished::Dead { .. }), "other dead letters remain: {finished:?}");
        assert_eq!(dead_for(store.as_ref(), id).await, some(&["audit", "mail"]), "{filter:?}");

        store.redrive(id, back(now + 2)).await.unwrap();
        for claimed in worker.claim(store.as_ref(), now + 2).await {
            assert_ne!(subscription_of(&claimed), Some("billing"), "a done delivery is not repeated");
            settle(store.as_ref(), claimed, done(now + 3)).await;
        }
        assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Done, "{filter:?}");
    }
}

pub(super) async fn a_filter_that_matches_every_dead_letter_redrives_the_whole_event(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_for_three(store.as_ref(), &mut worker, 1).await;
    store.redrive_matching(id, DlqFilter::default(), at(500)).await.unwrap();
    assert_eq!(stats(store.as_ref()).await, Stats { pending: 1, open_deliveries: 3, ..Stats::default() });
    assert_eq!(letters(store.as_ref()).await, 0);
    assert_eq!(worker.claim(store.as_ref(), 500).await.len(), 3);
    assert_eq!(stats(store.as_ref()).await, Stats { processing: 1, open_deliveries: 3, ..Stats::default() });

    let whole = dead_event(store.as_ref(), &mut worker, event(2)).await;
    store.redrive_matching(whole, DlqFilter::default(), at(600)).await.unwrap();
    let shown = detail(store.as_ref(), whole).await;
    assert_eq!((shown.status, shown.retry_count, shown.errors.len()), (EventStatus::Pending, 0, 0));
}

pub(super) async fn a_dead_letter_for_the_whole_event_redrives_the_whole_event(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_as_a_whole_and_for_one(store.as_ref(), &mut worker).await;
    let of_the_whole = DlqFilter { reason: Some("permanent".into()), ..DlqFilter::default() };
    store.redrive_matching(id, of_the_whole, at(500)).await.unwrap();
    assert_eq!(letters(store.as_ref()).await, 0);
    let mut subscriptions: Vec<_> = worker
        .claim(store.as_ref(), 500)
        .await
        .iter()
        .map(|c| subscription_of(c).map(str::to_owned))
        .collect();
    subscriptions.sort();
    assert_eq!(subscriptions, [None, Some("billing".to_owned())]);
}

pub(super) async fn a_dead_delivery_beside_a_dead_event_is_redriven_alone(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_as_a_whole_and_for_one(store.as_ref(), &mut worker).await;
    let of_one = DlqFilter { subscription: Some(name("billing")), ..DlqFilter::default() };
    store.redrive_matching(id, of_one, at(500)).await.unwrap();
    assert_eq!(dead_for(store.as_ref(), id).await, [None], "the whole event stays dead");
    assert_eq!(detail(store.as_ref(), id).await.status, EventStatus::Dlq);
    let claimed = worker.claim_only(store.as_ref(), 500).await;
    assert_eq!(subscription_of(&claimed), Some("billing"));
    settle(store.as_ref(), claimed, done(501)).await;
    assert_eq!(stats(store.as_ref()).await, Stats { dlq: 1, ..Stats::default() });
}

pub(super) async fn a_filter_without_a_match_redrives_nothing(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = dead_for_three(store.as_ref(), &mut worker, 1).await;
    let of_billing = DlqFilter { subscription: Some(name("billing")), ..DlqFilter::default() };
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (store, filter) = (Arc::clone(store), of_billing.clone());
        tasks.spawn(async move { store.redrive_matching(id, filter, at(500)).await });
    }
    let answers = tasks.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
    let refused = |answer: &&Result<(), StoreError>| matches!(answer, Err(StoreError::NotDead { .. }));
    assert_eq!(answers.iter().filter(refused).count(), 7, "{answers:?}");

    // A delivery that was handled meanwhile is not repeated.
    let claimed = worker.claim_only(store.as_ref(), 500).await;
    settle(store.as_ref(), claimed, done(501)).await;
    let before = shown(store.as_ref(), id).await;
    for filter in [of_billing.clone(), DlqFilter { text: Some("unheard of".into()), ..DlqFilter::default() }]
    {
        let error = store.redrive_matching(id, filter, at(600)).await.unwrap_err();
        assert!(matches!(error, StoreError::NotDead { id: which, .. } if which == id), "{error}");
        assert_eq!(shown(store.as_ref(), id).await, before, "nothing is changed");
    }
    let unknown = EventId::new();
    let error = store.redrive_matching(unknown, of_billing, at(600)).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchEvent { id } if id == unknown), "{error}");
}
