//! What is configured while a server runs, and survives it: JSON under a key, with a version that counts its changes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use redrive_retry::Timestamp;
use serde::de::IgnoredAny;

use crate::error::StoreError;
use crate::event::ModelError;
use crate::store::StoreFuture;

/// The largest body, in bytes.
const LARGEST_BODY: usize = 256 << 10;

/// The longest part of a key, in bytes.
const LONGEST_PART: usize = 64;

/// Keeps documents. Whoever changes one says which version it has seen, so that of two who change the same one of them wins, and
/// the other hears of it.
///
/// A change is on stable storage when its future resolves to `Ok`. Times are those of the store's clock.
pub trait Documents: Send + Sync + fmt::Debug {
    /// Stores a new one, as version 1.
    fn create(&self, key: DocumentKey, body: String) -> StoreFuture<'_, Document>;

    /// One of them.
    fn document(&self, key: DocumentKey) -> StoreFuture<'_, Option<Document>>;

    /// Those of a kind, in the order of their keys, at most so many behind `after`.
    fn documents(
        &self,
        kind: &'static str,
        after: Option<DocumentKey>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<Document>>;

    /// Another body for one that is still in this version.
    fn replace(&self, key: DocumentKey, version: u64, body: String) -> StoreFuture<'_, Document>;

    /// Removes one, if it is still in this version where one is given. Says whether it was there.
    fn remove(&self, key: DocumentKey, version: Option<u64>) -> StoreFuture<'_, bool>;

    /// What there is of a kind and in which version: cheap, so that other processes can look often whether something has changed.
    /// They notice everything as long as no key is used again for something else.
    fn versions(&self, kind: &'static str) -> StoreFuture<'_, Vec<(DocumentKey, u64)>>;
}

/// A document as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its kind and its id.
    pub key: DocumentKey,
    /// 1, and one more with every change.
    pub version: u64,
    /// JSON text.
    pub body: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl Document {
    /// Whether a body can be stored.
    pub(crate) fn check(body: &str) -> Result<(), StoreError> {
        if body.len() > LARGEST_BODY {
            return Err(StoreError::DocumentTooLarge { bytes: body.len(), limit: LARGEST_BODY });
        }
        match serde_json::from_str::<IgnoredAny>(body) {
            Ok(_) => Ok(()),
            Err(error) => Err(StoreError::DocumentNotJson { why: error.to_string() }),
        }
    }
}

/// The kind of a document and its id: `token/7f3a`. A kind is 1 to 64 of `a` to `z`; an id is 1 to 64 letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentKey(Arc<str>);

impl DocumentKey {
    /// Checks and takes them.
    pub fn new(kind: &str, id: &str) -> Result<Self, ModelError> {
        let is_kind =
            (1..=LONGEST_PART).contains(&kind.len()) && kind.bytes().all(|b| b.is_ascii_lowercase());
        let is_id = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if !is_kind || !(1..=LONGEST_PART).contains(&id.len()) || !id.bytes().all(is_id) {
            let text = format!("{kind}/{id}").chars().take(64).collect();
            return Err(ModelError::DocumentKey { text });
        }
        Ok(DocumentKey(format!("{kind}/{id}").into()))
    }

    /// As it stands in the store.
    pub(crate) fn stored(key: &str) -> Self {
        DocumentKey(key.into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What comes before the slash.
    pub fn kind(&self) -> &str {
        self.0.split_once('/').map_or("", |(kind, _)| kind)
    }

    /// What comes after it.
    pub fn id(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, id)| id)
    }

    /// All keys of a kind lie between these two, in the order of their bytes: `0` comes right after `/`.
    pub(crate) fn range(kind: &str) -> (String, String) {
        (format!("{kind}/"), format!("{kind}0"))
    }
}

impl fmt::Display for DocumentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for DocumentKey {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let (kind, id) = text.split_once('/').unwrap_or((text, ""));
        DocumentKey::new(kind, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        let key: DocumentKey = "token/Az-_09".parse().unwrap();
        assert_eq!((key.kind(), key.id(), key.to_string()), ("token", "Az-_09", "token/Az-_09".to_owned()));
        let long = "x".repeat(65);
        for bad in [
            "",
            "token",
            "token/",
            "/x",
            "Token/x",
            "token/a b",
            "token/a/b",
            "token/ä",
            &format!("t/{long}"),
        ] {
            let error = bad.parse::<DocumentKey>().unwrap_err().to_string();
            assert!(error.contains("such as token/7f3a"), "{error}");
        }
    }

    #[test]
    fn a_body_is_json_and_not_too_large() {
        assert!(Document::check(r#"{"name":"ci"}"#).is_ok());
        assert!(matches!(Document::check("{"), Err(StoreError::DocumentNotJson { .. })));
        let large = format!("\"{}\"", "x".repeat(LARGEST_BODY));
        assert!(matches!(Document::check(&large), Err(StoreError::DocumentTooLarge { .. })));
    }
}
