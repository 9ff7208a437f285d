//! Errors of [`Webhooks`](crate::Webhooks) and [`EndpointStore`](crate::EndpointStore).

use redrive::BusError;
use redrive_store::StoreError;
use thiserror::Error;

use crate::attempt::Failed;
use crate::endpoint::{EndpointError, EndpointId};
use crate::vault::VaultError;

/// Maximum number of endpoints, tombstones included.
pub(crate) const MAX_ENDPOINTS: usize = 10_000;

/// An operation on webhooks failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WebhooksError {
    /// An endpoint was refused, not found or not readable.
    #[error(transparent)]
    Endpoints(#[from] EndpointStoreError),
    /// The bus refused the subscription or the event.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The patterns of an endpoint cannot be read, so its events would be lost.
    #[error(
        "{error}; its event patterns cannot be read either, so its events would be lost: restore it from a backup, or delete its document"
    )]
    Unknown {
        /// The error of reading the endpoint.
        error: String,
    },
}

impl WebhooksError {
    /// Whether the store or the bus was closed, so that no later call can succeed.
    pub(crate) fn is_closed(&self) -> bool {
        let store = match self {
            WebhooksError::Store(error) | WebhooksError::Endpoints(EndpointStoreError::Store(error)) => error,
            WebhooksError::Bus(BusError::Store(error)) => error,
            WebhooksError::Bus(error) => return matches!(error, BusError::Shutdown(_)),
            WebhooksError::Endpoints(_) | WebhooksError::Unknown { .. } => return false,
        };
        matches!(store, StoreError::Closed)
    }
}

/// An operation on an endpoint failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EndpointStoreError {
    /// The settings are invalid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The URL cannot be used as a destination.
    #[error("the url cannot be used as a destination: {0}")]
    Unreachable(Failed),
    /// No endpoint has this id.
    #[error("there is no endpoint {id}")]
    NotFound {
        /// The endpoint.
        id: EndpointId,
    },
    /// Another request changed the endpoint.
    #[error("endpoint {id} was changed meanwhile: its version is {now}, not {seen}; read it again")]
    Changed {
        /// The endpoint.
        id: EndpointId,
        /// The version that the caller gave.
        seen: u64,
        /// The current version.
        now: u64,
    },
    /// The limit on endpoints is reached.
    #[error("there are already {MAX_ENDPOINTS} endpoints, including those removed within the last month")]
    TooMany,
    /// The secrets cannot be decrypted.
    #[error(
        "the secrets of endpoint {id} cannot be decrypted: {error}; without that key the endpoint can only be removed and created again"
    )]
    Sealed {
        /// The endpoint.
        id: EndpointId,
        /// The error of the vault.
        error: VaultError,
    },
    /// The document is damaged or was written by a newer version.
    #[error("endpoint {id} cannot be read: {why}")]
    Unreadable {
        /// The endpoint.
        id: EndpointId,
        /// The reason.
        why: String,
    },
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl EndpointStoreError {
    pub(crate) fn unreadable(id: &EndpointId, why: &str) -> Self {
        EndpointStoreError::Unreadable { id: id.clone(), why: why.to_owned() }
    }
}
