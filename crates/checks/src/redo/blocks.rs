//! The blocks that a stream protects, as a node would use it: an image before the first change, a
//! write to disk only of what is durable, a checkpoint below the first record of each owed block.

use plexus_base::{BlockId, NodeId};
use plexus_disks::Version;
use plexus_redo::stream::protocol::{
    Batch, Group, Lsn, Record, RecordKind, StreamWriter,
    replay::{BlockOnDisk, LocatedRecord, StreamName, replay},
};

use super::block;
use crate::harness::chance::Chance;

const BLOCKS: usize = 5;

/// The most bytes of a block.
const BYTES: usize = 480;

/// A group as it was appended, or as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LoggedGroup {
    /// The start of its batch.
    pub(super) start: Lsn,
    /// The end of its last record.
    pub(super) end: Lsn,
    /// Each block with its version and contents afterwards.
    pub(super) changes: Vec<(usize, u64, Vec<u8>)>,
    /// True once it was reported as durable.
    pub(super) is_durable: bool,
}

#[derive(Clone, Default)]
struct Block {
    version: u64,
    bytes: Vec<u8>,
    on_disk: (u64, Vec<u8>),
    is_torn: bool,
    /// The start of a batch at or below its oldest record since it is owed.
    first: Option<Lsn>,
    last: Option<Lsn>,
}

impl Block {
    fn is_writable(&self, durable: Lsn) -> bool {
        self.first.is_some() && self.last.is_some_and(|last| last <= durable)
    }
}

/// The blocks of the node.
#[derive(Default)]
pub(super) struct Blocks([Block; BLOCKS]);

impl Blocks {
    /// Makes a group of changes, without effect on the blocks.
    pub(super) fn group(&self, number: u64, chance: &mut Chance) -> (Group, LoggedGroup) {
        let mut group = Group::default();
        let mut changes = Vec::new();
        let first = chance.of_drawn(BLOCKS);
        for at in first..first + 1 + chance.of_drawn(3) {
            let at = at % BLOCKS;
            let Block { version, bytes, first, .. } = &self.0[at];
            if first.is_none() {
                group.push(&Record::image(block(at), Version(*version), bytes));
            }
            let content = [number.to_le_bytes(), (at as u64).to_le_bytes()].concat();
            let content = content.repeat(1 + chance.of_drawn(BYTES / 16));
            group.push(&Record::change(block(at), Version(*version), Version(version + 1), &content));
            changes.push((at, version + 1, content));
        }
        let (start, end) = (Lsn::FIRST, Lsn::FIRST);
        (group, LoggedGroup { start, end, changes, is_durable: false })
    }

    /// Makes the changes of an appended group. `position` was that of the next group before.
    pub(super) fn logged(&mut self, group: &LoggedGroup, position: Lsn) {
        for (at, version, bytes) in &group.changes {
            let block = &mut self.0[*at];
            (block.version, block.bytes) = (*version, bytes.clone());
            block.first = block.first.or(Some(position));
            block.last = Some(group.end);
        }
    }

    /// Writes owed blocks to disk whose records are durable.
    pub(super) fn write_back(&mut self, durable: Lsn, mut is_chosen: impl FnMut(usize) -> bool) {
        for (at, block) in self.0.iter_mut().enumerate() {
            if block.is_writable(durable) && is_chosen(at) {
                block.on_disk = (block.version, block.bytes.clone());
                (block.first, block.is_torn) = (None, false);
            }
        }
    }

    /// Tears a block whose write a loss of power interrupts; returns true if there is one.
    pub(super) fn tear(&mut self, durable: Lsn, chance: &mut Chance) -> bool {
        let at = chance.of_drawn(BLOCKS);
        let tears = self.0[at].is_writable(durable) && chance.of_drawn(2) == 1;
        self.0[at].is_torn |= tears;
        tears
    }

    /// Returns true if a block can be written to disk.
    pub(super) fn any_clean(&self, writer: &StreamWriter) -> bool {
        self.0.iter().any(|block| block.is_writable(writer.durable()))
    }

    /// Returns the position below which no owed block has a record.
    pub(super) fn checkpoint(&self, durable: Lsn) -> Lsn {
        self.0.iter().filter_map(|block| block.first).fold(durable, Lsn::min)
    }

    /// Returns the version of a block.
    pub(super) fn version(&self, block: BlockId) -> u64 {
        self.0[block.0 as usize].version
    }

    /// Replays all blocks after a crash, and compares them with the groups that remain.
    pub(super) fn recover(
        &mut self,
        log: &[LoggedGroup],
        node: NodeId,
        batches: &[Batch],
    ) -> Result<(), String> {
        let records: Vec<(Lsn, LocatedRecord<'_>)> = batches
            .iter()
            .flat_map(|batch| {
                let (stream, incarnation) = (StreamName { node, place: 0 }, batch.head().incarnation);
                batch.records().map(move |(lsn, record, _)| {
                    (batch.head().lsn, LocatedRecord { stream, incarnation, lsn, record })
                })
            })
            .collect();
        for (at, state) in self.0.iter_mut().enumerate() {
            let disk = match state.is_torn {
                true => BlockOnDisk::Torn(Version(state.on_disk.0)),
                false => BlockOnDisk::Whole(Version(state.on_disk.0), state.on_disk.1.clone()),
            };
            let apply = |bytes: &mut Vec<u8>, what: &[u8]| {
                *bytes = what.to_vec();
                Ok(())
            };
            let located = records.iter().map(|(_, located)| *located);
            let replayed = replay(block(at), disk, located, apply).map_err(|error| error.to_string())?;
            let newest = log.iter().rev().flat_map(|group| &group.changes).find(|(number, ..)| *number == at);
            let expected = newest.map_or((0, Vec::new()), |(_, version, bytes)| (*version, bytes.clone()));
            let found = (replayed.version.0, replayed.bytes);
            if found != expected {
                return Err(format!(
                    "{} has version {} after replay, not {}",
                    block(at),
                    found.0,
                    expected.0
                ));
            }
            (state.version, state.bytes) = found;
            let own = || records.iter().filter(|(_, located)| located.record.block == block(at));
            let (first, last) = (own().next().map(|(start, _)| *start), own().next_back());
            state.first = first.filter(|_| replayed.is_owed);
            state.last = last.map(|(_, located)| located.lsn);
        }
        Ok(())
    }
}

/// Returns the groups in batches.
pub(super) fn groups(batches: &[Batch]) -> Vec<LoggedGroup> {
    let mut groups = Vec::new();
    for batch in batches {
        let mut changes = Vec::new();
        for (end, record, is_last) in batch.records() {
            if record.kind == RecordKind::Change {
                changes.push((record.block.0 as usize, record.after.0, record.bytes.to_vec()));
            }
            if is_last {
                let changes = std::mem::take(&mut changes);
                groups.push(LoggedGroup { start: batch.head().lsn, end, changes, is_durable: false });
            }
        }
    }
    groups
}
