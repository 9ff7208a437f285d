//! Promises about leases of pull consumers.

use std::sync::Arc;

use redrive_retry::Timestamp;

use super::Restart;
use super::scene::{
    Worker, append, at, depth, detail, done, name, of, retry, settle, subscription_of, to_each,
};
use crate::event::{EventId, EventStatus};
use crate::lease::LeaseToken;
use crate::query::Depth;
use crate::store::{Finished, Leases, Store};
use crate::work::{ClaimSink, Claimed, Settlement, Verdict};

/// Leases a claimed delivery until this time, and returns the token.
async fn lease(store: &dyn Store, claimed: Claimed, when: i64, until: i64) -> LeaseToken {
    let token = claimed.new_lease().unwrap();
    let settlement = Settlement { verdict: Verdict::Lease { token, until: at(until) }, ..done(when) };
    assert_eq!(settle(store, claimed, settlement).await, Finished::NotYet);
    token
}

/// Publishes an event for the subscription `billing`, and leases its delivery.
async fn leased(store: &dyn Store, worker: &mut Worker, until: i64) -> (EventId, LeaseToken) {
    let (id, claimed) = worker.start(store, to_each(1, &["billing"])).await;
    assert_eq!(claimed.leased_at, None);
    (id, lease(store, claimed, 5, until).await)
}

fn of_billing(tokens: &[LeaseToken]) -> Leases {
    Leases { names: vec![name("other"), name("billing")], tokens: tokens.to_vec() }
}

async fn claim_leased(store: &dyn Store, tokens: &[LeaseToken], now: i64) -> Vec<Option<Claimed>> {
    let sink = ClaimSink::new(100).0;
    store.claim_leased(of_billing(tokens), at(now), sink).await.unwrap()
}

async fn claim_one(store: &dyn Store, token: LeaseToken, now: i64) -> Option<Claimed> {
    claim_leased(store, &[token], now).await.remove(0)
}

async fn extend(store: &dyn Store, token: LeaseToken, now: i64, until: i64) -> bool {
    store.extend_leases(of_billing(&[token]), at(now), at(until)).await.unwrap() == [true]
}

fn leased_at(claimed: &Claimed) -> Option<Timestamp> {
    claimed.leased_at
}

pub(super) async fn a_leased_delivery_is_claimed_for_its_consumer_once(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let (id, token) = leased(store, &mut worker, 1000).await;
    let claimed = claim_one(store, token, 20).await.unwrap();
    assert_eq!((subscription_of(&claimed), claimed.attempt), (Some("billing"), 1));
    assert_eq!((claimed.event.id, leased_at(&claimed)), (id, Some(at(5))));
    assert_eq!(claimed.started_at, at(5), "the attempt began with the lease");
    assert!(claim_one(store, token, 20).await.is_none(), "it is claimed once");
    assert_eq!(settle(store, claimed, done(30)).await, Finished::Done { retried: false });
    assert!(claim_one(store, token, 40).await.is_none(), "it is settled");
    assert!(worker.handed_over().is_empty(), "claims for a consumer do not go to the sink");
}

pub(super) async fn a_leased_delivery_occupies_no_slot_and_is_in_processing(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 1);
    let (id, _) = leased(store, &mut worker, 1000).await;
    assert_eq!(worker.sink.free_slots(), 1);
    let delivery = detail(store, id).await.deliveries.remove(0);
    assert_eq!((delivery.status, delivery.retry_count), (EventStatus::Processing, 0));
    assert_eq!(delivery.due_at, Some(at(1000)));
    assert!(delivery.is_leased && !delivery.is_running);
    assert_eq!(depth(store).await, Depth { open_deliveries: 1, ..Depth::default() });
    assert!(store.waiting(at(20), at(0)).await.unwrap().subscriptions.is_empty(), "it does not wait");
    let due = store.waiting(at(2000), at(0)).await.unwrap().subscriptions.remove(0);
    assert_eq!((due.due, due.parked, due.retrying, due.backlogged), (1, 0, 0, 0), "its lease has ended");
}

pub(super) async fn a_lease_that_has_ended_is_claimed_like_other_due_work(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let (id, token) = leased(store, &mut worker, 1000).await;
    assert!(worker.claim(store, 999).await.is_empty(), "the consumer has it");
    store.due_hint().set(None);
    assert_eq!(store.refresh_due().await.unwrap(), Some(at(1000)));
    assert!(claim_one(store, token, 1000).await.is_none(), "too late");
    assert!(!extend(store, token, 1000, 3000).await, "too late");
    let claimed = worker.claim_only(store, 1000).await;
    assert_eq!((claimed.event.id, claimed.attempt, leased_at(&claimed)), (id, 1, Some(at(5))));
    assert!(claim_one(store, token, 20).await.is_none(), "it is claimed");
    settle(store, claimed, of("billing", retry(1001, 1002, "no ack"))).await;
    assert!(claim_one(store, token, 20).await.is_none(), "the lease is over");
    let again = worker.claim_only(store, 1002).await;
    assert_eq!((again.attempt, leased_at(&again)), (2, None), "it was not leased since");
    assert_eq!(settle(store, again, done(1003)).await, Finished::Done { retried: true });
}

pub(super) async fn an_extended_lease_ends_later(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let (_, token) = leased(store, &mut worker, 1000).await;
    assert!(extend(store, token, 900, 5000).await);
    assert!(worker.claim(store, 4999).await.is_empty());
    assert!(extend(store, token, 4999, 5500).await, "as often as wanted");
    store.due_hint().set(None);
    assert!(extend(store, token, 5000, 5400).await, "also to an earlier time");
    assert!(store.due_hint().next().is_some_and(|next| next <= at(5400)), "which the hint knows");
    assert!(worker.claim(store, 5399).await.is_empty());
    assert_eq!(leased_at(&worker.claim_only(store, 5400).await), Some(at(5)));
    assert!(!extend(store, token, 5400, 9000).await);
}

pub(super) async fn a_lease_has_one_token(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let (_, first) = leased(store, &mut worker, 1000).await;
    let other = LeaseToken::new(first.delivery);
    let unknown = LeaseToken::new(first.delivery + 1);
    assert!(claim_leased(store, &[other, unknown], 20).await.iter().all(Option::is_none));
    assert!(!extend(store, other, 20, 3000).await && !extend(store, unknown, 20, 3000).await);
    let of_others = Leases { names: vec![name("other")], tokens: vec![first] };
    let none = store.claim_leased(of_others.clone(), at(20), ClaimSink::new(1).0).await.unwrap();
    assert!(none[0].is_none(), "of another subscription");
    assert_eq!(store.extend_leases(of_others, at(20), at(3000)).await.unwrap(), [false]);

    // A later lease of the same delivery has another token.
    let claimed = claim_one(store, first, 20).await.unwrap();
    settle(store, claimed, of("billing", retry(21, 30, "nacked"))).await;
    let second = {
        let claimed = worker.claim_only(store, 30).await;
        lease(store, claimed, 31, 1000).await
    };
    assert_ne!(first, second);
    assert!(claim_one(store, first, 40).await.is_none(), "the first lease is over");
    assert!(!extend(store, first, 40, 9000).await);
    let claimed = claim_leased(store, &[first, second, first], 40).await;
    let found: Vec<_> = claimed.iter().map(|claimed| claimed.as_ref().and_then(leased_at)).collect();
    assert_eq!(found, [None, Some(at(31)), None], "in one request, too");
}

pub(super) async fn many_leases_are_ended_at_once_in_the_order_of_the_tokens(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    append(store, (1..=5).map(|created| to_each(created, &["billing"])).collect()).await;
    let (mut tokens, mut ids) = (Vec::new(), Vec::new());
    for claimed in worker.handed_over() {
        ids.push(claimed.event.id);
        tokens.push(lease(store, claimed, 9, 1000).await);
    }
    tokens.reverse();
    tokens.insert(1, LeaseToken::new(i64::MAX));
    tokens.push(tokens[0]);
    let claimed = claim_leased(store, &tokens, 20).await;
    let found: Vec<_> = claimed.iter().map(|claimed| claimed.as_ref().map(|one| one.event.id)).collect();
    ids.reverse();
    let mut expected: Vec<_> = ids.into_iter().map(Some).collect();
    expected.insert(1, None);
    expected.push(None); // the token that was given twice
    assert_eq!(found, expected);
    for claimed in claimed.into_iter().flatten() {
        assert_eq!(settle(store, claimed, done(30)).await, Finished::Done { retried: false });
    }
}

pub(super) async fn consumers_that_share_a_token_end_the_lease_once(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    for _ in 0..10 {
        let (_, token) = leased(store.as_ref(), &mut worker, 1000).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let store = Arc::clone(store);
            tasks.spawn(async move { claim_one(store.as_ref(), token, 20).await });
        }
        let claimed: Vec<Claimed> = tasks.join_all().await.into_iter().flatten().collect();
        assert_eq!(claimed.len(), 1);
    }
}

pub(super) async fn extensions_and_acks_of_the_same_leases_do_not_block_each_other(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 50);
    append(store.as_ref(), (1..=40).map(|created| to_each(created, &["billing"])).collect()).await;
    let mut tokens = Vec::new();
    for claimed in worker.handed_over() {
        tokens.push(lease(store.as_ref(), claimed, 50, 10_000).await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (store, mut tokens) = (Arc::clone(store), tokens.clone());
        if number % 2 == 0 {
            tokens.reverse();
        }
        tasks.spawn(async move {
            for _ in 0..20 {
                store.extend_leases(of_billing(&tokens), at(60), at(20_000)).await.unwrap();
            }
            claim_leased(store.as_ref(), &tokens, 70).await.into_iter().flatten().count()
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 40, "each is claimed once");
}

pub(super) async fn a_leased_delivery_is_not_deferred_to_the_backlog(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    leased(store, &mut worker, 1000).await;
    assert_eq!(store.defer_to_backlog(vec![name("billing")], at(2000)).await.unwrap(), [0]);
    assert_eq!(
        leased_at(&worker.claim_only(store, 2000).await),
        Some(at(5)),
        "its attempt has to be charged"
    );
}

pub(super) async fn a_lease_survives_a_restart<H: Restart>(harness: &mut H) {
    let (first, second) = {
        let store = harness.store().as_ref();
        let mut worker = Worker::attach(store, 10);
        let (_, first) = leased(store, &mut worker, 10_000).await;
        (first, leased(store, &mut worker, 1000).await.1)
    };
    harness.restart().await;
    let store = harness.store().as_ref();
    assert!(store.recover(at(500)).await.unwrap().is_empty(), "nothing was running");
    let mut worker = Worker::attach(store, 10);
    assert!(extend(store, first, 600, 20_000).await);
    let claimed = worker.claim_only(store, 15_000).await;
    assert_eq!((claimed.key.row(), claimed.attempt), (second.delivery, 1), "the other lease has ended");
    let claimed = claim_one(store, first, 15_001).await.unwrap();
    assert_eq!(settle(store, claimed, done(15_002)).await, Finished::Done { retried: false });
}

pub(super) async fn an_ack_that_a_crash_interrupted_is_recovered<H: Restart>(harness: &mut H) {
    let token = {
        let store = harness.store().as_ref();
        let mut worker = Worker::attach(store, 10);
        let (_, token) = leased(store, &mut worker, 10_000).await;
        let claimed = claim_one(store, token, 20).await.unwrap();
        std::mem::forget(claimed); // neither settled nor dropped
        token
    };
    harness.restart().await;
    let store = harness.store().as_ref();
    assert_eq!(store.recover(at(500)).await.unwrap().len(), 1);
    assert!(claim_one(store, token, 600).await.is_none(), "the lease is over");
    let claimed = Worker::attach(store, 10).claim_only(store, 600).await;
    assert_eq!((claimed.attempt, leased_at(&claimed)), (2, None));
}
