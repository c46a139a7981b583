//! The versions of a row, which are the value of its key in a tree.
//!
//! A value is the locks of transactions on the row, and a list of its versions, the newest first.
//! Both have one form:
//!
//! | bytes | content |
//! |---|---|
//! | 0 | 1: removed; 2: the number of its commit is known; 4: its contents are long; 8: a lock |
//! | 1..9 | the number of its commit, or the transaction that has made it |
//! | 9..11 | the step of the transaction |
//! | 11..13 | length of the contents |
//! | 13.. | contents; the place of long ones; the strength of a lock, from 0 (KEY SHARE) to 3 (UPDATE) |
//!
//! All numbers are little-endian.
//!
//! A lock is no version: readers pass it over, and a transaction that has locked rows and changed
//! none has no number and no record. Its end frees the lock, however it ends.

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
const LOCK: u8 = 8;

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

/// The strength of a lock on a row. An update needs [`NoKeyUpdate`](Self::NoKeyUpdate), a removal
/// [`Update`](Self::Update).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RowLock {
    /// The row stays, and its key.
    KeyShare,
    /// The row stays as it is.
    Share,
    /// The transaction may update the row.
    NoKeyUpdate,
    /// The transaction may remove the row.
    Update,
}

impl RowLock {
    const ALL: [Self; 4] = [Self::KeyShare, Self::Share, Self::NoKeyUpdate, Self::Update];

    /// Returns whether two transactions cannot have these locks at once.
    pub(crate) fn excludes(self, other: Self) -> bool {
        self as u8 + other as u8 > 2
    }
}

/// A lock of a transaction on a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lock {
    id: TransactionId,
    step: Step,
    strength: RowLock,
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

/// A lock or a version.
#[derive(Clone, Copy)]
struct Part<'a> {
    flags: u8,
    word: u64,
    step: Step,
    contents: &'a [u8],
}

impl<'a> Part<'a> {
    /// Takes the first part of a value.
    fn take(value: &mut &'a [u8]) -> Result<Option<Self>, Malformed> {
        if value.is_empty() {
            return Ok(None);
        }
        let (head, rest) = value.split_first_chunk::<HEAD>().ok_or(Malformed)?;
        let length = u16::from_le_bytes([head[11], head[12]]);
        let (contents, rest) = rest.split_at_checked(length.into()).ok_or(Malformed)?;
        *value = rest;
        let word = u64::from_le_bytes(head[1..9].try_into().expect("eight bytes"));
        Ok(Some(Self { flags: head[0], word, step: Step::from_le_bytes([head[9], head[10]]), contents }))
    }

    fn put(self, into: &mut Vec<u8>) {
        let Self { flags, word, step, contents } = self;
        into.push(flags);
        into.extend_from_slice(&word.to_le_bytes());
        into.extend_from_slice(&step.to_le_bytes());
        // A tree refuses longer values.
        into.extend_from_slice(&(contents.len() as u16).to_le_bytes());
        into.extend_from_slice(contents);
    }
}

fn is_locked(value: &[u8]) -> bool {
    value.first().is_some_and(|flags| flags & LOCK != 0)
}

/// Takes the locks from the begin of a value.
fn take_locks(value: &mut &[u8]) -> Result<Vec<Lock>, Malformed> {
    let mut locks = Vec::new();
    while is_locked(value)
        && let Some(Part { word, step, contents, .. }) = Part::take(value)?
    {
        let &[strength] = contents else { return Err(Malformed) };
        let strength = *RowLock::ALL.get(usize::from(strength)).ok_or(Malformed)?;
        locks.push(Lock { id: TransactionId(word), step, strength });
    }
    Ok(locks)
}

/// The versions of a row.
struct Versions<'a>(&'a [u8]);

impl<'a> Versions<'a> {
    /// Passes the locks of a value over.
    fn of(mut value: &'a [u8]) -> Result<Self, Malformed> {
        while is_locked(value) {
            Part::take(&mut value)?;
        }
        Ok(Self(value))
    }
}

impl<'a> Iterator for Versions<'a> {
    type Item = Result<Version<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let Part { flags, word, step, contents } = match Part::take(&mut self.0) {
            Ok(part) => part?,
            Err(Malformed) => {
                self.0 = &[];
                return Some(Err(Malformed));
            }
        };
        let writer = match flags & STAMPED {
            0 => Writer::Of(TransactionId(word), step),
            _ => Writer::Stamped(word),
        };
        let contents = match flags & (REMOVED | LONG) {
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
    Part { flags: flags | stamped, word, step, contents }.put(into);
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
    for version in Versions::of(value)? {
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

/// Returns the transactions whose states the locks and versions need.
pub(crate) fn writers(mut value: &[u8]) -> Result<Vec<TransactionId>, Malformed> {
    let mut writers: Vec<_> = take_locks(&mut value)?.into_iter().map(|lock| lock.id).collect();
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
    for version in Versions::of(value)? {
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
    /// The steps of the savepoints to which the transaction can be rolled back, rising.
    pub(crate) places: &'a [Step],
    /// A version above this snapshot is a failure; `None`: the newest one counts.
    pub(crate) snapshot: Option<Number>,
    /// The snapshots of all nodes.
    pub(crate) horizon: &'a Horizon,
    /// A removal stays, also of a row that the transaction has made itself.
    pub(crate) keeps_removal: bool,
    /// The lock that it wants, if it does not want to change the row.
    pub(crate) lock: Option<RowLock>,
    /// A moment at or before this look: what was not at its end then may be passed over.
    pub(crate) now: Number,
}

/// The locks of a row from which on those are found out that have ended.
const MANY_LOCKS: usize = 8;

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
    /// The row is locked, if there is one.
    Lock,
}

impl From<RowChange> for Decided {
    fn from(change: RowChange) -> Self {
        match change {
            RowChange::Keep => Self::Keep,
            RowChange::Set(contents) => Self::Set(contents),
            RowChange::Remove => Self::Remove,
        }
    }
}

/// Changes or locks a row: `decide` gets the contents of the newest version that is committed or of
/// the transaction itself. Finished versions are stamped, and those that no snapshot needs go.
pub(crate) fn change(
    value: Option<&[u8]>,
    by: Changer<'_>,
    status: impl Fn(TransactionId, Number) -> StatusPath,
    decide: &mut dyn FnMut(Option<Contents<'_>>) -> Decided,
) -> (EntryChange, Changed) {
    match changed(value.unwrap_or_default(), by, status, decide) {
        Ok(result) => result,
        Err(RowFault::Malformed) => (EntryChange::Keep, Changed::Malformed),
        Err(RowFault::Unknown(unknown)) => (EntryChange::Keep, Changed::Unknown(unknown)),
    }
}

fn changed(
    mut value: &[u8],
    by: Changer<'_>,
    status: impl Fn(TransactionId, Number) -> StatusPath,
    decide: &mut dyn FnMut(Option<Contents<'_>>) -> Decided,
) -> Result<(EntryChange, Changed), RowFault> {
    let passes_updates = by.lock.is_some_and(|lock| !lock.excludes(RowLock::NoKeyUpdate));
    let judge_at = |id, snapshot| match status(id, snapshot) {
        StatusPath::Known(Status::Committed(number)) => Ok(Judged::Committed(number)),
        StatusPath::Known(Status::Aborted) => Ok(Judged::RolledBack),
        StatusPath::Known(Status::After(_)) if snapshot == by.now => Ok(Judged::Stays),
        way => Err(RowFault::Unknown(Unknown { id, snapshot, way })),
    };
    let judge = |id, has_contents| match id == by.id {
        true => Ok(Judged::Stays),
        // The row that is updated has the same key.
        false => judge_at(id, if has_contents && passes_updates { by.now } else { Number::MAX }),
    };
    let mut locks = take_locks(&mut value)?;
    let is_many = locks.len() > MANY_LOCKS;
    let mut unknown = Ok(());
    locks.retain(|lock| match judge_at(lock.id, by.now) {
        _ if lock.id == by.id => true,
        Ok(Judged::Stays) => true,
        Ok(_) => false,
        Err(fault) => {
            unknown = if is_many { Err(fault) } else { Ok(()) };
            true
        }
    });
    unknown?;
    let allows = |locks: &[Lock], strength: RowLock| {
        let excludes = |lock: &&Lock| lock.id != by.id && lock.strength.excludes(strength);
        locks.iter().find(excludes).map_or(Ok(()), |Lock { id, .. }| {
            let (id, snapshot) = (*id, Number::MAX);
            Err(RowFault::Unknown(Unknown { id, snapshot, way: status(id, snapshot) }))
        })
    };
    let mut kept = settled(value, by.horizon, judge)?;
    let is_other = |version: &&Version<'_>| matches!(version.writer, Writer::Of(id, _) if id != by.id);
    let newest = kept.iter().find(|version| !is_other(version)).copied();
    if let (Some(Version { writer: Writer::Stamped(number), .. }), Some(snapshot)) = (newest, by.snapshot)
        && number > snapshot
    {
        return Ok((EntryChange::Keep, Changed::Serialization));
    }
    let contents = newest.and_then(|version| version.contents);
    let decided = decide(contents);
    let contents = match &decided {
        Decided::Keep => return Ok((EntryChange::Keep, Changed::Done)),
        Decided::Remove | Decided::Lock if contents.is_none() => {
            return Ok((EntryChange::Keep, Changed::Done));
        }
        Decided::Lock => {
            let strength = by.lock.unwrap_or(RowLock::Update);
            allows(&locks, strength)?;
            let is_own = matches!(newest, Some(Version { writer: Writer::Of(..), .. }));
            let own = locks.iter().filter(|lock| lock.id == by.id).map(|lock| lock.strength);
            let has = own.chain(is_own.then_some(RowLock::NoKeyUpdate)).max();
            if has >= Some(strength) {
                return Ok((EntryChange::Keep, Changed::Done));
            }
            locks.push(Lock { id: by.id, step: by.step, strength });
            return Ok((entry_of(&locks, &kept), Changed::Done));
        }
        Decided::Remove => {
            allows(&locks, RowLock::Update)?;
            None
        }
        Decided::Set(contents) => {
            allows(&locks, RowLock::NoKeyUpdate)?;
            Some(Contents::Here(contents))
        }
        Decided::SetLong(long) => {
            allows(&locks, RowLock::NoKeyUpdate)?;
            Some(Contents::Long(*long))
        }
    };
    let writer = Writer::Of(by.id, by.step);
    if newest.is_some_and(|newest| newest.writer == writer) {
        kept.remove(0);
    }
    // Of its own earlier versions those stay to which a savepoint leads back.
    let mut newer = by.step;
    kept.retain(|version| match version.writer {
        Writer::Of(id, step) if id == by.id => {
            let is_needed = by.places.iter().any(|place| step < *place && *place <= newer);
            newer = step;
            // Long contents have blocks of their own, which the end of the row gives back.
            is_needed || matches!(version.contents, Some(Contents::Long(_)))
        }
        _ => true,
    });
    if contents.is_some() || !kept.is_empty() || by.keeps_removal {
        kept.insert(0, Version { writer, contents });
    }
    Ok((entry_of(&locks, &kept), Changed::Done))
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

/// Removes the locks and versions of a transaction from a step on.
pub(crate) fn undo(value: Option<&[u8]>, id: TransactionId, from: Step) -> (EntryChange, Changed) {
    let mut value = value.unwrap_or_default();
    let Ok(mut locks) = take_locks(&mut value) else { return (EntryChange::Keep, Changed::Malformed) };
    let all: Result<Vec<_>, _> = Versions(value).collect();
    let Ok(mut kept) = all else { return (EntryChange::Keep, Changed::Malformed) };
    let before = kept.len() + locks.len();
    locks.retain(|lock| lock.id != id || lock.step < from);
    kept.retain(|version| !matches!(version.writer, Writer::Of(of, step) if of == id && step >= from));
    match kept.len() + locks.len() == before {
        true => (EntryChange::Keep, Changed::Done),
        false => (entry_of(&locks, &kept), Changed::Done),
    }
}

/// Cleans a row: finished versions are stamped, and those that no snapshot needs go, like locks.
/// Those of other transactions stay. Those of status blocks below `final_before` are finished.
/// `unknown` gets what must be found out first.
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
    let mut judge = |id: TransactionId, _| {
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
    let mut versions = value;
    let mut locks = take_locks(&mut versions)?;
    locks.retain(|lock| matches!(judge(lock.id, false), Ok(Judged::Stays)));
    let kept = settled(versions, horizon, judge).map_err(|_| Malformed)?;
    Ok(match entry_of(&locks, &kept) {
        EntryChange::Set(same) if same == value => EntryChange::Keep,
        change => change,
    })
}

/// Returns whether a row has one version, whose number is known, with contents.
fn is_clean(value: &[u8]) -> bool {
    let head = value.first_chunk::<HEAD>();
    head.is_some_and(|head| {
        let contents = usize::from(u16::from_le_bytes([head[11], head[12]]));
        head[0] & (STAMPED | REMOVED | LOCK) == STAMPED && value.len() == HEAD + contents
    })
}

/// Returns whether the newest version of a row is its removal.
pub(crate) fn is_removed(value: &[u8]) -> bool {
    Versions::of(value).is_ok_and(|versions| versions.0.first().is_some_and(|head| head & REMOVED != 0))
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
    Versions::of(value)?.find_map(|version| version.map(|version| version.contents).transpose()).transpose()
}

/// The state of a transaction, for its versions.
enum Judged {
    Committed(Number),
    RolledBack,
    Stays,
}

/// Returns the versions with the numbers of those that are committed, and without those that are
/// rolled back or that no snapshot needs. `judge` gets the transaction of a version and whether it
/// has contents.
fn settled<'a>(
    value: &'a [u8],
    horizon: &Horizon,
    mut judge: impl FnMut(TransactionId, bool) -> Result<Judged, RowFault>,
) -> Result<Vec<Version<'a>>, RowFault> {
    let mut kept: Vec<Version<'a>> = Vec::new();
    let lowest = horizon.lowest();
    // The number of the version above.
    let mut next = None;
    for version in Versions(value) {
        let mut version = version?;
        if let Writer::Of(id, _) = version.writer {
            match judge(id, version.contents.is_some())? {
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

/// Returns the value of a row. A row without versions is gone, also if it is locked.
fn entry_of(locks: &[Lock], versions: &[Version<'_>]) -> EntryChange {
    if versions.is_empty() {
        return EntryChange::Remove;
    }
    let bytes = versions.iter().map(|version| match version.contents {
        Some(Contents::Here(contents)) => HEAD + contents.len(),
        _ => HEAD + 12,
    });
    let mut value = Vec::with_capacity(bytes.sum::<usize>() + locks.len() * (HEAD + 1));
    for Lock { id, step, strength } in locks {
        Part { flags: LOCK, word: id.0, step: *step, contents: &[*strength as u8] }.put(&mut value);
    }
    versions.iter().for_each(|version| put(&mut value, *version));
    EntryChange::Set(value)
}
