//! What a holder is told while it holds a lock: that others wait for it, and that it protects nothing any more.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use plexus_base::locks::Mode;

/// News of a lock for its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockNotice {
    /// Others wait for it, the first of them for this mode. Said once for each grant; it may no longer be so.
    Wanted(Mode),
    /// It protects nothing any more.
    Lost,
}

/// What one lock's holder was told and has not heard yet.
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

    /// It is granted (anew): what was said before is about another grant.
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

    /// What is to be heard, for which it waits up to `limit`; that others wait is heard once.
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
