//! For how long an endpoint has been failing, across restarts and processes.
//!
//! A document says so while it fails, and is gone when it does not. It is written at most once a minute for each endpoint, and not
//! for a failure that is over within one: most are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use redrive::Timestamp;
use redrive_store::{DocumentKey, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::endpoint::EndpointId;

pub(crate) const KIND: &str = "health";

/// What has failed for so long is given up.
const TOO_LONG: Duration = Duration::from_secs(5 * 24 * 3600);

/// And only if it was seen failing so often: once a minute counts.
const OFTEN: u32 = 5;

/// How often it is written down.
const EVERY: Duration = Duration::from_secs(60);

/// What this process knows of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Since the first failure after the last success; 0 for none.
    failing_since: AtomicI64,
    /// When it was last told.
    told_at: AtomicI64,
    /// Whether it is on record as failing.
    is_on_record: AtomicBool,
}

/// What is worth being written down.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It has been failing since then.
    Failing(Timestamp),
    /// It works again.
    Works,
}

impl Health {
    /// An attempt has failed.
    pub(crate) fn failed(&self, now: Timestamp) -> Option<News> {
        let now = now.as_millis();
        let _ = self.failing_since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        let since = self.failing_since.load(Ordering::Acquire);
        let every = i64::try_from(EVERY.as_millis()).unwrap_or(i64::MAX);
        let told = self.told_at.load(Ordering::Acquire);
        if since == 0 || now - since.max(told) < every {
            return None;
        }
        let is_mine = self.told_at.compare_exchange(told, now, Ordering::AcqRel, Ordering::Acquire).is_ok();
        is_mine.then_some(News::Failing(Timestamp::from_millis(since)))
    }

    /// An attempt has succeeded.
    pub(crate) fn succeeded(&self) -> Option<News> {
        // Most of the time there is nothing to write, not even here.
        if self.failing_since.load(Ordering::Acquire) != 0 {
            self.failing_since.store(0, Ordering::Release);
        }
        let is_on_record = self.is_on_record.load(Ordering::Acquire);
        (is_on_record && self.is_on_record.swap(false, Ordering::AcqRel)).then_some(News::Works)
    }

    /// It is on record as failing, or not, by whomever. If it was and is not any more, it has worked for somebody else.
    pub(crate) fn learn(&self, is_on_record: bool) {
        if self.is_on_record.swap(is_on_record, Ordering::AcqRel) && !is_on_record {
            self.failing_since.store(0, Ordering::Release);
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    failing_since: Timestamp,
    /// How often it was written down.
    told: u32,
}

fn key(id: &EndpointId) -> DocumentKey {
    DocumentKey::new(KIND, id.as_str()).expect("an id of an endpoint is one of a document")
}

/// Which endpoints are on record as failing.
pub(crate) async fn on_record(store: &Arc<dyn Store>) -> Result<Vec<String>, StoreError> {
    Ok(store.versions(KIND).await?.into_iter().map(|(key, _)| key.id().to_owned()).collect())
}

/// Writes down that it fails, and says since when if that is too long.
pub(crate) async fn failing(
    store: &Arc<dyn Store>,
    id: &EndpointId,
    since: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let Some(document) = store.document(key(id)).await? else {
        let body = serde_json::json!({"failing_since": since, "told": 1}).to_string();
        return match store.create(key(id), body).await {
            Ok(_) | Err(StoreError::DocumentTaken { .. }) => Ok(None),
            Err(error) => Err(error),
        };
    };
    // What somebody has made something else of begins anew.
    let record = serde_json::from_str(&document.body).unwrap_or(Record { failing_since: since, told: 0 });
    let record = Record { told: record.told.saturating_add(1), ..record };
    if record.told >= OFTEN && store.clock().now().since(record.failing_since) >= TOO_LONG {
        return Ok(Some(record.failing_since));
    }
    let body = serde_json::to_string(&record).expect("numbers always serialise");
    match store.replace(key(id), document.version, body).await {
        Ok(_) | Err(StoreError::DocumentChanged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Since when it has been failing, if that is on record.
pub(crate) async fn failing_since(
    store: &Arc<dyn Store>,
    id: &EndpointId,
) -> Result<Option<Timestamp>, StoreError> {
    let document = store.document(key(id)).await?;
    Ok(document.and_then(|document| {
        serde_json::from_str::<Record>(&document.body).ok().map(|record| record.failing_since)
    }))
}

/// It works, or somebody gives it another chance.
pub(crate) async fn works(store: &Arc<dyn Store>, id: &EndpointId) -> Result<(), StoreError> {
    store.remove(key(id), None).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_767_225_600_000 + seconds * 1000)
    }

    #[test]
    fn a_failure_that_is_soon_over_is_nobodys_business() {
        let health = Health::default();
        assert_eq!(health.failed(at(0)), None);
        assert_eq!(health.failed(at(59)), None);
        assert_eq!(health.succeeded(), None, "nothing was written down");
        assert_eq!(health.failed(at(70)), None, "it begins anew");
        assert_eq!(health.failed(at(130)), Some(News::Failing(at(70))));
        assert_eq!(health.failed(at(131)), None, "once a minute");
        assert_eq!(health.failed(at(190)), Some(News::Failing(at(70))));
        health.learn(true);
        assert_eq!(health.succeeded(), Some(News::Works));
        assert_eq!(health.succeeded(), None);
    }

    #[test]
    fn what_works_for_another_process_begins_anew_here() {
        let health = Health::default();
        assert_eq!(health.failed(at(0)), None);
        assert_eq!(health.failed(at(60)), Some(News::Failing(at(0))));
        health.learn(true);
        health.learn(true);
        health.learn(false);
        assert_eq!(health.failed(at(120)), None);
        assert_eq!(health.failed(at(180)), Some(News::Failing(at(120))));
    }

    #[tokio::test]
    async fn five_days_without_a_success_are_too_long_across_restarts() {
        let time = redrive::VirtualTime::new();
        let options = redrive::SqliteOptions { clock: time.clock(), ..redrive::SqliteOptions::default() };
        let store: Arc<dyn Store> = Arc::new(redrive::SqliteStore::open(":memory:", options).unwrap());
        let id = EndpointId::generate();
        let since = time.now();
        let day = Duration::from_secs(24 * 3600);
        for _ in 0..5 {
            assert_eq!(failing(&store, &id, time.now()).await.unwrap(), None, "not yet");
            time.advance(day);
        }
        // Whoever tells it may have been started a moment ago; the first failure is on record.
        assert_eq!(failing_since(&store, &id).await.unwrap(), Some(since));
        assert_eq!(failing(&store, &id, time.now()).await.unwrap(), Some(since));
        assert_eq!(on_record(&store).await.unwrap(), [id.as_str()]);
        works(&store, &id).await.unwrap();
        assert_eq!(failing_since(&store, &id).await.unwrap(), None);
        // Two failures with a long pause between them are not five days of failing.
        assert_eq!(failing(&store, &id, time.now()).await.unwrap(), None);
        time.advance(day * 30);
        assert_eq!(failing(&store, &id, time.now()).await.unwrap(), None);
    }
}
