//! Never do the same thing twice: deterministic keys, and a store that knows what has been done.
//!
//! A key is *absent*, *in progress* under an owner's lease, *completed* with its result, or *failed*. Whoever begins
//! first runs; everybody else waits or is refused; a result that was stored is returned without running anything.
//!
//! What cannot be promised: if the process dies after the side effect and before the result is stored, the next caller
//! runs it again once the lease has ended. Pass the key on (it is in the [`Attempt`](crate::Attempt)), so that the far
//! side can tell.

mod canonical;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod key;
mod memory;
mod store;

pub use self::key::{Fingerprint, IdempotencyKey, KeyError};
pub use self::memory::MemoryStore;
pub use self::store::{
    ABANDONED_AFTER, Begin, IdempotencyError, IdempotencyRecord, IdempotencyStore, KeyState, OwnerToken,
    StoreFuture,
};
