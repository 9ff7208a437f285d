//! Pieces that the SQLite and the PostgreSQL store share: status codes, filters, and rows of idempotency keys and events.

pub(crate) mod audit;
pub(crate) mod event_row;
pub(crate) mod filter;
pub(crate) mod idempotency;
pub(crate) mod payload;
pub(crate) mod redrive;
pub(crate) mod retry_task;
pub(crate) mod status;
