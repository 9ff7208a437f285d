//! Promises about looking events up.

use std::collections::HashSet;
use std::sync::Arc;

use redrive_retry::decision::DeadReason;

use super::scene::{Worker, append, dead, done, event, event_type, later, retry, settle};
use crate::error::StoreError;
use crate::event::{EventId, EventStatus, EventType, NewEvent};
use crate::query::{EventDetail, EventFilter, EventPage};
use crate::store::Store;

async fn listed(
    store: &dyn Store,
    status: Option<EventStatus>,
    event_type: Option<EventType>,
) -> Vec<EventId> {
    let filter = EventFilter { status, event_type };
    store.events(filter, EventPage::default()).await.unwrap().iter().map(|shown| shown.id).collect()
}

pub(super) async fn an_unknown_event_is_not_found(store: &Arc<dyn Store>) {
    append(store.as_ref(), vec![event(1)]).await;
    let unknown = EventId::new();
    let error = store.event(unknown).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchEvent { id } if id == unknown), "{error}");
}

pub(super) async fn events_are_listed_newest_first(store: &Arc<dyn Store>) {
    let mut ids = append(store.as_ref(), (0..5).map(event).collect()).await;
    ids.extend(append(store.as_ref(), (5..8).map(event).collect()).await);
    ids.reverse();
    assert_eq!(listed(store.as_ref(), None, None).await, ids);
    let page = EventPage { limit: 3, after: None };
    let first = store.events(EventFilter::default(), page).await.unwrap();
    assert_eq!(first.iter().map(|shown| shown.id).collect::<Vec<_>>(), ids[..3]);
    assert_eq!(first[0].payload.get(), r#"{"created":7}"#, "with its payload");
    append(store.as_ref(), (8..200).map(event).collect()).await;
    assert_eq!(listed(store.as_ref(), None, None).await.len(), 100, "a hundred by default");
}

pub(super) async fn events_are_filtered_by_status_and_type(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let of_type = |text: &str, new: NewEvent| NewEvent { event_type: event_type(text), ..new };
    let (done_id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, done(10)).await;
    let (waiting, claimed) = worker.start(store.as_ref(), event(2)).await;
    settle(store.as_ref(), claimed, retry(10, 5000, "no")).await;
    let (running, _claimed) = worker.start(store.as_ref(), event(3)).await;
    let (dead_id, claimed) = worker.start(store.as_ref(), of_type("order.shipped", event(4))).await;
    settle(store.as_ref(), claimed, dead(10, DeadReason::Permanent, "no")).await;
    let pending = append(store.as_ref(), vec![of_type("order.shipped", later(5, 9000))]).await.remove(0);

    let (created, shipped) = (event_type("order.created"), event_type("order.shipped"));
    for (status, kind, expected) in [
        (None, None, vec![pending, dead_id, running, waiting, done_id]),
        (Some(EventStatus::Pending), None, vec![pending]),
        (Some(EventStatus::Processing), None, vec![running, waiting]),
        (Some(EventStatus::Done), None, vec![done_id]),
        (Some(EventStatus::Dlq), None, vec![dead_id]),
        (None, Some(&created), vec![running, waiting, done_id]),
        (None, Some(&shipped), vec![pending, dead_id]),
        (Some(EventStatus::Dlq), Some(&shipped), vec![dead_id]),
        (Some(EventStatus::Dlq), Some(&created), vec![]),
        (None, Some(&event_type("order")), vec![]),
    ] {
        assert_eq!(listed(store.as_ref(), status, kind.cloned()).await, expected, "{status:?} {kind:?}");
    }
    let list = store.events(EventFilter::default(), EventPage::default()).await.unwrap();
    assert!(list.iter().all(|shown| shown.attempts.is_empty()), "attempts are shown for a single event");
}

pub(super) async fn pages_show_each_event_once_while_more_are_published(store: &Arc<dyn Store>) {
    let ids: HashSet<_> = append(store.as_ref(), (0..100).map(event).collect()).await.into_iter().collect();
    let mut page = EventPage { limit: 7, after: None };
    let mut seen = Vec::new();
    loop {
        let list = store.events(EventFilter::default(), page).await.unwrap();
        assert!(list.len() <= 7);
        let Some(last) = list.last() else { break };
        page.after = Some(last.cursor);
        seen.extend(list.iter().map(|shown| shown.id));
        append(store.as_ref(), vec![event(1000)]).await;
    }
    assert_eq!(seen.len(), 100, "each once, and newer events do not shift the pages");
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), ids);
}

/// Returns all fields but the payload as JSON, for comparisons.
fn all_but_payload<P>(shown: &EventDetail<P>) -> serde_json::Value {
    let EventDetail { id, event_type, payload: _, metadata, status, retry_count, errors, .. } = shown;
    let EventDetail { created_at, updated_at, due_at, deliveries, attempts, cursor, .. } = shown;
    serde_json::json!([
        [id, event_type, metadata, status, retry_count, errors],
        [created_at, updated_at, due_at, deliveries, attempts, cursor],
    ])
}

pub(super) async fn event_summaries_have_every_field_but_the_payload(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let metadata = [("tenant".to_owned(), "acme".to_owned())].into_iter().collect();
    let (_, claimed) = worker.start(store.as_ref(), NewEvent { metadata, ..event(1) }).await;
    settle(store.as_ref(), claimed, retry(10, 5000, "no")).await;
    let (_, claimed) = worker.start(store.as_ref(), event(2)).await;
    settle(store.as_ref(), claimed, dead(10, DeadReason::Permanent, "no")).await;
    append(store.as_ref(), (3..9).map(|created| later(created, 9000)).collect()).await;
    for (status, count) in [(None, 8), (Some(EventStatus::Dlq), 1)] {
        let filter = EventFilter { status, event_type: None };
        let whole = store.events(filter.clone(), EventPage::default()).await.unwrap();
        let short = store.event_summaries(filter.clone(), EventPage::default()).await.unwrap();
        assert_eq!((whole.len(), short.len()), (count, count));
        for (whole, short) in whole.iter().zip(&short) {
            assert_eq!(all_but_payload(whole), all_but_payload(short));
        }
        let page = EventPage { limit: 2, after: Some(short[0].cursor) };
        let next = store.event_summaries(filter, page).await.unwrap();
        let expected: Vec<_> = short[1..].iter().take(2).map(|shown| shown.id).collect();
        assert_eq!(next.iter().map(|shown| shown.id).collect::<Vec<_>>(), expected);
    }
}
