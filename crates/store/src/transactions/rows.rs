//! The versions of a row, which are the value of its key in a tree.
//!
//! A value is a list of versions, the newest first:
//!
//! | bytes | content |
//! |---|---|
//! | 0 | 1: the row is removed; 2: the number of its commit is known; 4: the contents are the place of long ones |
//! | 1..9 | the number of its commit, or the transaction that has made it |
//! | 9..11 | the step of the transaction |
//! | 11..13 | length of the contents |
//! | 13.. | contents |
//!
//! All numbers are little-endian.

use plexus_base::BlockId;

use super::{
    Number, Status, TransactionId,
    core::{Horizon, StatusPath},
};
use crate::{long::LongContents, tree::EntryChange};

const HEAD: usize = 13;
const REMOVED: u8 = 1;
const STAMPED: u8 = 2;
const LONG: u8 = 4;

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

/// The contents of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents<'a> {
    Here(&'a [u8]),
    Long(LongContents),
}

/// A version of a row; without contents if the row was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version<'a> {
    pub(crate) writer: Writer,
    pub(crate) contents: Option<Contents<'a>>,
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
        let contents = match head[0] & (REMOVED | LONG) {
            0 => Some(Contents::Here(contents)),
            LONG => match LongContents::decode(contents) {
                Some(long) => Some(Contents::Long(long)),
                None => return Some(Err(Malformed)),
            },
            _ => None,
        };
        Some(Ok(Version { writer, contents }))
    }
}

fn put(into: &mut Vec<u8>, version: Version<'_>) {
    let long;
    let (flags, contents) = match version.contents {
        None => (REMOVED, &[][..]),
        Some(Contents::Here(contents)) => (0, contents),
        Some(Contents::Long(of)) => {
            long = of.encode();
            (LONG, &long[..])
        }
    };
    let (stamped, word, step) = match version.writer {
        Writer::Stamped(number) => (STAMPED, number, 0),
        Writer::Of(id, step) => (0, id.0, step),
    };
    into.push(flags | stamped);
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
) -> Result<Option<Contents<'_>>, RowFault> {
    Ok(visible_version(value, me, snapshot, status)?.and_then(|version| version.contents))
}

/// Returns the version that a snapshot shows.
pub(crate) fn visible_version(
    value: &[u8],
    me: Option<TransactionId>,
    snapshot: Number,
    status: impl Fn(TransactionId, Number) -> StatusPath,
) -> Result<Option<Version<'_>>, RowFault> {
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
            return Ok(Some(version));
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
    /// A removal stays, also of a row that the transaction has made itself.
    pub(crate) keeps_removal: bool,
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

/// The same, with the place of long contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decided {
    Keep,
    Set(Vec<u8>),
    SetLong(LongContents),
    Remove,
}

/// Changes a row: `decide` gets the contents of the newest version that is committed or of the
/// transaction itself. Finished versions are stamped, and those that no snapshot needs go.
pub(crate) fn change(
    value: Option<&[u8]>,
    by: Changer<'_>,
    status: impl Fn(TransactionId, Number) -> StatusPath,
    decide: &mut dyn FnMut(Option<Contents<'_>>) -> Decided,
) -> (EntryChange, Changed) {
    let judge = |id| match status(id, Number::MAX) {
        _ if id == by.id => Ok(Judged::Stays),
        StatusPath::Known(Status::Committed(number)) => Ok(Judged::Committed(number)),
        StatusPath::Known(Status::Aborted) => Ok(Judged::RolledBack),
        way => Err(RowFault::Unknown(Unknown { id, snapshot: Number::MAX, way })),
    };
    let mut kept = match settled(value.unwrap_or_default(), by.horizon, judge) {
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
        Decided::Keep => return (EntryChange::Keep, Changed::Done),
        Decided::Remove if contents.is_none() => return (EntryChange::Keep, Changed::Done),
        Decided::Remove => None,
        Decided::Set(contents) => Some(Contents::Here(contents)),
        Decided::SetLong(long) => Some(Contents::Long(*long)),
    };
    let writer = Writer::Of(by.id, by.step);
    if newest.is_some_and(|newest| newest.writer == writer) {
        kept.remove(0);
    }
    if contents.is_some() || !kept.is_empty() || by.keeps_removal {
        kept.insert(0, Version { writer, contents });
    }
    (entry_of(&kept), Changed::Done)
}

/// Returns the value of a row that is made by a transaction, with no other version.
pub(crate) fn new(id: TransactionId, step: Step, contents: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD + contents.len());
    put_new(&mut value, id, step, contents);
    value
}

/// Appends the value of a row that is made by a transaction, with no other version.
pub(crate) fn put_new(into: &mut Vec<u8>, id: TransactionId, step: Step, contents: &[u8]) {
    put(into, Version { writer: Writer::Of(id, step), contents: Some(Contents::Here(contents)) });
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

/// Cleans a row: finished versions are stamped, and those that no snapshot needs go. Those of other
/// transactions stay. Those of status blocks below `final_before` are finished. `unknown` gets what
/// must be found out first.
pub(crate) fn clean(
    value: &[u8],
    horizon: &Horizon,
    snapshot: Number,
    final_before: u32,
    status: impl Fn(TransactionId, Number) -> StatusPath,
    unknown: &mut Vec<Unknown>,
) -> Result<EntryChange, Malformed> {
    if is_clean(value) {
        return Ok(EntryChange::Keep);
    }
    let judge = |id: TransactionId| {
        // For a snapshot it may be known only that the number is above it.
        let snapshot = if id.status_block() < final_before { Number::MAX } else { snapshot };
        match status(id, snapshot) {
            StatusPath::Known(Status::Committed(number)) => Ok(Judged::Committed(number)),
            StatusPath::Known(Status::Aborted) => Ok(Judged::RolledBack),
            StatusPath::Known(Status::After(_)) => Ok(Judged::Stays),
            way => {
                unknown.push(Unknown { id, snapshot, way });
                Ok(Judged::Stays)
            }
        }
    };
    let kept = settled(value, horizon, judge).map_err(|_| Malformed)?;
    Ok(match entry_of(&kept) {
        EntryChange::Set(same) if same == value => EntryChange::Keep,
        change => change,
    })
}

/// Returns whether a row has one version, whose number is known, with contents.
fn is_clean(value: &[u8]) -> bool {
    let head = value.first_chunk::<HEAD>();
    head.is_some_and(|head| {
        let contents = usize::from(u16::from_le_bytes([head[11], head[12]]));
        head[0] & (STAMPED | REMOVED) == STAMPED && value.len() == HEAD + contents
    })
}

/// Returns whether the newest version of a row is its removal.
pub(crate) fn is_removed(value: &[u8]) -> bool {
    value.first().is_some_and(|head| head & REMOVED != 0)
}

/// Returns the root that a row of the tree of trees has.
pub(crate) fn root_of(contents: Option<Contents<'_>>) -> Option<BlockId> {
    match contents {
        Some(Contents::Here(root)) => root.try_into().ok().map(|root| BlockId(u64::from_le_bytes(root))),
        _ => None,
    }
}

/// Returns the contents of the newest version that has some, whatever its state.
pub(crate) fn any_contents(value: &[u8]) -> Result<Option<Contents<'_>>, Malformed> {
    Versions(value).find_map(|version| version.map(|version| version.contents).transpose()).transpose()
}

/// The state of a transaction, for its versions.
enum Judged {
    Committed(Number),
    RolledBack,
    Stays,
}

/// Returns the versions with the numbers of those that are committed, and without those that are
/// rolled back or that no snapshot needs.
fn settled<'a>(
    value: &'a [u8],
    horizon: &Horizon,
    mut judge: impl FnMut(TransactionId) -> Result<Judged, RowFault>,
) -> Result<Vec<Version<'a>>, RowFault> {
    let mut kept: Vec<Version<'a>> = Vec::new();
    let lowest = horizon.lowest();
    // The number of the version above.
    let mut next = None;
    for version in Versions(value) {
        let mut version = version?;
        if let Writer::Of(id, _) = version.writer {
            match judge(id)? {
                Judged::Committed(number) => version.writer = Writer::Stamped(number),
                Judged::RolledBack => continue,
                Judged::Stays => {}
            }
        }
        let Writer::Stamped(number) = version.writer else {
            kept.push(version);
            continue;
        };
        if next.replace(number).is_none_or(|next| horizon.may_show(number, next)) {
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
    let bytes = versions.iter().map(|version| match version.contents {
        Some(Contents::Here(contents)) => HEAD + contents.len(),
        _ => HEAD + 12,
    });
    let mut value = Vec::with_capacity(bytes.sum());
    versions.iter().for_each(|version| put(&mut value, *version));
    EntryChange::Set(value)
}
