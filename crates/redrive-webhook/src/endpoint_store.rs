//! Stores endpoints as documents of the database: create, read, update, rotate, remove.

use std::sync::Arc;
use std::time::Duration;

use redrive::retry::Timestamp;
use redrive_store::{Document, DocumentKey, Store, StoreError};

use crate::client::Client;
use crate::endpoint::{Disabled, Endpoint, EndpointError, EndpointId, EndpointPatch};
use crate::error::{EndpointStoreError, MAX_ENDPOINTS};
use crate::secret::Secret;
use crate::stored::{self, KIND};
use crate::vault::Vault;

/// Documents read per query.
const PAGE_SIZE: u32 = 500;

/// An endpoint whose document cannot be read: encrypted with another key, damaged, or written by a newer version.
#[derive(Debug)]
pub(crate) struct UnreadableEndpoint {
    pub(crate) id: EndpointId,
    pub(crate) version: u64,
    /// The endpoint's event patterns, if they are readable; empty for a removed endpoint.
    pub(crate) patterns: Option<String>,
    pub(crate) error: EndpointStoreError,
}

/// Creates, reads and changes the endpoints in one database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EndpointStore {
    store: Arc<dyn Store>,
    pub(crate) client: Client,
    vault: Arc<Vault>,
}

impl EndpointStore {
    /// An endpoint store that encrypts secrets with `vault` and checks URLs with the guard of `client`.
    pub fn new(store: Arc<dyn Store>, client: Client, vault: Arc<Vault>) -> Self {
        EndpointStore { store, client, vault }
    }

    /// Creates an endpoint with this secret or a generated one. Refuses a URL that the guard forbids.
    pub async fn create(
        &self,
        patch: EndpointPatch,
        secret: Option<Secret>,
    ) -> Result<Endpoint, EndpointStoreError> {
        let secret = secret.unwrap_or_else(Secret::generate);
        let endpoint = patch.into_endpoint(secret, self.store.clock().now())?;
        self.client.check(&endpoint.url).await.map_err(EndpointStoreError::Unreachable)?;
        if self.store.versions(KIND).await?.len() >= MAX_ENDPOINTS {
            return Err(EndpointStoreError::TooMany);
        }
        let body = stored::write(&endpoint, &self.vault);
        let document = self.store.create(stored::key(&endpoint.id), body).await?;
        Ok(Endpoint { created_at: document.created_at, updated_at: document.updated_at, ..endpoint })
    }

    /// Reads one endpoint. A removed endpoint is not found.
    pub async fn get(&self, id: &EndpointId) -> Result<Endpoint, EndpointStoreError> {
        let document = self.store.document(stored::key(id)).await?;
        let document = document.ok_or_else(|| EndpointStoreError::NotFound { id: id.clone() })?;
        let endpoint = stored::read(&document, &self.vault)?;
        if endpoint.deleted_at.is_some() {
            return Err(EndpointStoreError::NotFound { id: id.clone() });
        }
        Ok(endpoint)
    }

    /// Lists endpoints after the given one in order of creation, without removed ones. The second value is the id to continue after, if
    /// there may be more.
    pub async fn list(
        &self,
        after: Option<&EndpointId>,
        limit: u32,
    ) -> Result<(Vec<Endpoint>, Option<EndpointId>), EndpointStoreError> {
        let mut after = after.map(stored::key);
        let mut found = Vec::new();
        loop {
            let documents = self.store.documents(KIND, after.clone(), limit.max(1)).await?;
            let is_last = documents.len() < limit.max(1) as usize;
            for document in &documents {
                if found.len() >= limit as usize {
                    let last = found.last().map(|endpoint: &Endpoint| endpoint.id.clone());
                    return Ok((found, last));
                }
                match self.try_read(document)? {
                    Ok(endpoint) if endpoint.deleted_at.is_none() => found.push(endpoint),
                    Ok(_) => {}
                    // One unreadable endpoint does not fail the list; reading it alone returns the error.
                    Err(UnreadableEndpoint { error, .. }) => {
                        tracing::warn!(target: "redrive::webhook", %error, "an unreadable endpoint is left out of the list");
                    }
                }
            }
            if is_last {
                return Ok((found, None));
            }
            after = documents.last().map(|document| document.key.clone());
        }
    }

    /// Reads every endpoint, also removed ones, which may have open deliveries. Re-encrypts secrets with the newest key, after which the
    /// older keys are no longer needed. An unreadable endpoint is returned as such and does not fail the call.
    pub(crate) async fn open_all(
        &self,
    ) -> Result<Vec<Result<Endpoint, UnreadableEndpoint>>, EndpointStoreError> {
        let (mut after, mut all, mut reencrypted) = (None, Vec::new(), 0_u64);
        loop {
            let documents = self.store.documents(KIND, after, PAGE_SIZE).await?;
            for document in &documents {
                let mut read = self.try_read(document)?;
                if let Ok(endpoint) = &mut read
                    && !stored::is_current(document, &self.vault)
                {
                    // If another process changed the endpoint first, that write encrypted its secrets.
                    reencrypted += u64::from(self.write(endpoint).await?);
                }
                all.push(read);
            }
            match documents.last() {
                Some(last) if documents.len() == PAGE_SIZE as usize => after = Some(last.key.clone()),
                _ => break,
            }
        }
        if reencrypted > 0 {
            tracing::info!(target: "redrive::webhook", count = reencrypted, "endpoint secrets were re-encrypted with the newest key");
        }
        Ok(all)
    }

    pub(crate) async fn read(
        &self,
        key: &DocumentKey,
    ) -> Result<Option<Result<Endpoint, UnreadableEndpoint>>, EndpointStoreError> {
        let document = self.store.document(key.clone()).await?;
        document.map(|document| self.try_read(&document)).transpose()
    }

    /// Fails only if the document's id is not that of an endpoint.
    fn try_read(
        &self,
        document: &Document,
    ) -> Result<Result<Endpoint, UnreadableEndpoint>, EndpointStoreError> {
        match stored::read(document, &self.vault) {
            Ok(endpoint) => Ok(Ok(endpoint)),
            Err(error) => {
                let id: EndpointId = document.key.id().parse()?;
                let patterns = stored::patterns(document);
                Ok(Err(UnreadableEndpoint { id, version: document.version, patterns, error }))
            }
        }
    }

    /// Changes the fields that the patch sets. Fails with [`EndpointStoreError::Changed`] if `version` is given and is not the current one.
    pub async fn update(
        &self,
        id: &EndpointId,
        version: Option<u64>,
        patch: EndpointPatch,
    ) -> Result<Endpoint, EndpointStoreError> {
        if let Some(url) = &patch.url {
            let url = url.parse().map_err(EndpointError::Url)?;
            self.client.check(&url).await.map_err(EndpointStoreError::Unreachable)?;
        }
        self.change(id, version, |endpoint, now| patch.clone().apply_to(endpoint, now)).await
    }

    /// Replaces the signing secret. Messages carry signatures of both secrets until `overlap` has passed.
    pub async fn rotate(
        &self,
        id: &EndpointId,
        secret: Option<Secret>,
        overlap: Duration,
    ) -> Result<Endpoint, EndpointStoreError> {
        let secret = secret.unwrap_or_else(Secret::generate);
        self.change(id, None, |endpoint, now| endpoint.rotate(secret.clone(), overlap, now)).await
    }

    /// Removes an endpoint, also an unreadable one. Its open deliveries are dead-lettered with that reason.
    pub async fn remove(&self, id: &EndpointId) -> Result<(), EndpointStoreError> {
        let remove = |endpoint: &mut Endpoint, now| {
            endpoint.deleted_at = Some(now);
            endpoint.headers.clear();
            endpoint.secrets.clear();
            Ok(())
        };
        match self.change(id, None, remove).await {
            Ok(_) => Ok(()),
            Err(
                EndpointStoreError::Sealed { .. }
                | EndpointStoreError::Unreadable { .. }
                | EndpointStoreError::Endpoint(_),
            ) => {
                let Some(document) = self.store.document(stored::key(id)).await? else {
                    return Err(EndpointStoreError::NotFound { id: id.clone() });
                };
                let body = stored::tombstone(&document, self.store.clock().now());
                self.store.replace(stored::key(id), document.version, body).await?;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the endpoint, with its secrets encrypted by the newest key. Returns `false` if another process changed it first.
    async fn write(&self, endpoint: &mut Endpoint) -> Result<bool, EndpointStoreError> {
        let body = stored::write(endpoint, &self.vault);
        match self.store.replace(stored::key(&endpoint.id), endpoint.version, body).await {
            Ok(document) => {
                endpoint.version = document.version;
                endpoint.updated_at = document.updated_at;
                Ok(true)
            }
            Err(StoreError::DocumentChanged { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Disables the endpoint if this is still its version.
    pub(crate) async fn disable(
        &self,
        id: &EndpointId,
        version: u64,
        why: Disabled,
    ) -> Result<Endpoint, EndpointStoreError> {
        let disable = |endpoint: &mut Endpoint, now| {
            endpoint.disabled = Some((why.clone(), now));
            Ok(())
        };
        self.change(id, Some(version), disable).await
    }

    /// Reads, changes and writes with optimistic locking; repeats on a conflict unless a version was given.
    async fn change(
        &self,
        id: &EndpointId,
        version: Option<u64>,
        mut change: impl FnMut(&mut Endpoint, Timestamp) -> Result<(), EndpointError>,
    ) -> Result<Endpoint, EndpointStoreError> {
        for _ in 0..10 {
            let mut endpoint = self.get(id).await?;
            if let Some(version) = version.filter(|version| *version != endpoint.version) {
                return Err(EndpointStoreError::Changed {
                    id: id.clone(),
                    seen: version,
                    now: endpoint.version,
                });
            }
            change(&mut endpoint, self.store.clock().now())?;
            if self.write(&mut endpoint).await? {
                return Ok(endpoint);
            }
        }
        let now = self.get(id).await?.version;
        Err(EndpointStoreError::Changed { id: id.clone(), seen: version.unwrap_or(now), now })
    }
}
