//! Promises about deliveries to single subscriptions: parked behind an open circuit, or named by the publisher.

use std::collections::BTreeSet;
use std::sync::Arc;

use redrive_retry::decision::DeadReason;

use super::scene::{
    Worker, append, at, dead, defer, depth, detail, done, event, name, of, retry, settle, split_off, stats,
    subscription_of, to_each,
};
use crate::dead_letter::{DlqFilter, DlqPage, Redrive};
use crate::event::{EventId, EventStatus, NewEvent};
use crate::query::{DeliveryRow, Depth, EventFilter, EventPage, Stats};
use crate::store::{Finished, Store};

fn delivery(
    subscription: &str,
    status: EventStatus,
    retry_count: u32,
    due: Option<i64>,
    errors: &[&str],
) -> DeliveryRow {
    DeliveryRow {
        subscription: name(subscription),
        status,
        retry_count,
        due_at: due.map(at),
        is_running: false,
        is_leased: false,
        errors: errors.iter().map(|error| (*error).to_owned()).collect(),
    }
}

/// Returns the deliveries sorted by name, because their order is not promised.
async fn deliveries(store: &dyn Store, id: EventId) -> Vec<DeliveryRow> {
    let mut rows = detail(store, id).await.deliveries;
    rows.sort_by(|one, other| one.subscription.cmp(&other.subscription));
    rows
}

async fn status(store: &dyn Store, id: EventId) -> EventStatus {
    detail(store, id).await.status
}

pub(super) async fn an_event_with_parked_deliveries_ends_with_the_last_of_them(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    let whole = Arc::clone(&claimed.event);
    let settlement = split_off(done(50), &[("billing", 5000), ("audit", 6000)]);
    assert_eq!(settle(store.as_ref(), claimed, settlement).await, Finished::NotYet);
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count, shown.due_at), (EventStatus::Processing, 0, None));
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [
            delivery("audit", EventStatus::Pending, 0, Some(6000), &[]),
            delivery("billing", EventStatus::Pending, 0, Some(5000), &[]),
        ]
    );
    assert_eq!(depth(store.as_ref()).await, Depth { open_deliveries: 2, ..Depth::default() });
    assert_eq!(stats(store.as_ref()).await, Stats { processing: 1, open_deliveries: 2, ..Stats::default() });

    assert!(worker.claim(store.as_ref(), 4999).await.is_empty(), "not before the circuit admits a probe");
    let claimed = worker.claim_only(store.as_ref(), 5000).await;
    assert_eq!((subscription_of(&claimed), claimed.attempt), (Some("billing"), 1), "no attempt was charged");
    assert_eq!(claimed.event, whole);
    assert_eq!(worker.sink.free_slots(), 9);
    assert_eq!(settle(store.as_ref(), claimed, done(5001)).await, Finished::NotYet);
    assert_eq!(worker.sink.free_slots(), 10);
    assert_eq!(deliveries(store.as_ref(), id).await[1], delivery("billing", EventStatus::Done, 0, None, &[]));
    assert_eq!(status(store.as_ref(), id).await, EventStatus::Processing);

    let claimed = worker.claim_only(store.as_ref(), 6000).await;
    assert_eq!(subscription_of(&claimed), Some("audit"));
    assert_eq!(settle(store.as_ref(), claimed, done(6001)).await, Finished::Done { retried: false });
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.updated_at, shown.due_at), (EventStatus::Done, at(6001), None));
    assert_eq!(stats(store.as_ref()).await, Stats { done: 1, ..Stats::default() });
}

pub(super) async fn a_delivery_shows_whether_it_is_running(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    let later = split_off(done(50), &[("audit", 100), ("billing", 5000)]);
    settle(store.as_ref(), claimed, later).await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    let running = async || {
        let rows = deliveries(store.as_ref(), id).await;
        rows.iter().map(|row| row.is_running).collect::<Vec<_>>()
    };
    assert_eq!(running().await, [true, false]);
    settle(store.as_ref(), claimed, retry(110, 200, "no")).await;
    assert_eq!(running().await, [false, false]);
}

pub(super) async fn a_parked_delivery_is_retried_on_its_own(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, split_off(done(50), &[("billing", 100)])).await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    let settlement = of("billing", retry(110, 200, "no answer"));
    assert_eq!(settle(store.as_ref(), claimed, settlement).await, Finished::NotYet);
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [delivery("billing", EventStatus::Processing, 1, Some(200), &["no answer"])]
    );
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.retry_count, shown.errors.as_slice()), (1, &["no answer".to_owned()][..]));
    assert_eq!(shown.attempts.len(), 1);
    assert_eq!((shown.attempts[0].subscription.as_str(), shown.attempts[0].attempt), ("billing", 1));
    assert!(worker.claim(store.as_ref(), 199).await.is_empty());
    let claimed = worker.claim_only(store.as_ref(), 200).await;
    assert_eq!((subscription_of(&claimed), claimed.attempt), (Some("billing"), 2));
    assert_eq!(settle(store.as_ref(), claimed, done(201)).await, Finished::Done { retried: true });
}

pub(super) async fn a_parked_delivery_keeps_the_attempts_of_its_event(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, retry(10, 50, "no answer")).await;
    let claimed = worker.claim_only(store.as_ref(), 50).await;
    settle(store.as_ref(), claimed, split_off(done(60), &[("billing", 100)])).await;
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [delivery("billing", EventStatus::Pending, 1, Some(100), &["no answer"])],
        "what was tried before the circuit opened counts"
    );
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!((subscription_of(&claimed), claimed.attempt), (Some("billing"), 2));
    assert_eq!(settle(store.as_ref(), claimed, done(101)).await, Finished::Done { retried: true });

    let (id, claimed) = worker.start(store.as_ref(), event(2)).await;
    settle(store.as_ref(), claimed, retry(110, 150, "no answer")).await;
    let claimed = worker.claim_only(store.as_ref(), 150).await;
    settle(
        store.as_ref(),
        claimed,
        split_off(dead(160, DeadReason::Permanent, "never"), &[("billing", 200)]),
    )
    .await;
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [delivery("billing", EventStatus::Pending, 0, Some(200), &[])],
        "but it starts over if the event has ended without it"
    );
    assert_eq!(worker.claim_only(store.as_ref(), 200).await.attempt, 1);
}

pub(super) async fn an_event_counts_the_failed_attempts_of_its_deliveries(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = append(store.as_ref(), vec![to_each(1, &["billing", "mail"])]).await.remove(0);
    for claimed in worker.handed_over() {
        let subscription = subscription_of(&claimed).unwrap().to_owned();
        settle(store.as_ref(), claimed, of(&subscription, retry(10, 50, &subscription))).await;
    }
    for claimed in worker.claim(store.as_ref(), 50).await {
        let settlement = match subscription_of(&claimed) {
            Some("billing") => of("billing", dead(60, DeadReason::Permanent, "no")),
            _ => done(60),
        };
        settle(store.as_ref(), claimed, settlement).await;
    }
    let mut shown = detail(store.as_ref(), id).await;
    shown.errors[..2].sort();
    assert_eq!((shown.status, shown.retry_count), (EventStatus::Dlq, 3));
    assert_eq!(shown.errors, ["billing", "mail", "no"]);
    let listed = store.events(EventFilter::default(), EventPage::default()).await.unwrap().remove(0);
    assert_eq!((listed.retry_count, listed.errors.len()), (3, 3), "also in lists");
}

pub(super) async fn an_event_counts_the_failed_attempts_before_and_after_it_was_parked(
    store: &Arc<dyn Store>,
) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, retry(10, 50, "first")).await;
    let claimed = worker.claim_only(store.as_ref(), 50).await;
    settle(store.as_ref(), claimed, split_off(done(60), &[("billing", 100)])).await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    settle(store.as_ref(), claimed, of("billing", retry(110, 200, "second"))).await;
    let claimed = worker.claim_only(store.as_ref(), 200).await;
    settle(store.as_ref(), claimed, of("billing", dead(210, DeadReason::AttemptsExhausted, "third"))).await;
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count), (EventStatus::Dlq, 3));
    assert_eq!(shown.errors, ["first", "second", "third"]);

    store.replay(id, name("billing"), at(300)).await.unwrap();
    let shown = detail(store.as_ref(), id).await;
    assert_eq!(shown.errors, ["first"], "a replay starts the delivery over");
}

pub(super) async fn a_claim_knows_the_errors_of_earlier_attempts(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
    assert_eq!(claimed.errors, None);
    settle(store.as_ref(), claimed, retry(10, 50, "first")).await;
    let claimed = worker.claim_only(store.as_ref(), 50).await;
    assert_eq!(claimed.errors.as_deref(), Some(&["first".to_owned()][..]));
    settle(store.as_ref(), claimed, split_off(done(60), &[("billing", 100)])).await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!(claimed.errors.as_deref(), Some(&["first".to_owned()][..]), "a delivery keeps them");
    settle(store.as_ref(), claimed, of("billing", retry(110, 200, "second"))).await;
    let claimed = worker.claim_only(store.as_ref(), 200).await;
    assert_eq!(claimed.errors.as_deref(), Some(&["first".to_owned(), "second".to_owned()][..]));
}

pub(super) async fn deferring_a_delivery_charges_no_attempt(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, split_off(done(50), &[("billing", 100)])).await;
    for round in 1..=3 {
        let claimed = worker.claim_only(store.as_ref(), round * 100).await;
        assert_eq!(claimed.attempt, 1);
        let settlement = defer(round * 100 + 1, (round + 1) * 100);
        assert_eq!(settle(store.as_ref(), claimed, settlement).await, Finished::NotYet);
    }
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [delivery("billing", EventStatus::Pending, 0, Some(400), &[])]
    );
}

pub(super) async fn a_dead_delivery_makes_the_event_dead(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, split_off(done(50), &[("audit", 300), ("billing", 100)])).await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    settle(store.as_ref(), claimed, of("billing", retry(110, 200, "no answer"))).await;
    let claimed = worker.claim_only(store.as_ref(), 200).await;
    let settlement = of("billing", dead(210, DeadReason::AttemptsExhausted, "still none"));
    assert_eq!(settle(store.as_ref(), claimed, settlement).await, Finished::NotYet, "another is open");
    assert_eq!(status(store.as_ref(), id).await, EventStatus::Processing);

    let letter = store.dead_letter(id).await.unwrap().remove(0);
    assert_eq!((letter.subscription, letter.retry_count), (Some(name("billing")), 2), "its own count");
    assert_eq!((letter.reason.as_str(), letter.dlq_at), ("attempts_exhausted", at(210)));
    assert_eq!(letter.errors, ["no answer", "still none"], "its own errors");
    assert_eq!(letter.attempts.len(), 2);

    let claimed = worker.claim_only(store.as_ref(), 300).await;
    assert_eq!(settle(store.as_ref(), claimed, done(301)).await, Finished::Dead { retried: true });
    assert_eq!(status(store.as_ref(), id).await, EventStatus::Dlq);
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [
            delivery("audit", EventStatus::Done, 0, None, &[]),
            delivery("billing", EventStatus::Dlq, 2, None, &["no answer", "still none"]),
        ]
    );
    assert_eq!(stats(store.as_ref()).await, Stats { dlq: 1, ..Stats::default() });
}

pub(super) async fn a_dead_event_still_delivers_its_parked_deliveries(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    let settlement = split_off(dead(50, DeadReason::Permanent, "bad address"), &[("billing", 100)]);
    assert_eq!(settle(store.as_ref(), claimed, settlement).await, Finished::Dead { retried: false });
    assert_eq!(status(store.as_ref(), id).await, EventStatus::Dlq);
    assert_eq!(stats(store.as_ref()).await, Stats { dlq: 1, open_deliveries: 1, ..Stats::default() });
    assert_eq!(store.purge_dead(at(1000)).await.unwrap(), 0, "a delivery is open");

    let claimed = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!((subscription_of(&claimed), claimed.event.id), (Some("billing"), id));
    assert_eq!(settle(store.as_ref(), claimed, done(101)).await, Finished::NotYet, "the event ended before");
    assert_eq!(status(store.as_ref(), id).await, EventStatus::Dlq);
    let letters = store.dead_letter(id).await.unwrap();
    assert_eq!((letters.len(), &letters[0].subscription), (1, &None));
    assert_eq!(store.purge_dead(at(1000)).await.unwrap(), 1);
}

pub(super) async fn an_event_is_claimed_for_each_named_subscription(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = append(store.as_ref(), vec![to_each(1, &["audit", "billing", "mail"])]).await.remove(0);
    let claims = worker.handed_over();
    let names: BTreeSet<_> =
        claims.iter().map(|claimed| subscription_of(claimed).unwrap().to_owned()).collect();
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["audit", "billing", "mail"]);
    assert!(claims.iter().all(|claimed| claimed.event.id == id && claimed.attempt == 1));
    assert_eq!(worker.sink.free_slots(), 7, "each delivery takes a slot");
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.due_at, shown.deliveries.len()), (EventStatus::Processing, None, 3));
    assert_eq!(stats(store.as_ref()).await, Stats { processing: 1, open_deliveries: 3, ..Stats::default() });

    let mut ends = Vec::new();
    for (when, claimed) in (10..).zip(claims) {
        ends.push(settle(store.as_ref(), claimed, done(when)).await);
    }
    assert_eq!(ends, [Finished::NotYet, Finished::NotYet, Finished::Done { retried: false }]);
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.updated_at), (EventStatus::Done, at(12)));
}

pub(super) async fn deliveries_without_a_slot_wait(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 2);
    let id = append(store.as_ref(), vec![to_each(1, &["audit", "billing", "mail"])]).await.remove(0);
    let mut claims = worker.handed_over();
    assert_eq!(claims.len(), 2);
    assert!(worker.claim(store.as_ref(), 100).await.is_empty());
    settle(store.as_ref(), claims.remove(0), done(10)).await;
    let third = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!((third.event.id, third.attempt), (id, 1));
    assert_ne!(subscription_of(&third), subscription_of(&claims[0]));

    store.attach(None);
    append(store.as_ref(), vec![to_each(2, &["audit", "billing"])]).await;
    assert_eq!(depth(store.as_ref()).await, Depth { open_deliveries: 4, ..Depth::default() });
    let mut worker = Worker::attach(store.as_ref(), 10);
    assert_eq!(worker.claim(store.as_ref(), 100).await.len(), 2, "also without a sink at first");
}

pub(super) async fn deliveries_are_due_at_the_due_time_of_the_event(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let new = NewEvent { due_at: at(500), ..to_each(1, &["audit", "billing"]) };
    let id = append(store.as_ref(), vec![new]).await.remove(0);
    assert!(worker.handed_over().is_empty());
    assert_eq!(store.due_hint().next(), Some(at(500)));
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [
            delivery("audit", EventStatus::Pending, 0, Some(500), &[]),
            delivery("billing", EventStatus::Pending, 0, Some(500), &[]),
        ]
    );
    assert!(worker.claim(store.as_ref(), 499).await.is_empty());
    assert_eq!(worker.claim(store.as_ref(), 500).await.len(), 2);
}

pub(super) async fn each_subscription_is_retried_on_its_own(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = append(store.as_ref(), vec![to_each(1, &["audit", "billing"])]).await.remove(0);
    for claimed in worker.handed_over() {
        match subscription_of(&claimed) {
            Some("audit") => settle(store.as_ref(), claimed, done(10)).await,
            _ => settle(store.as_ref(), claimed, of("billing", retry(10, 100, "no"))).await,
        };
    }
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!(
        (subscription_of(&claimed), claimed.attempt),
        (Some("billing"), 2),
        "a done delivery is not repeated"
    );
    let settlement = of("billing", dead(110, DeadReason::AttemptsExhausted, "no again"));
    assert_eq!(settle(store.as_ref(), claimed, settlement).await, Finished::Dead { retried: true });
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [
            delivery("audit", EventStatus::Done, 0, None, &[]),
            delivery("billing", EventStatus::Dlq, 2, None, &["no", "no again"]),
        ]
    );
}

pub(super) async fn a_delivery_that_dies_at_its_first_attempt_was_not_retried(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    append(store.as_ref(), vec![to_each(1, &["billing"])]).await;
    let settlement = of("billing", dead(10, DeadReason::Permanent, "gone"));
    let finished = settle(store.as_ref(), worker.only(), settlement).await;
    assert_eq!(finished, Finished::Dead { retried: false });
}

/// Makes a dead event with an open delivery, redriven and claimed again.
async fn redriven_beside_a_parked_delivery(store: &dyn Store, worker: &mut Worker) -> EventId {
    let (id, claimed) = worker.start(store, event(1)).await;
    let settlement = split_off(dead(50, DeadReason::Permanent, "bad address"), &[("billing", 1000)]);
    settle(store, claimed, settlement).await;
    store.redrive(id, Redrive { at: at(100), payload: None }).await.unwrap();
    id
}

pub(super) async fn an_event_is_done_only_when_no_delivery_is_open(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = redriven_beside_a_parked_delivery(store.as_ref(), &mut worker).await;
    for now in [100, 1000] {
        for claimed in worker.claim(store.as_ref(), now).await {
            settle(store.as_ref(), claimed, done(now + 1)).await;
            let shown = detail(store.as_ref(), id).await;
            let open =
                shown.deliveries.iter().filter(|delivery| delivery.status != EventStatus::Done).count();
            assert!(
                shown.status != EventStatus::Done || open == 0,
                "done, with {open} delivery open: {shown:?}"
            );
        }
    }
    assert_eq!(stats(store.as_ref()).await, Stats { done: 1, ..Stats::default() }, "then the event is done");
}

pub(super) async fn a_delivery_that_dies_beside_a_redriven_event_can_be_redriven(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = redriven_beside_a_parked_delivery(store.as_ref(), &mut worker).await;
    for now in [100, 1000] {
        for claimed in worker.claim(store.as_ref(), now).await {
            let settlement = match subscription_of(&claimed) {
                None => done(now + 1),
                Some(subscription) => of(subscription, dead(now + 1, DeadReason::Permanent, "gone")),
            };
            settle(store.as_ref(), claimed, settlement).await;
        }
    }
    let letters = store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
    if letters.is_empty() {
        assert_eq!(status(store.as_ref(), id).await, EventStatus::Done, "no delivery is dead");
        return;
    }
    assert_eq!(status(store.as_ref(), id).await, EventStatus::Dlq, "it has a dead letter");
    store.redrive(id, Redrive { at: at(2000), payload: None }).await.unwrap();
    assert_eq!(subscription_of(&worker.claim_only(store.as_ref(), 2000).await), Some("billing"));
}

pub(super) async fn an_event_ends_if_its_parked_delivery_died_meanwhile(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = redriven_beside_a_parked_delivery(store.as_ref(), &mut worker).await;
    let whole = worker.claim_only(store.as_ref(), 100).await;
    let single = worker.claim_only(store.as_ref(), 1000).await;
    assert_eq!((subscription_of(&whole), subscription_of(&single)), (None, Some("billing")));
    settle(store.as_ref(), single, of("billing", dead(1001, DeadReason::Permanent, "gone"))).await;
    let finished = settle(store.as_ref(), whole, split_off(done(1002), &[("billing", 2000)])).await;
    assert!(matches!(finished, Finished::Dead { .. }), "{finished:?}: the dead delivery stays dead");
    assert_eq!(status(store.as_ref(), id).await, EventStatus::Dlq);
    store.redrive(id, Redrive { at: at(3000), payload: None }).await.unwrap();
    assert_eq!(subscription_of(&worker.claim_only(store.as_ref(), 3000).await), Some("billing"));
}

pub(super) async fn a_delivery_that_is_parked_again_starts_over(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, split_off(dead(50, DeadReason::Permanent, "no"), &[("billing", 100)]))
        .await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    settle(store.as_ref(), claimed, of("billing", retry(110, 200, "not yet"))).await;
    let claimed = worker.claim_only(store.as_ref(), 200).await;
    settle(store.as_ref(), claimed, done(201)).await;

    store.redrive(id, Redrive { at: at(300), payload: None }).await.unwrap();
    let claimed = worker.claim_only(store.as_ref(), 300).await;
    assert_eq!(subscription_of(&claimed), None, "a done delivery is not repeated");
    assert_eq!(
        settle(store.as_ref(), claimed, split_off(done(301), &[("billing", 400)])).await,
        Finished::NotYet
    );
    assert_eq!(
        deliveries(store.as_ref(), id).await,
        [delivery("billing", EventStatus::Pending, 0, Some(400), &[])],
        "a new debt, with all its attempts"
    );
    assert_eq!(worker.claim_only(store.as_ref(), 400).await.attempt, 1);
}

pub(super) async fn deliveries_due_at_the_same_time_are_claimed_in_the_order_of_storing(
    store: &Arc<dyn Store>,
) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
    let settlement = split_off(done(2), &[("mail", 50), ("billing", 50), ("audit", 50)]);
    settle(store.as_ref(), claimed, settlement).await;
    store.attach(None);
    append(store.as_ref(), vec![NewEvent { due_at: at(50), ..to_each(3, &["ship", "count"]) }]).await;
    store.attach(Some(worker.sink.clone()));
    let claims = worker.claim(store.as_ref(), 50).await;
    let order: Vec<_> = claims.iter().filter_map(subscription_of).collect();
    assert_eq!(order, ["mail", "billing", "audit", "ship", "count"]);
}
