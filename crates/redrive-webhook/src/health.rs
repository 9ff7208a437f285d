//! Tracks for how long an endpoint has been failing, across restarts and processes.
//!
//! A document per failing endpoint holds the time of its first failure; a success deletes it. It is written at most once a minute, and
//! not at all for failures that end within a minute.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use redrive::retry::Timestamp;
use redrive_store::{DocumentKey, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::endpoint::EndpointId;

pub(crate) const KIND: &str = "health";

/// An endpoint that fails for this long is disabled.
const DISABLE_AFTER: Duration = Duration::from_secs(5 * 24 * 3600);

/// Minimum number of recorded failures before an endpoint is disabled.
const MIN_RECORDED: u32 = 5;

/// Minimum time between two writes for one endpoint.
const RECORD_INTERVAL: Duration = Duration::from_secs(60);

/// In-memory health of one endpoint, as seen by this process.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Time of the first failure since the last success, in milliseconds; 0 for none.
    failing_since: AtomicI64,
    /// Time of the last reported failure.
    reported_at: AtomicI64,
    /// Whether the database has a document for this endpoint.
    is_on_record: AtomicBool,
}

impl Health {
    /// Records a failed attempt in memory. Returns the time of the first failure when it is due to be written to the database: after a
    /// minute of failures, then once a minute.
    pub(crate) fn record_failure(&self, now: Timestamp) -> Option<Timestamp> {
        let now = now.as_millis();
        let _ = self.failing_since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        let since = self.failing_since.load(Ordering::Acquire);
        let every = i64::try_from(RECORD_INTERVAL.as_millis()).unwrap_or(i64::MAX);
        let reported = self.reported_at.load(Ordering::Acquire);
        if since == 0 || now - since.max(reported) < every {
            return None;
        }
        let is_mine =
            self.reported_at.compare_exchange(reported, now, Ordering::AcqRel, Ordering::Acquire).is_ok();
        is_mine.then_some(Timestamp::from_millis(since))
    }

    /// Records a successful attempt in memory. Returns whether the endpoint is on record as failing, so that the record has to be
    /// deleted.
    pub(crate) fn record_success(&self) -> bool {
        // A load first: the common case writes nothing, not even to this cache line.
        if self.failing_since.load(Ordering::Acquire) != 0 {
            self.failing_since.store(0, Ordering::Release);
        }
        let is_on_record = self.is_on_record.load(Ordering::Acquire);
        is_on_record && self.is_on_record.swap(false, Ordering::AcqRel)
    }

    /// Takes over the state on record. A document that another process deleted means a success there, so the failure time is reset.
    pub(crate) fn load(&self, is_on_record: bool) {
        if self.is_on_record.swap(is_on_record, Ordering::AcqRel) && !is_on_record {
            self.failing_since.store(0, Ordering::Release);
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    failing_since: Timestamp,
    /// Number of writes.
    count: u32,
}

fn key(id: &EndpointId) -> DocumentKey {
    DocumentKey::new(KIND, id.as_str()).expect("an endpoint id is a valid document id")
}

/// Ids of the endpoints on record as failing.
pub(crate) async fn on_record(store: &Arc<dyn Store>) -> Result<Vec<String>, StoreError> {
    Ok(store.versions(KIND).await?.into_iter().map(|(key, _)| key.id().to_owned()).collect())
}

/// Records a failure. Returns the time of the first one if the endpoint is to be disabled.
pub(crate) async fn record_failing(
    store: &Arc<dyn Store>,
    id: &EndpointId,
    since: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let document = store.document(key(id)).await?;
    // An unreadable document starts over.
    let before = document.as_ref().and_then(|document| serde_json::from_str(&document.body).ok());
    let mut record = before.unwrap_or(Record { failing_since: since, count: 0 });
    record.count = record.count.saturating_add(1);
    if record.count >= MIN_RECORDED && store.clock().now().since(record.failing_since) >= DISABLE_AFTER {
        return Ok(Some(record.failing_since));
    }
    let body = serde_json::to_string(&record).expect("numbers always serialise");
    let written = match document {
        None => store.create(key(id), body).await,
        Some(document) => store.replace(key(id), document.version, body).await,
    };
    match written {
        Ok(_) | Err(StoreError::DocumentTaken { .. } | StoreError::DocumentChanged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Time of the first failure on record.
pub(crate) async fn failing_since(
    store: &Arc<dyn Store>,
    id: &EndpointId,
) -> Result<Option<Timestamp>, StoreError> {
    let document = store.document(key(id)).await?;
    Ok(document.and_then(|document| {
        serde_json::from_str::<Record>(&document.body).ok().map(|record| record.failing_since)
    }))
}

/// Deletes the record, after a success or when the endpoint is enabled or changed.
pub(crate) async fn clear(store: &Arc<dyn Store>, id: &EndpointId) -> Result<(), StoreError> {
    store.remove(key(id), None).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_767_225_600_000 + seconds * 1000)
    }

    #[test]
    fn failures_shorter_than_a_minute_are_not_recorded() {
        let health = Health::default();
        assert_eq!(health.record_failure(at(0)), None);
        assert_eq!(health.record_failure(at(59)), None);
        assert!(!health.record_success(), "nothing was recorded");
        assert_eq!(health.record_failure(at(70)), None, "the failure time starts over");
        assert_eq!(health.record_failure(at(130)), Some(at(70)));
        assert_eq!(health.record_failure(at(131)), None, "once a minute");
        assert_eq!(health.record_failure(at(190)), Some(at(70)));
        health.load(true);
        assert!(health.record_success());
        assert!(!health.record_success());
    }

    #[test]
    fn a_success_in_another_process_resets_the_failure_time() {
        let health = Health::default();
        assert_eq!(health.record_failure(at(0)), None);
        assert_eq!(health.record_failure(at(60)), Some(at(0)));
        health.load(true);
        health.load(true);
        health.load(false);
        assert_eq!(health.record_failure(at(120)), None);
        assert_eq!(health.record_failure(at(180)), Some(at(120)));
    }

    #[tokio::test]
    async fn five_days_without_a_success_are_detected_across_restarts() {
        let time = redrive::retry::VirtualTime::new();
        let options =
            redrive::store::SqliteOptions { clock: time.clock(), ..redrive::store::SqliteOptions::default() };
        let store: Arc<dyn Store> = Arc::new(redrive::store::SqliteStore::open(":memory:", options).unwrap());
        let id = EndpointId::generate();
        let since = time.now();
        let day = Duration::from_secs(24 * 3600);
        for _ in 0..5 {
            assert_eq!(record_failing(&store, &id, time.now()).await.unwrap(), None, "not yet");
            time.advance(day);
        }
        // The time on record counts, not that of a process that started a moment ago.
        assert_eq!(failing_since(&store, &id).await.unwrap(), Some(since));
        assert_eq!(record_failing(&store, &id, time.now()).await.unwrap(), Some(since));
        assert_eq!(on_record(&store).await.unwrap(), [id.as_str()]);
        clear(&store, &id).await.unwrap();
        assert_eq!(failing_since(&store, &id).await.unwrap(), None);
        // Two failures with a long pause between them are not five days of failing.
        assert_eq!(record_failing(&store, &id, time.now()).await.unwrap(), None);
        time.advance(day * 30);
        assert_eq!(record_failing(&store, &id, time.now()).await.unwrap(), None);
    }
}
