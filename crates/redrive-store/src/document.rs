//! The model of a document: JSON under a key, with a version that counts its changes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use redrive_retry::Timestamp;
use serde::de::IgnoredAny;

use crate::error::StoreError;
use crate::event::ModelError;

/// Maximum size of a body, in bytes.
const MAX_BODY_BYTES: usize = 256 << 10;

/// Maximum length of a kind or an id, in bytes.
const MAX_PART_BYTES: usize = 64;

/// A stored document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Kind and id.
    pub key: DocumentKey,
    /// 1, incremented by every change.
    pub version: u64,
    /// JSON text.
    pub body: String,
    /// The time at which the document was created.
    pub created_at: Timestamp,
    /// The time of the last change of the document.
    pub updated_at: Timestamp,
}

impl Document {
    /// Returns the error of a change that is based on another version than the stored one.
    pub(crate) fn conflict(key: DocumentKey, found: Option<&Document>) -> StoreError {
        StoreError::DocumentChanged { key, version: found.map(|found| found.version) }
    }

    /// Checks that a body can be stored.
    pub(crate) fn check(body: &str) -> Result<(), StoreError> {
        if body.len() > MAX_BODY_BYTES {
            return Err(StoreError::DocumentTooLarge { bytes: body.len(), limit: MAX_BODY_BYTES });
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
    /// Checks kind and id and joins them.
    pub fn new(kind: &str, id: &str) -> Result<Self, ModelError> {
        let is_kind =
            (1..=MAX_PART_BYTES).contains(&kind.len()) && kind.bytes().all(|b| b.is_ascii_lowercase());
        let is_id = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if !is_kind || !(1..=MAX_PART_BYTES).contains(&id.len()) || !id.bytes().all(is_id) {
            let text = format!("{kind}/{id}").chars().take(64).collect();
            return Err(ModelError::DocumentKey(text));
        }
        Ok(DocumentKey(format!("{kind}/{id}").into()))
    }

    /// Wraps a stored key without a check.
    pub(crate) fn stored(key: &str) -> Self {
        DocumentKey(key.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the part before the slash.
    pub fn kind(&self) -> &str {
        self.0.split_once('/').map_or("", |(kind, _)| kind)
    }

    /// Returns the part after the slash.
    pub fn id(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, id)| id)
    }

    /// Returns the open interval of the keys of a kind, in byte order, behind `after`. `0` follows `/` in ASCII.
    pub(crate) fn range(kind: &str, after: Option<&DocumentKey>) -> (String, String) {
        let first = format!("{kind}/");
        let from = after.map_or("", DocumentKey::as_str).max(&first).to_owned();
        (from, format!("{kind}0"))
    }

    /// Converts a version to the type of its column. No document reaches a larger one.
    pub(crate) fn version_column(version: u64) -> i64 {
        i64::try_from(version).unwrap_or(i64::MAX)
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
        let large = format!("\"{}\"", "x".repeat(MAX_BODY_BYTES));
        assert!(matches!(Document::check(&large), Err(StoreError::DocumentTooLarge { .. })));
    }
}
