//! The versions of a row, which are the value of its key in a tree.
//!
//! A value is a list of versions, the newest first:
//!
//! | bytes | content |
//! |---|---|
//! | 0 | 1: the row is removed; 2: the number of its commit is known |
//! | 1..9 | the number of its commit, or the transaction that has made it |
//! | 9..11 | the step of the transaction |
//! | 11..13 | length of the contents |
//! | 13.. | contents |
//!
//! All numbers are little-endian.

use super::{
    Number, Status, TransactionId,
    core::{Horizon, StatusPath},
};
use crate::tree::EntryChange;

const HEAD: usize = 13;
const REMOVED: u8 = 1;
const STAMPED: u8 = 2;

/// The bytes that a version adds to the contents of a row.
pub(crate) const VERSION_BYTES: usize = HEAD;

/// A part of a transaction that can be rolled back by itself.
pub(crate) type Step = u16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writer {
    /// It is committed with this number.
    Stamped(Number),
    /// The state of this transaction counts.
    Of(TransactionId, Step),
}

/// A version of a row; without contents if the row was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version<'a> {
    pub(crate) writer: Writer,
    pub(crate) contents: Option<&'a [u8]>,
}

/// The state of a transaction must be found out first, for this snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unknown {
    pub(crate) id: TransactionId,
    pub(crate) snapshot: Number,
    pub(crate) way: StatusPath,
}

/// The reason why versions cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowFault {
    Malformed,
    Unknown(Unknown),
}

/// The bytes are not a list of versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

impl From<Malformed> for RowFault {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

/// The versions of a row.
struct Versions<'a>(&'a [u8]);

impl<'a> Iterator for Versions<'a> {
    type Item = Result<Version<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some((head, rest)) = self.0.split_first_chunk::<HEAD>() else {
            self.0 = &[];
            return Some(Err(Malformed));
        };
        let word = u64::from_le_bytes(head[1..9].try_into().expect("eight bytes"));
        let step = Step::from_le_bytes([head[9], head[10]]);
        let Some((contents, rest)) = rest.split_at_checked(u16::from_le_bytes([head[11], head[12]]).into())
        else {
            self.0 = &[];
            return Some(Err(Malformed));
        };
        self.0 = rest;
        let writer = match head[0] & STAMPED {
            0 => Writer::Of(TransactionId(word), step),
            _ => Writer::Stamped(word),
        };
        Some(Ok(Version { writer, contents: (head[0] & REMOVED == 0).then_some(contents) }))
    }
}

fn put(into: &mut Vec<u8>, version: Version<'_>) {
    let removed = if version.contents.is_some() { 0 } else { REMOVED };
    let (stamped, word, step) = match version.writer {
        Writer::Stamped(number) => (STAMPED, number, 0),
        Writer::Of(id, step) => (0, id.0, step),
    };
    let contents = version.contents.unwrap_or_default();
    into.push(removed | stamped);
    into.extend_from_slice(&word.to_le_bytes());
    into.extend_from_slice(&step.to_le_bytes());
    // A tree refuses longer values.
    into.extend_from_slice(&(contents.len() as u16).to_le_bytes());
    into.extend_from_slice(contents);
}

/// Returns the contents that a snapshot shows.
pub(crate) fn visible(
    value: &[u8],
    me: Option<TransactionId>,
    snapshot: Number,
    status: impl Fn(TransactionId, Number) -> StatusPath,
) -> Result<Option<&[u8]>, RowFault> {
    for version in Versions(value) {
        let version = version?;
        let is_visible = match version.writer {
            Writer::Stamped(number) => number <= snapshot,
            Writer::Of(id, _) if Some(id) == me => true,
            Writer::Of(id, _) => match status(id, snapshot) {
                StatusPath::Known(Status::Committed(number)) => number <= snapshot,
                StatusPath::Known(Status::Aborted | Status::After(_)) => false,
                way => return Err(RowFault::Unknown(Unknown { id, snapshot, way })),
            },
        };
        if is_visible {
            return Ok(version.contents);
        }
    }
    Ok(None)
}

/// Returns the transactions whose states the versions need.
pub(crate) fn writers(value: &[u8]) -> Result<Vec<TransactionId>, Malformed> {
    let mut writers = Vec::new();
    for version in Versions(value) {
        if let Writer::Of(id, _) = version?.writer {
            writers.push(id);
        }
    }
    Ok(writers)
}

/// Returns whether no snapshot from `lowest` on can show any contents.
pub(crate) fn is_gone(
    value: &[u8],
    lowest: Number,
    status: impl Fn(TransactionId) -> StatusPath,
) -> Result<bool, RowFault> {
    for version in Versions(value) {
        let version = version?;
        let number = match version.writer {
            Writer::Stamped(number) => number,
            Writer::Of(id, _) => match status(id) {
                StatusPath::Known(Status::Committed(number)) => number,
                StatusPath::Known(Status::Aborted) => continue,
                StatusPath::Known(Status::After(_)) => return Ok(false),
                way => return Err(RowFault::Unknown(Unknown { id, snapshot: lowest, way })),
            },
        };
        return Ok(version.contents.is_none() && number <= lowest);
    }
    Ok(true)
}

/// The transaction that changes a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changer<'a> {
    pub(crate) id: TransactionId,
    pub(crate) step: Step,
    /// A version above this snapshot is a failure; `None`: the newest one counts.
    pub(crate) snapshot: Option<Number>,
    /// The snapshots of all nodes.
    pub(crate) horizon: &'a Horizon,
}

/// The result of a change of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Changed {
    Done,
    /// Another transaction has changed the row since the snapshot.
    Serialization,
    /// Something must be found out or waited for first.
    Unknown(Unknown),
    Malformed,
}

/// The decision about the contents of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowChange {
    /// They stay as they are.
    Keep,
    /// These are the new ones; the row is made if there is none.
    Set(Vec<u8>),
    /// The row is removed, if there is one.
    Remove,
}

/// Changes a row: `decide` gets the contents of the newest version that is committed or of the
/// transaction itself. Finished versions are stamped, and those that no snapshot needs go.
pub(crate) fn change(
    value: Option<&[u8]>,
    by: Changer<'_>,
    status: impl Fn(TransactionId, Number) -> StatusPath,
    decide: &mut dyn FnMut(Option<&[u8]>) -> RowChange,
) -> (EntryChange, Changed) {
    let mut kept = match settled(value.unwrap_or_default(), by, &status) {
        Ok(kept) => kept,
        Err(RowFault::Malformed) => return (EntryChange::Keep, Changed::Malformed),
        Err(RowFault::Unknown(unknown)) => return (EntryChange::Keep, Changed::Unknown(unknown)),
    };
    let newest = kept.first().copied();
    if let (Some(Version { writer: Writer::Stamped(number), .. }), Some(snapshot)) = (newest, by.snapshot)
        && number > snapshot
    {
        return (EntryChange::Keep, Changed::Serialization);
    }
    let contents = newest.and_then(|version| version.contents);
    let decided = decide(contents);
    let contents = match &decided {
        RowChange::Keep => return (EntryChange::Keep, Changed::Done),
        RowChange::Remove if contents.is_none() => return (EntryChange::Keep, Changed::Done),
        RowChange::Remove => None,
        RowChange::Set(contents) => Some(&contents[..]),
    };
    let writer = Writer::Of(by.id, by.step);
    if newest.is_some_and(|newest| newest.writer == writer) {
        kept.remove(0);
    }
    if contents.is_some() || !kept.is_empty() {
        kept.insert(0, Version { writer, contents });
    }
    (entry_of(&kept), Changed::Done)
}

/// Returns the value of a row that is made by a transaction, with no other version.
pub(crate) fn new(id: TransactionId, step: Step, contents: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD + contents.len());
    put(&mut value, Version { writer: Writer::Of(id, step), contents: Some(contents) });
    value
}

/// Removes the versions of a transaction from a step on.
pub(crate) fn undo(value: Option<&[u8]>, id: TransactionId, from: Step) -> (EntryChange, Changed) {
    let Some(value) = value else { return (EntryChange::Keep, Changed::Done) };
    let all: Result<Vec<_>, _> = Versions(value).collect();
    let Ok(mut kept) = all else { return (EntryChange::Keep, Changed::Malformed) };
    let before = kept.len();
    kept.retain(|version| !matches!(version.writer, Writer::Of(of, step) if of == id && step >= from));
    match kept.len() == before {
        true => (EntryChange::Keep, Changed::Done),
        false => (entry_of(&kept), Changed::Done),
    }
}

/// Returns the versions with the numbers of those that are committed, and without those that are
/// rolled back or that no snapshot needs. Only the first may be of `by`.
fn settled<'a>(
    value: &'a [u8],
    by: Changer<'_>,
    status: &impl Fn(TransactionId, Number) -> StatusPath,
) -> Result<Vec<Version<'a>>, RowFault> {
    let mut kept: Vec<Version<'a>> = Vec::new();
    let lowest = by.horizon.lowest();
    // The number of the version above.
    let mut next = None;
    for version in Versions(value) {
        let mut version = version?;
        if let Writer::Of(id, _) = version.writer
            && by.id != id
        {
            match status(id, Number::MAX) {
                StatusPath::Known(Status::Committed(number)) => version.writer = Writer::Stamped(number),
                StatusPath::Known(Status::Aborted) => continue,
                way => return Err(RowFault::Unknown(Unknown { id, snapshot: Number::MAX, way })),
            }
        }
        let Writer::Stamped(number) = version.writer else {
            kept.push(version);
            continue;
        };
        if next.replace(number).is_none_or(|next| by.horizon.may_show(number, next)) {
            kept.push(version);
        }
        // Every snapshot shows this version or a newer one. A removed row needs none.
        if number <= lowest {
            kept.pop_if(|last| last.writer == version.writer && last.contents.is_none());
            break;
        }
    }
    Ok(kept)
}

fn entry_of(versions: &[Version<'_>]) -> EntryChange {
    if versions.is_empty() {
        return EntryChange::Remove;
    }
    let bytes = versions.iter().map(|version| HEAD + version.contents.map_or(0, <[u8]>::len)).sum();
    let mut value = Vec::with_capacity(bytes);
    versions.iter().for_each(|version| put(&mut value, *version));
    EntryChange::Set(value)
}
