//! Checks that each request is answered once, with the requested mode; at the end no client waits
//! and no state is left.

use plexus_locks::protocol::{LockRefusal, Mode, WaitLimit};

use super::{Id, Locks};
use crate::failure::Broken;

fn broken(what: String) -> Broken {
    Broken::general("answers", what)
}

/// Checks a grant.
pub(crate) fn granted(run: &Locks, id: Id, mode: Mode) -> Result<(), Broken> {
    match run.locks.get(&id) {
        Some(lock) if lock.asked == Some(mode) => Ok(()),
        other => Err(broken(format!("{id:?} is granted {mode:?} and is {other:?}"))),
    }
}

/// Checks a refusal and its reason.
pub(crate) fn refused(run: &Locks, id: Id, why: LockRefusal) -> Result<(), Broken> {
    match run.locks.get(&id) {
        Some(lock) if lock.asked.is_some() => {
            let good = match why {
                LockRefusal::NotGranted => lock.timeout == WaitLimit::Try,
                LockRefusal::TimedOut => {
                    matches!(lock.timeout, WaitLimit::Until(end) if end.0 <= run.engine.now())
                }
                LockRefusal::Cancelled => lock.cancelled,
                // `circles` checks the rest.
                LockRefusal::Deadlock => lock.timeout != WaitLimit::Try,
                LockRefusal::TooManyLocks => run.params.locks_max < 100 && lock.granted.is_none(),
                LockRefusal::TooManyWaiting => run.params.waiting_max < 50,
                LockRefusal::Unknown
                | LockRefusal::Busy
                | LockRefusal::NotWriter
                | LockRefusal::TooManyConversions => false,
            };
            if good { Ok(()) } else { Err(broken(format!("{id:?} is refused ({why}) and is {lock:?}"))) }
        }
        other => Err(broken(format!("{id:?} is refused ({why}) and is {other:?}"))),
    }
}

/// Reports a run that does not come to rest.
pub(crate) fn restless(run: &Locks) -> Broken {
    let waiting: Vec<_> = run.locks.iter().filter(|(_, lock)| lock.asked.is_some()).collect();
    broken(format!("does not come to rest: {} under way, in wait {waiting:?}", run.under_way))
}

/// Checks the state at rest.
pub(crate) fn check(run: &Locks) -> Result<(), Broken> {
    if let Some((id, lock)) = run.locks.first_key_value() {
        return Err(broken(format!("{id:?} is left: {lock:?}")));
    }
    for shard in run.shards() {
        let (me, left) = (shard.config().me, shard.resources().next());
        if left.is_some() || shard.locks().next().is_some() {
            return Err(broken(format!("{me} is left with {left:?}")));
        }
        if shard.next_tick().is_some() {
            return Err(broken(format!("{me} has no work but scheduled a wake-up")));
        }
    }
    Ok(())
}
