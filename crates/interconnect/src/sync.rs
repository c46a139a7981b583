//! Locks whose holders may have panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic: what is locked this way is whole between any two steps of its holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
