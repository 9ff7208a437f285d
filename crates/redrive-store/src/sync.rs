//! Locks and atomics; with the feature `shuttle`, those of a scheduler that explores thread interleavings.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
