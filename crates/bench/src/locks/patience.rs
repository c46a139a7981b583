//! Waiting for locks for as long as anybody wants what is done with them.

use std::time::Duration;

use plexus_locks::{Lock, LockError, Waiting};

/// How often it is looked whether anybody does.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What becomes of a request; none: `wanted` has said no.
pub(super) fn granted(
    mut waiting: Waiting,
    wanted: &mut dyn FnMut() -> bool,
) -> Option<Result<Lock, LockError>> {
    loop {
        match waiting.wait(LOOK_EVERY) {
            Ok(answer) => return Some(answer),
            Err(still) if wanted() => waiting = still,
            Err(_) => return None,
        }
    }
}
