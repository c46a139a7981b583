//! Checks value blocks: a grant that excludes writers carries the last written value.
//!
//! Otherwise the grant says that the value may be lost, or that none was written since the resource
//! was created.

use std::collections::BTreeSet;

use plexus_locks::protocol::{Mode, VALUE_LEN, Validity, Value};

use super::{Id, Locks};
use crate::failure::Broken;

/// The values written.
pub(crate) struct Values {
    resources: Vec<Written>,
    next: u64,
    /// True if a client died with a lock: from now on values may be lost, as they may when the view
    /// changes.
    deaths: bool,
}

#[derive(Clone, Default)]
struct Written {
    /// The last value written. `None`: none was written. `Some(None)`: a client died, and the value
    /// is unknown.
    last: Option<Option<u64>>,
    /// The clients that had a lock then and still have it: while there is one, the resource is the
    /// same.
    witnesses: BTreeSet<Id>,
}

impl Values {
    pub(crate) fn new(names: usize) -> Self {
        Self { resources: vec![Written::default(); names], next: 0, deaths: false }
    }
}

/// Writes a value while a client converts and keeps the lock (`stays`), or unlocks.
pub(crate) fn write(run: &mut Locks, id: Id, stays: bool) -> [u8; VALUE_LEN] {
    run.values.next += 1;
    let number = run.values.next;
    note(run, id, Some(number), stays);
    let mut bytes = [0; VALUE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Notes the death of a client with a lock.
pub(crate) fn ends(run: &mut Locks, id: Id) {
    run.values.deaths = true;
    if run.locks.get(&id).and_then(|lock| lock.mode()).is_some_and(Mode::writes) {
        note(run, id, None, false);
    }
}

fn note(run: &mut Locks, id: Id, last: Option<u64>, stays: bool) {
    let name = run.locks[&id].name;
    let others = run.locks.iter().filter(|(_, lock)| lock.name == name && lock.granted.is_some());
    let witnesses = others.map(|(other, _)| *other).filter(|other| stays || *other != id).collect();
    run.values.resources[name] = Written { last: Some(last), witnesses };
}

/// Checks the value given with a grant.
pub(crate) fn granted(run: &mut Locks, id: Id, mode: Mode, value: Value) -> Result<(), Broken> {
    if !mode.keeps_value() {
        return Ok(());
    }
    let deaths = run.values.deaths || run.views > 1;
    let name = run.locks[&id].name;
    let written = &mut run.values.resources[name];
    written.witnesses.retain(|id| run.locks.get(id).is_some_and(|lock| lock.granted.is_some()));
    let number = value.bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let good = match value.validity {
        Validity::Valid => written.last == Some(number),
        Validity::Unwritten => written.last.is_none() || written.witnesses.is_empty(),
        Validity::Lost => deaths,
    };
    let what = || {
        let Written { last, witnesses } = &written;
        format!(
            "{id:?} is granted {mode:?} of {name} with {number:?} {:?}; {last:?}, {witnesses:?}",
            value.validity
        )
    };
    if good { Ok(()) } else { Err(Broken::general("values", what())) }
}
