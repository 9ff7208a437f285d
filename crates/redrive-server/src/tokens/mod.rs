//! API tokens: stored documents, and the cached lookup that authenticates requests.

pub(crate) mod cache;
mod secret;
pub(crate) mod token;
