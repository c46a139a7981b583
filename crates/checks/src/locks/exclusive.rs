//! Checks that conflicting modes are never usable at once, by any clients of any living nodes.

use plexus_locks::protocol::Mode;

use super::{Id, Locks};
use crate::failure::Broken;

/// Checks a grant against the modes that all others can use.
///
/// # Errors
/// The conflicting holder and its mode.
pub(crate) fn check(run: &Locks, id: Id, mode: Mode) -> Result<(), Broken> {
    let name = run.locks[&id].name;
    let others = run.locks.iter().filter(|(other, lock)| **other != id && lock.name == name);
    for (other, held) in others.filter_map(|(other, lock)| Some((other, lock.mode()?))) {
        if !mode.is_compatible_with(held) {
            let what = format!("{id:?} is granted {mode:?} of {name} while {other:?} has {held:?}");
            return Err(Broken::general("exclusive", what));
        }
    }
    Ok(())
}
