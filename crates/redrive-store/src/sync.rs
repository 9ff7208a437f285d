//! The locks and atomics whose order matters; with the feature `shuttle` those of a scheduler that tries out who comes first.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
