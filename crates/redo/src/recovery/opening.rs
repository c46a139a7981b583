//! The openings of a disk group: an image of a disk that is older than the registry knows is
//! noticed.
//!
//! Each cold start, and each clean end of all nodes, gets a number, one more than the last. It is
//! written into the labels of the disks first, then into the entry `group` of the [`Ledger`], and
//! no block opens before. A label has the last two numbers, so that of the registry is one of them,
//! also after a crash between the two writes. If it is not, the disk is an older image.
//!
//! Several members may do this at the same time: they write the same bytes, and one of them changes
//! the registry. A start is no cold one if the member that wrote the entry is still there.

use std::collections::BTreeMap;

use plexus_base::{Incarnation, NodeId};
use plexus_disks::{DiskOpening, Group};

use super::{
    files::RedoFileError,
    known::{Ledger, LedgerEntries, are_closed, has_streams, number},
};

/// The key of the entry.
const KEY: &str = "group";

/// The last opening as the registry knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct KnownGroup {
    /// The highest number of an opening.
    last: u64,
    /// The member that opened the disks; `None` if all nodes have ended since.
    by: Option<(NodeId, Incarnation)>,
    /// The last opening of each disk, by its random name.
    disks: BTreeMap<u128, u64>,
}

impl KnownGroup {
    fn encode(&self) -> String {
        let (node, incarnation) = self.by.unwrap_or((NodeId(0), Incarnation(0)));
        let disks: Vec<_> = self.disks.iter().map(|(id, last)| format!("{id:032x}:{last:020}")).collect();
        let (last, disks) = (self.last, disks.join(","));
        format!("opening={last:020} node={:03} incarnation={:020} disks={disks}", node.0, incarnation.0)
    }

    fn decode(text: &str) -> Option<Self> {
        let (_, disks) = text.split_once("disks=")?;
        let disk = |text: &str| {
            let (id, last) = text.split_once(':')?;
            Some((u128::from_str_radix(id, 16).ok()?, last.parse().ok()?))
        };
        let by = (NodeId(number(text, "node")?.try_into().ok()?), Incarnation(number(text, "incarnation")?));
        Some(Self {
            last: number(text, "opening")?,
            by: Some(by).filter(|(_, incarnation)| incarnation.0 > 0),
            disks: disks.split(',').map(disk).collect::<Option<_>>()?,
        })
    }

    /// Returns the entry with its version, 0 and nothing if there is none.
    fn of(entries: &LedgerEntries) -> Result<(u64, Option<Self>), RedoFileError> {
        let Some((version, text)) = entries.get(KEY) else { return Ok((0, None)) };
        let unknown = || RedoFileError::Entry(format!("{KEY}: malformed value {text}"));
        Ok((*version, Some(Self::decode(text).ok_or_else(unknown)?)))
    }

    /// Returns why a disk is not the one that the registry knows, if so.
    fn fault(&self, disk: &DiskOpening) -> Option<String> {
        let DiskOpening { path, id, last, before } = disk;
        let path = path.display();
        match self.disks.get(id) {
            Some(known) if known == last || known == before => None,
            Some(known) if last < known => Some(format!(
                "{path}: this is an older image of the disk: its last start or end of the cluster has number {last}, \
                 and the registry knows number {known}; put the newest image back"
            )),
            Some(known) => Some(format!(
                "{path}: the disk has number {last} of the starts and ends of the cluster, and the registry knows \
                 only number {known}: its copies are old; put the newest ones back"
            )),
            None => Some(format!(
                "{path}: this is not the disk that the registry knows, but another of its group; correct its path"
            )),
        }
    }
}

/// Returns the faults of the disks according to the registry.
fn faults(openings: &[DiskOpening], known: Option<&KnownGroup>) -> Vec<String> {
    openings.iter().filter_map(|disk| known?.fault(disk)).collect()
}

/// Describes disks that are older images, with the way out.
#[must_use]
pub fn older_images(faults: &[String]) -> String {
    let faults = faults.join("; ");
    format!("{faults}, or accept that changes are lost with `plexus disk force --lose-newer`")
}

/// Compares the disks with the registry. Returns the faults, one text for each. Without faults,
/// notes a new opening unless `has_compared`, or the member that noted the last one is in
/// `members`. `me` is this node.
///
/// # Errors
/// A disk cannot be read or written, or the registry cannot be asked.
pub fn open_disks(
    group: &Group,
    ledger: &dyn Ledger,
    me: (NodeId, Incarnation),
    members: &[(NodeId, Incarnation)],
    has_compared: bool,
    is_void: &dyn Fn() -> bool,
) -> Result<Vec<String>, RedoFileError> {
    // The servers of mirrored disks compare their labels themselves.
    if group.mirror().is_some() {
        return Ok(Vec::new());
    }
    loop {
        // First, so that the labels are at least as new.
        let entries = ledger.read(is_void).map_err(RedoFileError::Registry)?;
        let (version, known) = KnownGroup::of(&entries)?;
        let openings = group.openings().map_err(RedoFileError::Disks)?;
        let faults = faults(&openings, known.as_ref());
        if !faults.is_empty() {
            return Ok(faults);
        }
        let is_warm = known.as_ref().and_then(|known| known.by).is_some_and(|by| members.contains(&by));
        if has_compared || is_warm || note(group, ledger, version, (known, openings), Some(me), is_void)? {
            return Ok(Vec::new());
        }
    }
}

/// Notes that all nodes have ended, if no stream is open: this node is the last. An older image is
/// noticed from then on.
///
/// # Errors
/// As [`open_disks`]. Then images that were made since the last start are not noticed.
pub fn close_disks(
    group: &Group,
    ledger: &dyn Ledger,
    is_void: &dyn Fn() -> bool,
) -> Result<(), RedoFileError> {
    if group.mirror().is_some() {
        return Ok(());
    }
    loop {
        let entries = ledger.read(is_void).map_err(RedoFileError::Registry)?;
        let (version, known) = KnownGroup::of(&entries)?;
        // Without redo no stream shows whether other nodes run, so each node that leaves notes it.
        let is_noted = known.as_ref().is_none_or(|known| known.by.is_none() && has_streams(&entries));
        let openings = group.openings().map_err(RedoFileError::Disks)?;
        if is_noted
            || !are_closed(&entries)
            || !faults(&openings, known.as_ref()).is_empty()
            || note(group, ledger, version, (known, openings), None, is_void)?
        {
            return Ok(());
        }
    }
}

/// Writes the next opening into the labels, then into the registry. Returns false if another member
/// was first.
fn note(
    group: &Group,
    ledger: &dyn Ledger,
    version: u64,
    (known, mut openings): (Option<KnownGroup>, Vec<DiskOpening>),
    by: Option<(NodeId, Incarnation)>,
    is_void: &dyn Fn() -> bool,
) -> Result<bool, RedoFileError> {
    // A label may have a number that the registry lacks: that start was interrupted, and its number
    // is used again.
    let next = known.as_ref().map_or(1, |known| known.last.saturating_add(1));
    let next = openings.iter().map(|disk| disk.last).max().unwrap_or(0).max(next);
    for disk in &mut openings {
        let known = known.as_ref().and_then(|known| known.disks.get(&disk.id));
        let before = if disk.last == next { disk.before } else { disk.last };
        (disk.before, disk.last) = (known.copied().unwrap_or(before), next);
    }
    if is_void() {
        return Err(RedoFileError::Registry("the view has changed".into()));
    }
    group.note_openings(&openings).map_err(RedoFileError::Disks)?;
    let disks = openings.iter().map(|disk| (disk.id, next)).collect();
    let noted = KnownGroup { last: next, by, disks }.encode();
    ledger.set(KEY, version, &noted, is_void).map_err(RedoFileError::Registry)
}

/// Returns the faults of the disks, one text for each. If `accepts`, the registry then takes the
/// present images for the newest.
///
/// # Errors
/// A label cannot be read, or the registry cannot be changed. This can be repeated.
pub fn force_disks(
    group: &Group,
    ledger: &dyn Ledger,
    accepts: bool,
    is_void: &dyn Fn() -> bool,
) -> Result<Vec<String>, RedoFileError> {
    loop {
        let entries = ledger.read(is_void).map_err(RedoFileError::Registry)?;
        let (version, known) = KnownGroup::of(&entries)?;
        let openings = group.openings().map_err(RedoFileError::Disks)?;
        let faults = faults(&openings, known.as_ref());
        let Some(known) = known.filter(|_| accepts && !faults.is_empty()) else { return Ok(faults) };
        let disks = openings.iter().map(|disk| (disk.id, disk.last)).collect();
        let forced = KnownGroup { by: None, disks, ..known };
        if ledger.set(KEY, version, &forced.encode(), is_void).map_err(RedoFileError::Registry)? {
            return Ok(faults);
        }
    }
}
