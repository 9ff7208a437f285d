//! Cached lookup of tokens. It reads changed tokens again, so that every server refuses a revoked token within a second.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redrive::retry::Timestamp;
use redrive::store::{Store, StoreError};
use redrive_store::{Document, DocumentKey};

use super::secret::SecretHash;
use super::token::{KIND, Token};
use crate::bucket::Bucket;
use crate::documents::all_documents;

/// Age at which the cache checks for changes.
const MAX_AGE: Duration = Duration::from_millis(700);

/// Age after which the cached tokens are read again for an unknown secret: unknown secrets cause at most twenty reads in a second.
const MAX_AGE_OF_UNKNOWN: Duration = Duration::from_millis(50);

/// Precision of the recorded last use. Recording it is a write, so not every request does it.
const LAST_USE_PRECISION: Duration = Duration::from_secs(3600);

/// The cache of tokens.
#[derive(Debug)]
pub(crate) struct TokenCache {
    store: Arc<dyn Store>,
    cached: RwLock<Arc<CachedTokens>>,
    /// Held while one request refreshes the cache; others wait for the result.
    refreshing: tokio::sync::Mutex<()>,
    /// Rate limit of each token.
    requests_per_second: u32,
}

#[derive(Debug, Default)]
struct CachedTokens {
    since: Option<Instant>,
    versions: Vec<(DocumentKey, u64)>,
    entries: Vec<Arc<Entry>>,
}

/// One token with its rate limit.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) token: Token,
    hash: Option<SecretHash>,
    pub(crate) bucket: Arc<Bucket>,
    /// Recorded last use, in milliseconds.
    noted: AtomicI64,
}

/// Result of a lookup.
#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    /// A valid token.
    Valid(Arc<Entry>),
    /// An expired token.
    Expired,
    /// No token, or a revoked one.
    Unknown,
}

/// Compares every token, each in constant time.
fn entry_of(cached: &CachedTokens, shown: SecretHash) -> Option<Arc<Entry>> {
    cached.entries.iter().fold(
        None,
        |found, entry| {
            if entry.hash == Some(shown) { Some(Arc::clone(entry)) } else { found }
        },
    )
}

impl TokenCache {
    pub(crate) fn new(store: Arc<dyn Store>, requests_per_second: u32) -> Self {
        TokenCache {
            store,
            cached: RwLock::default(),
            refreshing: tokio::sync::Mutex::default(),
            requests_per_second,
        }
    }

    /// Whether no token is on record, so that a local caller may do everything.
    pub(crate) async fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.cached().await?.versions.is_empty())
    }

    /// Looks a secret up. Every token is compared, each in constant time.
    pub(crate) async fn find(&self, secret: &str) -> Result<Lookup, StoreError> {
        let shown = SecretHash::of(secret);
        let mut found = entry_of(self.cached().await?.as_ref(), shown);
        if found.is_none() {
            // It may have been created a moment ago, by the command line or another server.
            found = entry_of(self.cached_for(MAX_AGE_OF_UNKNOWN).await?.as_ref(), shown);
        }
        let Some(entry) = &found else { return Ok(Lookup::Unknown) };
        let now = self.store.clock().now();
        if entry.token.is_expired(now) {
            return Ok(Lookup::Expired);
        }
        self.note_use(entry, now);
        Ok(Lookup::Valid(Arc::clone(entry)))
    }

    /// Whether a token that was valid still is.
    pub(crate) async fn is_valid(&self, id: &str) -> Result<bool, StoreError> {
        let cached = self.cached().await?;
        let now = self.store.clock().now();
        Ok(cached.entries.iter().any(|entry| entry.token.id == id && !entry.token.is_expired(now)))
    }

    /// Makes the next request refresh the cache, after a change by this process.
    pub(crate) fn invalidate(&self) {
        let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
        let CachedTokens { versions, entries, .. } = cached.as_ref();
        *cached =
            Arc::new(CachedTokens { since: None, versions: versions.clone(), entries: entries.clone() });
    }

    async fn cached(&self) -> Result<Arc<CachedTokens>, StoreError> {
        self.cached_for(MAX_AGE).await
    }

    async fn cached_for(&self, max_age: Duration) -> Result<Arc<CachedTokens>, StoreError> {
        if let Some(cached) = self.fresh(max_age) {
            return Ok(cached);
        }
        let _refresh_lock = self.refreshing.lock().await;
        if let Some(cached) = self.fresh(max_age) {
            return Ok(cached);
        }
        let before = Arc::clone(&self.cached.read().unwrap_or_else(PoisonError::into_inner));
        // The result is as old as the start of the refresh.
        let since = Some(Instant::now());
        let versions = self.store.versions(KIND).await?;
        let entries = if before.since.is_some() && versions == before.versions {
            before.entries.clone()
        } else {
            let documents = all_documents(self.store.as_ref(), KIND).await?;
            documents.iter().filter_map(|document| self.entry(document, &before)).collect()
        };
        let cached = Arc::new(CachedTokens { since, versions, entries });
        *self.cached.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&cached);
        Ok(cached)
    }

    fn fresh(&self, max_age: Duration) -> Option<Arc<CachedTokens>> {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        cached.since.is_some_and(|since| since.elapsed() < max_age).then(|| Arc::clone(&cached))
    }

    /// Keeps rate limit and last use when the document of a token changes.
    fn entry(&self, document: &Document, before: &CachedTokens) -> Option<Arc<Entry>> {
        let Some(token) = Token::of(document) else {
            tracing::error!(target: "redrive::tokens", key = %document.key, "an unreadable token is refused");
            return None;
        };
        let old = before.entries.iter().find(|entry| entry.token.id == token.id);
        let bucket = old
            .map_or_else(|| Arc::new(Bucket::new(self.requests_per_second)), |old| Arc::clone(&old.bucket));
        let noted = token.body.last_used_at.unwrap_or(Timestamp::EPOCH).as_millis();
        let noted = old.map_or(0, |old| old.noted.load(Ordering::Relaxed)).max(noted);
        Some(Arc::new(Entry { hash: token.hash(), token, bucket, noted: AtomicI64::new(noted) }))
    }

    fn note_use(&self, entry: &Arc<Entry>, now: Timestamp) {
        let noted = entry.noted.load(Ordering::Relaxed);
        let is_due = now.since(Timestamp::from_millis(noted)) >= LAST_USE_PRECISION;
        let is_mine = || {
            entry.noted.compare_exchange(noted, now.as_millis(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if is_due && is_mine() {
            let (store, entry) = (Arc::clone(&self.store), Arc::clone(entry));
            // In the background.
            tokio::spawn(async move {
                if let Err(error) = entry.token.note_use(store.as_ref(), now).await {
                    tracing::warn!(target: "redrive::tokens", id = entry.token.id, %error, "the last use of a token was not recorded");
                }
            });
        }
    }
}
