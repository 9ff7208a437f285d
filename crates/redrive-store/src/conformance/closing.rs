//! Promises about a closed store.

use std::sync::Arc;

use super::scene::{Worker, at, done, event, name};
use crate::dead_letter::{DlqFilter, DlqPage, Redrive};
use crate::document::DocumentKey;
use crate::error::StoreError;
use crate::query::{EventFilter, EventPage, SubscriptionRow};
use crate::store::Store;
use crate::work::ClaimSink;

fn assert_closed<T: std::fmt::Debug>(what: &str, result: Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::Closed)), "{what} returns {result:?}");
}

pub(super) async fn a_closed_store_refuses_everything(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let id = worker.kill(store.as_ref(), event(1), 2, "no").await;
    let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
    store.close().await.unwrap();

    assert_closed("append", store.append(vec![event(2)]).await);
    assert_closed("append", store.append(vec![event(2), event(3)]).await);
    assert_closed("claim", store.claim(at(100)).await);
    assert_closed("claim_suspect", store.claim_suspect(at(100), ClaimSink::new(1).0).await);
    assert_closed("refresh_due", store.refresh_due().await);
    assert_closed("settle", store.settle(claimed, done(100)).await);
    assert_closed("heartbeat", store.heartbeat().await);
    assert_closed("recover", store.recover(at(100)).await);
    assert_closed("maintain", store.maintain(at(100), None).await);
    let subscription =
        SubscriptionRow { id: "id".into(), name: name("billing"), event_type: "*".into(), created_at: at(1) };
    assert_closed("register", store.register(subscription).await);
    assert_closed("unregister", store.unregister(name("billing"), at(100)).await);
    assert_closed("subscriptions", store.subscriptions().await);
    assert_closed("event", store.event(id).await);
    assert_closed("events", store.events(EventFilter::default(), EventPage::default()).await);
    let summaries = store.event_summaries(EventFilter::default(), EventPage::default()).await;
    assert_closed("event_summaries", summaries);
    assert_closed("depth", store.depth().await);
    assert_closed("stats", store.stats().await);
    assert_closed("dead_letters", store.dead_letters(DlqFilter::default(), DlqPage::default()).await);
    let summaries = store.dead_letter_summaries(DlqFilter::default(), DlqPage::default()).await;
    assert_closed("dead_letter_summaries", summaries);
    assert_closed("dead_letter", store.dead_letter(id).await);
    assert_closed("dead_groups", store.dead_groups(DlqFilter::default()).await);
    assert_closed("redrive", store.redrive(id, Redrive { at: at(100), payload: None }).await);
    let every = DlqFilter::default();
    assert_closed("redrive_matching", store.redrive_matching(id, every, at(100)).await);
    assert_closed("purge_dead", store.purge_dead(at(100)).await);
    assert_closed("purge_done", store.purge_done(at(100), 10).await);
    let key: DocumentKey = "token/a".parse().unwrap();
    assert_closed("create", store.create(key.clone(), "1".into()).await);
    assert_closed("document", store.document(key.clone()).await);
    assert_closed("documents", store.documents("token", None, 1).await);
    assert_closed("replace", store.replace(key.clone(), 1, "1".into()).await);
    assert_closed("remove", store.remove(key, None).await);
    assert_closed("versions", store.versions("token").await);
    // These methods cannot fail and do no harm.
    store.attach(None);
    store.due_hint();
    assert!(worker.handed_over().is_empty());
    assert_eq!(worker.sink.free_slots(), 10, "the refused settlement frees its slot");
}

pub(super) async fn closing_twice_is_harmless(store: &Arc<dyn Store>) {
    let (one, two) = tokio::join!(store.close(), store.close());
    one.unwrap();
    two.unwrap();
    store.close().await.unwrap();
}
