//! Locks a mutex without a poisoned state.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. Every change in this crate leaves the state valid, so a mutex that a panic poisoned is still usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
