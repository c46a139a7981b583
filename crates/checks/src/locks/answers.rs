//! Each request is answered once, with what was asked; at the end nobody waits, and nothing is left anywhere.

use plexus_locks::protocol::{LockRefusal, Mode, WaitLimit};

use super::{Id, Locks};
use crate::failure::Broken;

fn broken(what: String) -> Broken {
    Broken::general("answers", what)
}

/// A grant answers a request.
pub(crate) fn granted(run: &Locks, id: Id, mode: Mode) -> Result<(), Broken> {
    match run.locks.get(&id) {
        Some(lock) if lock.asked == Some(mode) => Ok(()),
        other => Err(broken(format!("{id:?} is granted {mode:?} and is {other:?}"))),
    }
}

/// So does a refusal; and a reason has its ground.
pub(crate) fn refused(run: &Locks, id: Id, why: LockRefusal) -> Result<(), Broken> {
    match run.locks.get(&id) {
        Some(lock) if lock.asked.is_some() => {
            let good = match why {
                LockRefusal::NotGranted => lock.timeout == WaitLimit::Try,
                LockRefusal::TimedOut => {
                    matches!(lock.timeout, WaitLimit::Until(end) if end.0 <= run.engine.now())
                }
                LockRefusal::Cancelled => lock.cancelled,
                // The file for circles looks at the rest.
                LockRefusal::Deadlock => lock.timeout != WaitLimit::Try,
                LockRefusal::TooManyLocks => run.params.locks_max < 100 && lock.granted.is_none(),
                LockRefusal::TooManyWaiting => run.params.waiting_max < 50,
                LockRefusal::Unknown
                | LockRefusal::Busy
                | LockRefusal::NotWriter
                | LockRefusal::TooManyConversions
                | LockRefusal::Overloaded => false,
            };
            if good { Ok(()) } else { Err(broken(format!("{id:?} is refused ({why}) and is {lock:?}"))) }
        }
        other => Err(broken(format!("{id:?} is refused ({why}) and is {other:?}"))),
    }
}

/// Something goes on for ever.
pub(crate) fn restless(run: &Locks) -> Broken {
    let waiting: Vec<_> = run.locks.iter().filter(|(_, lock)| lock.asked.is_some()).collect();
    broken(format!("does not come to rest: {} under way, in wait {waiting:?}", run.under_way))
}

/// At rest.
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
            return Err(broken(format!("{me} has nothing and wants to be woken")));
        }
    }
    Ok(())
}
