//! API tokens: what is on record, and a cached lookup that every request passes.

pub(crate) mod cache;
mod secret;
pub(crate) mod token;
