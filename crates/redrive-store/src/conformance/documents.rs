//! Promises about documents.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::Restart;
use crate::document::DocumentKey;
use crate::error::StoreError;
use crate::store::Store;

fn key(text: &str) -> DocumentKey {
    text.parse().unwrap()
}

pub(super) async fn a_document_is_stored_and_read_back(store: &Arc<dyn Store>) {
    let body = r#"{"name":"ключ \"1\"","n":1.10}"#;
    let before = store.clock().now();
    let made = store.create(key("token/a"), body.into()).await.unwrap();
    assert_eq!((made.key.as_str(), made.version, made.body.as_str()), ("token/a", 1, body));
    // The offset to the clock of a server is known to the millisecond only.
    assert!(made.created_at.plus_millis(1000) >= before && made.updated_at == made.created_at, "{made:?}");
    assert_eq!(store.document(key("token/a")).await.unwrap(), Some(made));
    assert_eq!(store.document(key("token/b")).await.unwrap(), None);
}

pub(super) async fn a_document_key_is_unique(store: &Arc<dyn Store>) {
    store.create(key("token/a"), "1".into()).await.unwrap();
    let again = store.create(key("token/a"), "1".into()).await;
    assert!(
        matches!(&again, Err(StoreError::DocumentTaken { key }) if key.as_str() == "token/a"),
        "{again:?}"
    );
    assert_eq!(store.document(key("token/a")).await.unwrap().unwrap().body, "1");
}

pub(super) async fn a_change_increments_the_version(store: &Arc<dyn Store>) {
    let made = store.create(key("token/a"), "1".into()).await.unwrap();
    let changed = store.replace(key("token/a"), 1, "2".into()).await.unwrap();
    assert_eq!((changed.version, changed.body.as_str(), changed.created_at), (2, "2", made.created_at));
    assert!(changed.updated_at >= made.updated_at);
    assert_eq!(store.document(key("token/a")).await.unwrap(), Some(changed));
}

pub(super) async fn a_change_based_on_an_old_version_is_refused(store: &Arc<dyn Store>) {
    store.create(key("token/a"), "1".into()).await.unwrap();
    store.replace(key("token/a"), 1, "2".into()).await.unwrap();
    let is_late = |error: Option<StoreError>, present| {
        assert!(
            matches!(&error, Some(StoreError::DocumentChanged { version, .. }) if *version == present),
            "{error:?}"
        );
    };
    is_late(store.replace(key("token/a"), 1, "3".into()).await.err(), Some(2));
    is_late(store.replace(key("token/a"), 3, "3".into()).await.err(), Some(2));
    is_late(store.replace(key("token/a"), u64::MAX, "3".into()).await.err(), Some(2));
    is_late(store.remove(key("token/a"), Some(1)).await.err(), Some(2));
    is_late(store.replace(key("token/b"), 1, "3".into()).await.err(), None);
    assert_eq!(store.document(key("token/a")).await.unwrap().unwrap().body, "2");
}

pub(super) async fn only_one_of_concurrent_changes_to_a_version_succeeds(store: &Arc<dyn Store>) {
    store.create(key("token/a"), "0".into()).await.unwrap();
    for version in 1..=20 {
        let mut writers = JoinSet::new();
        for writer in 1..=4 {
            let store = Arc::clone(store);
            writers.spawn(async move { store.replace(key("token/a"), version, writer.to_string()).await });
        }
        let ended = writers.join_all().await;
        let winner = ended.iter().filter_map(|result| result.as_ref().ok()).collect::<Vec<_>>();
        assert_eq!(winner.len(), 1, "{ended:?}");
        assert_eq!(store.document(key("token/a")).await.unwrap().as_ref(), Some(winner[0]));
        let losers = ended.iter().filter(|result| {
            matches!(result, Err(StoreError::DocumentChanged { version: Some(present), .. }) if *present == version + 1)
        });
        assert_eq!(losers.count(), 3, "{ended:?}");
    }
}

pub(super) async fn a_removed_document_is_gone(store: &Arc<dyn Store>) {
    store.create(key("token/a"), "1".into()).await.unwrap();
    store.create(key("token/b"), "1".into()).await.unwrap();
    assert!(store.remove(key("token/a"), Some(1)).await.unwrap());
    assert!(store.remove(key("token/b"), None).await.unwrap());
    assert!(!store.remove(key("token/a"), Some(1)).await.unwrap());
    assert!(!store.remove(key("token/b"), None).await.unwrap());
    assert_eq!(store.document(key("token/a")).await.unwrap(), None);
    assert!(store.versions("token").await.unwrap().is_empty());
}

pub(super) async fn documents_are_listed_by_kind_in_the_order_of_their_keys(store: &Arc<dyn Store>) {
    for text in ["token/b", "token/A", "token/a", "token/-", "token/_", "endpoint/a", "tokens/a", "toke/n"] {
        store.create(key(text), "1".into()).await.unwrap();
    }
    store.replace(key("token/a"), 1, "2".into()).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let page = store.documents("token", seen.last().cloned(), 2).await.unwrap();
        let Some(_) = page.last() else { break };
        assert!(page.len() <= 2);
        seen.extend(page.into_iter().map(|document| document.key));
    }
    let expected = ["token/-", "token/A", "token/_", "token/a", "token/b"].map(key);
    assert_eq!(seen, expected);
    let versions = store.versions("token").await.unwrap();
    assert_eq!(versions, expected.map(|key| (key.clone(), if key.id() == "a" { 2 } else { 1 })));
    assert_eq!(store.documents("token", Some(key("endpoint/z")), 1).await.unwrap()[0].key, key("token/-"));
    assert!(store.documents("token", Some(key("tokens/a")), 1).await.unwrap().is_empty());
}

pub(super) async fn a_body_that_is_too_large_or_no_json_is_refused(store: &Arc<dyn Store>) {
    store.create(key("token/a"), "1".into()).await.unwrap();
    let large = format!("\"{}\"", "x".repeat(256 << 10));
    let too_large = |error| assert!(matches!(error, Some(StoreError::DocumentTooLarge { .. })), "{error:?}");
    too_large(store.create(key("token/b"), large.clone()).await.err());
    too_large(store.replace(key("token/a"), 1, large).await.err());
    let not_json = |error| assert!(matches!(error, Some(StoreError::DocumentNotJson { .. })), "{error:?}");
    not_json(store.create(key("token/b"), "{".into()).await.err());
    not_json(store.replace(key("token/a"), 1, "\0".into()).await.err());
    let largest = format!("\"{}\"", "x".repeat((256 << 10) - 2));
    assert_eq!(store.create(key("token/b"), largest.clone()).await.unwrap().body, largest);
}

pub(super) async fn documents_survive_a_restart(harness: &mut impl Restart) {
    harness.store().create(key("token/a"), "1".into()).await.unwrap();
    let changed = harness.store().replace(key("token/a"), 1, "2".into()).await.unwrap();
    harness.restart().await;
    assert_eq!(harness.store().document(key("token/a")).await.unwrap(), Some(changed));
}
