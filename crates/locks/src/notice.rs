//! Notices for the holder of a lock: another request waits for it, or the lock is lost.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use plexus_base::locks::Mode;

/// A notice about a lock for its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockNotice {
    /// Other requests wait for the lock; the first of them wants this mode. The notice comes once
    /// for each grant and may be out of date.
    Wanted(Mode),
    /// The lock protects nothing any more.
    Lost,
}

/// The unread notices of one lock.
#[derive(Default)]
pub struct LockNotices {
    told: Mutex<Unheard>,
    changed: Condvar,
}

#[derive(Default)]
struct Unheard {
    wanted: Option<Mode>,
    lost: bool,
}

impl LockNotices {
    fn lock(&self) -> MutexGuard<'_, Unheard> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the blocking notice of an earlier grant, because the lock was granted again.
    pub(crate) fn granted(&self) {
        self.lock().wanted = None;
    }

    pub(crate) fn wanted(&self, mode: Mode) {
        self.lock().wanted = Some(mode);
        self.changed.notify_all();
    }

    pub(crate) fn lost(&self) {
        self.lock().lost = true;
        self.changed.notify_all();
    }

    /// Returns the next notice and waits for it up to `limit`. A blocking notice is returned once.
    pub(crate) fn next(&self, limit: Duration) -> Option<LockNotice> {
        let told = self.lock();
        let nothing = |told: &mut Unheard| told.wanted.is_none() && !told.lost;
        let waited = self.changed.wait_timeout_while(told, limit, nothing);
        let (mut told, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if told.lost {
            return Some(LockNotice::Lost);
        }
        told.wanted.take().map(LockNotice::Wanted)
    }
}
