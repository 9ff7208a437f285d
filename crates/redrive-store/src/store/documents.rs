//! Keeping configuration that changes at run time, as JSON documents.

use super::{Sealed, StoreFuture};
use crate::document::{Document, DocumentKey};

/// Keeps documents with optimistic concurrency: a change names the version it is based on and fails if that is not current.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
///
/// A change is on stable storage when its future resolves to `Ok`. Times are those of the store's clock.
#[allow(private_bounds)] // the private supertrait is the seal
pub trait Documents: Sealed {
    /// Stores a new document as version 1.
    fn create(&self, key: DocumentKey, body: String) -> StoreFuture<'_, Document>;

    /// Returns one document.
    fn document(&self, key: DocumentKey) -> StoreFuture<'_, Option<Document>>;

    /// Lists at most `limit` documents of a kind behind `after`, in the order of their keys.
    fn documents(
        &self,
        kind: &'static str,
        after: Option<DocumentKey>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<Document>>;

    /// Replaces the body of a document that is still in this version.
    fn replace(&self, key: DocumentKey, version: u64, body: String) -> StoreFuture<'_, Document>;

    /// Removes a document, if a version is given only while it is in that version. Returns whether it existed.
    fn remove(&self, key: DocumentKey, version: Option<u64>) -> StoreFuture<'_, bool>;

    /// Lists keys and versions of a kind. Cheap to poll: it shows every change by other processes unless a key is reused.
    fn versions(&self, kind: &'static str) -> StoreFuture<'_, Vec<(DocumentKey, u64)>>;
}
