//! A pull subscription on record: a document `queue/<name>`.

use std::fmt;
use std::str::FromStr;

use redrive::retry::{RetryOverride, Timestamp};
use redrive::store::{Store, StoreError};
use redrive_store::{Document, DocumentKey};
use serde::{Deserialize, Serialize};

use super::PullSubscriptionError;
use crate::documents::all_documents;
use crate::reserved;

pub(crate) const KIND: &str = "queue";

/// Maximum number of pull subscriptions on record, without removed ones.
pub(crate) const MAX_PULL_SUBSCRIPTIONS: usize = 1000;

/// Documents read per query.
const PAGE_SIZE: u32 = 200;

/// Name of a pull subscription: 1 to 64 letters, digits, `-` and `_`; none of the server's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PullSubscriptionName(String);

impl PullSubscriptionName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn key(&self) -> DocumentKey {
        DocumentKey::new(KIND, &self.0).expect("a name of a pull subscription is an id of a document")
    }
}

impl fmt::Display for PullSubscriptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for PullSubscriptionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_good = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if !(1..=64).contains(&text.len()) || !text.bytes().all(is_good) {
            let text: String = text.chars().take(64).collect();
            return Err(format!(
                "{text:?} is not a name of a subscription: use 1 to 64 letters, digits, - and _"
            ));
        }
        if reserved::is_subscription(text) {
            return Err(format!("the subscription {text:?} is the server's own: choose another name"));
        }
        Ok(PullSubscriptionName(text.to_owned()))
    }
}

/// Content of the document. Fields of a newer release are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Body {
    pub(crate) patterns: Vec<String>,
    pub(crate) lease_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<RetryOverride>,
    /// Whether the subscription was removed; its open deliveries are dead-lettered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_removed: bool,
}

/// A pull subscription on record.
#[derive(Clone, Debug)]
pub(crate) struct PullSubscription {
    pub(crate) name: PullSubscriptionName,
    pub(crate) version: u64,
    pub(crate) body: Body,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

impl PullSubscription {
    fn of(document: &Document) -> Result<Self, PullSubscriptionError> {
        let unreadable = |why: String| PullSubscriptionError::Unreadable { key: document.key.clone(), why };
        Ok(PullSubscription {
            name: document.key.id().parse().map_err(unreadable)?,
            version: document.version,
            body: serde_json::from_str(&document.body).map_err(|error| unreadable(error.to_string()))?,
            created_at: document.created_at,
            updated_at: document.updated_at,
        })
    }

    /// Reads a subscription, also a removed one.
    pub(crate) async fn read(
        store: &dyn Store,
        name: &PullSubscriptionName,
    ) -> Result<Option<Self>, PullSubscriptionError> {
        store.document(name.key()).await?.as_ref().map(PullSubscription::of).transpose()
    }

    /// Lists the subscriptions after this name that are not removed, in the order of their names.
    pub(crate) async fn list(
        store: &dyn Store,
        after: Option<&PullSubscriptionName>,
        limit: u32,
    ) -> Result<Vec<Self>, PullSubscriptionError> {
        let limit = limit as usize;
        let mut found = Vec::new();
        let mut after = after.map(PullSubscriptionName::key);
        while found.len() < limit {
            let documents = store.documents(KIND, after, PAGE_SIZE).await?;
            let is_last = documents.len() < PAGE_SIZE as usize;
            after = documents.last().map(|document| document.key.clone());
            for document in &documents {
                let subscription = PullSubscription::of(document)?;
                found.extend((!subscription.body.is_removed).then_some(subscription));
            }
            if is_last {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Counts the subscriptions that are not removed. An unreadable one counts.
    pub(crate) async fn count(store: &dyn Store) -> Result<usize, StoreError> {
        let is_there = |document: &&Document| {
            PullSubscription::of(document).map_or(true, |subscription| !subscription.body.is_removed)
        };
        Ok(all_documents(store, KIND).await?.iter().filter(is_there).count())
    }

    /// Writes a new version. The last writer wins.
    pub(crate) async fn put(
        store: &dyn Store,
        name: &PullSubscriptionName,
        body: &Body,
    ) -> Result<Self, PullSubscriptionError> {
        let text = serde_json::to_string(body).expect("text and numbers serialise");
        loop {
            let written = match store.document(name.key()).await? {
                None => store.create(name.key(), text.clone()).await,
                Some(document) => store.replace(name.key(), document.version, text.clone()).await,
            };
            match written {
                Ok(document) => return PullSubscription::of(&document),
                Err(StoreError::DocumentTaken { .. } | StoreError::DocumentChanged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(body: &str) -> Document {
        let key = DocumentKey::new(KIND, "mail").unwrap();
        let (created_at, updated_at) = (Timestamp::EPOCH, Timestamp::EPOCH);
        Document { key, version: 1, body: body.to_owned(), created_at, updated_at }
    }

    /// An unreadable subscription would miss its events.
    #[test]
    fn unreadable_documents_are_refused_and_unknown_fields_ignored() {
        let newer = r#"{"patterns":["order.*"],"lease_ms":5,"colour":"red"}"#;
        assert_eq!(PullSubscription::of(&document(newer)).unwrap().body.patterns, ["order.*"]);
        for bad in ["", "{}", r#"{"patterns":"order.*","lease_ms":5}"#] {
            let error = PullSubscription::of(&document(bad)).unwrap_err().to_string();
            assert!(error.contains("queue/mail") && error.contains("backup"), "{error}");
        }
    }
}
