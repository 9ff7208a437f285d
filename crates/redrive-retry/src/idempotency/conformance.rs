//! Conformance suite of idempotency stores.
//!
//! ```text
//! exercise(&MyHarness::new()).await; // panics at the first violated rule
//! ```

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::{
    ABANDONED_AFTER, Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyStore, KeyState,
    OwnerToken,
};
use crate::category::Category;
use crate::clock::Clock;
use crate::failure::BoxError;
use crate::manager::{OnConflict, RetryManager};

const LEASE: Duration = Duration::from_secs(10);
const KEEP: Duration = Duration::from_secs(3600);

/// A store under test with control over its clock.
pub trait StoreHarness: Sync {
    /// Store under test.
    fn store(&self) -> Arc<dyn IdempotencyStore>;

    /// Advances the *store's* clock.
    fn elapse(&self, duration: Duration) -> impl Future<Output = ()> + Send;
}

/// Checks every rule. Each rule uses its own keys, so the store may hold others.
pub async fn exercise(harness: &impl StoreHarness) {
    an_absent_key_is_acquired_and_shows_as_in_progress(harness).await;
    a_second_owner_sees_in_progress(harness).await;
    a_repeated_claim_of_one_owner_succeeds(harness).await;
    a_completed_key_returns_its_result_to_every_caller(harness).await;
    a_result_keeps_its_metadata(harness).await;
    another_payload_is_refused_and_the_record_unchanged(harness).await;
    a_failed_call_releases_the_key(harness).await;
    a_released_key_is_absent(harness).await;
    an_expired_lease_is_taken_over_and_the_late_owner_is_fenced(harness).await;
    a_renewed_lease_holds(harness).await;
    a_duplicate_cannot_release_a_key_that_it_does_not_own(harness).await;
    a_result_expires_when_read(harness).await;
    reap_never_deletes_a_record_in_progress(harness).await;
    an_abandoned_key_is_free_after_a_day(harness).await;
    a_cleared_key_is_free(harness).await;
    two_hundred_concurrent_callers_run_the_side_effect_once(harness).await;
}

/// Checks a store that several processes share, each with its own handle: exactly one of many concurrent callers claims a key,
/// also after a dead owner, and all callers get its result.
pub async fn race(handles: &[Arc<dyn IdempotencyStore>]) {
    for round in 0..20 {
        let key = key("race");
        if round % 2 == 1 {
            handles[0].begin(&key, print("payload"), OwnerToken::new(), Duration::ZERO).await.expect("begin");
        }
        let mut callers = JoinSet::new();
        for caller in 0..handles.len() * 4 {
            let (store, key) = (Arc::clone(&handles[caller % handles.len()]), key.clone());
            callers.spawn(async move {
                let owner = OwnerToken::new();
                let answer = store.begin(&key, print("payload"), owner, LEASE).await.expect("begin");
                (answer == Begin::Acquired).then_some(owner)
            });
        }
        let owners: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
        assert_eq!(owners.len(), 1, "one owner in round {round}");
        let other = &handles[handles.len() - 1];
        other.complete(&key, owners[0], "7", None, KEEP).await.expect("complete");
        for store in handles {
            let answer = begin_as_other(store.as_ref(), &key).await;
            assert_eq!(answer, Begin::Completed { result: "7".into() }, "round {round}");
        }
    }
}

fn key(rule: &str) -> IdempotencyKey {
    // Unique, so that the suite can run repeatedly on one durable store.
    IdempotencyKey::new(format!("{rule}/{}", OwnerToken::new())).expect("a valid key")
}

fn print(text: &str) -> Fingerprint {
    Fingerprint::of(&text).expect("text has a fingerprint")
}

async fn acquire(store: &dyn IdempotencyStore, key: &IdempotencyKey) -> OwnerToken {
    let owner = OwnerToken::new();
    assert_eq!(
        store.begin(key, print("payload"), owner, LEASE).await.expect("begin"),
        Begin::Acquired,
        "{key}"
    );
    owner
}

async fn begin_as_other(store: &dyn IdempotencyStore, key: &IdempotencyKey) -> Begin {
    store.begin(key, print("payload"), OwnerToken::new(), LEASE).await.expect("begin")
}

fn assert_lease_lost(result: Result<(), IdempotencyError>, what: &str) {
    assert!(
        matches!(result, Err(IdempotencyError::LeaseLost { .. })),
        "{what} must be refused, was {result:?}"
    );
}

async fn an_absent_key_is_acquired_and_shows_as_in_progress(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("absent"));
    assert_eq!(store.get(&key).await.expect("get"), None);
    let owner = acquire(store.as_ref(), &key).await;
    let record = store.get(&key).await.expect("get").expect("a record");
    assert!(matches!(record.state, KeyState::InProgress { owner: holder, .. } if holder == owner));
    assert_eq!(record.fingerprint, print("payload"));
}

async fn a_second_owner_sees_in_progress(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("second"));
    acquire(store.as_ref(), &key).await;
    assert!(matches!(begin_as_other(store.as_ref(), &key).await, Begin::InProgress { .. }));
}

async fn a_repeated_claim_of_one_owner_succeeds(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("again"));
    let owner = acquire(store.as_ref(), &key).await;
    let again = store.begin(&key, print("payload"), owner, LEASE).await.expect("begin");
    assert_eq!(again, Begin::Acquired, "the first answer may have been lost");
}

async fn a_completed_key_returns_its_result_to_every_caller(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("completed"));
    let owner = acquire(store.as_ref(), &key).await;
    let result = r#"{"paid":true,"note":"é"}"#;
    store.complete(&key, owner, result, None, KEEP).await.expect("complete");
    for _ in 0..2 {
        assert_eq!(begin_as_other(store.as_ref(), &key).await, Begin::Completed { result: result.into() });
    }
    assert_lease_lost(store.complete(&key, owner, "2", None, KEEP).await, "completing twice");
    // The result null counts as a result.
    let null = self::key("null");
    let owner = acquire(store.as_ref(), &null).await;
    store.complete(&null, owner, "null", None, KEEP).await.expect("complete");
    assert_eq!(begin_as_other(store.as_ref(), &null).await, Begin::Completed { result: "null".into() });
}

async fn a_result_keeps_its_metadata(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("metadata"));
    let owner = acquire(store.as_ref(), &key).await;
    store.complete(&key, owner, "1", Some(r#"{"by":"worker-7"}"#), KEEP).await.expect("complete");
    let record = store.get(&key).await.expect("get").expect("a record");
    let KeyState::Completed { result, metadata, .. } = record.state else { panic!("{record:?}") };
    assert_eq!((result.as_str(), metadata.as_deref()), ("1", Some(r#"{"by":"worker-7"}"#)));
}

async fn another_payload_is_refused_and_the_record_unchanged(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("payload"));
    let owner = acquire(store.as_ref(), &key).await;
    let begin = || store.begin(&key, print("other"), OwnerToken::new(), LEASE);
    let mismatch = Begin::OtherPayload { stored: print("payload") };
    let before = store.get(&key).await.expect("get");
    assert_eq!(begin().await.expect("begin"), mismatch);
    assert_eq!(store.get(&key).await.expect("get"), before, "unchanged while in progress");
    store.complete(&key, owner, "1", None, KEEP).await.expect("complete");
    let before = store.get(&key).await.expect("get");
    assert_eq!(begin().await.expect("begin"), mismatch);
    assert_eq!(store.get(&key).await.expect("get"), before, "unchanged when completed");
}

async fn a_failed_call_releases_the_key(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("failed"));
    let owner = acquire(store.as_ref(), &key).await;
    store.release(&key, owner, Some("card declined"), KEEP).await.expect("release");
    let record = store.get(&key).await.expect("get").expect("visible");
    assert!(matches!(&record.state, KeyState::Failed { error, .. } if error == "card declined"));
    let next = store.begin(&key, print("corrected payload"), OwnerToken::new(), LEASE).await.expect("begin");
    assert_eq!(next, Begin::Acquired, "the next caller runs, even with another payload");
}

async fn a_released_key_is_absent(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("released"));
    let owner = acquire(store.as_ref(), &key).await;
    store.release(&key, owner, None, KEEP).await.expect("release");
    assert_eq!(store.get(&key).await.expect("get"), None);
    assert_lease_lost(store.complete(&key, owner, "1", None, KEEP).await, "completing after the release");
}

async fn an_expired_lease_is_taken_over_and_the_late_owner_is_fenced(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("takeover"));
    let dead = acquire(store.as_ref(), &key).await;
    harness.elapse(LEASE).await;
    let successor = acquire(store.as_ref(), &key).await;
    assert_lease_lost(store.complete(&key, dead, "\"late\"", None, KEEP).await, "the late owner's result");
    assert_lease_lost(store.extend(&key, dead, LEASE).await, "the late owner's renewal");
    assert_lease_lost(store.release(&key, dead, None, KEEP).await, "the late owner's release");
    store.complete(&key, successor, "\"successor\"", None, KEEP).await.expect("the successor completes");
    assert_eq!(
        begin_as_other(store.as_ref(), &key).await,
        Begin::Completed { result: "\"successor\"".into() }
    );
}

async fn a_renewed_lease_holds(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("renewed"));
    let owner = acquire(store.as_ref(), &key).await;
    harness.elapse(LEASE * 3 / 4).await;
    store.extend(&key, owner, LEASE).await.expect("extend");
    harness.elapse(LEASE * 3 / 4).await;
    assert!(matches!(begin_as_other(store.as_ref(), &key).await, Begin::InProgress { .. }));
    store.complete(&key, owner, "1", None, KEEP).await.expect("complete");
}

async fn a_duplicate_cannot_release_a_key_that_it_does_not_own(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("duplicate"));
    let owner = acquire(store.as_ref(), &key).await;
    let duplicate = OwnerToken::new();
    assert!(matches!(
        store.begin(&key, print("payload"), duplicate, LEASE).await,
        Ok(Begin::InProgress { .. })
    ));
    assert_lease_lost(store.release(&key, duplicate, None, KEEP).await, "a duplicate's release");
    store.abandon(&key, duplicate);
    store.complete(&key, owner, "1", None, KEEP).await.expect("the owner still holds it");
}

async fn a_result_expires_when_read(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("expires"));
    let owner = acquire(store.as_ref(), &key).await;
    store.complete(&key, owner, "1", None, Duration::from_secs(5)).await.expect("complete");
    harness.elapse(Duration::from_secs(5)).await;
    assert_eq!(store.get(&key).await.expect("get"), None, "without a reaper");
    assert_eq!(begin_as_other(store.as_ref(), &key).await, Begin::Acquired);
}

async fn reap_never_deletes_a_record_in_progress(harness: &impl StoreHarness) {
    let (store, done, running) = (harness.store(), key("reaped"), key("running"));
    let owner = acquire(store.as_ref(), &done).await;
    store.complete(&done, owner, "1", None, Duration::from_secs(5)).await.expect("complete");
    let kept = key("kept");
    let keeper = acquire(store.as_ref(), &kept).await;
    store.complete(&kept, keeper, "1", None, KEEP).await.expect("complete");
    let owner = acquire(store.as_ref(), &running).await;
    harness.elapse(Duration::from_secs(6)).await;
    while store.reap(100).await.expect("reap") > 0 {}
    assert!(store.get(&kept).await.expect("get").is_some(), "not expired yet");
    store.complete(&running, owner, "1", None, KEEP).await.expect("still there");
}

async fn an_abandoned_key_is_free_after_a_day(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("abandoned"));
    acquire(store.as_ref(), &key).await;
    let other = || store.begin(&key, print("other"), OwnerToken::new(), LEASE);
    harness.elapse(LEASE).await;
    let soon = other().await.expect("begin");
    assert_eq!(soon, Begin::OtherPayload { stored: print("payload") }, "the effect may have happened");
    harness.elapse(ABANDONED_AFTER).await;
    assert_eq!(store.get(&key).await.expect("get"), None);
    assert_eq!(other().await.expect("begin"), Begin::Acquired);
}

async fn a_cleared_key_is_free(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("cleared"));
    let owner = acquire(store.as_ref(), &key).await;
    assert!(store.clear(&key).await.expect("clear"));
    assert!(!store.clear(&key).await.expect("clear"), "nothing left to clear");
    assert_lease_lost(store.complete(&key, owner, "1", None, KEEP).await, "completing after the clear");
    acquire(store.as_ref(), &key).await;
}

async fn two_hundred_concurrent_callers_run_the_side_effect_once(harness: &impl StoreHarness) {
    let (store, key) = (harness.store(), key("two hundred"));
    let manager = RetryManager::builder().idempotency_store(store).clock(Clock::system()).build();
    let runs = Arc::new(AtomicU32::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..200 {
        let (manager, key, runs) = (manager.clone(), key.clone(), Arc::clone(&runs));
        callers.spawn(async move {
            manager
                .execute(&Category::ApiRequest, "charge card")
                .idempotent(key)
                .on_conflict(OnConflict::Wait(Duration::from_secs(60)))
                .run(|_attempt| {
                    let runs = Arc::clone(&runs);
                    async move {
                        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
                        // The other callers arrive while the key is in progress.
                        for _ in 0..50 {
                            tokio::task::yield_now().await;
                        }
                        Ok::<u32, BoxError>(run)
                    }
                })
                .await
        });
    }
    while let Some(result) = callers.join_next().await {
        let value = result.expect("no caller panics").expect("every caller gets the result");
        assert_eq!(value, 1, "every caller gets the result of the one run");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1, "two hundred concurrent callers, one side effect");
}
