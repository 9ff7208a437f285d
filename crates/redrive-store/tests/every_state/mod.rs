//! Makes events in every state by three processes that die one after the other, and checks that a fourth one finishes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, Timestamp};
use redrive_store::{
    ClaimSink, Claimed, DlqFilter, DlqPage, EventFilter, EventId, EventPage, EventStatus, EventType,
    FailedAttempt, Metadata, NewEvent, Redrive, Routing, Settlement, Store, SubscriptionName,
    SubscriptionRow, Verdict,
};
use serde_json::Value;

/// Number of processes that die.
pub(crate) const LIVES: u32 = 3;

fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// Returns an instant at which all events are due.
fn later() -> Timestamp {
    now().plus_millis(24 * 3_600_000)
}

fn name(text: &str) -> SubscriptionName {
    SubscriptionName::new(text).unwrap()
}

pub(crate) fn event(n: u32) -> NewEvent {
    NewEvent {
        id: EventId::new(),
        event_type: EventType::new("order.created").unwrap(),
        payload: Arc::from(format!(r#"{{"n":{n}}}"#)),
        metadata: Metadata::from([("tenant".to_owned(), format!("t-{n}"))]),
        created_at: now(),
        due_at: now(),
        is_scheduled: false,
        retry: None,
        to: if n.is_multiple_of(4) {
            Routing::Each(vec![name("audit"), name("mail")])
        } else {
            Routing::Matching
        },
    }
}

fn settlement(claimed: &Claimed, verdict: Verdict, error: Option<&str>) -> Settlement {
    let failure = error.map(|error| FailedAttempt {
        subscription: claimed.subscription.clone().unwrap_or_else(|| name("mail")),
        started_at: now(),
        duration_ms: 5,
        class: FailureClass::Transient,
        delay_ms: 1000,
        error: error.to_owned(),
        record: Some(r#"{"version":1}"#.to_owned()),
        detail: None,
    });
    Settlement { failure, ..Settlement::new(now(), verdict) }
}

/// Runs one process up to its death. The returned claims have to live until then.
pub(crate) async fn live(store: &dyn Store, life: u32) -> Vec<Claimed> {
    store.recover(now()).await.unwrap();
    let (sink, mut claims) = ClaimSink::new(1000);
    store.attach(Some(sink));
    store.claim(now()).await.unwrap();
    store.append((0..40).map(event).collect()).await.unwrap();
    let (mut running, mut number) = (Vec::new(), 0);
    while let Ok(claimed) = claims.try_recv() {
        number += 1;
        let how = match number % 6 {
            _ if claimed.attempt > 1 => None,
            0 => None,
            1 => Some(settlement(&claimed, Verdict::Dead(DeadReason::Permanent), Some("never"))),
            2 => Some(settlement(
                &claimed,
                Verdict::Retry(now().plus_millis(3_600_000).into()),
                Some("not now"),
            )),
            3 => Some(Settlement {
                split_off: vec![(name("late"), later().into())],
                ..settlement(&claimed, Verdict::Done, None)
            }),
            _ => Some(settlement(&claimed, Verdict::Done, None)),
        };
        match how {
            Some(how) => drop(store.settle(claimed, how).await.unwrap()),
            None => running.push(claimed),
        }
    }
    store.attach(None);
    store.append((40..45).map(event).collect()).await.unwrap();
    let dead = store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
    let payload = Some("\"edited\"".to_owned());
    store.redrive(dead[0].id, Redrive { at: now(), payload }).await.unwrap();
    let row = SubscriptionRow {
        id: EventId::random().to_string(),
        name: name(&format!("mail-{life}")),
        event_type: "order.*".to_owned(),
        created_at: Timestamp::from_millis(now().as_millis()),
    };
    store.register(row).await.unwrap();
    running
}

/// Returns everything that a store shows.
#[derive(Debug, PartialEq)]
pub(crate) struct Picture {
    events: BTreeMap<String, Value>,
    dead: Vec<Value>,
    subscriptions: Vec<SubscriptionRow>,
}

pub(crate) async fn picture(store: &dyn Store) -> Picture {
    let mut events = BTreeMap::new();
    for listed in store.events(EventFilter::default(), EventPage { limit: 1000, after: None }).await.unwrap()
    {
        let shown = store.event(listed.id).await.unwrap();
        events.insert(listed.id.to_string(), serde_json::to_value(shown).unwrap());
    }
    let page = DlqPage { limit: 1000, ..DlqPage::default() };
    let dead = store.dead_letters(DlqFilter::default(), page).await.unwrap();
    let dead = dead.into_iter().map(|letter| serde_json::to_value(letter).unwrap()).collect();
    let subscriptions = store.subscriptions().await.unwrap();
    assert_eq!(events.len(), 45 * LIVES as usize);
    assert_eq!(subscriptions.len(), LIVES as usize);
    Picture { events, dead, subscriptions }
}

async fn all(store: &dyn Store, status: EventStatus) -> BTreeSet<EventId> {
    let filter = EventFilter { status: Some(status), ..EventFilter::default() };
    let listed = store.events(filter, EventPage { limit: 1000, after: None }).await.unwrap();
    listed.into_iter().map(|event| event.id).collect()
}

/// Handles all remaining work. No event is missing, and dead letters stay dead until they are redriven.
pub(crate) async fn handle_all(store: &dyn Store) {
    let letters = async || -> BTreeSet<EventId> {
        let page = DlqPage { limit: 1000, ..DlqPage::default() };
        let dead = store.dead_letters(DlqFilter::default(), page).await.unwrap();
        dead.into_iter().map(|letter| letter.id).collect()
    };
    let dead = letters().await;
    assert!(!dead.is_empty());
    assert!(!store.recover(now()).await.unwrap().is_empty(), "some were running");
    work(store).await;
    assert_eq!(letters().await, dead, "no further event is dead");
    assert_eq!(all(store, EventStatus::Dlq).await, dead);
    assert_eq!(all(store, EventStatus::Done).await.len() + dead.len(), 45 * LIVES as usize);
    for id in dead {
        store.redrive(id, Redrive { at: now(), payload: None }).await.unwrap();
    }
    work(store).await;
    assert_eq!(all(store, EventStatus::Done).await.len(), 45 * LIVES as usize);
}

async fn work(store: &dyn Store) {
    while let Some(claimed) = store.claim_suspect(later(), ClaimSink::new(1).0).await.unwrap() {
        store.settle(claimed, Settlement::new(now(), Verdict::Done)).await.unwrap();
    }
    let (sink, mut claims) = ClaimSink::new(1000);
    store.attach(Some(sink));
    while store.claim(later()).await.unwrap() > 0 {
        while let Ok(claimed) = claims.try_recv() {
            store.settle(claimed, Settlement::new(now(), Verdict::Done)).await.unwrap();
        }
    }
    store.attach(None);
}
