//! The endpoints on record: made, changed, looked at.

use std::sync::Arc;
use std::time::Duration;

use redrive::Timestamp;
use redrive_store::{Document, DocumentKey, Store, StoreError};
use thiserror::Error;

use crate::attempt::Failed;
use crate::client::Client;
use crate::endpoint::{Disabled, Endpoint, EndpointError, EndpointId, Wish};
use crate::secret::Secret;
use crate::stored::{self, KIND};
use crate::vault::{Vault, VaultError};

/// The most endpoints.
const MOST: usize = 10_000;

/// How many are read at once.
const PAGE: u32 = 500;

/// One that cannot be read as a whole: sealed with another key, or written by somebody who knows more.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) id: EndpointId,
    pub(crate) version: u64,
    /// Which events it wants, if that can be read; of one that was removed, none.
    pub(crate) patterns: Option<Vec<String>>,
    pub(crate) error: BookError,
}

/// The endpoints in one database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EndpointBook {
    store: Arc<dyn Store>,
    client: Client,
    vault: Arc<Vault>,
}

impl EndpointBook {
    /// What is secret is sealed by the vault; where messages may go is asked of the client.
    pub fn new(store: Arc<dyn Store>, client: Client, vault: Arc<Vault>) -> Self {
        EndpointBook { store, client, vault }
    }

    /// Makes one, with this secret or a new one. Nothing may ever be sent to some addresses; that is looked at here first.
    pub async fn create(&self, wish: Wish, secret: Option<Secret>) -> Result<Endpoint, BookError> {
        let secret = secret.unwrap_or_else(Secret::generate);
        let endpoint = wish.found(secret, self.store.clock().now())?;
        self.client.check(&endpoint.url).await.map_err(BookError::Unreachable)?;
        if self.store.versions(KIND).await?.len() >= MOST {
            return Err(BookError::TooMany);
        }
        let body = stored::write(&endpoint, &self.vault);
        let document = self.store.create(stored::key(&endpoint.id), body).await?;
        Ok(Endpoint { created_at: document.created_at, updated_at: document.updated_at, ..endpoint })
    }

    /// One of them, if it was not removed.
    pub async fn get(&self, id: &EndpointId) -> Result<Endpoint, BookError> {
        let endpoint = self.any(id).await?;
        if endpoint.deleted_at.is_some() {
            return Err(BookError::NotFound { id: id.clone() });
        }
        Ok(endpoint)
    }

    /// One of them, also if it was removed.
    async fn any(&self, id: &EndpointId) -> Result<Endpoint, BookError> {
        let document = self.store.document(stored::key(id)).await?;
        let document = document.ok_or_else(|| BookError::NotFound { id: id.clone() })?;
        stored::read(&document, &self.vault)
    }

    /// Those behind this one, in the order in which they were made, without those that were removed. `Some` place to go on from if there may be more.
    pub async fn list(
        &self,
        after: Option<&EndpointId>,
        limit: u32,
    ) -> Result<(Vec<Endpoint>, Option<EndpointId>), BookError> {
        let mut after = after.map(stored::key);
        let mut found = Vec::new();
        loop {
            let documents = self.store.documents(KIND, after.clone(), limit.max(1)).await?;
            let is_last = documents.len() < limit.max(1) as usize;
            for document in &documents {
                if found.len() >= limit as usize {
                    let last: Option<&Endpoint> = found.last();
                    return Ok((Vec::clone(&found), last.map(|endpoint| endpoint.id.clone())));
                }
                match self.try_read(document)? {
                    Ok(endpoint) if endpoint.deleted_at.is_none() => found.push(endpoint),
                    Ok(_) => {}
                    // The others can be looked at; who asks for this one is told what is wrong.
                    Err(Unread { error, .. }) => {
                        tracing::warn!(target: "redrive::webhook", %error, "an endpoint is not listed");
                    }
                }
            }
            if is_last {
                return Ok((found, None));
            }
            after = documents.last().map(|document| document.key.clone());
        }
    }

    /// All of them, also those that were removed: what they are owed is still there. One that cannot be read is reported, and the
    /// others work. All that can be opened is sealed with the newest key after this: those before it are not needed any more.
    pub(crate) async fn open_all(&self) -> Result<Vec<Result<Endpoint, Unread>>, BookError> {
        let (mut after, mut all, mut sealed) = (None, Vec::new(), 0_u64);
        loop {
            let documents = self.store.documents(KIND, after, PAGE).await?;
            for document in &documents {
                let mut read = self.try_read(document)?;
                if let Ok(endpoint) = &mut read
                    && !stored::is_sealed_by_newest(document, &self.vault)
                {
                    sealed += u64::from(self.seal_again(endpoint).await?);
                }
                all.push(read);
            }
            match documents.last() {
                Some(last) if documents.len() == PAGE as usize => after = Some(last.key.clone()),
                _ => break,
            }
        }
        if sealed > 0 {
            tracing::info!(target: "redrive::webhook", count = sealed, "the secrets of endpoints were sealed with the newest key");
        }
        Ok(all)
    }

    pub(crate) async fn versions(&self) -> Result<Vec<(DocumentKey, u64)>, BookError> {
        Ok(self.store.versions(KIND).await?)
    }

    pub(crate) async fn read(
        &self,
        key: &DocumentKey,
    ) -> Result<Option<Result<Endpoint, Unread>>, BookError> {
        let document = self.store.document(key.clone()).await?;
        document.map(|document| self.try_read(&document)).transpose()
    }

    /// Fails only where the document is not one of an endpoint.
    fn try_read(&self, document: &Document) -> Result<Result<Endpoint, Unread>, BookError> {
        match stored::read(document, &self.vault) {
            Ok(endpoint) => Ok(Ok(endpoint)),
            Err(error) => {
                let id: EndpointId = document.key.id().parse()?;
                let patterns = stored::patterns(document);
                Ok(Err(Unread { id, version: document.version, patterns, error }))
            }
        }
    }

    /// Changes what is given, if nobody else has changed it since this version.
    pub async fn update(
        &self,
        id: &EndpointId,
        version: Option<u64>,
        wish: Wish,
    ) -> Result<Endpoint, BookError> {
        if let Some(url) = &wish.url {
            let url = url.parse().map_err(EndpointError::Url)?;
            self.client.check(&url).await.map_err(BookError::Unreachable)?;
        }
        self.change(id, version, |endpoint, now| wish.clone().apply_to(endpoint, now)).await
    }

    /// Signs with another secret from now on, and with the present one for a while as well.
    pub async fn rotate(
        &self,
        id: &EndpointId,
        secret: Option<Secret>,
        overlap: Duration,
    ) -> Result<Endpoint, BookError> {
        let secret = secret.unwrap_or_else(Secret::generate);
        self.change(id, None, |endpoint, now| endpoint.rotate(secret.clone(), overlap, now)).await
    }

    /// Removes one. What it is owed is given up, with that as the reason. So is what one is owed that cannot be read any more.
    pub async fn remove(&self, id: &EndpointId) -> Result<(), BookError> {
        let remove = |endpoint: &mut Endpoint, now| {
            endpoint.deleted_at = Some(now);
            endpoint.headers.clear();
            endpoint.secrets.clear();
            Ok(())
        };
        match self.change(id, None, remove).await {
            Ok(_) => Ok(()),
            Err(BookError::Sealed { .. } | BookError::Unreadable { .. } | BookError::Endpoint(_)) => {
                let Some(document) = self.store.document(stored::key(id)).await? else {
                    return Err(BookError::NotFound { id: id.clone() });
                };
                let body = stored::tombstone(&document, self.store.clock().now());
                self.store.replace(stored::key(id), document.version, body).await?;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Seals with the newest key what was sealed with one before. Says whether it did: somebody else may have been faster.
    async fn seal_again(&self, endpoint: &mut Endpoint) -> Result<bool, BookError> {
        let body = stored::write(endpoint, &self.vault);
        match self.store.replace(stored::key(&endpoint.id), endpoint.version, body).await {
            Ok(document) => {
                endpoint.version = document.version;
                endpoint.updated_at = document.updated_at;
                Ok(true)
            }
            Err(StoreError::DocumentChanged { .. }) => Ok(false), // and sealed anew with that
            Err(error) => Err(error.into()),
        }
    }

    /// Sends nothing to it any more, if it is still in this version.
    pub(crate) async fn disable(
        &self,
        id: &EndpointId,
        version: u64,
        why: Disabled,
    ) -> Result<Endpoint, BookError> {
        let disable = |endpoint: &mut Endpoint, now| {
            endpoint.disabled = Some((why.clone(), now));
            Ok(())
        };
        self.change(id, Some(version), disable).await
    }

    /// Reads, changes, writes; again if somebody else was faster, unless a version was given.
    async fn change(
        &self,
        id: &EndpointId,
        version: Option<u64>,
        mut change: impl FnMut(&mut Endpoint, Timestamp) -> Result<(), EndpointError>,
    ) -> Result<Endpoint, BookError> {
        for _ in 0..10 {
            let mut endpoint = self.get(id).await?;
            if let Some(version) = version.filter(|version| *version != endpoint.version) {
                return Err(BookError::Changed { id: id.clone(), seen: version, now: endpoint.version });
            }
            change(&mut endpoint, self.store.clock().now())?;
            let body = stored::write(&endpoint, &self.vault);
            match self.store.replace(stored::key(id), endpoint.version, body).await {
                Ok(document) => {
                    endpoint.version = document.version;
                    endpoint.updated_at = document.updated_at;
                    return Ok(endpoint);
                }
                Err(StoreError::DocumentChanged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let now = self.get(id).await?.version;
        Err(BookError::Changed { id: id.clone(), seen: version.unwrap_or(now), now })
    }

    /// Forgets one that was removed long ago.
    pub(crate) async fn forget(&self, id: &EndpointId, version: u64) -> Result<bool, BookError> {
        Ok(self.store.remove(stored::key(id), Some(version)).await?)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

/// Why something could not be done with an endpoint.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BookError {
    /// It cannot be so.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Nothing could be sent there.
    #[error("nothing can be sent there: {0}")]
    Unreachable(Failed),
    /// It is not there.
    #[error("there is no endpoint {id}")]
    NotFound {
        /// Its name.
        id: EndpointId,
    },
    /// Somebody else has changed it.
    #[error("endpoint {id} was changed meanwhile: it is in version {now}, and not {seen}; look at it again")]
    Changed {
        /// Its name.
        id: EndpointId,
        /// What was seen of it.
        seen: u64,
        /// What it is.
        now: u64,
    },
    /// Too many of them.
    #[error(
        "there are {MOST} endpoints already, also counting those that were removed within the last month"
    )]
    TooMany,
    /// What is secret stays closed.
    #[error(
        "the secrets of endpoint {id} cannot be opened: {error}; without that key it can only be removed, and made anew"
    )]
    Sealed {
        /// Its name.
        id: EndpointId,
        /// Why.
        error: VaultError,
    },
    /// Somebody has changed it by hand.
    #[error("endpoint {id} cannot be read: {why}")]
    Unreadable {
        /// Its name.
        id: EndpointId,
        /// Why.
        why: String,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl BookError {
    pub(crate) fn unreadable(id: &EndpointId, why: &str) -> Self {
        BookError::Unreadable { id: id.clone(), why: why.to_owned() }
    }
}
