//! Fixtures of the suite: events, a worker that receives claims, and settlements.

use std::sync::Arc;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, Timestamp};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::event::{EventId, EventType, Metadata, NewEvent, Routing, SubscriptionName};
use crate::query::{Depth, EventDetail, Stats};
use crate::store::{Appended, Finished, Store};
use crate::work::{ClaimSink, Claimed, FailedAttempt, Settlement, Verdict};

/// Returns the instant this many milliseconds after the start of a test.
pub(super) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_767_225_600_000 + millis)
}

pub(super) fn name(text: &str) -> SubscriptionName {
    SubscriptionName::new(text).unwrap()
}

pub(super) fn event_type(text: &str) -> EventType {
    EventType::new(text).unwrap()
}

/// Makes an event that is due when it is published.
pub(super) fn event(created: i64) -> NewEvent {
    NewEvent {
        id: EventId::new(),
        event_type: event_type("order.created"),
        payload: Arc::from(format!(r#"{{"created":{created}}}"#)),
        metadata: Metadata::new(),
        created_at: at(created),
        due_at: at(created),
        is_scheduled: false,
        retry: None,
        to: Routing::Matching,
    }
}

pub(super) fn later(created: i64, due: i64) -> NewEvent {
    NewEvent { due_at: at(due), ..event(created) }
}

pub(super) fn to_each(created: i64, names: &[&str]) -> NewEvent {
    NewEvent { to: Routing::Each(names.iter().map(|text| name(text)).collect()), ..event(created) }
}

/// Appends new events and returns their ids.
pub(super) async fn append(store: &dyn Store, events: Vec<NewEvent>) -> Vec<EventId> {
    let ids: Vec<_> = events.iter().map(|event| event.id).collect();
    let answers = store.append(events).await.unwrap();
    assert_eq!(answers, vec![Appended::New; ids.len()], "all are new");
    ids
}

/// Receives claims and returns them for settling.
pub(super) struct Worker {
    pub(super) sink: ClaimSink,
    claims: UnboundedReceiver<Claimed>,
}

impl Worker {
    /// Attaches a sink with this many slots.
    pub(super) fn attach(store: &dyn Store, slots: usize) -> Self {
        let (sink, claims) = ClaimSink::new(slots);
        store.attach(Some(sink.clone()));
        Worker { sink, claims }
    }

    /// Returns the claims handed over so far.
    pub(super) fn handed_over(&mut self) -> Vec<Claimed> {
        std::iter::from_fn(|| self.claims.try_recv().ok()).collect()
    }

    /// Returns the only claim that was handed over.
    pub(super) fn only(&mut self) -> Claimed {
        let mut claims = self.handed_over();
        assert_eq!(claims.len(), 1, "one claim is handed over: {claims:?}");
        claims.remove(0)
    }

    /// Claims due work, and checks the number that the store returns.
    pub(super) async fn claim(&mut self, store: &dyn Store, now: i64) -> Vec<Claimed> {
        let count = store.claim(at(now)).await.unwrap();
        let claims = self.handed_over();
        assert_eq!(claims.len(), count, "the store returns the number of claims");
        claims
    }

    /// Claims the only delivery that is due.
    pub(super) async fn claim_only(&mut self, store: &dyn Store, now: i64) -> Claimed {
        let mut claims = self.claim(store, now).await;
        assert_eq!(claims.len(), 1, "one delivery is due at {now}: {claims:?}");
        claims.remove(0)
    }

    /// Publishes one event, which is claimed while it is stored.
    pub(super) async fn start(&mut self, store: &dyn Store, event: NewEvent) -> (EventId, Claimed) {
        let id = append(store, vec![event]).await.remove(0);
        (id, self.only())
    }

    /// Publishes one event and dead-letters it at its first attempt.
    pub(super) async fn kill(
        &mut self,
        store: &dyn Store,
        event: NewEvent,
        when: i64,
        error: &str,
    ) -> EventId {
        let (id, claimed) = self.start(store, event).await;
        let finished = settle(store, claimed, dead(when, DeadReason::Permanent, error)).await;
        assert!(matches!(finished, Finished::Dead { .. }), "{finished:?}");
        id
    }
}

pub(super) async fn settle(store: &dyn Store, claimed: Claimed, settlement: Settlement) -> Finished {
    store.settle(claimed, settlement).await.unwrap()
}

pub(super) fn done(when: i64) -> Settlement {
    Settlement::new(at(when), Verdict::Done)
}

pub(super) fn defer(when: i64, until: i64) -> Settlement {
    Settlement { verdict: Verdict::Defer(at(until).into()), ..done(when) }
}

pub(super) fn retry(when: i64, until: i64, error: &str) -> Settlement {
    Settlement {
        verdict: Verdict::Retry(at(until).into()),
        failure: Some(failure(when, error)),
        ..done(when)
    }
}

pub(super) fn dead(when: i64, reason: DeadReason, error: &str) -> Settlement {
    Settlement { verdict: Verdict::Dead(reason), failure: Some(failure(when, error)), ..done(when) }
}

pub(super) fn split_off(settlement: Settlement, deliveries: &[(&str, i64)]) -> Settlement {
    Settlement {
        split_off: deliveries
            .iter()
            .map(|(subscription, until)| (name(subscription), at(*until).into()))
            .collect(),
        ..settlement
    }
}

/// Makes an attempt of the subscription `shipping` that took 25 ms and failed at this time.
pub(super) fn failure(when: i64, error: &str) -> FailedAttempt {
    FailedAttempt {
        subscription: name("shipping"),
        started_at: at(when - 25),
        duration_ms: 25,
        class: FailureClass::Transient,
        delay_ms: 1000,
        error: error.to_owned(),
        record: Some(r#"{"v":1,"because":"it failed"}"#.to_owned()),
        detail: None,
    }
}

/// Changes the subscription of the failed attempt.
pub(super) fn of(subscription: &str, settlement: Settlement) -> Settlement {
    let failure =
        settlement.failure.map(|failure| FailedAttempt { subscription: name(subscription), ..failure });
    Settlement { failure, ..settlement }
}

/// Returns all fields of an event as JSON, for comparisons.
pub(super) async fn shown(store: &dyn Store, id: EventId) -> serde_json::Value {
    serde_json::to_value(detail(store, id).await).unwrap()
}

pub(super) async fn detail(store: &dyn Store, id: EventId) -> EventDetail {
    store.event(id).await.unwrap()
}

/// Returns the counts without the sizes, which differ between stores.
pub(super) async fn stats(store: &dyn Store) -> Stats {
    Stats { file_bytes: 0, wal_bytes: 0, ..store.stats().await.unwrap() }
}

/// Returns the depth without the sizes.
pub(super) async fn depth(store: &dyn Store) -> Depth {
    Depth { file_bytes: 0, wal_bytes: 0, ..store.depth().await.unwrap() }
}

/// Returns the subscription of a claim.
pub(super) fn subscription_of(claimed: &Claimed) -> Option<&str> {
    claimed.subscription.as_ref().map(SubscriptionName::as_str)
}
