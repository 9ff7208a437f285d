//! Reads all documents of a kind from the store.

use redrive::store::{Store, StoreError};
use redrive_store::Document;

/// Documents read per query.
const PAGE_SIZE: u32 = 500;

/// Returns all documents of a kind, in the order of their ids.
pub(crate) async fn all_documents(
    store: &dyn Store,
    kind: &'static str,
) -> Result<Vec<Document>, StoreError> {
    let mut all: Vec<Document> = Vec::new();
    loop {
        let after = all.last().map(|document| document.key.clone());
        let page = store.documents(kind, after, PAGE_SIZE).await?;
        let is_last = page.len() < PAGE_SIZE as usize;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}
