//! Promises about the subscriptions that handled an event at an earlier attempt.

use std::sync::Arc;

use redrive_retry::decision::DeadReason;

use super::Restart;
use super::scene::{Worker, append, at, dead, done, event, name, retry, settle, split_off};
use crate::dead_letter::Redrive;
use crate::event::EventId;
use crate::store::{Finished, Store};
use crate::work::{Claimed, Settlement};

fn by(names: &[&str], settlement: Settlement) -> Settlement {
    Settlement { handled: names.iter().map(|text| name(text)).collect(), ..settlement }
}

/// Returns the names in alphabetical order.
fn handled(claimed: &Claimed) -> Vec<&str> {
    let mut names: Vec<_> = claimed.handled.iter().map(|name| name.as_str()).collect();
    names.sort_unstable();
    names
}

async fn redrive(store: &dyn Store, id: EventId, when: i64, payload: Option<&str>) {
    let payload = payload.map(str::to_owned);
    store.redrive(id, Redrive { at: at(when), payload }).await.unwrap();
}

pub(super) async fn a_retry_knows_the_subscriptions_that_handled_the_event(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let (_, claimed) = worker.start(store, event(1)).await;
    assert!(claimed.handled.is_empty(), "no subscription before the first attempt");
    settle(store, claimed, retry(10, 20, "none")).await;
    let claimed = worker.claim_only(store, 20).await;
    assert!(claimed.handled.is_empty());
    settle(store, claimed, by(&["mail", "größe \"7\""], retry(30, 40, "one is left"))).await;
    let claimed = worker.claim_only(store, 40).await;
    assert_eq!(handled(&claimed), ["größe \"7\"", "mail"]);
    settle(store, claimed, retry(50, 60, "nothing new")).await;
    let claimed = worker.claim_only(store, 60).await;
    assert_eq!(handled(&claimed), ["größe \"7\"", "mail"], "the names are kept");
    settle(store, claimed, by(&["audit", "mail"], retry(70, 80, "one more"))).await;
    let claimed = worker.claim_only(store, 80).await;
    assert_eq!(handled(&claimed), ["audit", "größe \"7\"", "mail"], "each once");
    let finished = settle(store, claimed, by(&["billing"], done(90))).await;
    assert_eq!(finished, Finished::Done { retried: true });
}

pub(super) async fn handled_subscriptions_are_kept_per_event(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let ids = append(store, vec![event(1), event(2), event(3)]).await;
    for claimed in worker.handed_over() {
        let is_second = claimed.event.id == ids[1];
        let end = retry(10, 20, "again");
        settle(store, claimed, if is_second { by(&["mail"], end) } else { end }).await;
    }
    for claimed in worker.claim(store, 20).await {
        assert_eq!(handled(&claimed) == ["mail"], claimed.event.id == ids[1]);
    }
}

pub(super) async fn a_redrive_knows_the_subscriptions_that_handled_the_event(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let (id, claimed) = worker.start(store, event(1)).await;
    settle(store, claimed, by(&["mail"], retry(10, 20, "no"))).await;
    let claimed = worker.claim_only(store, 20).await;
    settle(store, claimed, by(&["audit"], dead(30, DeadReason::AttemptsExhausted, "no"))).await;
    redrive(store, id, 100, None).await;
    let claimed = worker.claim_only(store, 100).await;
    assert_eq!((claimed.attempt, handled(&claimed)), (1, vec!["audit", "mail"]));
    settle(store, claimed, dead(110, DeadReason::Permanent, "no")).await;
    redrive(store, id, 200, Some("7")).await;
    let claimed = worker.claim_only(store, 200).await;
    assert!(claimed.handled.is_empty(), "no subscription has handled the new payload: {:?}", claimed.handled);
}

pub(super) async fn a_redrive_skips_subscriptions_with_a_delivery_of_their_own(store: &Arc<dyn Store>) {
    let store = store.as_ref();
    let mut worker = Worker::attach(store, 10);
    let (id, claimed) = worker.start(store, event(1)).await;
    let end = dead(10, DeadReason::Permanent, "no");
    settle(store, claimed, by(&["mail"], split_off(end, &[("billing", 20), ("audit", 90_000)]))).await;
    let billing = worker.claim_only(store, 20).await;
    settle(store, billing, done(30)).await;
    redrive(store, id, 100, None).await;
    let claimed = worker.claim_only(store, 100).await;
    assert_eq!(handled(&claimed), ["audit", "billing", "mail"]);
    settle(store, claimed, dead(110, DeadReason::Permanent, "no")).await;

    redrive(store, id, 200, Some("7")).await;
    let claimed = worker.claim_only(store, 200).await;
    assert_eq!(handled(&claimed), ["audit"], "an open delivery gets the new payload");
    settle(store, claimed, dead(210, DeadReason::Permanent, "no")).await;
    redrive(store, id, 300, None).await;
    let claimed = worker.claim_only(store, 300).await;
    assert_eq!(handled(&claimed), ["audit"], "the done delivery had the old payload");
}

pub(super) async fn a_restart_keeps_the_subscriptions_that_handled_the_event(harness: &mut impl Restart) {
    let store = harness.store().as_ref();
    let mut worker = Worker::attach(store, 10);
    let (_, claimed) = worker.start(store, event(1)).await;
    settle(store, claimed, by(&["mail"], retry(10, 20, "no"))).await;
    for died in [0, 1] {
        harness.restart().await;
        let store = harness.store().as_ref();
        let recovered = store.recover(at(1000)).await.unwrap();
        assert_eq!(recovered.len(), died);
        let claimed = Worker::attach(store, 10).claim_only(store, 1000).await;
        assert_eq!(handled(&claimed), ["mail"]);
        drop(claimed); // the process dies during the attempt
    }
}

pub(super) async fn a_late_settlement_adds_no_handled_subscription(harness: &mut impl Restart) {
    let mut worker = Worker::attach(harness.store().as_ref(), 10);
    let (_, late) = worker.start(harness.store().as_ref(), event(1)).await;
    harness.restart().await;
    let store = harness.store().as_ref();
    store.recover(at(1000)).await.unwrap();
    let mut worker = Worker::attach(store, 10);
    let claimed = worker.claim_only(store, 1000).await;
    let late = settle(store, late, by(&["mail"], retry(1001, 1002, "late"))).await;
    assert_eq!(late, Finished::Fenced);
    settle(store, claimed, retry(1010, 1020, "no")).await;
    assert!(worker.claim_only(store, 1020).await.handled.is_empty());
}
