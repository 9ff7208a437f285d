//! Idempotency: deterministic keys, and a store that records which operations ran.
//!
//! A key is *absent*, *in progress* under an owner's lease, *completed* with its result, or *failed*. The first caller runs the
//! operation; concurrent callers wait or are refused; later callers get the stored result.
//!
//! Limit: if the process dies after the side effect and before the result is stored, the next caller runs the operation again
//! after the lease. Pass the key on to the destination (it is in the [`Attempt`](crate::Attempt)), so that it can detect the
//! repetition.

mod canonical;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod key;
mod key_error;
mod memory;
mod store;

pub use self::key::{Fingerprint, IdempotencyKey};
pub use self::key_error::KeyError;
pub use self::memory::MemoryStore;
pub use self::store::{
    ABANDONED_AFTER, Begin, IdempotencyError, IdempotencyRecord, IdempotencyStore, KeyState, OwnerToken,
    StoreFuture,
};
