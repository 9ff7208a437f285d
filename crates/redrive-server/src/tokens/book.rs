//! The tokens as a server knows them: read again when they have changed, so that one that is revoked anywhere is refused
//! everywhere within a second.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redrive::{Store, StoreError, Timestamp};
use redrive_store::{Document, DocumentKey};

use super::secret::SecretHash;
use super::token::{self, KIND, Token};
use crate::serve::bucket::Bucket;

/// What is known may be so old.
const FRESH_FOR: Duration = Duration::from_millis(700);

/// How exactly it is noted when a token was last used. A note is a write, so not at every request.
const NOTED_EVERY: Duration = Duration::from_secs(3600);

/// The tokens as they were a moment ago.
#[derive(Debug)]
pub(crate) struct TokenBook {
    store: Arc<dyn Store>,
    known: RwLock<Arc<Known>>,
    /// Held by whoever looks; the others wait for what it finds.
    looking: tokio::sync::Mutex<()>,
    /// For each of them.
    requests_per_second: u32,
}

#[derive(Debug, Default)]
struct Known {
    since: Option<Instant>,
    versions: Vec<(DocumentKey, u64)>,
    entries: Vec<Arc<Entry>>,
}

/// One token, and how much it was used.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) token: Token,
    hash: Option<SecretHash>,
    pub(crate) bucket: Arc<Bucket>,
    /// When it was last noted that it is in use, in milliseconds.
    noted: AtomicI64,
}

/// What is known of a secret that somebody showed.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// It is a token.
    Valid(Arc<Entry>),
    /// It was one.
    Expired,
    /// It is none, or not any more.
    Unknown,
}

impl TokenBook {
    pub(crate) fn new(store: Arc<dyn Store>, requests_per_second: u32) -> Self {
        TokenBook {
            store,
            known: RwLock::default(),
            looking: tokio::sync::Mutex::default(),
            requests_per_second,
        }
    }

    /// Whether there are none, so that whoever is on this machine may do everything.
    pub(crate) async fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.known().await?.versions.is_empty())
    }

    /// Whose secret this is. Every token is compared, and each comparison takes the same time.
    pub(crate) async fn find(&self, secret: &str) -> Result<Shown, StoreError> {
        let known = self.known().await?;
        let shown = SecretHash::of(secret);
        let mut found = None;
        for entry in &known.entries {
            if entry.hash == Some(shown) {
                found = Some(entry);
            }
        }
        let Some(entry) = found else { return Ok(Shown::Unknown) };
        let now = self.store.clock().now();
        if entry.token.is_expired(now) {
            return Ok(Shown::Expired);
        }
        self.note_use(entry, now);
        Ok(Shown::Valid(Arc::clone(entry)))
    }

    /// Whether a token that was valid still is.
    pub(crate) async fn is_valid(&self, id: &str) -> Result<bool, StoreError> {
        let known = self.known().await?;
        let now = self.store.clock().now();
        Ok(known.entries.iter().any(|entry| entry.token.id == id && !entry.token.is_expired(now)))
    }

    /// Looks again at the next request, because something was changed here.
    pub(crate) fn forget(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Known { versions, entries, .. } = known.as_ref();
        *known = Arc::new(Known { since: None, versions: versions.clone(), entries: entries.clone() });
    }

    async fn known(&self) -> Result<Arc<Known>, StoreError> {
        if let Some(known) = self.fresh() {
            return Ok(known);
        }
        let _alone = self.looking.lock().await;
        if let Some(known) = self.fresh() {
            return Ok(known);
        }
        let before = Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner));
        // What is found was true at the latest when the look began.
        let since = Some(Instant::now());
        let versions = self.store.versions(KIND).await?;
        let entries = if before.since.is_some() && versions == before.versions {
            before.entries.clone()
        } else {
            let documents = token::all_documents(self.store.as_ref()).await?;
            documents.iter().filter_map(|document| self.entry(document, &before)).collect()
        };
        let known = Arc::new(Known { since, versions, entries });
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&known);
        Ok(known)
    }

    fn fresh(&self) -> Option<Arc<Known>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.since.is_some_and(|since| since.elapsed() < FRESH_FOR).then(|| Arc::clone(&known))
    }

    /// What is known of a token's use goes on when its document changes.
    fn entry(&self, document: &Document, before: &Known) -> Option<Arc<Entry>> {
        let Some(token) = Token::of(document) else {
            tracing::error!(target: "redrive::tokens", key = %document.key, "a token that cannot be read opens nothing");
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
        let is_due = now.since(Timestamp::from_millis(noted)) >= NOTED_EVERY;
        let is_mine = || {
            entry.noted.compare_exchange(noted, now.as_millis(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if is_due && is_mine() {
            let (store, entry) = (Arc::clone(&self.store), Arc::clone(entry));
            // Nobody waits for it.
            tokio::spawn(async move {
                if let Err(error) = entry.token.note_use(store.as_ref(), now).await {
                    tracing::warn!(target: "redrive::tokens", id = entry.token.id, %error, "the use of a token was not noted");
                }
            });
        }
    }
}
