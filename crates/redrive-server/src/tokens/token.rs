//! A token on record: a document `token/<id>` with its scopes and its expiry.

use std::time::Duration;

use redrive::retry::Timestamp;
use redrive::store::{Store, StoreError};
use redrive_store::{Document, DocumentKey};
use serde::{Deserialize, Serialize};

use super::secret::{NoRandomness, Secret, SecretHash, new_id};
use crate::documents::all_documents;
use redrive_api::tokens::{CreateToken, Scope};

/// The kind of its documents.
pub(crate) const KIND: &str = "token";

/// Maximum number of tokens on record: every request is compared with each.
pub(crate) const MAX_TOKENS: usize = 1000;

/// Longest name, in characters.
pub(crate) const MAX_NAME_CHARS: usize = 100;

/// A token on record.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) id: String,
    pub(crate) version: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) body: Body,
}

/// Content of the document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Body {
    pub(crate) name: String,
    pub(crate) scopes: Vec<Scope>,
    /// Hash of the secret.
    sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<Timestamp>,
    /// Time of the last use, rounded to an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_used_at: Option<Timestamp>,
}

/// Error of creating a token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the name of a token has 1 to {MAX_NAME_CHARS} characters, and no control characters")]
    Name,
    #[error("a token without a scope allows nothing: give it publish, read, consume or admin")]
    NoScope,
    #[error("a token that expires at once is of no use: give it more time")]
    ExpiresAtOnce,
    #[error("there are already {MAX_TOKENS} tokens: revoke unused ones")]
    TooMany,
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Token {
    /// Creates a token. Its secret is stored nowhere.
    pub(crate) async fn create(store: &dyn Store, new: CreateToken) -> Result<(Token, Secret), TokenError> {
        let name = new.name.trim().to_owned();
        if name.is_empty() || name.chars().count() > MAX_NAME_CHARS || name.chars().any(char::is_control) {
            return Err(TokenError::Name);
        }
        let mut scopes = new.scopes;
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() {
            return Err(TokenError::NoScope);
        }
        if new.expires_in_s == Some(0) {
            return Err(TokenError::ExpiresAtOnce);
        }
        if store.versions(KIND).await?.len() >= MAX_TOKENS {
            return Err(TokenError::TooMany);
        }
        let secret = Secret::new()?;
        let expires_at = new.expires_in_s.map(|seconds| store.clock().now() + Duration::from_secs(seconds));
        let body = Body { name, scopes, sha256: secret.hash().to_text(), expires_at, last_used_at: None };
        let key = DocumentKey::new(KIND, &new_id()?).map_err(StoreError::from)?;
        let document = store.create(key, body.to_text()).await?;
        let token = Token::of(&document).ok_or(TokenError::Name)?;
        Ok((token, secret))
    }

    /// Returns all tokens, the oldest first.
    pub(crate) async fn all(store: &dyn Store) -> Result<Vec<Token>, StoreError> {
        let mut tokens: Vec<Token> = all_documents(store, KIND).await?.iter().filter_map(Token::of).collect();
        tokens.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
        Ok(tokens)
    }

    /// Deletes a token; returns whether there was one.
    pub(crate) async fn revoke(store: &dyn Store, id: &str) -> Result<bool, StoreError> {
        match DocumentKey::new(KIND, id) {
            Ok(key) => store.remove(key, None).await,
            Err(_) => Ok(false),
        }
    }

    /// Reads a document; `None` for an unreadable one.
    pub(crate) fn of(document: &Document) -> Option<Token> {
        let body: Body = serde_json::from_str(&document.body).ok()?;
        let id = document.key.id().to_owned();
        Some(Token { id, version: document.version, created_at: document.created_at, body })
    }

    pub(crate) fn hash(&self) -> Option<SecretHash> {
        SecretHash::from_text(&self.body.sha256)
    }

    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.body.expires_at.is_some_and(|at| at <= now)
    }

    /// Records the last use.
    pub(crate) async fn note_use(&self, store: &dyn Store, at: Timestamp) -> Result<(), StoreError> {
        let key = DocumentKey::new(KIND, &self.id)?;
        let body = Body { last_used_at: Some(at), ..self.body.clone() };
        match store.replace(key, self.version, body.to_text()).await {
            // Another process has recorded it, or the token is revoked.
            Ok(_) | Err(StoreError::DocumentChanged { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Body {
    fn to_text(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers serialise")
    }
}
